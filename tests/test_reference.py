"""The reference knows every variable the code reads."""

import re
from pathlib import Path

import openclaw_mcp
from openclaw_mcp.proxy import settings
from tests.running import ROOT

SOURCE = Path(openclaw_mcp.__file__).parent
VARIABLE = re.compile(r'"((?:OPENCLAW|REMOTECLAW)_[A-Z_]+[A-Z])"')
NOT_SETTINGS = frozenset({"OPENCLAW_LAUNCH", "OPENCLAW_MCP_TOKEN", "OPENCLAW_RUN", "OPENCLAW_SPEECH", "OPENCLAW_TOKEN"})
"""Set by us for programs of our own, kept from others, or the end of a longer name."""


def documented_names() -> set[str]:
    return set(re.findall(r"`([A-Z][A-Z_]+)`", (ROOT / "docs" / "reference" / "environment.md").read_text()))


def test_every_variable_is_in_the_reference() -> None:
    used = {name for path in SOURCE.rglob("*.py") for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}

    assert used - NOT_SETTINGS - documented_names() == set()


def test_every_setting_of_the_proxy_is_in_the_reference() -> None:
    names = re.findall(r'values\.\w+\("([A-Z_]+)"', Path(settings.__file__).read_text(encoding="utf-8"))

    assert {f"{settings.PREFIX}{name}" for name in names} - documented_names() == set()
