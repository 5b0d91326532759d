"""The deployment files: what they name exists, and the front really carries apps and callers to two proxies."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from openclaw_mcp.apps.client import AppTools, Call
from tests import web_client
from tests.apps.proxies import APP_TOKEN, MCP_TOKEN, api, call, calling, free_port, proxy, text
from tests.apps.scripts import in_node
from tests.programs import need
from tests.proxy.engines import Redis
from tests.running import READY_WAIT, ROOT, process, read_line

WAIT = 20.0
BUILD_WAIT = 600.0  # a slow package index, not a stuck one
NGINX_CONF = (ROOT / "deploy" / "nginx.conf").read_text()


def need_nginx() -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")  # where Debian puts it, outside an ordinary user's PATH
        return need("nginx", package="nginx-light")


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def test_what_the_compose_file_names_exists(compose: Any) -> None:
    services = compose["services"]
    settings = (ROOT / "docs" / "reference" / "proxy.md").read_text()

    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= services.keys(), name
        assert set(service["networks"]) <= compose["networks"].keys(), name
        for mount in service.get("volumes", ()):
            assert (ROOT / mount.split(":")[0]).is_file(), mount
        for variable in service.get("environment", ()):
            assert f"`{variable}`" in settings, f"{variable} is no setting of the proxy"
        assert service.get("build", ".") == "."
    waited_for = {name for service in services.values() for name in service.get("depends_on", ())}
    checked = {name for name, service in services.items() if "healthcheck" in service or "build" in service}
    assert waited_for <= checked, "a service is waited for that has no health check"


def test_the_front_knows_the_services_by_their_names(compose: Any) -> None:
    upstreams = re.findall(r"^\s*server ([\w-]+):8000\b", NGINX_CONF, re.MULTILINE)
    built = [name for name, service in compose["services"].items() if "build" in service]

    assert sorted(upstreams) == sorted(built)
    (published,) = compose["services"]["front"]["ports"]
    assert f"listen {published.rpartition(':')[2]};" in NGINX_CONF


# ---- the front, running ----


class Front:
    """nginx with our configuration before two proxies that share a Redis."""

    def __init__(self, url: str, proxies: dict[str, Callable[[], None]]) -> None:
        self.url = url
        self.proxies = proxies
        """Address of an instance to what kills it."""

    def has_bridge(self, address: str) -> bool:
        answer = web_client.send(f"{address}/metrics", "GET", Authorization=f"Bearer {APP_TOKEN}")
        return b"openclaw_proxy_bridges 1" in answer.body


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    nginx = need_nginx()
    redis = Redis()
    with ExitStack() as stack:
        redis.start()
        stack.callback(redis.stop)
        proxies: dict[str, Callable[[], None]] = {}
        conf = NGINX_CONF.replace("/tmp/", f"{tmp_path}/")
        for name in ("proxy-1", "proxy-2"):
            own = stack.enter_context(ExitStack())
            address = own.enter_context(proxy(REDIS_URL=redis.url))
            proxies[address] = own.close
            conf = conf.replace(f"{name}:8000", address.removeprefix("http://"))
        port = free_port()
        conf = conf.replace("listen 8080;", f"listen 127.0.0.1:{port};")
        path = tmp_path / "nginx.conf"
        path.write_text(conf)
        stack.enter_context(process(nginx, "-c", str(path), "-p", str(tmp_path), "-e", "stderr", "-g", "daemon off;"))
        url = f"http://127.0.0.1:{port}"
        until(lambda: web_client.send(f"{url}/health", "GET").body == b"ok")
        yield Front(url, proxies)


def until(condition: Callable[[], bool]) -> None:
    """Wait for something another process does; a refused connection is only too early."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if condition():
                return
        time.sleep(0.05)
    raise AssertionError(f"it did not come true within {WAIT} s")


