"""`/v1/chat/completions` and `/v1/models`: our agents for programs that use OpenAI's API."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct

from ...core.agent import Attachment, PartialAnswer
from ...core.agents import AgentRoster
from ...core.errors import OpenClawError
from ...core.model import Json
from ...core.rpc import RpcError, RpcMethod
from ...core.session_keys import new_session, normalize_key
from ...core.session_target import child_grant
from ...core.sessions import Run, RunEnded, RunEvent, RunOptions, RunOutput, RunRequest
from ...net import asgi
from ...net.asgi import App, Receive, Scope, Send
from ...net.gateway_client.acting_headers import read_session_address
from ...net.tasks import Tasks
from ...tools.rpc_methods import operator_caller
from ..runs.runs import LocalRunExecutor
from ..sessions.params import AttachmentParams, read_attachments

MAX_RUN_SECONDS: Final = 660.0  # seconds; a run without a limit of its own may take 600
MAX_BODY_BYTES: Final = 25 << 20  # bytes: the largest picture `chat.send` takes, and a conversation beside it


class _InvalidRequest(Exception):
    """Answered with 400."""


class _CompletionRequest(Struct, frozen=True):
    """The fields of a request that are read; each is checked where it is used, with OpenAI's own messages."""

    model: Any = None
    messages: Any = None
    user: Any = None
    stream: Any = None
    stream_options: Any = None

    @property
    def wants_usage(self) -> bool:
        return (self.stream_options or {}).get("include_usage") is True


class ChatCompletionsApi(Struct, frozen=True, kw_only=True):
    """An `RpcModule` with routes and no methods."""

    runs: LocalRunExecutor
    roster: Callable[[], AgentRoster]
    has_token: Callable[[Mapping[str, str]], bool]
    is_enabled: Callable[[], bool]

    def methods(self) -> Sequence[RpcMethod]:
        return ()

    def routes(self) -> Mapping[str, App]:
        return {
            "/v1/chat/completions": self._complete,
            "/v1/models": self._list_models,
            "/v1/models/": self._list_models,
        }

    async def _check_request(self, scope: Scope, send: Send, method: str) -> bool:
        if not self.is_enabled():
            await _send_error(send, 404, "not_found", "this endpoint is switched off in the config")
        elif scope["method"] != method:
            await asgi.send_text(send, "Method Not Allowed", status=405, extra={"allow": method})
        elif not self.has_token(asgi.read_headers(scope)):
            await _send_error(send, 401, "unauthorized", "Unauthorized")
        else:
            return True
        return False

    async def _list_models(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await self._check_request(scope, send, "GET"):
            return
        names = ["openclaw", "openclaw/default", *(f"openclaw/{card.id}" for card in self.roster().agents)]
        models = [{"id": n, "object": "model", "created": 0, "owned_by": "openclaw", "permission": []} for n in names]
        wanted = scope["path"].removeprefix("/v1/models").strip("/")
        if not wanted:
            await asgi.send_json(send, {"object": "list", "data": models})
        elif wanted in names:
            await asgi.send_json(send, models[names.index(wanted)])
        else:
            await _send_error(send, 404, "not_found", f"there is no model {wanted[:100]}")

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await self._check_request(scope, send, "POST"):
            return
        try:
            body = await asgi.read_json(receive, MAX_BODY_BYTES)
            if not isinstance(body, dict):
                raise _InvalidRequest("the body must be a JSON object")
            asked = msgspec.convert(body, _CompletionRequest)
            if not isinstance(asked.stream_options or {}, dict):
                raise _InvalidRequest("`stream_options` must be an object")
            request = self._build_request(asked, asgi.read_headers(scope))
        except asgi.BodyRefused as exc:
            await _send_error(send, exc.status, "invalid_request_error", str(exc))
        except (_InvalidRequest, RpcError) as exc:
            await _send_error(send, 400, "invalid_request_error", str(exc))
        else:
            await self._answer(request, asked, receive, send)

    async def _answer(self, request: RunRequest, asked: _CompletionRequest, receive: Receive, send: Send) -> None:
        """A client that disconnects ends its run."""
        send_answer = self._stream_completion if asked.stream is True else self._send_completion
        async with Tasks("chat completions") as tasks:
            gone = tasks.spawn(_wait_for_disconnect(receive), name="watch for the client")
            work = tasks.spawn(send_answer(request, asked, send), name="answer", on_failure="raise")
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self.runs.abort(request.session.key, run_id=request.run_id)
                return
            try:
                await work
            except OpenClawError as exc:
                with suppress(OSError):
                    await _send_error(send, 503, "unavailable", str(exc))

    async def _send_completion(self, request: RunRequest, asked: _CompletionRequest, send: Send) -> None:
        await self.runs.submit(request)
        run = await self.runs.wait(request.run_id, seconds=MAX_RUN_SECONDS)
        if run is None or run.status != "ok":
            await _send_error(send, 500, "api_error", (run and run.error) or "the agent did not answer in time")
            return
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": run.result.text or ""},
            "finish_reason": "stop",
        }
        answer = _response_base(request, asked, "chat.completion")
        await asgi.send_json(send, {**answer, "choices": [choice], "usage": _usage(run)})

    async def _stream_completion(self, request: RunRequest, asked: _CompletionRequest, send: Send) -> None:
        events: asyncio.Queue[RunEvent] = asyncio.Queue()  # bounded by the run's own output

        def on_event(event: RunEvent) -> None:
            if isinstance(event, RunOutput | RunEnded) and event.run.run_id == request.run_id:
                events.put_nowait(event)

        disconnect = self.runs.events.connect(on_event)
        try:
            await self.runs.submit(request)
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            head = _response_base(request, asked, "chat.completion.chunk")
            async for chunk in _chunks(events, wants_usage=asked.wants_usage):
                line = b"data: " + msgspec.json.encode({**head, **chunk}) + b"\n\n"
                await send({"type": "http.response.body", "body": line, "more_body": True})
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        finally:
            disconnect()

    def _build_request(self, asked: _CompletionRequest, headers: Mapping[str, str]) -> RunRequest:
        roster = self.roster()
        agent = _agent_for_model(asked.model, roster)
        system, earlier, (prompt, files) = _parse_messages(asked.messages)
        place, user = read_session_address({name: (value,) for name, value in headers.items()}), asked.user
        if place is not None:
            key = normalize_key(place.session, roster)
        else:
            rest = f"openai-user:{user}" if isinstance(user, str) and user else f"openai:{uuid.uuid4()}"
            key = normalize_key(rest, roster, agent_id=agent)
            if not user and earlier:  # no stored session: the conversation so far comes with the request
                system = [*system, "The conversation so far:", *earlier]
        who = operator_caller("gateway-token", entry_point="http")
        options = RunOptions(
            sender=who.name, grant=child_grant(who), extra_system_prompt="\n\n".join(system) if system else None
        )
        return RunRequest(
            run_id=str(uuid.uuid4()), session=new_session(key, roster), message=prompt, attachments=files,
            mode="followup", options=options,
        )  # fmt: skip


