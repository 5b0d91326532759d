"""The server the official conformance suite is run against: every tool, prompt and resource it asks for, on our core.

Run as `python -m tests.conformance.everything PORT`.
"""

import asyncio
import base64
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from openclaw_mcp.core.errors import BadRequest, CannotAsk, PromptNotFound, ResourceNotFound, ToolError
from openclaw_mcp.core.model import (
    Audio,
    Caller,
    Completion,
    ContentBlock,
    Contents,
    Embedded,
    Image,
    InputRequest,
    Json,
    Prompt,
    PromptArgument,
    PromptCall,
    PromptMessage,
    PromptSpec,
    ResourceRead,
    ResourceSpec,
    TaskMode,
    TemplateSpec,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    form_request,
    text_result,
)
from openclaw_mcp.core.ports import CallContext
from openclaw_mcp.core.signal import Signal
from openclaw_mcp.mcp.server.http import McpHttp
from openclaw_mcp.mcp.server.server import McpServer, McpServerInfo
from openclaw_mcp.net import listen
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.registry import ToolRegistry

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)
WAV = base64.b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=")
PICTURE = Image(PNG, "image/png")

NAME_FORM: Json = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
OK_FORM: Json = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
COLOR_FORM: Json = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
CONFIRM_FORM: Json = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "confirm": {"type": "boolean"}},
    "required": ["confirm"],
}

Work = Callable[[ToolCall], Awaitable[ToolResult]]


def one_string(name: str) -> Json:
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


def embedded(uri: str, mime_type: str, text: str) -> Embedded:
    return Embedded(Contents(uri=uri, mime_type=mime_type, text=text))


def sampling(text: str, tokens: int) -> InputRequest:
    message = {"role": "user", "content": {"type": "text", "text": text}}
    return InputRequest("sampling/createMessage", {"messages": [message], "maxTokens": tokens})


