"""The official conformance suite against our client: every scenario that is not about OAuth or an extension."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import need_node, need_npm
from tests.running import ROOT

pytestmark = pytest.mark.interop

WAIT = 120.0

SCENARIOS = [
    ("2025-06-18", "initialize"),
    ("2025-06-18", "tools_call"),
    ("2025-11-25", "initialize"),
    ("2025-11-25", "tools_call"),
    ("2025-11-25", "elicitation-sep1034-client-defaults"),
    ("2025-11-25", "sse-retry"),
    ("2025-11-25", "json-schema-2020-12-preservation"),
    ("2026-07-28", "tools_call"),
    ("2026-07-28", "request-metadata"),
    ("2026-07-28", "sep-2322-client-request-state"),
    ("2026-07-28", "http-standard-headers"),
    ("2026-07-28", "http-custom-headers"),
    ("2026-07-28", "http-invalid-tool-headers"),
    ("2026-07-28", "json-schema-ref-no-deref"),
    ("2026-07-28", "json-schema-2020-12-preservation"),
]


@pytest.mark.parametrize(("version", "scenario"), SCENARIOS)
def test_every_check_passes(version: str, scenario: str, tmp_path: Path) -> None:
    program = str(need_npm("@modelcontextprotocol/conformance") / "dist" / "index.js")
    driver = f"{sys.executable} -m tests.conformance.driver"
    words = [need_node(), program, "client", "--command", driver, "--scenario", scenario, "--spec-version", version]

    result = subprocess.run(
        [*words, "-o", str(tmp_path)], capture_output=True, text=True, timeout=WAIT, check=False, cwd=ROOT
    )

    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    (found,) = tmp_path.rglob("checks.json")
    outcomes = [check["status"] for check in json.loads(found.read_text())]
    assert "SUCCESS" in outcomes
    assert not {"FAILURE", "WARNING"} & set(outcomes)
