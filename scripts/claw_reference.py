"""Write docs/reference/claw-tools.md from the tools themselves; `--check` only says whether it is up to date."""

import sys
from pathlib import Path

from openclaw_mcp.core.claw_catalogue import CLAW_TOOLS
from openclaw_mcp.core.claw_tool import ClawTool
from openclaw_mcp.core.model import Json

PATH = Path(__file__).parent.parent / "docs" / "reference" / "claw-tools.md"
SECTIONS = {"": "Sessions", "message": "Messages", "cron": "Cron", "gateway": "Gateway"}
HEAD = """# The 29 tools of a CLI agent

Made by `scripts/claw_reference.py`; do not edit. `remoteclaw-mcp-server` offers these to the agent that starts it; see
[Give a CLI agent the gateway](../how-to/give-a-cli-agent-the-gateway.md). A result is the gateway's answer: as indented
JSON in a text block, and the same as structured content. What goes wrong is a result with `isError` whose text begins
`Tool error (<tool>):`.

Parameters in **bold** are required. *Also taken*: other names for a parameter. An object or a list may be given as its
JSON text. A tool is listed when the gateway offers its methods; where several ways stand, any will do.
"""


def main() -> int:
    text = page()
    stale = not PATH.exists() or PATH.read_text(encoding="utf-8") != text
    if stale and "--check" not in sys.argv:
        PATH.write_text(text, encoding="utf-8")
    print(f"claw-tools.md: {'stale' if stale and '--check' in sys.argv else 'written' if stale else 'up to date'}")
    return 1 if stale and "--check" in sys.argv else 0


def page() -> str:
    parts = [HEAD]
    for parent, title in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        parts += [entry(tool) for tool in CLAW_TOOLS.values() if tool.parent == parent]
    return "".join(parts)


def entry(tool: ClawTool) -> str:
    spec = tool.spec
    schema = spec.input_schema
    required = schema.get("required", ())
    rows = "".join(row(name, field, tool, must=name in required) for name, field in schema["properties"].items())
    table = f"\n| parameter | type | |\n|---|---|---|\n{rows}" if rows else ""
    methods = " or ".join(", ".join(f"`{method}`" for method in each) for each in tool.methods)
    return f"\n### {spec.name}\n\n{spec.description}\n{table}\n{describe_effect(tool)} Methods: {methods}.\n"


def row(name: str, field: Json, tool: ClawTool, *, must: bool) -> str:
    others = [f"`{other}`" for other, own in tool.aliases.items() if own == name]
    also = f" *Also taken:* {', '.join(others)}." if others else ""
    choice = f" One of {', '.join(f'`{word}`' for word in field['enum'])}." if "enum" in field else ""
    shown = f"**{name}**" if must else name
    return f"| {shown} | {field['type']} | {field['description'].replace('|', '/')}{choice}{also} |\n"


def describe_effect(tool: ClawTool) -> str:
    hints = tool.spec.annotations or {}
    sentences = ["Reads only." if hints["readOnlyHint"] else "Changes things."]
    if hints.get("destructiveHint"):
        sentences.append("What it changes may be lost.")
    if tool.spec.owner_only:
        sentences.append("For the owner.")
    if tool.records:
        sentences.append(f"Recorded as `{tool.records}`.")
    return " ".join(sentences)


if __name__ == "__main__":
    sys.exit(main())
