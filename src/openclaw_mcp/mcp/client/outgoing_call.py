"""One call at another server, and the questions and news that belong to it."""

import asyncio
import contextlib
import hashlib
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from ...core.errors import CannotAsk, InputRequired, OpenClawError, ToolError, ToolUnavailable
from ...core.model import Ask, Caller, Json
from ...core.ports import Line
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import RpcError

PERSON_WAIT: Final = 600.0  # seconds a person may take over a question; the call's own clock stands still meanwhile
NEWS_WAIT: Final = 2.0  # seconds that news already on its way to the caller gets before the result overtakes it
MOST_NEWS: Final = 1000  # progress notes on their way at once; more are dropped, each says only how far it is
MOST_QUESTIONS: Final = 32  # questions one call may ask
REFUSED: Final = -1  # the code MCP's own examples give to a refusal by the person

QUESTIONS: Final = ("elicitation/create", "sampling/createMessage", "roots/list")


class Talk:
    """An `Ear` for one call: progress and log lines go to the caller's line, questions are put to it."""

    def __init__(self, line: Line, caller: Caller) -> None:
        self.line = line
        self.caller = caller
        self.refusal: OpenClawError | None = None
        """What a question met that ends the whole call."""
        self.clock: asyncio.Timeout | None = None
        self.wait = 0.0
        self.work: asyncio.Task[Json] | None = None
        self._asked = 0
        self._news: set[asyncio.Task[None]] = set()

    def capabilities(self) -> Json:
        """What this caller's client can be asked, in the words of the protocol."""
        able: Json = {}
        if self.line.can_ask("elicitation"):
            able["elicitation"] = {"form": {}}
            if self.line.can_ask("elicitation", "url"):
                able["elicitation"]["url"] = {}
        able.update({name: {} for name in ("sampling", "roots") if self.line.can_ask(name)})
        return able

    # ---- news ----

    def hear(self, method: str, params: Json) -> None:
        if method == "notifications/progress":
            self._wind()
            value, total, message = params.get("progress"), params.get("total"), params.get("message")
            if isinstance(value, int | float):
                self._soon(
                    self.line.progress(
                        value,
                        total=total if type(total) in (int, float) else None,
                        message=message if type(message) is str else None,
                    )
                )
        elif method == "notifications/message" and params.get("level") in mcp.LOG_LEVELS:
            name = params.get("logger")
            self._soon(self.line.log(params["level"], params.get("data"), logger=name if type(name) is str else None))

    async def settle(self) -> None:
        """Let news that came before the result be told before it."""
        if self._news:
            await asyncio.wait(self._news, timeout=NEWS_WAIT)

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._news) >= MOST_NEWS:
            work.close()
            return
        task = asyncio.ensure_future(_quietly(work))
        self._news.add(task)
        task.add_done_callback(self._news.discard)

    # ---- questions ----

    async def ask(self, questions: Mapping[str, Any]) -> Json:
        """The stateless era's `inputRequests`, answered under the same keys. Raises what the line raises."""
        asks, names = {}, {}
        for key, value in questions.items():
            method = value.get("method") if type(value) is dict else None
            params = value.get("params", {}) if type(value) is dict else {}
            if method not in QUESTIONS or type(params) is not dict:
                raise ToolError("the server asks something that is no question of MCP's")
            names[key] = self._name(method, params)
            asks[names[key]] = Ask(method, params)
        answers = await self._put(asks)
        return {key: answers[name] for key, name in names.items()}

    async def answer(self, method: str, params: Json) -> Json:
        """A handshake-era server's request."""
        if method not in QUESTIONS:
            return plain_answer(method)
        question = Ask(method, params)  # type: ignore[arg-type]  # checked the line above
        self._wind(stop=True)
        try:
            name = self._name(method, params)
            return (await self._put({name: question}))[name]
        except CannotAsk:
            return declined(method)
        except InputRequired as exc:
            # The caller will send the call again with the answer at hand: this one is over, here and at the server.
            self._refuse(exc)
            raise RpcError(REFUSED, "The call was given up; it will come again") from exc
        except OpenClawError as exc:
            raise RpcError(REFUSED, str(exc)) from exc
        finally:
            self._wind()

    async def _put(self, asks: dict[str, Ask]) -> Mapping[str, Json]:
        try:
            async with asyncio.timeout(PERSON_WAIT):
                return await self.line.ask(asks)
        except TimeoutError:
            raise ToolUnavailable(f"nobody answered within {PERSON_WAIT:g} s") from None

    def _name(self, method: str, params: Json) -> str:
        """A question's key: the same when the call is made again, and another as soon as the question is another."""
        self._asked += 1
        if self._asked > MOST_QUESTIONS:
            raise ToolError(f"the server asks more than {MOST_QUESTIONS} questions in one call")
        asked = jsonrpc.encode([method, params.get("message"), params.get("requestedSchema"), params.get("messages")])
        return f"q{self._asked}-{hashlib.sha256(asked).hexdigest()[:12]}"

    def _refuse(self, reason: OpenClawError) -> None:
        self.refusal = reason
        if self.work is not None:
            self.work.cancel()

    def _wind(self, *, stop: bool = False) -> None:
        """A sign of life: the clock starts again, or stands still."""
        if self.clock is not None:
            with contextlib.suppress(RuntimeError):  # it rang, or the call ended, in this same turn
                self.clock.reschedule(None if stop else asyncio.get_running_loop().time() + self.wait)


def plain_answer(method: str) -> Json:
    """The answer to a request that needs nobody's word. Raises RpcError."""
    if method == "ping":
        return {}
    raise RpcError(jsonrpc.METHOD_NOT_FOUND, f"Method not found: {method}")


def declined(method: str) -> Json:
    """The polite no: nobody can be asked. Raises RpcError where the protocol has no words for it."""
    if method == "elicitation/create":
        return {"action": "cancel"}
    raise RpcError(REFUSED, "Nobody on this connection can answer that")


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(OpenClawError):  # the caller has gone: its call ends by itself
        await work
