"""A maker of messages: mostly sensible, often slightly wrong, sometimes noise."""

import json
import random
from typing import Any

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}, "sampling": {}},
}
METHODS = [
    "initialize", "ping", "tools/list", "tools/call", "server/discover", "prompts/list", "prompts/get",
    "resources/list", "resources/read", "resources/templates/list", "resources/subscribe", "completion/complete",
    "logging/setLevel", "tasks/get", "tasks/update", "tasks/cancel", "no/such", "", "notifications/cancelled",
]  # fmt: skip
WAITING = ["subscriptions/listen"]
TOOLS = ["echo", "greet", "test_simple_text", "test_error_handling", "test_missing_capability", "test_x_mcp_header",
         "test_input_required_result_multi_round", "json_schema_2020_12_tool", "nobody"]  # fmt: skip
KEYS = ["name", "arguments", "uri", "cursor", "level", "ref", "argument", "taskId", "inputResponses", "requestState",
        "protocolVersion", "capabilities", "_meta", "notifications", "requestId", "text"]  # fmt: skip
ODD: list[Any] = [None, True, 0, -1, 1.5, 2**31, 2**63, 2**64, 10**30, "", "x", "\u0000", "\U0001f600", "a" * 300,
                  [], {}, [[]], {"": {}}]  # fmt: skip


class Maker:
    """Same seed, same messages."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def line(self, *, waits: bool) -> bytes:
        """One message's bytes. `waits=False` leaves out methods that never end by themselves."""
        data = json.dumps(self._message(waits)).encode()
        if self._chance.random() < 0.25:
            data = self._mutated(data)
        return data

    def _message(self, waits: bool) -> Any:
        chance = self._chance
        if chance.random() < 0.03:
            return self._value(3)
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": chance.choice(METHODS + (WAITING if waits else []))}
        if chance.random() < 0.9:
            message["id"] = chance.choice([1, "a", chance.randrange(10**6), f"id-{chance.randrange(10**6)}"])
        if chance.random() < 0.9:
            message["params"] = self._params()
        if chance.random() < 0.1:
            message[chance.choice(["jsonrpc", "method", "id", "params", "result", "error"])] = self._value(2)
        if chance.random() < 0.05:
            message.pop(chance.choice(list(message)))
        return message

    def _params(self) -> Any:
        chance = self._chance
        params: dict[str, Any] = {}
        if chance.random() < 0.7:
            params["name"] = chance.choice(TOOLS)
            params["arguments"] = {"text": "hi", "name": "Ada"} if chance.random() < 0.7 else self._value(3)
        if chance.random() < 0.5:
            params["_meta"] = dict(META)
            if chance.random() < 0.2:
                params["_meta"][chance.choice(list(META))] = self._value(2)
        for _ in range(chance.randrange(3)):
            params[chance.choice(KEYS)] = self._value(3)
        return params if chance.random() < 0.95 else self._value(2)

    def _value(self, depth: int) -> Any:
        chance = self._chance
        if depth == 0 or chance.random() < 0.6:
            return chance.choice(ODD)
        if chance.random() < 0.5:
            return [self._value(depth - 1) for _ in range(chance.randrange(4))]
        return {chance.choice([*KEYS, "x", ""]): self._value(depth - 1) for _ in range(chance.randrange(4))}

    def _mutated(self, data: bytes) -> bytes:
        chance = self._chance
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            if not changed:
                break
            place = chance.randrange(len(changed))
            match chance.randrange(4):
                case 0:
                    changed[place] = chance.randrange(256)
                case 1:
                    del changed[place : place + chance.randrange(1, 8)]
                case 2:
                    changed[place:place] = bytes(chance.choices(b'{}[]",:0\\u', k=chance.randrange(1, 6)))
                case _:
                    del changed[place:]
        return bytes(changed)
