"""What a page in the canvas reaches: the public internet and trusted origins, however it asks and whatever it names."""

import asyncio
import contextlib
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.errors import ToolError
from openclaw_mcp.node.canvas import open_browser
from openclaw_mcp.node.canvas.canvas import CanvasCapability
from openclaw_mcp.node.canvas.forward_proxy import ForwardProxy
from tests.node.calling import call
from tests.node.canvas.networks import NAMES, PAGES, PUBLIC, Machine, Site, machine, run, serving
from tests.node.canvas.test_canvas import canvas, value

WAIT = 30.0  # seconds for one thing a page does, on a busy machine
PAUSE = 0.02  # seconds between two looks at where the page is

INNER = (
    "127.0.0.1", "2130706433", "0x7f.1", "0", "[::1]", "[::ffff:127.0.0.1]",
    *(name for name in NAMES if name != "public.example"),
)  # fmt: skip
"""Hosts of which the port of the inner server is not to be reached. `localhost` is trusted, with another port."""

STAYING = {
    "fetch": "fetch(url, {mode: 'no-cors'})",
    "post": "fetch(url, {mode: 'no-cors', method: 'POST', body: 'x'})",
    "https": "fetch(url.replace('http:', 'https:'), {mode: 'no-cors'})",
    "redirected": "fetch('/redirect?' + url, {mode: 'no-cors'})",
    "image": "element('img', {src: url})",
    "script": "element('script', {src: url})",
    "prefetch": "element('link', {rel: 'prefetch', href: url})",
    "frame": "element('iframe', {src: url})",
    "socket": "listener(new WebSocket(url.replace('http', 'ws')))",
    "secure socket": "listener(new WebSocket(url.replace('http', 'wss')))",
    "events": "listener(new EventSource(url))",
    "worker": """new Promise(done => new Worker(URL.createObjectURL(new Blob(
        [`fetch('${url}', {mode: 'no-cors'}).finally(() => postMessage(1))`]))).onmessage = done)""",
    "service worker": """navigator.serviceWorker.register('/worker.js').then(() => navigator.serviceWorker.ready).then(
        found => new Promise(done => { const talk = new MessageChannel(); talk.port1.onmessage = done;
            found.active.postMessage(url, [talk.port2]) }))""",
}
"""Ways to ask for an address. Each is a promise that is settled when there is an answer or a refusal."""

LEAVING = {
    "location": "location.href = url",
    "link": "Object.assign(document.createElement('a'), {href: url}).click()",
    "refresh": "document.head.innerHTML = `<meta http-equiv=refresh content='0;url=${url}'>`",
    "redirect": "location.href = '/redirect?' + url",
    "form": """document.body.innerHTML = `<form method=post action='${url}'>`; document.forms[0].submit()""",
}
"""Ways to take the page itself there."""

HELP = """const element = (name, more) => new Promise((yes, no) =>
    document.body.append(Object.assign(document.createElement(name), {onload: yes, onerror: no, ...more})));
const listener = one => new Promise((yes, no) => Object.assign(one, {onopen: yes, onerror: no}));"""
UNREGISTER = """navigator.serviceWorker.getRegistrations().then(
    found => Promise.all(found.map(one => one.unregister()))).then(() => 1)"""
HINTS = """window.open(url);
    for (const rel of ['preconnect', 'dns-prefetch', 'prerender', 'icon']) void element('link', {rel, href: url})"""


async def left(capability: CanvasCapability, base: str) -> str:
    """Where the page has gone, once it is not at `base` any more."""
    async with asyncio.timeout(WAIT):
        while True:
            with contextlib.suppress(ToolError):  # the page goes away under the script
                if (place := await value(capability, "location.href")) != base:
                    return str(place)
            await asyncio.sleep(PAUSE)


