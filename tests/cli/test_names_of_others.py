"""What agents, strangers, devices and servers are called neither moves the terminal's cursor nor makes a line."""

import msgspec
import pytest

from openclaw_mcp.cli.channels import PairingList, _show_pairing
from openclaw_mcp.cli.cron_output import format_answer
from openclaw_mcp.cli.report import Finding, format_table, print_findings

EVIL = "a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\rc\nin     matrix"


def check(shown: str, lines: int) -> None:
    assert len(shown.splitlines()) == lines, shown
    assert all(char == "\n" or char.isprintable() for char in shown)


def test_jobs_and_their_runs() -> None:
    job = {
        "id": "1",
        "name": EVIL,
        "schedule": {"kind": "every", "everyMs": 1000},
        "state": {"lastRunStatus": "error", "lastError": EVIL},
    }
    run = {"jobId": "1", "ts": 0, "jobName": EVIL, "error": EVIL, "summary": "fine"}

    check(format_answer("list", {"jobs": [job], "total": 1}), 1)
    check(format_answer("runs", {"entries": [run]}), 3)


def test_senders_who_ask_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"channel": "matrix", "sender": EVIL, "name": EVIL, "code": "ABC", "at": 0}

    _show_pairing(msgspec.convert({"requests": [row], "approved": [row]}, PairingList))

    check(capsys.readouterr().out, 2)


def test_tables() -> None:
    check(format_table([("name",), (EVIL,)]), 2)


def test_findings(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([Finding(area="clients", state="attention", says=EVIL.replace("\n", ""), remedy="x")])

    check(capsys.readouterr().out, 2)