class Everything:
    """The tools. A method named after a tool serves it."""

    def __init__(self) -> None:
        self.changed: Signal[None] = Signal()
        self.prompts_changed: Signal[None] = Signal()
        self._specs: list[ToolSpec] = []
        self._work: dict[str, Work] = {}
        self._add_content()
        self._add_talk()
        self._add_questions()
        self._add_tasks()
        self._add_schemas()

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def call(self, call: ToolCall) -> ToolResult:
        return await self._work[call.name](call)

    def add(self, name: str, work: Work, schema: Json | None = None, task: TaskMode = "inline") -> None:
        self._specs.append(
            ToolSpec(
                name=name, description=f"The suite's {name}.", input_schema=schema or {"type": "object"}, task=task
            )
        )
        self._work[name] = work

    # ---- content ----

    def _add_content(self) -> None:
        def answers(name: str, *blocks: ContentBlock) -> None:
            async def work(call: ToolCall) -> ToolResult:
                return ToolResult(blocks)

            self.add(name, work)

        answers("test_simple_text", Text("This is a simple text response for testing."))
        answers("test_image_content", PICTURE)
        answers("test_audio_content", Audio(WAV, "audio/wav"))
        answers(
            "test_embedded_resource",
            embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."),
        )
        answers(
            "test_multiple_content_types",
            Text("Multiple content types test:"),
            PICTURE,
            embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        )

        async def broken(call: ToolCall) -> ToolResult:
            raise ToolError("This tool intentionally returns an error for testing")

        self.add("test_error_handling", broken)

    # ---- logging, progress, changes ----

    def _add_talk(self) -> None:
        async def logging(call: ToolCall) -> ToolResult:
            for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
                await call.context.log("info", text)
            return text_result("done")

        async def progress(call: ToolCall) -> ToolResult:
            for value in (0, 50, 100):
                await call.context.progress(value, total=100, message=f"step {value}")
                await asyncio.sleep(0.02)  # the TypeScript client drops progress that arrives with the result
            return text_result("done")

        async def reconnection(call: ToolCall) -> ToolResult:
            await call.context.detach()
            await asyncio.sleep(0.1)
            return text_result("the result came over a second connection")

        async def tool_change(call: ToolCall) -> ToolResult:
            self.changed.emit(None)
            return text_result("ok")

        async def prompt_change(call: ToolCall) -> ToolResult:
            self.prompts_changed.emit(None)
            return text_result("ok")

        self._add_waits()
        self.add("test_tool_with_logging", logging)
        self.add("test_logging_tool", logging)
        self.add("test_tool_with_progress", progress)
        self.add("test_reconnection", reconnection)
        self.add("test_trigger_tool_change", tool_change)
        self.add("test_trigger_prompt_change", prompt_change)

    def _add_waits(self) -> None:
        """Not the suite's: tools whose running a test can see and steer."""
        waiting: list[str] = []
        second_step = asyncio.Event()

        async def for_ever(call: ToolCall) -> ToolResult:
            waiting.append(call.name)
            try:
                await asyncio.Event().wait()
            finally:
                waiting.pop()
            return text_result("never")

        async def count(call: ToolCall) -> ToolResult:
            return text_result(str(len(waiting)))

        async def two_steps(call: ToolCall) -> ToolResult:
            await call.context.progress(1)
            await second_step.wait()
            return text_result("both steps")

        async def step(call: ToolCall) -> ToolResult:
            second_step.set()
            return text_result("ok")

        self.add("test_wait_for_ever", for_ever)
        self.add("test_count_running", count)
        self.add("test_two_steps", two_steps)
        self.add("test_second_step", step)

    # ---- questions ----

    def _add_questions(self) -> None:
        async def sample(call: ToolCall) -> ToolResult:
            answers = await call.context.ask({"sample": sampling(call.arguments["prompt"], 100)})
            return text_result(f"LLM response: {answers['sample']['content'].get('text', '')}")

        self.add("test_sampling", sample, one_string("prompt"))

        def elicits(name: str, schema: Json, arguments: Json | None = None) -> None:
            async def work(call: ToolCall) -> ToolResult:
                question = form_request(call.arguments.get("message", "Please fill in"), schema)
                answer = (await call.context.ask({"form": question}))["form"]
                return text_result(f"action={answer['action']}, content={json.dumps(answer.get('content', {}))}")

            self.add(name, work, arguments)

        person = {"type": "object", "properties": {"username": {"type": "string"}, "email": {"type": "string"}}}
        elicits("test_elicitation", person, one_string("message"))
        elicits("test_elicitation_sep1034_defaults", DEFAULTS_FORM)
        elicits("test_elicitation_sep1330_enums", ENUMS_FORM)

        self._add_rounds()

    def _add_rounds(self) -> None:
        async def missing(call: ToolCall) -> ToolResult:
            if not call.context.can_ask("sampling"):
                raise CannotAsk("this tool needs sampling", capability="sampling")
            return text_result("ok")

        self.add("test_missing_capability", missing)
        prefix = "test_input_required_result_"
        asks = {
            "test_streaming_elicitation": {"user_name": form_request("What is your name?", NAME_FORM)},
            prefix + "elicitation": {"user_name": form_request("What is your name?", NAME_FORM)},
            prefix + "sampling": {"capital_question": sampling("What is the capital of France?", 100)},
            prefix + "list_roots": {"client_roots": InputRequest("roots/list")},
            prefix + "request_state": {"confirm": form_request("Please confirm", OK_FORM)},
            prefix + "tampered_state": {"confirm": form_request("Please confirm", OK_FORM)},
            prefix + "multiple_inputs": {
                "user_name": form_request("What is your name?", NAME_FORM),
                "greeting": sampling("Generate a greeting", 50),
                "client_roots": InputRequest("roots/list"),
            },
        }
        for name, questions in asks.items():
            self._add_asking(name, questions)

        async def rounds(call: ToolCall) -> ToolResult:
            first = await call.context.ask({"step1": form_request("Step 1: What is your name?", NAME_FORM)})
            second = await call.context.ask(
                {"step2": form_request("Step 2: What is your favourite colour?", COLOR_FORM)}
            )
            return text_result(f"{_content(first, 'step1', 'name')} likes {_content(second, 'step2', 'color')}")

        async def able(call: ToolCall) -> ToolResult:
            questions: dict[str, InputRequest] = {}
            if call.context.can_ask("sampling"):
                questions["sample"] = sampling("Say hello", 50)
            if call.context.can_ask("elicitation"):
                questions["ask"] = form_request("What is your name?", NAME_FORM)
            await call.context.ask(questions)
            return text_result("asked what the client can answer")

        self.add(prefix + "multi_round", rounds)
        self.add(prefix + "capabilities", able)

    def _add_asking(self, name: str, questions: Mapping[str, InputRequest]) -> None:
        async def work(call: ToolCall) -> ToolResult:
            answers = await call.context.ask(questions)
            return text_result(f"state-ok: {json.dumps(dict(answers))}")

        self.add(name, work)

    # ---- the Tasks extension ----

    def _add_tasks(self) -> None:
        async def greet(call: ToolCall) -> ToolResult:
            return text_result(f"Hello, {call.arguments['name']}!")

        async def slow(call: ToolCall) -> ToolResult:
            await asyncio.sleep(call.arguments["seconds"])
            return text_result(f"{call.arguments['label']}: done")

        async def failing(call: ToolCall) -> ToolResult:
            await asyncio.sleep(0.2)
            return text_result("the job failed", failed=True)

        async def broken(call: ToolCall) -> ToolResult:
            raise BadRequest("this job breaks the protocol on purpose")

        async def confirm(call: ToolCall) -> ToolResult:
            await call.context.ask({"confirm": form_request(f"Delete {call.arguments['filename']}?", CONFIRM_FORM)})
            return text_result("deleted")

        async def multiple(call: ToolCall) -> ToolResult:
            await call.context.ask(
                {"one": form_request("First?", CONFIRM_FORM), "two": form_request("Second?", CONFIRM_FORM)}
            )
            return text_result("both answered")

        async def both(call: ToolCall) -> ToolResult:
            answers = await call.context.ask({"user_name": form_request("What is your name?", NAME_FORM)})
            await call.context.detach()
            return text_result(f"Hello, {_content(answers, 'user_name', 'name')}!")

        seconds = {"seconds": {"type": "number"}, "label": {"type": "string"}}
        self.add("greet", greet, one_string("name"))
        self.add("slow_compute", slow, {"type": "object", "properties": seconds}, "offered")
        self.add("failing_job", failing, None, "required")
        self.add("protocol_error_job", broken, None, "offered")
        self.add("confirm_delete", confirm, one_string("filename"), "offered")
        self.add("multi_input", multiple, None, "offered")
        self.add("test_tool_with_task", both)

    def _add_schemas(self) -> None:
        async def ok(call: ToolCall) -> ToolResult:
            return text_result("ok")

        region = {"region": {"type": "string", "x-mcp-header": "Region"}}
        self.add("test_x_mcp_header", ok, {"type": "object", "properties": region})
        self.add("json_schema_2020_12_tool", ok, SCHEMA_2020_12)


