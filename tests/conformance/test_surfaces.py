"""The official suite on the servers that users really run. `docs/reference/conformance.md` says which scenarios apply.

Most scenarios call tools, prompts and resources of the suite's own, which these servers do not have. A scenario may
fail for that reason alone; anything else that fails is a fault.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from ..programs import need_node, need_npm
from ..running import ROOT
from .surfaces import SURFACES
from .test_suite import NEW, WAIT

pytestmark = pytest.mark.interop

PAGE = ROOT / "docs" / "reference" / "conformance.md"
REVISIONS = ("2025-11-25", "2026-07-28")
BEARER = Path(__file__).with_name("bearer.cjs")

ABSENT = re.compile(
    r"""Unknown\ (tool|prompt):\ test_ | Tool\ not\ available:\ test_ | Tool\ '\w+'\ not\ found\.\ Available
    | Method\ not\ found:\ (prompts|resources|completion)/ | ^Not\ testable: | ^Prerequisite\ failed
    | nothing\ at\ test:// | no\ such\ resource""",
    re.VERBOSE,
)
"""How a check puts it that something of the suite's own, or a whole part of MCP, is not there."""
CONSEQUENCES = {
    "sep-2322-multi-round-r1": "its tool is not there",
    "sep-2322-missing-response-rerequests": "its tool is not there",
    "sep-2575-server-sends-tools-list-changed-on-subscription": "the tool that changes the list is not there",
    "sep-2575-server-sends-prompts-list-changed-on-subscription": "the tool that changes the list is not there",
    "sep-2164-error-code": "there are no resources at all",
    "sep-2164-data-uri": "there are no resources at all",
    "localhost-host-valid-accepted": "node and order answer no web page, not even one of this machine",
}
"""Checks that fail for the same reasons and do not say so."""

Checks = dict[str, list[dict[str, str]]]


def run_suite(address: str, token: str, revision: str, out: Path) -> Checks:
    """The checks of each scenario, by its name."""
    program = need_npm(NEW) / "dist" / "index.js"
    words = ["server", "--url", address, "--suite", "all", "--spec-version", revision, "-o", str(out)]
    env = {**os.environ, "SUITE_TOKEN": token, "SUITE_ADDRESS": address}
    subprocess.run(
        [need_node(), "--require", str(BEARER), str(program), *words],
        env=env,
        capture_output=True,
        timeout=WAIT,
        check=False,
    )
    found = {path.parent.name: json.loads(path.read_text()) for path in out.rglob("checks.json")}
    return {re.sub(r"^server-|-2\d{3}-\d\d-\d\dT.*$", "", name): checks for name, checks in found.items()}


def failed(checks: list[dict[str, str]]) -> list[dict[str, str]]:
    return [check for check in checks if check["status"] in ("FAILURE", "WARNING")]


def succeeded(checks: list[dict[str, str]]) -> bool:
    return not failed(checks) and any(check["status"] == "SUCCESS" for check in checks)


def documented(surface: str) -> list[str]:
    """The scenarios that apply to it, of either revision."""
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {surface} |"))
    return sorted(re.findall(r"`([\w-]+)`", row.split("|")[3]))


@pytest.mark.parametrize("surface", SURFACES)
def test_a_real_server_passes_what_applies_to_it(surface: str, tmp_path: Path) -> None:
    passed: set[str] = set()
    with SURFACES[surface](tmp_path / "state") as (address, token):
        for revision in REVISIONS:
            scenarios = run_suite(address, token, revision, tmp_path / revision)
            assert len(scenarios) > 30
            faults = [
                f"{revision} {name}: {check['id']}: {check.get('errorMessage')}"
                for name, checks in scenarios.items()
                for check in failed(checks)
                if check["id"] not in CONSEQUENCES and not ABSENT.search(check.get("errorMessage") or "")
            ]
            assert not faults, "\n".join(faults)
            passed |= {name for name, checks in scenarios.items() if succeeded(checks)}
    assert sorted(passed) == documented(surface)
