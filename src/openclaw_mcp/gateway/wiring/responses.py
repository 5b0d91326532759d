"""`/v1/responses`: our agents for programs that use OpenAI's Responses API, or OpenResponses."""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from ...core.model import Json
from ...core.rpc import RpcError, RpcMethod
from ...core.sessions import Run, RunRequest, RunUsage
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
    send_refusal,
)

RESPONSE_PREFIX: Final = "resp_"
TEXT_PARTS: Final = ("input_text", "output_text", "text")


class _ResponseRequest(Struct, frozen=True):
    """The fields of a request that are read; each is checked where it is used."""

    model: Any = None
    input: Any = None
    instructions: Any = None
    user: Any = None
    stream: Any = None
    tools: Any = None
    previous_response_id: Any = None


class ResponsesApi(Struct, frozen=True, kw_only=True):
    """An `RpcModule` with a route and no methods."""

    openai: OpenAiRuns
    is_enabled: Callable[[], bool]

    def methods(self) -> Sequence[RpcMethod]:
        return ()

    def routes(self) -> Mapping[str, App]:
        return {"/v1/responses": self._respond}

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        enabled = self.is_enabled()
        if not await self.openai.check_request(scope, send, "POST", enabled=enabled, setting="responses"):
            return
        body = await self.openai.read_body(receive, send)
        if body is None:
            return
        asked = msgspec.convert(body, _ResponseRequest)
        try:
            prompt = _read_prompt(asked, session=await self._find_session(asked.previous_response_id))
            request = self.openai.build_run(prompt, asgi.read_headers(scope), family="openresponses")
        except (InvalidRequest, RpcError) as exc:
            await send_refusal(send, exc)
            return
        response = _Response(request.run_id, asked.model)
        answer = self._stream(request, response, send) if asked.stream is True else self._send(request, response, send)
        await self.openai.answer(request, answer, receive, send)

    async def _find_session(self, response_id: Any) -> str | None:
        """The session of an earlier response: its run's. Raises InvalidRequest."""
        if response_id is None:
            return None
        run = None
        if isinstance(response_id, str) and response_id.startswith(RESPONSE_PREFIX):
            run = await self.openai.runs.wait(response_id.removeprefix(RESPONSE_PREFIX), seconds=0)
        if run is None:
            raise InvalidRequest(f"there is no response {str(response_id)[:100]!r}; leave previous_response_id out")
        return run.session_key

    async def _send(self, request: RunRequest, response: "_Response", send: Send) -> None:
        run = await self.openai.run(request)
        if run is None or run.status != "ok":
            await asgi.send_json(send, response.failed(run), status=500)
        else:
            await asgi.send_json(send, response.completed(run.result.text or "", run.result.usage))

    async def _stream(self, request: RunRequest, response: "_Response", send: Send) -> None:
        async with self.openai.stream(request) as pieces:
            await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
            number = 0
            async for event in response.events(pieces):
                data = msgspec.json.encode({**event, "sequence_number": number})
                line = b"event: %s\ndata: %s\n\n" % (event["type"].encode(), data)
                await send({"type": "http.response.body", "body": line, "more_body": True})
                number += 1
            await send({"type": "http.response.body", "body": LAST_EVENT})


