"""`/v1/chat/completions` and `/v1/models`: our agents for programs that speak OpenAI's way."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from ...core.agent import Attachment, Partial
from ...core.agents import Roster
from ...core.errors import OpenClawError
from ...core.json_nesting import TooDeep, decode
from ...core.model import Json
from ...core.rpc import Fault, Method
from ...core.session_target import passed_on
from ...core.sessions import Run, RunNews, RunOver, RunRequest, RunSaid
from ...net import asgi
from ...net.asgi import App, Receive, Scope, Send
from ...net.gateway_client.acting_headers import read_place
from ...tools.rpc_methods import operator
from ..runs.runs import Runs
from ..sessions.keys import canonical, new_session
from ..sessions.params import read_attachments

LONGEST_WAIT: Final = 660.0  # seconds; a run without a limit of its own may take 600
LARGEST_BODY: Final = 25 << 20  # bytes: the largest picture `chat.send` takes, and a conversation beside it


class _Refusal(Exception):
    """Answered with 400."""


class Completions:
    """A room with routes and no methods."""

    def __init__(
        self,
        runs: Runs,
        *,
        roster: Callable[[], Roster],
        bears_token: Callable[[Mapping[str, str]], bool],
        offered: Callable[[], bool],
    ) -> None:
        self._runs = runs
        self._roster = roster
        self._bears_token = bears_token
        self._offered = offered

    def methods(self) -> Sequence[Method]:
        return ()

    def routes(self) -> Mapping[str, App]:
        return {"/v1/chat/completions": self._complete, "/v1/models": self._models, "/v1/models/": self._models}

    async def _allowed(self, scope: Scope, send: Send, method: str) -> bool:
        if not self._offered():
            await _refuse(send, 404, "not_found", "this endpoint is switched off in the config")
        elif scope["method"] != method:
            await asgi.answer_text(send, "Method Not Allowed", status=405, extra={"allow": method})
        elif not self._bears_token(asgi.headers_of(scope)):
            await _refuse(send, 401, "unauthorized", "Unauthorized")
        else:
            return True
        return False

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await self._allowed(scope, send, "GET"):
            return
        names = ["openclaw", "openclaw/default", *(f"openclaw/{card.id}" for card in self._roster().agents)]
        models = [{"id": n, "object": "model", "created": 0, "owned_by": "openclaw", "permission": []} for n in names]
        wanted = scope["path"].removeprefix("/v1/models").strip("/")
        if not wanted:
            await asgi.answer_json(send, {"object": "list", "data": models})
        elif wanted in names:
            await asgi.answer_json(send, models[names.index(wanted)])
        else:
            await _refuse(send, 404, "not_found", f"there is no model {wanted[:100]}")

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await self._allowed(scope, send, "POST"):
            return
        try:
            body = decode(await asgi.read_body(receive, LARGEST_BODY))
            if not isinstance(body, dict):
                raise _Refusal("the body must be a JSON object")
            if not isinstance(body.get("stream_options") or {}, dict):
                raise _Refusal("`stream_options` must be an object")
            request = self._request(body, asgi.headers_of(scope))
        except asgi.BodyTooLarge:
            await _refuse(send, 413, "invalid_request_error", f"the body may hold {LARGEST_BODY} bytes")
        except TooDeep as exc:
            await _refuse(send, 400, "invalid_request_error", f"the body can't be kept: {exc}")
        except (msgspec.DecodeError, UnicodeDecodeError):
            await _refuse(send, 400, "invalid_request_error", "the body is not JSON")
        except (_Refusal, Fault) as exc:
            await _refuse(send, 400, "invalid_request_error", str(exc))
        else:
            await self._answer(request, body, receive, send)

    async def _answer(self, request: RunRequest, body: Json, receive: Receive, send: Send) -> None:
        """A client that leaves takes its run with it."""
        work = asyncio.ensure_future(
            self._stream(request, body, send) if body.get("stream") is True else self._whole(request, body, send)
        )
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self._runs.abort(request.session.key, run_id=request.run_id)
                return
            await work
        except OpenClawError as exc:
            with suppress(OSError):
                await _refuse(send, 503, "unavailable", str(exc))
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _whole(self, request: RunRequest, body: Json, send: Send) -> None:
        await self._runs.submit(request)
        run = await self._runs.wait(request.run_id, seconds=LONGEST_WAIT)
        if run is None or run.status != "ok":
            await _refuse(send, 500, "api_error", (run and run.error) or "the agent did not answer in time")
            return
        choice = {"index": 0, "message": {"role": "assistant", "content": _text(run)}, "finish_reason": "stop"}
        answer = _head(request, body, "chat.completion")
        await asgi.answer_json(send, {**answer, "choices": [choice], "usage": _usage(run)})

    async def _stream(self, request: RunRequest, body: Json, send: Send) -> None:
        heard: asyncio.Queue[RunNews] = asyncio.Queue()  # bounded by the run's own output

        def hear(news: RunNews) -> None:
            if isinstance(news, RunSaid | RunOver) and news.run.run_id == request.run_id:
                heard.put_nowait(news)

        quiet = self._runs.news.listen(hear)
        try:
            await self._runs.submit(request)
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            head = _head(request, body, "chat.completion.chunk")
            wants_usage = (body.get("stream_options") or {}).get("include_usage") is True
            async for chunk in _chunks(heard, wants_usage=wants_usage):
                line = b"data: " + msgspec.json.encode({**head, **chunk}) + b"\n\n"
                await send({"type": "http.response.body", "body": line, "more_body": True})
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        finally:
            quiet()

    def _request(self, body: Json, headers: Mapping[str, str]) -> RunRequest:
        roster = self._roster()
        agent = _agent(body.get("model"), roster)
        system, earlier, (prompt, files) = _read(body.get("messages"))
        place, user = read_place({name: (value,) for name, value in headers.items()}), body.get("user")
        if place is not None:
            key = canonical(place.session, roster)
        else:
            rest = f"openai-user:{user}" if isinstance(user, str) and user else f"openai:{uuid.uuid4()}"
            key = canonical(rest, roster, agent_id=agent)
            if not user and earlier:  # no session to remember it: the conversation so far comes with the request
                system = [*system, "The conversation so far:", *earlier]
        who = operator("gateway-token", door="http")
        options: Json = {"sender": who.name, "grant": msgspec.to_builtins(passed_on(who))}
        if system:
            options["extraSystemPrompt"] = "\n\n".join(system)
        return RunRequest(
            run_id=str(uuid.uuid4()), session=new_session(key, roster), message=prompt, attachments=files,
            mode="followup", options=options,
        )  # fmt: skip


def _agent(model: Any, roster: Roster) -> str:
    """A model names an agent."""
    if model in ("openclaw", "openclaw/default", "openclaw:default"):
        return roster.default_id
    for prefix in ("openclaw/", "openclaw:", "agent:"):
        if isinstance(model, str) and model.startswith(prefix):
            name = model.removeprefix(prefix)
            if any(card.id == name for card in roster.agents):
                return name
    raise _Refusal("Invalid `model`. Use `openclaw` or `openclaw/<agentId>`.")


def _read(messages: Any) -> tuple[list[str], list[str], tuple[str, tuple[Attachment, ...]]]:
    """System texts, what was said before, and the last thing the user said."""
    said = [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    places = [index for index, message in enumerate(said) if message.get("role") == "user"]
    if not places:
        raise _Refusal("Missing user message in `messages`.")
    system = [_words(m.get("content")) for m in said if m.get("role") in ("system", "developer")]
    earlier = [
        f"{message['role']}: {_words(message.get('content'))}"
        for message in said[: places[-1]]
        if message.get("role") in ("user", "assistant")
    ]
    last = said[places[-1]].get("content")
    prompt, files = _words(last), _files(last)
    if not prompt.strip() and not files:
        raise _Refusal("Missing user message in `messages`.")
    return [text for text in system if text], earlier, (prompt, files)


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise _Refusal("a part of type `text` must have its `text`, a string")
    return "\n".join(map(str, texts))


def _files(content: Any) -> tuple[Attachment, ...]:
    """Pictures given as data URLs; we fetch nothing."""
    found = []
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and part.get("type") == "image_url":
            given = part.get("image_url")
            url = given.get("url") if isinstance(given, dict) else given  # some write the address straight away
            if not isinstance(url, str) or not url.startswith("data:"):
                raise _Refusal("image_url must be a data: URL; other addresses are not fetched")
            found.append({"content": url})
    return read_attachments(found)


def _head(request: RunRequest, body: Json, kind: str) -> Json:
    return {"id": f"chatcmpl_{request.run_id}", "object": kind, "created": int(time.time()), "model": body["model"]}


async def _chunks(heard: "asyncio.Queue[RunNews]", *, wants_usage: bool) -> AsyncIterator[Json]:
    yield _delta({"role": "assistant"})
    said = ""
    while True:
        news = await heard.get()
        if isinstance(news, RunSaid):
            if isinstance(news.event, Partial) and not news.event.replace:
                said += news.event.text
                yield _delta({"content": news.event.text})
        elif isinstance(news, RunOver):
            break
    if news.run.status != "ok":
        yield {"error": {"message": news.run.error or "the agent failed", "type": "api_error"}}
        return
    text = _text(news.run)
    if text.startswith(said) and text != said:
        yield _delta({"content": text[len(said) :]})
    yield _delta({}, finish="stop")
    if wants_usage:
        yield {"choices": [], "usage": _usage(news.run)}


def _delta(delta: Json, *, finish: str | None = None) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _text(run: Run) -> str:
    return (run.result or {}).get("text") or ""


def _usage(run: Run) -> Json:
    usage = (run.result or {}).get("usage", {})
    spent = usage.get("input", 0), usage.get("output", 0)
    return {"prompt_tokens": spent[0], "completion_tokens": spent[1], "total_tokens": sum(spent)}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, status: int, kind: str, message: str) -> None:
    await asgi.answer_json(send, {"error": {"message": message, "type": kind}}, status=status)
