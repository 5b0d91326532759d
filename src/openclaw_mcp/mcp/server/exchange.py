"""One request being answered: its caller, its envelope, and the way back to its client."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from ...core.errors import CannotAsk, InputRequired, OpenClawError, ToolError, ToolUnavailable
from ...core.model import Caller, InputRequest, Json
from ...core.ports import LogLevel
from ...net.tasks import finish
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import JsonRpcError, JsonRpcRequest

if TYPE_CHECKING:
    from .request_state import CallAnswers

ANSWER_TIMEOUT: Final = 600.0  # a person may be slow to answer a question; the tool's own deadline still counts
CANCEL_TIMEOUT: Final = 1.0  # seconds a client gets to read that a question is no longer asked
MAX_QUESTIONS: Final = 64  # questions of ours a client may leave unanswered at once

WriteMessage = Callable[[bytes], Awaitable[None]]


class Peer:
    """The state a handshake-era connection keeps of its client. The stateless era does not use it."""

    __slots__ = ("_waiting", "accepts_requests", "capabilities", "log_level", "subscriptions", "version")

    def __init__(self, *, version: str = mcp.DEFAULT_HTTP_VERSION, accepts_requests: bool = False) -> None:
        self.version = version
        self.capabilities = mcp.NO_CAPABILITIES
        self.log_level: str | None = None
        self.subscriptions: set[str] = set()
        self.accepts_requests = accepts_requests
        self._waiting: dict[Any, asyncio.Future[Json]] = {}

    def envelope(self, request: JsonRpcRequest) -> mcp.RequestEnvelope:
        return mcp.handshake_envelope(request, version=self.version, capabilities=self.capabilities)

    def apply_initialize(self, params: mcp.InitializeParams) -> None:
        self.version, self.capabilities = params.version, params.capabilities

    async def request(self, question: InputRequest, *, write: WriteMessage) -> Json:
        """Ask the client something and wait for its answer."""
        if len(self._waiting) >= MAX_QUESTIONS:
            raise ToolUnavailable("The client has left too many questions unanswered")
        id = int.from_bytes(os.urandom(6))  # a number every client can hold, and none can guess
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._waiting[id] = answer
        try:
            await write(jsonrpc.encode_request(id, question.method, _legacy_params(question)))
            async with asyncio.timeout(ANSWER_TIMEOUT):
                return await answer
        except asyncio.CancelledError:
            # The question is no longer asked: the client need not show it any more.
            await finish(
                _write_briefly(write, jsonrpc.encode_notification("notifications/cancelled", {"requestId": id}))
            )
            raise
        except TimeoutError:
            raise ToolUnavailable(f"The client did not answer {question.method} within {ANSWER_TIMEOUT:g} s") from None
        finally:
            self._waiting.pop(id, None)

    def handle_response(self, response: jsonrpc.JsonRpcResponse) -> None:
        """Take the client's answer to a question of ours; an unexpected one is dropped."""
        try:
            answer = self._waiting.get(response.id)
        except TypeError:  # an id that is a list or an object
            return
        if answer is None or answer.done():
            return
        if type(response.result) is dict:
            answer.set_result(response.result)
            return
        message = response.error.get("message") if type(response.error) is dict else None
        reason = message if type(message) is str else "no result"
        answer.set_exception(ToolError(f"The client refused the question: {reason[:300]}"))


async def _write_briefly(write: WriteMessage, message: bytes) -> None:
    """A client that does not read, or has gone, holds nothing up."""
    with contextlib.suppress(OpenClawError, OSError, TimeoutError):
        async with asyncio.timeout(CANCEL_TIMEOUT):
            await write(message)


class QuestionsPending(InputRequired):
    """The call is to be sent again with answers to these questions."""

    def __init__(self, questions: Mapping[str, InputRequest]) -> None:
        super().__init__("the call needs answers from the client")
        self.questions = questions


