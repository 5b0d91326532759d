"""What the endpoints of OpenAI's API share: who may ask, the run that answers, its text as it comes."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from msgspec import Struct

from ...core.agent import Attachment, PartialAnswer
from ...core.agents import AgentRoster
from ...core.errors import OpenClawError
from ...core.model import Json
from ...core.rpc import RpcError
from ...core.session_keys import new_session, normalize_key
from ...core.session_target import child_grant
from ...core.sessions import Run, RunEnded, RunEvent, RunOptions, RunOutput, RunRequest
from ...net import asgi
from ...net.asgi import Receive, Scope, Send
from ...net.gateway_client.acting_headers import read_session_address
from ...net.tasks import Tasks
from ...tools.rpc_methods import operator_caller
from ..runs.runs import LocalRunExecutor

MAX_RUN_SECONDS: Final = 660.0  # seconds; a run without a limit of its own may take 600
MAX_BODY_BYTES: Final = 25 << 20  # bytes: the largest picture `chat.send` takes, and a conversation beside it
EVENT_STREAM: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
LAST_EVENT: Final = b"data: [DONE]\n\n"


class InvalidRequest(Exception):
    """Answered with 400."""


class PromptRequest(Struct, frozen=True, kw_only=True):
    """What a request asks, of whom, and where."""

    model: Any
    system: Sequence[str] = ()
    earlier: Sequence[str] = ()
    """The conversation so far, where the gateway does not have it."""
    message: str
    attachments: tuple[Attachment, ...] = ()
    user: Any = None
    """A name that keeps one session."""
    session: str | None = None
    """The key of the session it continues."""


class OpenAiRuns(Struct, frozen=True, kw_only=True):
    runs: LocalRunExecutor
    roster: Callable[[], AgentRoster]
    has_token: Callable[[Mapping[str, str]], bool]

    async def check_request(self, scope: Scope, send: Send, method: str, *, enabled: bool, setting: str) -> bool:
        """Whether it is answered; if not, the refusal has been sent."""
        if not enabled:
            text = f"this endpoint is switched off in the config: set gateway.http.endpoints.{setting}.enabled to true"
            await send_error(send, 404, "not_found", text)
        elif scope["method"] != method:
            await asgi.send_text(send, "Method Not Allowed", status=405, extra={"allow": method})
        elif not self.has_token(asgi.read_headers(scope)):
            await send_error(send, 401, "unauthorized", "Unauthorized")
        else:
            return True
        return False

    async def read_body(self, receive: Receive, send: Send) -> Json | None:
        """The body; None when it can't be used: then the refusal has been sent."""
        try:
            body = await asgi.read_json(receive, MAX_BODY_BYTES)
        except asgi.BodyRefused as exc:
            await send_error(send, exc.status, "invalid_request_error", str(exc))
            return None
        if not isinstance(body, dict):
            await send_error(send, 400, "invalid_request_error", "the body must be a JSON object")
            return None
        return body

    def build_run(self, asked: PromptRequest, headers: Mapping[str, str], *, family: str) -> RunRequest:
        """The run of a request, in the session that a header, `user` or the request names, else in one of its own.
        `family` begins the keys of these. Raises InvalidRequest or RpcError."""
        roster = self.roster()
        agent = _agent_for_model(asked.model, roster)
        system = list(asked.system)
        place, user = read_session_address({name: (value,) for name, value in headers.items()}), asked.user
        if place is not None or asked.session is not None:
            key = normalize_key(place.session if place is not None else str(asked.session), roster)
        else:
            rest = f"{family}-user:{user}" if isinstance(user, str) and user else f"{family}:{uuid.uuid4()}"
            key = normalize_key(rest, roster, agent_id=agent)
            if not user and asked.earlier:
                system += ["The conversation so far:", *asked.earlier]
        who = operator_caller("gateway-token", entry_point="http")
        options = RunOptions(
            sender=who.name, grant=child_grant(who), extra_system_prompt="\n\n".join(system) if system else None
        )
        return RunRequest(
            run_id=str(uuid.uuid4()), session=new_session(key, roster), message=asked.message,
            attachments=asked.attachments, mode="followup", options=options,
        )  # fmt: skip

    async def answer(self, request: RunRequest, work: Coroutine[Any, Any, None], receive: Receive, send: Send) -> None:
        """Do `work`, which sends the answer. A client that disconnects ends its run."""
        async with Tasks("openai api") as tasks:
            gone = tasks.spawn(_wait_for_disconnect(receive), name="watch for the client")
            answering = tasks.spawn(work, name="answer", on_failure="raise")
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                await self.runs.abort(request.session.key, run_id=request.run_id)
                return
            try:
                await answering
            except OpenClawError as exc:
                with suppress(OSError):
                    await send_error(send, 503, "unavailable", str(exc))

    async def run(self, request: RunRequest) -> Run | None:
        """The run once it is over; None when it took too long."""
        await self.runs.submit(request)
        return await self.runs.wait(request.run_id, seconds=MAX_RUN_SECONDS)

    @asynccontextmanager
    async def stream(self, request: RunRequest) -> AsyncIterator[AsyncIterator[str | Run]]:
        """Begin the run. Its text comes piece by piece, and last the run itself."""
        events: asyncio.Queue[RunEvent] = asyncio.Queue()  # bounded by the run's own output

        def on_event(event: RunEvent) -> None:
            if isinstance(event, RunOutput | RunEnded) and event.run.run_id == request.run_id:
                events.put_nowait(event)

        disconnect = self.runs.events.connect(on_event)
        try:
            await self.runs.submit(request)
            yield _text_pieces(events)
        finally:
            disconnect()


async def _text_pieces(events: "asyncio.Queue[RunEvent]") -> AsyncIterator[str | Run]:
    sent = ""
    while True:
        event = await events.get()
        if isinstance(event, RunEnded):
            break
        if isinstance(event, RunOutput) and isinstance(event.event, PartialAnswer) and not event.event.replace:
            sent += event.event.text
            yield event.event.text
    text = event.run.result.text or ""
    if event.run.status == "ok" and text.startswith(sent) and text != sent:
        yield text[len(sent) :]
    yield event.run


def _agent_for_model(model: Any, roster: AgentRoster) -> str:
    """A model names an agent."""
    if model in ("openclaw", "openclaw/default", "openclaw:default"):
        return roster.default_id
    for prefix in ("openclaw/", "openclaw:", "agent:"):
        if isinstance(model, str) and model.startswith(prefix):
            name = model.removeprefix(prefix)
            if any(card.id == name for card in roster.agents):
                return name
    raise InvalidRequest("Invalid `model`. Use `openclaw` or `openclaw/<agentId>`.")


def run_error(run: Run | None) -> str:
    """Why a run gave no answer."""
    return (run and run.error) or ("the agent failed" if run else "the agent did not answer in time")


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_error(send: Send, status: int, kind: str, message: str) -> None:
    await asgi.send_json(send, {"error": {"message": message, "type": kind}}, status=status)


async def send_refusal(send: Send, error: InvalidRequest | RpcError) -> None:
    await send_error(send, 400, "invalid_request_error", str(error))
