"""A real gateway and a client that stays connected, for tests that ask it many things."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests import web_client
from tests.gateway.rpc.gateways import CONNECT
from tests.gateway.wiring.fork_server import forked
from tests.gateway.wiring.test_gateway import Served, environment
from tests.mcp.client.servers import alive
from tests.running import END_WAIT

WAIT = 60.0  # seconds anything here may take
Json = dict[str, Any]


class Refused(Exception):
    """The gateway's error answer; `kind` is its code."""

    def __init__(self, error: Json) -> None:
        super().__init__(error["message"])
        self.kind = error["code"]


class World:
    """The operator's side of a gateway. Events that come meanwhile are kept."""

    def __init__(self, served: Served, socket: ClientConnection) -> None:
        self.served = served
        self.events: list[Json] = []
        self._socket = socket
        self._number = 0

    def ask(self, method: str, /, **params: Any) -> Any:
        self._number += 1
        id = f"r{self._number}"
        self._socket.send(json.dumps({"type": "req", "id": id, "method": method, "params": params}))
        while True:
            frame = self._next()
            if frame.get("id") == id:
                if not frame["ok"]:
                    raise Refused(frame["error"])
                return frame["payload"]

    def _next(self) -> Any:
        frame = json.loads(self._socket.recv(timeout=WAIT))
        if frame["type"] == "event":
            self.events.append(frame)
        return frame

    def until(self, event: str, fits: Callable[[Json], bool] = lambda _: True) -> Json:
        """The first such event, here already or yet to come."""
        start = 0
        end = time.monotonic() + WAIT
        while True:
            for frame in self.events[start:]:
                if frame["event"] == event and fits(frame["payload"]):
                    payload: Json = frame["payload"]
                    return payload
            start = len(self.events)
            assert time.monotonic() < end, f"no such {event} came"
            self._next()

    def configure(self, **sections: Any) -> None:
        """Replace these sections of the config, live."""
        config = self.ask("config.get")
        self.ask("config.set", raw=json.dumps(config["parsed"] | sections), baseHash=config["hash"])

    def say(self, session: str, *lines: str) -> str:
        """Have the demo agent of a session carry these orders out; what it said."""
        run = self.begin(session, *lines)
        return self.answer(run)

    def begin(self, session: str, *lines: str) -> str:
        sent = {"sessionKey": session, "message": "\n".join(lines), "idempotencyKey": _unique()}
        run: str = self.ask("chat.send", **sent)["runId"]
        return run

    def answer(self, run: str) -> str:
        ended = self.ask("agent.wait", runId=run, timeoutMs=int(WAIT * 1000))
        assert ended["status"] == "ok", ended
        return str(ended["terminalReply"]["text"]) if "terminalReply" in ended else ""

    def tool(self, session: str, name: str, /, **arguments: Any) -> Any:
        """Have a session's agent call a tool whose answer is JSON."""
        reply = self.say(session, f"!tool {name} {json.dumps(arguments)}")
        return json.loads(reply)

    def texts(self, session: str, role: str = "assistant") -> list[str]:
        history = self.ask("chat.history", sessionKey=session)
        return [_text(message) for message in history["messages"] if message["role"] == role]

    # ---- other entry points ----

    def invoke(self, name: str, session: str | None = None, /, **arguments: Any) -> Any:
        return self.ask("tools.invoke", name=name, args=arguments, **({"sessionKey": session} if session else {}))

    def post(self, name: str, session: str, /, **arguments: Any) -> web_client.Answer:
        body = {"tool": name, "args": arguments, "sessionKey": session}
        return web_client.send(f"{self.served.http}/tools/invoke", "POST", body, **self.bearer)

    def mcp(self, method: str, session: str | None = None, **params: Any) -> Any:
        headers = {**self.bearer, **({"x_openclaw_session_key": session} if session else {})}
        return web_client.ask(f"{self.served.http}/mcp", method, params, **headers).json

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.served.token}"}

    @property
    def pid(self) -> int:
        return self.served.child.pid


def _text(message: Json) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content)


def _unique() -> str:
    return os.urandom(8).hex()


@contextlib.contextmanager
def serving(folder: Path, **more: str) -> Iterator[Served]:
    """A gateway that is not tested as a program: it need not import its modules."""
    with forked("gateway", "--port", "0", env=environment(folder, **more)) as child:
        yield Served(child, folder)


@contextlib.contextmanager
def joined(served: Served, *scopes: str, token: str | None = None) -> Iterator[World]:
    with connect(served.ws, compression=None, max_size=None, max_queue=None) as socket:
        socket.recv(timeout=WAIT)
        hello = (
            CONNECT
            | {"auth": {"token": token or served.token}, "caps": ["tool-events"]}
            | ({"scopes": scopes} if scopes else {})
        )
        socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": hello}))
        assert json.loads(socket.recv(timeout=WAIT))["ok"]
        yield World(served, socket)


@contextlib.contextmanager
def world(folder: Path, config: Json | None = None) -> Iterator[World]:
    if config is not None:
        (folder / "openclaw.json").write_text(json.dumps(config))
    with serving(folder) as served, joined(served) as client:
        yield client


def children(pid: int) -> set[int]:
    """Every process below one, however far."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= {int(word) for word in task.read_text().split()}
    return found | {below for child in found for below in children(child)}


def comes(true: Callable[[], bool], seconds: float = WAIT) -> bool:
    """Whether it came true in time: for what no event tells."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def gone(pids: set[int]) -> bool:
    return comes(lambda: not any(map(alive, pids)), END_WAIT * 2)