async def tried(capability: CanvasCapability, origin: str, base: str) -> AsyncIterator[str]:
    """Every way to ask for an origin, from a page at `base`; each is named when it has come to its end."""
    await call(capability, "canvas.present", url=base)
    await value(capability, UNREGISTER)
    for way, script in STAYING.items():
        url = json.dumps(f"{origin}/{way if f'/{way}' in PAGES else ''}")
        await value(capability, f"(url => {{ {HELP} return {script}.then(() => 1, () => 0) }})({url})")
        yield way
    await value(capability, f"(url => {{ {HELP} {HINTS} }})({json.dumps(origin + '/hint')})")
    for way, script in LEAVING.items():
        await call(capability, "canvas.present", url=base)
        await value(capability, f"(url => {{ {script} }})({json.dumps(origin + '/')})")
        await left(capability, base)
        yield way


class TrustedPage:
    """A page of a trusted origin in a canvas, from which every host is tried: a browser takes longer than its trial."""

    def __init__(self, runner: asyncio.Runner, capability: CanvasCapability, base: str) -> None:
        self.canvas, self.base, self._runner = capability, base, runner

    def run(self, scene: Coroutine[Any, Any, None]) -> None:
        """On a machine that has seen no host yet."""
        loop = self._runner.get_loop()
        assert isinstance(loop, Machine)
        loop.forget()
        self._runner.run(scene)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrustedPage]:
    with asyncio.Runner(loop_factory=Machine) as runner:
        stack = contextlib.AsyncExitStack()

        async def open_page() -> TrustedPage:
            base = f"http://localhost:{await stack.enter_async_context(serving(Site()))}/"
            folder = tmp_path_factory.mktemp("canvas")
            capability = await stack.enter_async_context(canvas(folder, trusted=[base[:-1]]))
            return TrustedPage(runner, capability, base)

        try:
            yield runner.run(open_page())
        finally:
            runner.run(stack.aclose())


@pytest.mark.parametrize("host", INNER)
def test_no_page_reaches_this_machine_or_its_network(page: TrustedPage, host: str) -> None:
    async def scenario() -> None:
        inner, public = Site(), Site()
        async with serving(inner) as shut, serving(public) as machine().public:
            async for _ in tried(page.canvas, f"http://{host}:{shut}", page.base):
                assert not inner.received
            await call(page.canvas, "canvas.present", url="about:blank")  # which ends what the page still tries
        assert not inner.received
        assert set(machine().connected) <= {"127.0.0.1", PUBLIC}  # the first is that of the trusted origin

    page.run(scenario())


@pytest.mark.parametrize("host", ["public.example", "trusted"])
def test_every_way_reaches_the_internet_and_trusted_origins(tmp_path: Path, host: str) -> None:
    """So the table above is refused for the host's sake, not since a way does not work."""

    async def scenario() -> None:
        trusted, site = Site(), Site()
        async with serving(trusted) as port, serving(site) as other:
            machine().public = other
            base = f"http://localhost:{port}/"
            origin = f"http://{host}:{other}" if host in NAMES else f"http://127.0.0.1:{other}"
            async with canvas(tmp_path, trusted=[base[:-1], f"http://127.0.0.1:{other}"]) as capability:
                before = 0
                async for way in tried(capability, origin, base):
                    assert len(site.received) > before, way
                    before = len(site.received)
                assert (await value(capability, "document.body.innerText")).strip() == "hello"
        received = "".join(site.received).lower()
        assert "proxy-" not in received  # what is sent to the proxy stays there

    run(scenario())


