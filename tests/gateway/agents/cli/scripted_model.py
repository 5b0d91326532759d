"""A model that does what the prompt says, on loopback: the four model APIs our CLI agents speak.

Directives in the last message of the user, carried out one for each request; between two of them the CLI runs a tool:

    [[call TOOL {"json": "arguments"}]]   call a tool, found by the end of its name
    [[try TOOL {"json": "arguments"}]]    call a tool of exactly that name, whether it was offered or not
    [[say TEXT]]                          answer; {result} is what the last tool said
    [[http 500]]                          answer with that status
    [[hang 30]]                           wait so many seconds before the next one

It keeps no state: the number of tool results after the last message says which directive is due. Requests are kept in
`log` as (path, headers, body).
"""

import json
import re
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

Tools = list[tuple[str, str | None]]

Json = dict[str, Any]
DIRECTIVE = re.compile(r"\[\[(call|try|say|http|hang)\s+")
TOKENS_IN, TOKENS_OUT = 100, 20


class Step(NamedTuple):
    say: str = "ok"
    call: str | None = None
    arguments: Json | None = None
    namespace: str | None = None
    status: int = 200
    pause: float = 0.0
    offered: bool = True
    """Whether only a tool that was offered is called."""


class ModelRequest(NamedTuple):
    """A request, reduced to what the script needs. `tools` are names with the namespace they were declared in."""

    prompt: str
    results: list[str]
    tools: Tools
    model: str


def steps_in(prompt: str) -> list[Step]:
    steps: list[Step] = []
    pause, position = 0.0, 0
    while found := DIRECTIVE.search(prompt, position):
        verb, position = found.group(1), found.end()
        if verb in ("call", "try"):
            name = prompt[position:].split(maxsplit=1)[0].removesuffix("]]")
            position += len(name)
            brace = prompt[position : prompt.find("]]", position)].find("{")
            arguments: Json = {}
            if brace >= 0:
                arguments, position = json.JSONDecoder().raw_decode(prompt, position + brace)
            steps.append(Step(call=name, arguments=arguments, pause=pause, offered=verb == "call"))
        else:
            end = prompt.find("]]", position)
            words, position = prompt[position:end], end
            if verb == "hang":
                pause = float(words)
                continue
            steps.append(Step(say=words, pause=pause) if verb == "say" else Step(status=int(words), pause=pause))
        pause = 0.0
    return [*steps, Step(pause=pause)] if pause else steps


def due(request: ModelRequest) -> Step:
    """A request that declares no tools asks for a title or the like."""
    steps = steps_in(request.prompt)
    if not steps or not request.tools:
        return Step()
    step = steps[min(len(request.results), len(steps) - 1)]
    if step.call is None:
        return step._replace(say=step.say.replace("{result}", request.results[-1] if request.results else ""))
    if len(request.results) >= len(steps):
        return Step(say=f"done: {request.results[-1]}")
    if not step.offered:
        return step._replace(namespace=next((space for name, space in request.tools if name == step.call), None))
    for name, namespace in request.tools:
        if plain(name) == step.call or plain(name).endswith(f"_{step.call}"):
            return step._replace(call=name, namespace=namespace)
    return Step(say=f"no tool {step.call} among {' '.join(name for name, _ in request.tools)}")


def plain(name: str) -> str:
    """As most CLIs write a tool's name; one leaves the dots in it."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def flat(value: Any) -> str:
    """The text of a message or tool result in any shape."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(flat, value)))
    if isinstance(value, dict):
        named = [name for name in ("text", "output", "content", "result", "error") if name in value]
        return flat(value[named[0]]) if named else json.dumps(value)
    return "" if value is None else str(value)


def _gather(turns: Iterator[tuple[str, list[str]]], tools: Tools, model: str) -> ModelRequest:
    """From what the user said and what tools answered, in order."""
    prompt, results = "", list[str]()
    for whole, answers in turns:
        text = whole.rpartition("</earlier>")[2]  # earlier turns are context, not asked again
        if DIRECTIVE.search(text):
            prompt, results = text, []
        results += answers
    return ModelRequest(prompt, results, tools, model)


# ---- the four APIs ---------------------------------------------------------------------------------------------------


def read_anthropic(body: Json) -> ModelRequest:
    def turns() -> Iterator[tuple[str, list[str]]]:
        for message in body.get("messages", []):
            content = message.get("content")
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            if message.get("role") == "user":
                text = "\n".join(part["text"] for part in parts if part.get("type") == "text")
                yield text, [flat(part.get("content")) for part in parts if part.get("type") == "tool_result"]

    tools: Tools = [(tool["name"], None) for tool in body.get("tools") or [] if "name" in tool]
    return _gather(turns(), tools, body.get("model", ""))


