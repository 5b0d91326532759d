"""One call at another server, with the questions, progress and log messages that belong to it."""

import asyncio
import contextlib
import hashlib
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from ...core.errors import CannotAsk, InputRequired, OpenClawError, ToolError, ToolUnavailable
from ...core.model import Caller, InputRequest, Json
from ...core.ports import CallContext
from ...net.tasks import Tasks
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import JsonRpcError, JsonRpcNotification, JsonRpcRequest

PERSON_WAIT: Final = 600.0  # seconds a person may take over a question; the call's own timeout is paused meanwhile
UPDATE_WAIT: Final = 2.0  # seconds that updates already on their way to the caller get before the result
MAX_UPDATES: Final = 1000  # updates on their way at once; more are dropped, each says only how far the call is
MAX_QUESTIONS: Final = 32  # questions one call may ask
REFUSED_CODE: Final = -1  # the code MCP's own examples give to a refusal by the person

QUESTION_METHODS: Final = ("elicitation/create", "sampling/createMessage", "roots/list")


class OutgoingCall:
    """A `ServerMessageHandler` for one call: progress, log messages and questions are passed to its context."""

    def __init__(self, context: CallContext, caller: Caller) -> None:
        self.context = context
        self.caller = caller
        self.abort_error: OpenClawError | None = None
        """The outcome of a question that ends the whole call."""
        self.timeout: asyncio.Timeout | None = None
        self.timeout_seconds = 0.0
        self.task: asyncio.Task[Any] | None = None
        """What waits for the server's answer."""
        self._question_count = 0
        self._updates = Tasks("MCP call")
        self._ended = False

    def capabilities(self) -> Json:
        """What this caller's client can be asked, as the protocol names it."""
        names = [name for name in ("elicitation", "sampling", "roots") if self.context.can_ask(name)]
        able: Json = {name: {} for name in names}
        if "elicitation" in able:
            able["elicitation"] = (
                {"form": {}, "url": {}} if self.context.can_ask("elicitation", "url") else {"form": {}}
            )
        return able

    # ---- updates ----

    def on_notification(self, notification: JsonRpcNotification) -> None:
        method, params = notification.method, notification.params
        if method == "notifications/progress":
            self._reset_timeout()
            value, total, message = params.get("progress"), params.get("total"), params.get("message")
            if isinstance(value, int | float):
                self._start_update(
                    self.context.progress(
                        value,
                        total=total if type(total) in (int, float) else None,
                        message=message if type(message) is str else None,
                    )
                )
        elif method == "notifications/message" and params.get("level") in mcp.LOG_LEVELS:
            name = params.get("logger")
            self._start_update(
                self.context.log(params["level"], params.get("data"), logger=name if type(name) is str else None)
            )

    async def flush_updates(self) -> None:
        """Updates that came before the result reach the caller before it."""
        await self._updates.finish(UPDATE_WAIT)

    async def aclose(self) -> None:
        self._ended = True
        await self._updates.aclose()

    def _start_update(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._updates) >= MAX_UPDATES or self._ended:
            work.close()
        else:
            self._updates.spawn(_ignore_errors(work), name="update")

    # ---- questions ----

    async def answer_input_requests(self, questions: Mapping[str, Any]) -> Json:
        """The stateless era's `inputRequests`, answered under the same keys. Raises what the context raises."""
        asks, names = {}, {}
        for key, value in questions.items():
            method = value.get("method") if type(value) is dict else None
            params = value.get("params", {}) if type(value) is dict else {}
            if method not in QUESTION_METHODS or type(params) is not dict:
                raise ToolError("the server asks something that is no question of MCP's")
            question = InputRequest(method, params)
            names[key] = self._question_key(question)
            asks[names[key]] = question
        answers = await self._ask_caller(asks)
        return {key: answers[name] for key, name in names.items()}

    async def on_request(self, request: JsonRpcRequest) -> Json:
        """A handshake-era server's request."""
        if request.method not in QUESTION_METHODS:
            return answer_without_caller(request.method)
        question = InputRequest(request.method, request.params)  # type: ignore[arg-type]  # checked the line above
        self._reset_timeout(pause=True)
        try:
            name = self._question_key(question)
            return (await self._ask_caller({name: question}))[name]
        except CannotAsk:
            return answer_without_caller(request.method)
        except InputRequired as exc:
            # The caller will send the call again with the answer at hand: this one is over, here and at the server.
            self._abort(exc)
            raise JsonRpcError(REFUSED_CODE, "The call was given up; it will come again") from exc
        except OpenClawError as exc:
            raise JsonRpcError(REFUSED_CODE, str(exc)) from exc
        finally:
            self._reset_timeout()

    async def _ask_caller(self, questions: dict[str, InputRequest]) -> Mapping[str, Json]:
        try:
            async with asyncio.timeout(PERSON_WAIT):
                return await self.context.ask(questions)
        except TimeoutError:
            raise ToolUnavailable(f"the client did not answer within {PERSON_WAIT:g} s") from None

    def _question_key(self, question: InputRequest) -> str:
        """A question's key: the same when the call is made again, and another as soon as the question is another."""
        self._question_count += 1
        if self._question_count > MAX_QUESTIONS:
            raise ToolError(f"the server asks more than {MAX_QUESTIONS} questions in one call")
        params = question.params
        shown = [question.method, *(params.get(key) for key in ("message", "requestedSchema", "messages"))]
        asked = jsonrpc.encode(shown)
        return f"q{self._question_count}-{hashlib.sha256(asked).hexdigest()[:12]}"

    def _abort(self, error: OpenClawError) -> None:
        self.abort_error = error
        if self.task is not None:
            self.task.cancel()

    def _reset_timeout(self, *, pause: bool = False) -> None:
        """A sign of life: the timeout starts again, or is paused."""
        if self.timeout is not None:
            with contextlib.suppress(RuntimeError):  # it expired, or the call ended, in this same turn
                self.timeout.reschedule(None if pause else asyncio.get_running_loop().time() + self.timeout_seconds)


def answer_without_caller(method: str) -> Json:
    """The answer to a request for which no caller is, or can be, asked. Raises JsonRpcError where there is none."""
    if method == "ping":
        return {}
    if method == "elicitation/create":
        return {"action": "cancel"}
    if method in QUESTION_METHODS:
        raise JsonRpcError(REFUSED_CODE, "No client on this connection can answer that")
    raise JsonRpcError(jsonrpc.METHOD_NOT_FOUND, f"Method not found: {method}")


async def _ignore_errors(work: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(OpenClawError):  # the caller has gone: its call ends by itself
        await work