def test_a_host_that_keeps_its_connections_open_gets_no_request_for_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        received: list[str] = []

        async def keep(reader: StreamReader, writer: StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                    received.append(" ".join([head.split(" ")[0], head.partition("Host: ")[2].partition(":")[0]]))
                    if head.startswith("POST"):
                        await reader.readexactly(1)
                    writer.write(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok")

        trusted = Site()
        async with serving(trusted) as port, serving(Site(keep)) as machine().public:
            machine().names["other.example"] = [[PUBLIC]]
            base = f"http://localhost:{port}"
            async with canvas(tmp_path, trusted=[base]) as capability:
                await call(capability, "canvas.present", url=base)
                script = """(async () => { for (const host of ['public', 'public', 'other', 'public', 'other'])
                    for (const method of ['GET', 'POST'])
                        await fetch(`http://${host}.example:81/`, {mode: 'no-cors', method,
                            body: method == 'POST' ? 'x' : undefined}) })()"""
                await value(capability, script)
        assert received == [
            f"{method} {host}.example" for host in ("public", "public", "other", "public", "other")
            for method in ("GET", "POST")
        ]  # fmt: skip

    run(scenario())


def test_pages_that_need_no_network_are_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with canvas(tmp_path) as capability:
            await call(capability, "canvas.present", url="data:text/html,<title>Mine</title>")
            assert await value(capability, "document.title") == "Mine"
            await call(capability, "canvas.present", url="about:blank")
            assert await value(capability, "location.href") == "about:blank"
        assert not machine().connected

    run(scenario())


def test_an_unknown_host_is_reported_as_missing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with canvas(tmp_path) as capability:
            for command in ("canvas.present", "canvas.navigate"):
                with pytest.raises(ToolError, match=r"CANVAS_LOAD_FAILED: the host nobody.example can't be found"):
                    await call(capability, command, url="https://nobody.example/")
            assert capability.browser_pid is None

    run(scenario())


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.received: list[bytes] = []

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.received.append(data)


def test_no_page_sends_datagrams_past_the_proxy(tmp_path: Path) -> None:
    async def scenario() -> None:
        trusted, inner = Site(), Site()
        async with serving(trusted) as port, serving(inner) as shut:
            transport, datagrams = await machine().create_datagram_endpoint(Datagrams, ("127.0.0.1", shut))
            base = f"http://localhost:{port}/"
            calls = """(async () => {
                const server = url => ({urls: url, username: 'u', credential: 'p'});
                const urls = ['stun:127.0.0.1:PORT', 'turn:127.0.0.1:PORT', 'turn:127.0.0.1:PORT?transport=tcp'];
                const peer = new RTCPeerConnection({iceServers: urls.map(server)});
                peer.createDataChannel('x');
                const found = [];
                peer.onicecandidate = one => one.candidate && found.push(one.candidate.candidate);
                const gathered = new Promise(done => peer.onicegatheringstatechange = () =>
                    peer.iceGatheringState === 'complete' && done());
                await peer.setLocalDescription();
                await gathered;
                return found;
            })()"""
            quic = "new WebTransport('https://127.0.0.1:PORT/').ready.then(() => 'in', () => 'out')"
            async with canvas(tmp_path, trusted=[base[:-1]]) as capability:
                await call(capability, "canvas.present", url=base)
                assert await value(capability, calls.replace("PORT", str(shut))) == []
                assert await value(capability, quic.replace("PORT", str(shut))) == "out"
            transport.close()
        assert (datagrams.received, inner.received) == ([], [])

    run(scenario())


@pytest.mark.parametrize("instead", [[], ["--proxy-server=http://127.0.0.1:PORT"], ["--no-proxy-server"]])
def test_a_browser_that_does_not_use_the_proxy_shows_nothing(
    tmp_path: Path, instead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one may that a policy of the machine rules."""
    options = ForwardProxy.options
    monkeypatch.setattr(open_browser, "PAGE_WAIT", 3.0)

    async def scenario() -> None:
        other = Site()
        async with serving(other) as port, canvas(tmp_path) as capability:
            words = [one.replace("PORT", str(port)) for one in instead]
            monkeypatch.setattr(ForwardProxy, "options", lambda self: [*options(self)[1:], *words])
            with pytest.raises(ToolError, match=r"CANVAS_NOT_AVAILABLE: .* proxy"):
                await call(capability, "canvas.present", html="x")
            assert capability.browser_pid is None
        assert not other.received

    run(scenario())