class Shelf:
    def __init__(self) -> None:
        self.changed: Signal[None] = Signal()
        self.updated: Signal[str] = Signal()

    async def list(self, caller: Caller) -> Sequence[ResourceSpec]:
        return [
            ResourceSpec(uri="test://static-text", name="static-text", mime_type="text/plain"),
            ResourceSpec(uri="test://static-binary", name="static-binary", mime_type="image/png"),
            ResourceSpec(uri="test://watched-resource", name="watched", mime_type="text/plain"),
        ]

    async def templates(self, caller: Caller) -> Sequence[TemplateSpec]:
        return [TemplateSpec(uri_template="test://template/{id}/data", name="template", mime_type="application/json")]

    async def read(self, read: ResourceRead) -> Sequence[Contents]:
        uri = read.uri
        match uri.removeprefix("test://").split("/"):
            case ["static-text"]:
                text = "This is the content of the static text resource."
                return [Contents(uri=uri, mime_type="text/plain", text=text)]
            case ["static-binary"]:
                return [Contents(uri=uri, mime_type="image/png", blob=PNG)]
            case ["watched-resource"]:
                return [Contents(uri=uri, mime_type="text/plain", text="Watched resource content")]
            case ["template", id, "data"]:
                data = json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})
                return [Contents(uri=uri, mime_type="application/json", text=data)]
        raise ResourceNotFound("Resource not found")