class _Response:
    """One response as clients see it, while it is made and afterwards."""

    def __init__(self, run_id: str, model: str) -> None:
        self._head = {
            "id": RESPONSE_PREFIX + run_id, "object": "response", "created_at": int(time.time()), "model": model,
        }  # fmt: skip
        self._item_id = f"msg_{uuid.uuid4()}"

    def completed(self, text: str, usage: RunUsage) -> Json:
        return {**self._head, "status": "completed", "output": [self._message(text)], "usage": _encode_usage(usage)}

    def failed(self, run: Run | None) -> Json:
        error = {"code": "server_error", "message": run_error(run)}
        usage = _encode_usage(RunUsage() if run is None else run.result.usage)
        return {**self._head, "status": "failed", "output": [], "error": error, "usage": usage}

    async def events(self, pieces: AsyncIterator[str | Run]) -> AsyncIterator[Json]:
        begun = {**self._head, "status": "in_progress", "output": [], "usage": _encode_usage(RunUsage())}
        part = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        empty = {"type": "message", "id": self._item_id, "role": "assistant", "content": [], "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": 0, "item": empty}
        yield {"type": "response.content_part.added", **part, "part": _text_part("")}
        async for piece in pieces:
            if isinstance(piece, str):
                yield {"type": "response.output_text.delta", **part, "delta": piece}
            elif piece.status != "ok":
                yield {"type": "response.failed", "response": self.failed(piece)}
            else:
                text = piece.result.text or ""
                yield {"type": "response.output_text.done", **part, "text": text}
                yield {"type": "response.content_part.done", **part, "part": _text_part(text)}
                yield {"type": "response.output_item.done", "output_index": 0, "item": self._message(text)}
                yield {"type": "response.completed", "response": self.completed(text, piece.result.usage)}

    def _message(self, text: str) -> Json:
        return {
            "type": "message", "id": self._item_id, "role": "assistant", "content": [_text_part(text)],
            "phase": "final_answer", "status": "completed",
        }  # fmt: skip


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": []}


def _encode_usage(usage: RunUsage) -> Json:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input + usage.output,
    }


# ---- requests --------------------------------------------------------------------------------------------------------


def _read_prompt(asked: _ResponseRequest, *, session: str | None) -> PromptRequest:
    """Instructions, the earlier items, and the last message of the user. Raises InvalidRequest or RpcError."""
    if asked.tools:
        raise InvalidRequest("`tools` are not taken here: the agent uses its own; leave them out")
    if isinstance(asked.input, str):
        items: list[Json] = [{"role": "user", "content": asked.input}]
    else:
        items = [item for item in asked.input if isinstance(item, dict)] if isinstance(asked.input, list) else []
    places = [index for index, item in enumerate(items) if item.get("role") == "user"]
    if not places:
        raise InvalidRequest("Missing user message in `input`.")
    system = [asked.instructions] if isinstance(asked.instructions, str) else []
    system += [_content_text(item.get("content")) for item in items if item.get("role") in ("system", "developer")]
    content = items[places[-1]].get("content")
    message = _content_text(content)
    attachments = read_attachments([_read_file(part) for part in _parts(content) if part.get("type") not in TEXT_PARTS])
    if not message.strip() and not attachments:
        raise InvalidRequest("Missing user message in `input`.")
    return PromptRequest(
        model=asked.model, system=[text for text in system if text], message=message, attachments=attachments,
        earlier=[line for item in items[: places[-1]] if (line := _earlier_line(item))], user=asked.user,
        session=session,
    )  # fmt: skip


def _earlier_line(item: Json) -> str | None:
    """An item before the last message, as the agent reads it; None for one that is no part of the conversation."""
    if item.get("role") in ("user", "assistant"):
        return f"{item['role']}: {_content_text(item.get('content'))}"
    match item.get("type"):
        case "function_call":
            return f"assistant: (called {item.get('name')} with {item.get('arguments')})"
        case "function_call_output":
            return f"tool: {item.get('output')}"
    return None


def _parts(content: Any) -> list[Json]:
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in _parts(content) if part.get("type") in TEXT_PARTS]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("a part of type `input_text` must have its `text`, a string")
    return "\n".join(map(str, texts))


def _read_file(part: Json) -> AttachmentParams:
    """An image or a file that the request holds itself; nothing is fetched. Raises InvalidRequest."""
    kind, source = part.get("type"), part.get("source")
    if kind not in ("input_image", "input_file"):
        raise InvalidRequest(
            f"a part of type {str(kind)[:40]!r} is not taken; use input_text, input_image or input_file"
        )
    if isinstance(source, dict) and source.get("type") == "base64":  # as OpenResponses writes it
        return AttachmentParams(
            content=source.get("data"), mime_type=source.get("media_type"), name=source.get("filename")
        )
    given = part.get("image_url" if kind == "input_image" else "file_data")
    if not isinstance(given, str) or not given.startswith("data:"):
        raise InvalidRequest(f"{kind} must hold a data: URL or a base64 source; addresses and file ids are not fetched")
    return AttachmentParams(content=given, name=part.get("filename"))