def _agent_for_model(model: Any, roster: AgentRoster) -> str:
    """A model names an agent."""
    if model in ("openclaw", "openclaw/default", "openclaw:default"):
        return roster.default_id
    for prefix in ("openclaw/", "openclaw:", "agent:"):
        if isinstance(model, str) and model.startswith(prefix):
            name = model.removeprefix(prefix)
            if any(card.id == name for card in roster.agents):
                return name
    raise _InvalidRequest("Invalid `model`. Use `openclaw` or `openclaw/<agentId>`.")


def _parse_messages(messages: Any) -> tuple[list[str], list[str], tuple[str, tuple[Attachment, ...]]]:
    """System texts, the earlier messages, and the last message of the user."""
    given = [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    places = [index for index, message in enumerate(given) if message.get("role") == "user"]
    if not places:
        raise _InvalidRequest("Missing user message in `messages`.")
    system = [_content_text(m.get("content")) for m in given if m.get("role") in ("system", "developer")]
    earlier = [
        f"{message['role']}: {_content_text(message.get('content'))}"
        for message in given[: places[-1]]
        if message.get("role") in ("user", "assistant")
    ]
    last = given[places[-1]].get("content")
    prompt, files = _content_text(last), _read_images(last)
    if not prompt.strip() and not files:
        raise _InvalidRequest("Missing user message in `messages`.")
    return [text for text in system if text], earlier, (prompt, files)


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise _InvalidRequest("a part of type `text` must have its `text`, a string")
    return "\n".join(map(str, texts))


def _read_images(content: Any) -> tuple[Attachment, ...]:
    """Images given as data URLs; nothing is fetched."""
    found = []
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and part.get("type") == "image_url":
            given = part.get("image_url")
            url = given.get("url") if isinstance(given, dict) else given  # some clients give the URL itself
            if not isinstance(url, str) or not url.startswith("data:"):
                raise _InvalidRequest("image_url must be a data: URL; other addresses are not fetched")
            found.append(AttachmentParams(content=url))
    return read_attachments(found)


def _response_base(request: RunRequest, asked: _CompletionRequest, kind: str) -> dict[str, str | int]:
    return {"id": f"chatcmpl_{request.run_id}", "object": kind, "created": int(time.time()), "model": asked.model}


async def _chunks(events: "asyncio.Queue[RunEvent]", *, wants_usage: bool) -> AsyncIterator[Json]:
    yield _delta({"role": "assistant"})
    sent = ""
    while True:
        event = await events.get()
        if isinstance(event, RunOutput):
            if isinstance(event.event, PartialAnswer) and not event.event.replace:
                sent += event.event.text
                yield _delta({"content": event.event.text})
        elif isinstance(event, RunEnded):
            break
    if event.run.status != "ok":
        yield {"error": {"message": event.run.error or "the agent failed", "type": "api_error"}}
        return
    text = event.run.result.text or ""
    if text.startswith(sent) and text != sent:
        yield _delta({"content": text[len(sent) :]})
    yield _delta({}, finish="stop")
    if wants_usage:
        yield {"choices": [], "usage": _usage(event.run)}


def _delta(delta: Json, *, finish: str | None = None) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _usage(run: Run) -> dict[str, int]:
    usage = run.result.usage
    spent = usage.input + usage.output
    return {"prompt_tokens": usage.input, "completion_tokens": usage.output, "total_tokens": spent}


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_error(send: Send, status: int, kind: str, message: str) -> None:
    await asgi.send_json(send, {"error": {"message": message, "type": kind}}, status=status)
