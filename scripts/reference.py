"""Write the reference pages that code knows best: commands, methods, tools, config keys.

`python scripts/reference.py` writes them into `docs/reference/`; `--check` only says whether they are up to date.
"""

import argparse
import asyncio
import importlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from openclaw_mcp.cli.commands import COMMANDS, Parser
from openclaw_mcp.config.key_permissions import class_of
from openclaw_mcp.config.parsing import ConfigPath as Place
from openclaw_mcp.config.schema import ConfigSchema
from openclaw_mcp.core.config.keys import FREE
from openclaw_mcp.core.model import ToolSpec
from openclaw_mcp.core.rpc import RpcMethod
from openclaw_mcp.gateway.wiring.assembly import AssembledGateway, GatewayOptions, assemble_gateway
from openclaw_mcp.node.host import LocalNode
from openclaw_mcp.node.settings import NodeSettings
from openclaw_mcp.order.order_tool import ORDER_TOOL

FOLDER: Final = Path(__file__).parent.parent / "docs" / "reference"
WRITTEN: Final = "Written by `scripts/reference.py`; change the code, then run `make reference`.\n"
Json = dict[str, Any]


def commands() -> str:
    """Each command with its options."""
    parts = [
        "# Commands\n",
        WRITTEN,
        "Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted. Reporting commands take `--json`. A flag wins",
        "over the environment, the environment over the config file; [the variables](environment.md).\n",
    ]
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"openclaw_mcp.cli.{name.replace('-', '_')}")
        parser = Parser(prog=f"openclaw {name}", description=summary, allow_abbrev=False)
        module.arguments(parser)
        parts += [f"## openclaw {name}\n", f"{summary[0].upper()}{summary[1:]}.\n", *_options(parser)]
        for verb in _verbs(parser):
            parts += [f"### {verb.prog}\n", *_options(verb)]
    return "\n".join(parts)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """The options as a table; laid out here, since each Python lays out its help in another way."""
    rows = []
    for action in parser._actions:  # noqa: SLF001 - argparse tells its options no other way
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):  # noqa: SLF001
            continue
        value = action.metavar or (action.dest.upper() if action.option_strings and action.nargs != 0 else "")
        named = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        shown = f"{named} {value}".strip() if action.option_strings else named
        help = parser._get_formatter()._expand_help(action) if action.help else ""  # noqa: SLF001
        chosen = f" One of {', '.join(map(str, action.choices))}." if action.choices else ""
        rows.append(f"| `{shown}` | {_cell(help + chosen)} |")
    return ["| option | |", "|---|---|", *rows, ""] if rows else []


def _verbs(parser: argparse.ArgumentParser) -> Iterable[argparse.ArgumentParser]:
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield from dict.fromkeys(action.choices.values())


