"""`openclaw status`: who answers, with what credentials, and how the gateway is doing."""

import argparse
import asyncio
from pathlib import Path
from typing import Any

import msgspec

from ..config.file import ConfigFile
from ..core.errors import OpenClawError
from ..core.model import Json
from ..state import state_dir
from . import checkup


def arguments(parser: argparse.ArgumentParser) -> None:
    checkup.connection(parser)


def run(options: argparse.Namespace) -> int:
    return asyncio.run(_told(options, state_dir(options.state_dir)))


async def _told(options: argparse.Namespace, folder: Path) -> int:
    found, status = await checkup.gateway_finding(options, folder)
    findings = [found, *checkup.agents(ConfigFile(folder).read())]
    jobs = None
    if status is not None:
        try:
            jobs = await checkup.ask(options, folder, "cron.status")
        except OpenClawError:
            jobs = None  # a gateway without a clock, or a token that may not look
    if options.json:
        told = {"stateDir": str(folder), "findings": findings, "gateway": status, "cron": jobs}
        print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
    else:
        print(f"state    {folder}")
        print(checkup.written(findings))
        for line in _numbers(status, jobs):
            print(line)
    return 1 if any(finding.level == "error" for finding in findings) else 0


def _numbers(status: Json | None, jobs: Json | None) -> list[str]:
    if status is None:
        return []
    kept: Any = status.get("sessions", {})
    lines = [f"sessions {kept.get('count', 0)}, in {', '.join(kept.get('paths', [])) or 'no store'}"]
    if jobs is not None:
        lines.append(f"cron     {jobs['jobs']} jobs" + ("" if jobs["enabled"] else ", switched off"))
    return lines