def test_the_front_carries_a_session_whichever_proxy_is_asked(front: Front) -> None:
    go_on = threading.Event()

    def walk(call: Call) -> str:
        call.progress(1, message="half way")
        return "there" if go_on.wait(WAIT) else "stuck"

    async def hello() -> str:
        return "hello"

    async def main() -> None:
        app = AppTools(front.url, token=APP_TOKEN)
        app.tool(walk)
        app.tool(hello)
        async with app:
            url, id = app.session.mcp_url, app.session.id
            assert url.startswith(front.url)
            for address in (front.url, *front.proxies):
                assert text(await calling(f"{address}/v1/mcp/{id}", "hello")) == "hello"
            body, headers = web_client.stateless("tools/call", {"name": "hello", "arguments": {}})
            headers |= {"Authorization": f"Bearer {MCP_TOKEN}", "MCP_Session_Id": id}
            answer = await asyncio.to_thread(web_client.send, f"{front.url}/v1/mcp", "POST", body, **headers)
            assert answer.json["result"]["content"][0]["text"] == "hello"
            await asyncio.to_thread(stream, url)

    def stream(url: str) -> None:
        """Progress arrives while the call still runs."""
        body, headers = web_client.stateless("tools/call", {"name": "walk", "_meta": {"progressToken": "p"}})
        with web_client.opened(url, "POST", body, **headers, Authorization=f"Bearer {MCP_TOKEN}") as response:
            line = b""
            while b"half way" not in line:
                line = response.readline()
                assert line
            go_on.set()
            assert b"there" in response.read()

    asyncio.run(asyncio.wait_for(main(), 3 * WAIT))
    assert web_client.send(f"{front.url}/v1/chat/sessions", "GET").status == 401
    assert web_client.send(f"{front.url}/metrics", "GET").status == 404


def test_a_proxy_that_dies_takes_no_session_with_it(front: Front) -> None:
    async def hello() -> str:
        return "hello"

    async def main() -> None:
        app = AppTools(front.url, token=APP_TOKEN)
        app.tool(hello)
        async with app:
            session = app.session
            (holder,) = [address for address in front.proxies if front.has_bridge(address)]
            front.proxies.pop(holder)()
            (other,) = front.proxies
            await asyncio.to_thread(until, lambda: front.has_bridge(other))
            assert app.session == session
            assert text(await calling(session.mcp_url, "hello")) == "hello"

    asyncio.run(asyncio.wait_for(main(), 3 * WAIT))


def test_a_script_passes_the_front_with_its_token_in_a_subprotocol(front: Front) -> None:
    with in_node(front.url, APP_TOKEN) as reports:
        url = reports.wait_for("open")["detail"]["mcpUrl"]
        assert text(call(url, "add", {"a": 1, "b": 2})) == "3"
    until(lambda: api(front.url, "GET", "").json["sessions"][0]["connected"] is False)


# ---- the image, by hand ----


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their words, continued lines joined."""
    joined = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def ignored(path: str) -> bool:
    rules = (ROOT / ".dockerignore").read_text().split()
    assert rules[0] == "*"
    return not any(path == rule[1:] for rule in rules if rule.startswith("!"))


@pytest.mark.interop
def test_each_step_of_the_image_works_by_hand(tmp_path: Path) -> None:
    source, venv = tmp_path / "src", tmp_path / "openclaw"
    source.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "OPENCLAW_"))}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    start, health, volume = "", "", ""
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            *names, to = rest.split()
            for name in names:
                assert not ignored(name), f"{name} is copied, yet .dockerignore leaves it out"
                target = source / (name if to == "./" else to)
                target.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
        elif word == "RUN" and "useradd" not in rest:  # this machine needs no such user
            command = rest.replace("/opt/openclaw", str(venv))
            subprocess.run(["sh", "-ec", command], cwd=source, env=environment, check=True, timeout=BUILD_WAIT)
        elif word in ("ENTRYPOINT", "CMD"):
            start += f" {' '.join(json.loads(rest))}"
        elif word == "VOLUME":
            volume = rest
        elif word == "HEALTHCHECK":
            health = json.loads(rest.partition("CMD")[2])[-1]

    port = free_port()
    words = start.replace("--port 8000", f"--port {port}").replace("0.0.0.0", "127.0.0.1").split()
    assert f"OPENCLAW_STATE_DIR={volume}" in dict(instructions()[::-1])["ENV"], "its sessions are in the volume"
    state = tmp_path / "state"
    tokens = {"OPENCLAW_PROXY_APP_TOKEN": "a", "OPENCLAW_PROXY_OPENCLAW_TOKEN": "b", "OPENCLAW_STATE_DIR": str(state)}
    with process(str(venv / "bin" / words[0]), *words[1:], env=environment | tokens, stdout=subprocess.PIPE) as child:
        assert read_line(child, READY_WAIT).decode().split()[-1] == f"http://127.0.0.1:{port}"
        check = [str(venv / "bin" / "python"), "-c", health.replace(":8000/", f":{port}/")]
        subprocess.run(check, check=True, timeout=READY_WAIT)
    assert (state / f"proxy-{port}.sqlite").is_file()
    look = "import redis, importlib.resources as r; print(r.files('openclaw_mcp.apps').joinpath('client.js').is_file())"
    found = subprocess.run([venv / "bin" / "python", "-c", look], cwd=tmp_path, capture_output=True, check=True)
    assert found.stdout.strip() == b"True"