class _Progress(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The parameters of `notifications/progress`."""

    progress_token: str | int
    progress: float
    total: float | None = None
    message: str | None = None


class _LogMessage(Struct, frozen=True, omit_defaults=True):
    """The parameters of `notifications/message`."""

    level: LogLevel
    data: Any
    logger: str | None = None


class Exchange:
    """One request on the way to its answer. A `CallContext` for the tool that serves it."""

    __slots__ = (
        "_close_stream", "_last_progress", "_used_keys", "answers", "caller", "envelope", "headers", "params", "peer",
        "request", "write",
    )  # fmt: skip

    def __init__(
        self,
        request: JsonRpcRequest,
        envelope: mcp.RequestEnvelope,
        caller: Caller,
        *,
        peer: Peer,
        write: WriteMessage,
        headers: Mapping[str, str] | None = None,
        close_stream: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.request = request
        self.params = request.params
        self.envelope = envelope
        self.caller = caller
        self.peer = peer
        self.headers = headers
        """The HTTP headers, lower-case, when the request came over HTTP."""
        self.answers: CallAnswers | None = None
        """Answers that came with a repeated call of the stateless era and the state that asked for them."""
        self._used_keys: set[str] = set()
        self.write = write
        self._close_stream = close_stream
        self._last_progress: float | None = None

    # ---- CallContext ----

    async def progress(self, value: float, *, total: float | None = None, message: str | None = None) -> None:
        token = self.envelope.progress_token
        if token is None or (self._last_progress is not None and value <= self._last_progress):
            return
        self._last_progress = value
        params = _Progress(token, value, total, message)
        await self.write(jsonrpc.encode_notification("notifications/progress", params))

    async def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> None:
        wanted = self.envelope.log_level if self.envelope.stateless else self.peer.log_level or "info"
        if wanted is None or mcp.LOG_LEVELS.index(level) < mcp.LOG_LEVELS.index(wanted):
            return
        await self.write(jsonrpc.encode_notification("notifications/message", _LogMessage(level, data, logger)))

    def can_ask(self, capability: str, mode: str = "") -> bool:
        if not self.envelope.stateless and not self.peer.accepts_requests:
            return False
        return self.envelope.capabilities.can_ask(capability, mode)

    @property
    def asks_within_call(self) -> bool:
        return not self.envelope.stateless

    def require_capabilities(self, questions: Mapping[str, InputRequest]) -> None:
        """Raise CannotAsk unless the client can be asked all of this."""
        for question in questions.values():
            if not self.can_ask(question.capability, question.params.get("mode", "")):
                reason = f"This tool needs a client that declares the capability {question.capability!r}"
                raise CannotAsk(reason, capability=question.capability)

    async def ask(self, questions: Mapping[str, InputRequest]) -> Mapping[str, Json]:
        self.require_capabilities(questions)
        if not self.envelope.stateless:
            return {key: await self.peer.request(question, write=self.write) for key, question in questions.items()}
        keys, found = self._match_answers(questions)
        if len(found) < len(questions):
            raise QuestionsPending({keys[key]: question for key, question in questions.items() if key not in found})
        return found

    def find_answers(self, questions: Mapping[str, InputRequest]) -> Mapping[str, Json] | None:
        """The answers this call came with, if it came with all of these."""
        if self.answers is None:
            return None
        _, found = self._match_answers(questions)
        return found if len(found) == len(questions) else None

    def _match_answers(self, questions: Mapping[str, InputRequest]) -> tuple[Mapping[str, str], dict[str, Json]]:
        """The key each question has on the wire, and the answers to those that were asked before."""
        keys = {key: fresh_key(key, self._used_keys) for key in questions}
        if self.answers is None:
            return keys, {}
        found = {key: self.answers.find(keys[key], question) for key, question in questions.items()}
        return keys, {key: answer for key, answer in found.items() if answer is not None}

    async def detach(self) -> None:
        if self._close_stream is not None:
            await self._close_stream()


def fresh_key(key: str, used_keys: set[str]) -> str:
    """A key not yet in `used_keys`, which it joins: no two questions of a call share an answer."""
    fresh, number = key, 1
    while fresh in used_keys:
        number += 1
        fresh = f"{key}-{number}"
    used_keys.add(fresh)
    return fresh


def _legacy_params(question: InputRequest) -> Json:
    # `mode` came late; older clients reject a form that names it.
    if question.params.get("mode") == "form":
        return {key: value for key, value in question.params.items() if key != "mode"}
    return question.params


def invalid_params(reason: str) -> JsonRpcError:
    return JsonRpcError(jsonrpc.INVALID_PARAMS, f"Invalid params: {reason}")
