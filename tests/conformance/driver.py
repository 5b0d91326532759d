"""Our MCP client as the official suite drives it: `python -m tests.conformance.driver URL`."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from openclaw_mcp.core.model import InputRequest, Json
from openclaw_mcp.core.ports import NullCallContext
from openclaw_mcp.mcp.client.client import McpClient
from openclaw_mcp.mcp.client.entry import ServerAddress
from openclaw_mcp.mcp.client.http import McpHttpTransport

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))


class Person(NullCallContext):
    """A user who accepts every form and leaves its defaults as they are."""

    def can_ask(self, capability: str, mode: str = "") -> bool:
        return capability == "elicitation"

    async def ask(self, questions: Mapping[str, InputRequest]) -> Mapping[str, Json]:
        return {key: _accepted(question) for key, question in questions.items()}


def _accepted(question: InputRequest) -> Json:
    fields = question.params.get("requestedSchema", {}).get("properties", {})
    content = {name: field.get("default", True) for name, field in fields.items()}
    return {"action": "accept", "content": content}


def arguments_for(tool: Any) -> Json:
    """Something that fits what the schema requires."""
    samples = {"string": "us-west1", "number": 5, "integer": 5, "boolean": True, "object": {}, "array": []}
    properties = tool.input_schema.get("properties", {})
    required = tool.input_schema.get("required", [])
    return {name: samples[properties[name].get("type", "string")] for name in required if name in properties}


async def main(url: str) -> None:
    client = McpClient("suite", McpHttpTransport("suite", ServerAddress(url=url), connect_wait=10), connect_wait=20)
    await client.open()
    try:
        tools = {tool.name: tool for tool in client.tools}
        calls = [(call["name"], call["arguments"]) for call in CONTEXT.get("toolCalls", [])]
        if SCENARIO == "json-schema-ref-no-deref":
            return  # there is nothing to call: the suite looks whether listing fetched anything
        if SCENARIO == "json-schema-2020-12-preservation":
            focal, echo = tools
            calls = [(echo, {"schema": tools[focal].input_schema})]
        for name, arguments in calls or [(name, arguments_for(tool)) for name, tool in tools.items()]:
            await client.call(name, arguments, context=Person())
    finally:
        await client.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