class Book:
    """The prompts."""

    def __init__(self, changed: Signal[None]) -> None:
        self.changed = changed

    async def list(self, caller: Caller) -> Sequence[PromptSpec]:
        names = {
            "test_simple_prompt": (),
            "test_prompt_with_arguments": ("arg1", "arg2"),
            "test_prompt_with_embedded_resource": ("resourceUri",),
            "test_prompt_with_image": (),
            "test_input_required_result_prompt": (),
        }
        return [
            PromptSpec(
                name=name,
                description=f"The suite's {name}.",
                arguments=[PromptArgument(argument, required=True) for argument in arguments],
            )
            for name, arguments in names.items()
        ]

    async def get(self, call: PromptCall) -> Prompt:
        return Prompt(tuple(PromptMessage("user", block) for block in await self._blocks(call.name, call)))

    async def _blocks(self, name: str, call: PromptCall) -> Sequence[ContentBlock]:
        arguments = call.arguments
        match name:
            case "test_simple_prompt":
                return [Text("This is a simple prompt for testing.")]
            case "test_prompt_with_arguments":
                return [Text(f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'")]
            case "test_prompt_with_embedded_resource":
                resource = embedded(arguments["resourceUri"], "text/plain", "Embedded resource content for testing.")
                return [resource, Text("Please process the embedded resource above.")]
            case "test_prompt_with_image":
                return [PICTURE, Text("Please analyze the image above.")]
            case "test_input_required_result_prompt":
                return [Text(f"Context: {await _context(call.context)}")]
        raise PromptNotFound(f"Unknown prompt: {name}")


class Words:
    async def complete(self, caller: Caller, ref: Json, argument: Json, context: Json) -> Completion:
        return Completion((f"{argument['value']}-completed",), total=1)


async def _context(line: CallContext) -> Any:
    question = form_request("What context should the prompt use?", one_string("context"))
    return _content(await line.ask({"user_context": question}), "user_context", "context")


def _content(answers: Mapping[str, Json], key: str, field: str) -> Any:
    return (answers[key].get("content") or {}).get(field)


DEFAULTS_FORM: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
}

ENUMS_FORM: Json = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {
            "type": "string",
            "oneOf": [{"const": "low", "title": "Low"}, {"const": "high", "title": "High"}],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["read", "write"]}},
        "titledMulti": {
            "type": "array",
            "items": {"anyOf": [{"const": "bug", "title": "Bug"}, {"const": "doc", "title": "Doc"}]},
        },
        "legacyEnum": {"type": "string", "enum": ["small", "large"], "enumNames": ["Small", "Large"]},
    },
}

SCHEMA_2020_12: Json = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def server() -> McpServer:
    tools = Everything()
    return McpServer(
        McpServerInfo(name="openclaw-everything", version="1.0.0"),
        ToolDispatcher(ToolRegistry({"suite": tools})),
        resources=Shelf(),
        prompts=Book(tools.prompts_changed),
        completer=Words(),
        instructions="Everything the conformance suite asks for.",
    )


async def main(port: int) -> None:
    listener = listen.bind("127.0.0.1", port)
    address = f"http://localhost:{listener.getsockname()[1]}/mcp"
    await listen.serve(McpHttp(server()), listener, on_ready=lambda: print(address, flush=True))


if __name__ == "__main__":
    listen.run(main(int(sys.argv[1])))