def methods(offered: Sequence[RpcMethod]) -> str:
    """Each method of the gateway."""
    rows = [
        f"| `{method.name}` | {(method.scope or 'any').removeprefix('operator.')} | {method.role} "
        f"| {'' if method.advertised else 'not in hello-ok'}{_limit(method)} |"
        for method in sorted(offered, key=lambda method: method.name)
    ]
    return "\n".join(
        [
            "# Methods of the gateway\n",
            WRITTEN,
            "How they are called: [gateway wire](gateway-wire.md). How each compares with a real OpenClaw's:",
            "[compatibility](compatibility.md). Scope `admin` covers all, `write` covers `read`.\n",
            "| method | scope | role | |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _limit(method: RpcMethod) -> str:
    return "" if method.per_minute is None else f" at most {method.per_minute} a minute"


def tools(own_tools: Sequence[ToolSpec]) -> str:
    """Each tool of each surface."""
    with TemporaryDirectory() as place:
        node = LocalNode(Path(place), NodeSettings())
        machine = node.capabilities.all_specs()
    parts = ["# Tools\n", WRITTEN, "Those of `remoteclaw-mcp-server` have [a page of their own](claw-tools.md).\n"]
    for title, specs in (
        ("The node: `openclaw node`", machine),
        ("The order: `openclaw mcp-server`", [ORDER_TOOL]),
        ("The gateway's own: `/mcp`, `tools.invoke`, agents", own_tools),
    ):
        parts += [f"## {title}\n", *(_tool(spec) for spec in specs)]
    return "\n".join(parts)


def _tool(spec: ToolSpec) -> str:
    required = set(spec.input_schema.get("required", ()))
    properties: Json = spec.input_schema.get("properties", {})
    rows = []
    for name, schema in properties.items():
        must = " (required)" if name in required else ""
        rows.append(f"| `{name}`{must} | {_kind(schema)} | {_cell(schema.get('description', ''))} |")
    table = ["", "| parameter | type | |", "|---|---|---|", *rows] if rows else []
    return "\n".join([f"### {spec.name}\n", _flat(spec.description), *table, ""])


def config() -> str:
    """Each key of openclaw.json."""
    rows = list(_keys(ConfigSchema().json_schema, "", ()))
    return "\n".join(
        [
            "# Config keys\n",
            WRITTEN,
            "The file and its commands: [config](config.md). `*` stands for a name or number of yours. A change takes",
            "effect at once, unless a row says that the gateway restarts for it. The last column is for agents: `free`",
            "keys they may change for the owner, the others need a person, for the reason given",
            "([why](../explanation/tool-policy.md#what-an-agent-may-change-of-the-rules)).\n",
            "| key | type | default | | | agents |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _keys(schema: Json, path: str, place: Place) -> Iterable[str]:
    for name, below in schema.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        default = "" if "default" not in below else f"`{below['default']}`"
        restart = "restart" if below.get("x-reload") == "restart" else ""
        yield (
            f"| `{where}` | {_kind(below)} | {default} | {_cell(below.get('title', ''))} | {restart} "
            f"| {_for_agents(below, (*place, name))} |"
        )
        yield from _keys(below, where, (*place, name))
    for key, step in (("items", 0), ("additionalProperties", "*")):
        if isinstance(schema.get(key), dict):
            yield from _keys(schema[key], f"{path}.*", (*place, step))


def _for_agents(schema: Json, place: Place) -> str:
    """Who may change it; nothing for an object whose keys have rows of their own."""
    inner = [schema, schema.get("items"), schema.get("additionalProperties")]
    if any(isinstance(one, dict) and one.get("properties") for one in inner):
        return ""
    why = class_of(place)
    return "free" if why == FREE else why


def _kind(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    if "enum" in schema:
        return " · ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema.get("anyOf") or schema["oneOf"]))
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _flat(text).replace("|", "\\|")


async def _offered() -> tuple[Sequence[RpcMethod], Sequence[ToolSpec]]:
    """What a gateway with nothing configured offers."""
    with TemporaryDirectory() as place:
        async with assemble_gateway(
            GatewayOptions(folder=Path(place), token="t" * 64), "ws://127.0.0.1:1"
        ) as assembled:
            return assembled.gateway.rpc_server.methods, _gateway_tools(assembled)


def _gateway_tools(assembled: AssembledGateway) -> Sequence[ToolSpec]:
    return [offer.spec for offers in assembled.gateway.registry.tools_by_name().values() for offer in offers]


def main() -> int:
    os.environ.pop("OPENCLAW_GATEWAY_PORT", None)
    offered, own_tools = asyncio.run(_offered())
    pages = {
        "commands.md": commands(), "methods.md": methods(offered), "tools.md": tools(own_tools),
        "config-keys.md": config(),
        "openclaw.schema.json": json.dumps(ConfigSchema().json_schema, indent=2, ensure_ascii=False) + "\n",
    }  # fmt: skip
    stale = []
    for name, text in pages.items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    print(f"reference: {', '.join(stale) if stale else 'up to date'}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
