"""`/v1/chat/completions` and `/v1/models`: our agents for programs that use OpenAI's API."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ...core.agent import Attachment
from ...core.model import Json
from ...core.rpc import RpcError, RpcMethod
from ...core.sessions import Run, RunRequest
from ...net import asgi
from ...net.asgi import App, Receive, Scope, Send
from ..sessions.params import AttachmentParams, read_attachments
from .openai_runs import (
    EVENT_STREAM,
    LAST_EVENT,
    InvalidRequest,
    OpenAiRuns,
    PromptRequest,
    run_error,
    send_error,
    send_refusal,
)


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

    openai: OpenAiRuns
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
        return await self.openai.check_request(
            scope, send, method, enabled=self.is_enabled(), setting="chatCompletions"
        )

    async def _list_models(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await self._check_request(scope, send, "GET"):
            return
        names = ["openclaw", "openclaw/default", *(f"openclaw/{card.id}" for card in self.openai.roster().agents)]
        models = [{"id": n, "object": "model", "created": 0, "owned_by": "openclaw", "permission": []} for n in names]
        wanted = scope["path"].removeprefix("/v1/models").strip("/")
        if not wanted:
            await asgi.send_json(send, {"object": "list", "data": models})
        elif wanted in names:
            await asgi.send_json(send, models[names.index(wanted)])
        else:
            await send_error(send, 404, "not_found", f"there is no model {wanted[:100]}")

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await self._check_request(scope, send, "POST"):
            return
        body = await self.openai.read_body(receive, send)
        if body is None:
            return
        asked = msgspec.convert(body, _CompletionRequest)
        try:
            if not isinstance(asked.stream_options or {}, dict):
                raise InvalidRequest("`stream_options` must be an object")
            request = self.openai.build_run(_read_prompt(asked), asgi.read_headers(scope), family="openai")
        except (InvalidRequest, RpcError) as exc:
            await send_refusal(send, exc)
            return
        send_answer = self._stream_completion if asked.stream is True else self._send_completion
        await self.openai.answer(request, send_answer(request, asked, send), receive, send)

    async def _send_completion(self, request: RunRequest, asked: _CompletionRequest, send: Send) -> None:
        run = await self.openai.run(request)
        if run is None or run.status != "ok":
            await send_error(send, 500, "api_error", run_error(run))
            return
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": run.result.text or ""},
            "finish_reason": "stop",
        }
        answer = _response_base(request, asked, "chat.completion")
        await asgi.send_json(send, {**answer, "choices": [choice], "usage": _usage(run)})

    async def _stream_completion(self, request: RunRequest, asked: _CompletionRequest, send: Send) -> None:
        async with self.openai.stream(request) as pieces:
            await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
            head = _response_base(request, asked, "chat.completion.chunk")
            async for chunk in _chunks(pieces, wants_usage=asked.wants_usage):
                line = b"data: " + msgspec.json.encode({**head, **chunk}) + b"\n\n"
                await send({"type": "http.response.body", "body": line, "more_body": True})
            await send({"type": "http.response.body", "body": LAST_EVENT})


def _read_prompt(asked: _CompletionRequest) -> PromptRequest:
    """System texts, the earlier messages, and the last message of the user."""
    messages = asked.messages
    given = [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    places = [index for index, message in enumerate(given) if message.get("role") == "user"]
    if not places:
        raise InvalidRequest("Missing user message in `messages`.")
    system = [_content_text(m.get("content")) for m in given if m.get("role") in ("system", "developer")]
    earlier = [
        f"{message['role']}: {_content_text(message.get('content'))}"
        for message in given[: places[-1]]
        if message.get("role") in ("user", "assistant")
    ]
    last = given[places[-1]].get("content")
    prompt, files = _content_text(last), _read_images(last)
    if not prompt.strip() and not files:
        raise InvalidRequest("Missing user message in `messages`.")
    return PromptRequest(
        model=asked.model, system=[text for text in system if text], earlier=earlier, message=prompt,
        attachments=files, user=asked.user,
    )  # fmt: skip


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("a part of type `text` must have its `text`, a string")
    return "\n".join(map(str, texts))


def _read_images(content: Any) -> tuple[Attachment, ...]:
    """Images given as data URLs; nothing is fetched."""
    found = []
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and part.get("type") == "image_url":
            given = part.get("image_url")
            url = given.get("url") if isinstance(given, dict) else given  # some clients give the URL itself
            if not isinstance(url, str) or not url.startswith("data:"):
                raise InvalidRequest("image_url must be a data: URL; other addresses are not fetched")
            found.append(AttachmentParams(content=url))
    return read_attachments(found)


def _response_base(request: RunRequest, asked: _CompletionRequest, kind: str) -> dict[str, str | int]:
    return {"id": f"chatcmpl_{request.run_id}", "object": kind, "created": int(time.time()), "model": asked.model}


async def _chunks(pieces: AsyncIterator[str | Run], *, wants_usage: bool) -> AsyncIterator[Json]:
    yield _delta({"role": "assistant"})
    async for piece in pieces:
        if isinstance(piece, str):
            yield _delta({"content": piece})
        elif piece.status != "ok":
            yield {"error": {"message": run_error(piece), "type": "api_error"}}
        else:
            yield _delta({}, finish="stop")
            if wants_usage:
                yield {"choices": [], "usage": _usage(piece)}


def _delta(delta: Json, *, finish: str | None = None) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _usage(run: Run) -> dict[str, int]:
    usage = run.result.usage
    spent = usage.input + usage.output
    return {"prompt_tokens": usage.input, "completion_tokens": usage.output, "total_tokens": spent}