def anthropic_events(request: ModelRequest, step: Step) -> Iterator[tuple[str | None, Json]]:
    usage = {"input_tokens": TOKENS_IN, "output_tokens": TOKENS_OUT}
    usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    empty: Json = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": request.model}
    empty |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    if step.call is not None:
        block: Json = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex}", "name": step.call, "input": {}}
        pieces = [{"type": "input_json_delta", "partial_json": json.dumps(step.arguments or {})}]
    else:
        block = {"type": "text", "text": ""}
        pieces = [{"type": "text_delta", "text": piece} for piece in cut(step.say)]
    yield "message_start", {"type": "message_start", "message": empty}
    yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}
    for piece in pieces:
        yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": piece}
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    reason = {"stop_reason": "tool_use" if step.call is not None else "end_turn", "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": reason, "usage": {"output_tokens": TOKENS_OUT}}
    yield "message_stop", {"type": "message_stop"}


def read_responses(body: Json) -> ModelRequest:
    def turns() -> Iterator[tuple[str, list[str]]]:
        for item in body.get("input") or []:
            if item.get("type", "message") == "message" and item.get("role") == "user":
                yield flat(item.get("content")), []
            elif str(item.get("type")).endswith("_call_output"):
                yield "", [flat(item.get("output"))]

    later = [
        tool for item in body.get("input") or [] for tool in item.get("tools") or []
    ]  # declared in the conversation
    tools: Tools = []
    for tool in [*(body.get("tools") or []), *later]:
        inner = tool.get("tools") or [] if tool.get("type") == "namespace" else [tool]
        namespace = tool["name"] if tool.get("type") == "namespace" else None
        tools += [(each["name"], namespace) for each in inner if "name" in each]
    return _gather(turns(), tools, body.get("model", ""))


def responses_events(request: ModelRequest, step: Step) -> Iterator[tuple[str | None, Json]]:
    number, id = iter(range(1000)), f"resp_{uuid.uuid4().hex}"

    def event(kind: str, **fields: Any) -> tuple[str, Json]:
        return kind, {"type": kind, "sequence_number": next(number), **fields}

    def response(status: str, output: list[Json]) -> Json:
        counted: Json = {"input_tokens": TOKENS_IN, "output_tokens": TOKENS_OUT, "total_tokens": TOKENS_IN + TOKENS_OUT}
        counted |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = counted if status == "completed" else None
        return {
            "id": id,
            "object": "response",
            "status": status,
            "model": request.model,
            "output": output,
            "usage": usage,
        }

    if step.call is not None:
        item: Json = {"type": "function_call", "id": f"fc_{uuid.uuid4().hex}", "call_id": f"call_{uuid.uuid4().hex}"}
        item |= {"name": step.call, "arguments": json.dumps(step.arguments or {}), "status": "completed"}
        item |= {"namespace": step.namespace} if step.namespace else {}
        item |= _other_call(step.call, step.arguments or {})
    else:
        content = [{"type": "output_text", "text": step.say, "annotations": []}]
        item = {"type": "message", "id": f"msg_{uuid.uuid4().hex}", "role": "assistant", "content": content}
        item["status"] = "completed"
    yield event("response.created", response=response("in_progress", []))
    yield event("response.output_item.added", output_index=0, item={**item, "status": "in_progress"})
    yield event("response.output_item.done", output_index=0, item=item)
    yield event("response.completed", response=response("completed", [item]))


def _other_call(name: str, arguments: Json) -> Json:
    """How this API writes a call that is no function's: of a tool that takes plain text, or of its own shell."""
    if "plain" in arguments:
        return {"type": "custom_tool_call", "name": name, "input": arguments["plain"]}
    if name == "local_shell":
        return {"type": "local_shell_call", "action": {"type": "exec", **arguments}}
    return {}


def read_chat(body: Json) -> ModelRequest:
    def turns() -> Iterator[tuple[str, list[str]]]:
        for message in body.get("messages", []):
            if message.get("role") == "user":
                yield flat(message.get("content")), []
            elif message.get("role") == "tool":
                yield "", [flat(message.get("content"))]

    tools: Tools = [(tool["function"]["name"], None) for tool in body.get("tools") or []]
    return _gather(turns(), tools, body.get("model", ""))


