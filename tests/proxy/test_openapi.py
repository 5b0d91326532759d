"""The API does what its own description says: a fuzzer reads the one and tries the other."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from ..running import OPENCLAW, READY_WAIT, process, read_line

FUZZER = Path(sys.executable).with_name("schemathesis")
EXAMPLES = "40"  # for each operation and phase: a minute's work
WAIT = 600.0


@pytest.mark.interop
def test_a_fuzzer_finds_no_difference_between_the_description_and_the_server(tmp_path: Path) -> None:
    if not FUZZER.exists():
        reason = "schemathesis is not installed (Python package schemathesis)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    variables = {
        "OPENCLAW_PROXY_APP_TOKEN": "fuzz",
        "OPENCLAW_PROXY_OPENCLAW_TOKEN": "other",
        "OPENCLAW_PROXY_AUDIT": "off",
        "OPENCLAW_PROXY_MAX_SESSIONS": "100000",
    }
    with (
        mock.patch.dict(os.environ, variables),
        process(OPENCLAW, "proxy", "--port", "0", stdout=subprocess.PIPE) as child,
    ):
        address = read_line(child, READY_WAIT).decode().split()[-1]
        words = [
            str(FUZZER),
            "run",
            f"{address}/openapi.json",
            "--header",
            "Authorization: Bearer fuzz",
            "--max-examples",
            EXAMPLES,
            "--checks",
            "all",
            # A description can't say that names are unique, nor that a schema is a schema: those are refused with 422.
            "--exclude-checks",
            "positive_data_acceptance",
            "--seed",
            "1",
            "--generation-database",
            ":memory:",
            "--no-color",
        ]
        result = subprocess.run(words, capture_output=True, text=True, timeout=WAIT, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stdout[-6000:]
