"""A page in the canvas starts no program of this machine, and its browser knows none of the node's secrets."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.errors import ToolError
from openclaw_mcp.node.canvas.canvas import CanvasCapability
from openclaw_mcp.node.canvas.open_browser import prepare_profile
from tests.node.calling import call, virtual_screen
from tests.node.canvas.test_canvas import NO_SCREEN, canvas, value
from tests.node.exec.evaluating import script

WAIT = 30.0  # seconds for one thing a page does, on a busy machine
PAUSE = 0.02  # seconds between two looks at where the page is
HELPERS = ("xdg-open", "xdg-email", "gio", "gnome-open", "kde-open", "sensible-browser")
SECRET = "a-secret-of-the-node"

WAYS = {
    "location": "location.href = url",
    "a click": "Object.assign(document.createElement('a'), {href: url}).click()",
    "refresh": "document.head.innerHTML = `<meta http-equiv=refresh content='0;url=${url}'>`",
    "form": "document.body.innerHTML = `<form action='${url}'>`; document.forms[0].submit()",
    "a window": "window.open(url); location.href = url",
    "a frame": "document.body.append(Object.assign(document.createElement('iframe'), {src: url})); location.href = url",
}


class Helpers:
    """Stand-ins for the programs a desktop starts for an address; they write down that they were started."""

    def __init__(self, folder: Path) -> None:
        self._called = folder / "called"
        (folder / "bin").mkdir(parents=True)
        for name in HELPERS:
            script(folder / "bin" / name, f'echo "{name} $*" >> {self._called}')
        path = f"{folder}/bin:{NO_SCREEN['PATH']}"
        self.environ = {**NO_SCREEN, "PATH": path, "OPENCLAW_GATEWAY_TOKEN": SECRET, "MY_API_KEY": SECRET}

    @property
    def called(self) -> str:
        return self._called.read_text() if self._called.exists() else ""


async def settled(capability: CanvasCapability, helpers: Helpers) -> Any:
    """Where the page is, once it was led away or a program was started."""
    async with asyncio.timeout(WAIT):
        while not helpers.called:
            with contextlib.suppress(ToolError):  # the page goes away under the script
                if (place := await value(capability, "location.href")).startswith("chrome-error:"):
                    return place
            await asyncio.sleep(PAUSE)
    return None


async def lead(capability: CanvasCapability, helpers: Helpers, url: str, way: str) -> None:
    await call(capability, "canvas.present", html="<body>hello")
    with contextlib.suppress(ToolError):
        await value(capability, f"(url => {{ {WAYS[way]}; return 1 }})({json.dumps(url)})")
    await settled(capability, helpers)


def variables(pid: int | None) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


Lead = Callable[[str, str], str]


@pytest.fixture(scope="module")
def lead_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lead]:
    """Leads the page of one canvas to an address by a way; the programs that it has started so far."""
    folder = tmp_path_factory.mktemp("canvas")
    helpers = Helpers(folder / "desk")
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()

        async def open_canvas() -> CanvasCapability:
            return await stack.enter_async_context(canvas(folder / "state", environ=helpers.environ))

        made = runner.run(open_canvas())

        def lead_it(url: str, way: str) -> str:
            runner.run(lead(made, helpers, url, way))
            return helpers.called

        try:
            yield lead_it
        finally:
            runner.run(stack.aclose())


@pytest.mark.parametrize("way", WAYS)
def test_an_address_of_another_program_starts_nothing(lead_one: Lead, way: str) -> None:
    for url in ("mailto:a@b?attach=/etc/passwd", "tel:1", "vscode://x", "ssh://host", "magnet:?x"):
        assert not lead_one(url, way)


def test_it_starts_nothing_in_a_window_or_after_a_restart_either(tmp_path: Path) -> None:
    helpers = Helpers(tmp_path / "desk")

    async def test(environ: dict[str, str]) -> None:
        for _ in range(2):
            async with canvas(tmp_path / "state", environ=environ) as capability:
                await lead(capability, helpers, "mailto:a@b", "location")

    with virtual_screen(1000, 700) as screen:
        asyncio.run(test({**helpers.environ, "DISPLAY": screen["DISPLAY"]}))
    assert not helpers.called


def test_the_browser_gets_no_secret_of_the_node(tmp_path: Path) -> None:
    helpers = Helpers(tmp_path / "desk")
    environ = {
        **helpers.environ,
        "SSH_AUTH_SOCK": SECRET,
        "HTTPS_PROXY": f"http://me:{SECRET}@proxy",
        "LANG": "C.UTF-8",
    }

    async def test() -> None:
        async with canvas(tmp_path / "state", environ=environ) as capability:
            await call(capability, "canvas.present", html="<body>hello")
            known = variables(capability.browser_pid)
            assert "LANG=C.UTF-8" in known
            assert SECRET not in known

    asyncio.run(test())


@pytest.mark.parametrize(
    "before", [None, "", "{", "[]", '{"policy": 1}', '{"policy": {"url_allowlist": ["mailto:*"]}}']
)
def test_what_a_profile_held_before_does_not_matter(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "Default/Preferences"
    if before is not None:
        path.parent.mkdir()
        path.write_text(before)

    prepare_profile(tmp_path)

    lists = json.loads(path.read_text())["policy"]
    assert lists["url_blocklist"] == ["*"]
    assert not any(each.startswith("mailto") for each in lists["url_allowlist"])


def test_what_else_a_profile_holds_stays(tmp_path: Path) -> None:
    prepare_profile(tmp_path)
    path = tmp_path / "Default/Preferences"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mine": {"a": 1}}))

    prepare_profile(tmp_path)

    assert json.loads(path.read_text())["mine"] == {"a": 1}