def chat_events(request: ModelRequest, step: Step) -> Iterator[tuple[str | None, Json]]:
    def chunk(delta: Json, reason: str | None = None) -> tuple[None, Json]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return None, {"id": "chat", "object": "chat.completion.chunk", "model": request.model, "choices": [choice]}

    yield chunk({"role": "assistant", "content": None if step.call else ""})
    if step.call is not None:
        function = {"name": step.call, "arguments": json.dumps(step.arguments or {})}
        call = {"index": 0, "id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
        yield chunk({"tool_calls": [call]})
    else:
        for piece in cut(step.say):
            yield chunk({"content": piece})
    yield chunk({}, "tool_calls" if step.call is not None else "stop")
    usage = {"prompt_tokens": TOKENS_IN, "completion_tokens": TOKENS_OUT, "total_tokens": TOKENS_IN + TOKENS_OUT}
    yield None, {"id": "chat", "object": "chat.completion.chunk", "model": request.model, "choices": [], "usage": usage}


def read_gemini(body: Json, model: str) -> ModelRequest:
    def turns() -> Iterator[tuple[str, list[str]]]:
        for content in body.get("contents") or []:
            if content.get("role", "user") != "user":
                continue
            parts = content.get("parts") or []
            answers = [flat(part["functionResponse"].get("response")) for part in parts if "functionResponse" in part]
            yield "\n".join(part["text"] for part in parts if "text" in part), answers

    declared = [each for tool in body.get("tools") or [] for each in tool.get("functionDeclarations") or []]
    return _gather(turns(), [(each["name"], None) for each in declared], model)


def gemini_events(request: ModelRequest, step: Step) -> Iterator[tuple[str | None, Json]]:
    if step.call is not None:
        call = {"id": f"fc-{uuid.uuid4().hex}", "name": step.call, "args": step.arguments or {}}
        parts: list[Json] = [{"functionCall": call}]
    else:
        parts = [{"text": piece} for piece in cut(step.say)]
    usage = {"promptTokenCount": TOKENS_IN, "candidatesTokenCount": TOKENS_OUT}
    usage["totalTokenCount"] = TOKENS_IN + TOKENS_OUT
    for part in parts:
        candidate: Json = {"content": {"role": "model", "parts": [part]}, "index": 0}
        if part is parts[-1]:
            candidate["finishReason"] = "STOP"
        yield None, {"candidates": [candidate], "modelVersion": request.model, "usageMetadata": usage}


def cut(text: str) -> list[str]:
    return [text[start : start + 12] for start in range(0, len(text), 12)] or [""]


# ---- the server ------------------------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "ScriptedModel"

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self._reply(200, {})

    def do_GET(self) -> None:
        models = [{"id": "fake-model", "type": "model", "object": "model", "display_name": "fake"}]
        self._reply(200, {"object": "list", "data": models, "has_more": False, "models": [{"name": "models/fake"}]})

    def do_POST(self) -> None:
        body = json.loads(self._body() or b"{}")
        path = self.path.partition("?")[0]
        self.server.log.append((path, {name.lower(): value for name, value in self.headers.items()}, body))
        try:
            self._answer(path, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        whole = b""
        while size := int(self.rfile.readline(), 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return whole

    def _answer(self, path: str, body: Json) -> None:
        if path.endswith(("/count_tokens", ":countTokens")):
            self._reply(200, {"input_tokens": TOKENS_IN, "totalTokens": TOKENS_IN})
            return
        if path.endswith("/messages"):
            request, events = read_anthropic(body), anthropic_events
        elif path.endswith("/responses"):
            request, events = read_responses(body), responses_events
        elif path.endswith("/chat/completions"):
            request, events = read_chat(body), chat_events
        elif found := re.search(r"/models/([^/:]+):(?:stream)?[gG]enerateContent$", path):
            request, events = read_gemini(body, found.group(1)), gemini_events
        else:
            self._reply(404, {"error": {"message": f"no {path}"}})
            return
        step = due(request)
        time.sleep(step.pause)
        if step.status != 200 or self.server.key not in (None, self._key()):
            self._refuse(step.status if step.status != 200 else 401)
        else:
            self._stream(list(events(request, step)))

    def _key(self) -> str:
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        return self.headers.get("x-api-key") or self.headers.get("x-goog-api-key") or bearer

    def _refuse(self, status: int) -> None:
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, "api_error")
        google = {401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}.get(status, "INTERNAL")
        error = {"type": kind, "message": f"scripted {status}", "code": status, "status": google}
        self._reply(status, {"type": "error", "error": error})

    def _reply(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, events: list[tuple[str | None, Json]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for name, data in events:
            head = f"event: {name}\n" if name else ""
            self.wfile.write(f"{head}data: {json.dumps(data)}\n\n".encode())
            self.wfile.flush()
        if self.path.endswith("/chat/completions"):
            self.wfile.write(b"data: [DONE]\n\n")


class ScriptedModel(ThreadingHTTPServer):
    """`with ScriptedModel() as model:` serves at `model.url`. `key`: the only API key that is accepted."""

    daemon_threads = True

    def __init__(self, *, key: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.key = key
        self.log: list[tuple[str, dict[str, str], Json]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a CLI that was killed is no news
            super().handle_error(request, client_address)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
        self.server_close()
