"""`openclaw doctor`: what is wrong with this installation, and what to do about it."""

import argparse
import asyncio

import msgspec

from ..state import state_dir
from . import checkup


def arguments(parser: argparse.ArgumentParser) -> None:
    checkup.connection(parser)


def run(options: argparse.Namespace) -> int:
    """Status 1 when anything is broken; what could be better is no failure."""
    folder = state_dir(options.state_dir)
    findings = [*checkup.checkup(folder), asyncio.run(checkup.gateway_finding(options, folder))[0]]
    counts = {level: sum(finding.level == level for finding in findings) for level in ("error", "warning", "ok")}
    if options.json:
        told = {"ok": not counts["error"], "findings": findings, "counts": counts}
        print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
    else:
        print(checkup.written(findings))
        print(f"{counts['error']} errors, {counts['warning']} warnings")
    return 1 if counts["error"] else 0
