"""`openclaw status`: what runs here, whether each part answers, and who would answer an order."""

import argparse
import asyncio
import http.client
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from .. import __version__
from ..config import redaction
from ..config.file import ConfigFile, Snapshot
from ..config.locations import store_location
from ..core.model import Json
from ..net.state_dir import state_dir
from . import doctor_agents, doctor_files, run_state, store_file
from .probe import GatewayProbe, arguments, probe_gateway
from .report import Finding, attention, findings_to_json, fine, has_problems, note, print_findings

__all__ = ["arguments", "run"]

ANSWER_TIMEOUT: Final = 5.0  # seconds for a surface to say anything at all


def run(options: argparse.Namespace) -> int:
    folder = state_dir(options.state_dir)
    snapshot = ConfigFile(folder).read()
    seen = asyncio.run(probe_gateway(folder, snapshot.config, url=options.url, token=options.token))
    findings = list(_collect_findings(folder, snapshot, seen))
    if options.json:
        print(json.dumps(_json_report(folder, seen, findings), indent=2, ensure_ascii=False))
    else:
        print_findings(findings)
        if has_problems(findings):
            print("openclaw doctor looks closer.")
    return 1 if has_problems(findings) else 0


def _collect_findings(folder: Path, snapshot: Snapshot, probe: GatewayProbe) -> Iterator[Finding]:
    yield from _check_surfaces(folder)
    yield from _check_gateway(probe)
    yield _check_sessions(folder, snapshot, probe)
    yield from _check_channels(probe)
    yield from _check_cron(probe)
    if snapshot.is_valid:
        yield from doctor_agents.check_agents(
            snapshot.config, redaction.redact_secrets(snapshot.parsed, redaction.MASK)
        )
    else:
        yield from doctor_files.check_config(snapshot)


def _json_report(folder: Path, probe: GatewayProbe, findings: list[Finding]) -> Json:
    up = run_state.read(folder)
    return {
        "version": __version__,
        "ok": not has_problems(findings),
        "stateDirectory": str(folder),
        "up": None if up is None else up.pid,
        "gateway": {
            "url": probe.url,
            "answers": probe.answers,
            "version": probe.version or None,
            "health": probe.health,
        },
        "channels": probe.channels,
        "cron": probe.cron,
        "findings": findings_to_json(findings),
    }


def _check_surfaces(folder: Path) -> Iterator[Finding]:
    up = run_state.read(folder)
    if up is None:
        yield note("up", "openclaw up does not run with this state directory", "openclaw up -d starts every surface")
        return
    yield fine("up", f"process {up.pid}, since {_format_time(up.started * 1000)}")
    for surface in up.surfaces:
        if not surface.address:
            yield note(surface.name, f"{run_state.OFF_LABEL}: {surface.use}")
        elif _has_http_server(surface.address):
            yield fine(surface.name, f"{surface.address}, {surface.use}")
        else:
            words = f"{surface.address} does not answer within {ANSWER_TIMEOUT:g} s"
            yield attention(surface.name, words, "see openclaw logs; openclaw down and openclaw up start it anew")


def _has_http_server(address: str) -> bool:
    """Whether an HTTP server is there. What it says to a stranger does not matter."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=ANSWER_TIMEOUT)
    try:
        connection.request("GET", place.path or "/")
        return connection.getresponse().status > 0
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _check_gateway(probe: GatewayProbe) -> Iterator[Finding]:
    if probe.answers:
        if probe.health.get("ok", True):
            yield fine("gateway", f"{probe.title} at {probe.url} is well")
        else:
            yield attention("gateway", f"{probe.title} at {probe.url} says it is not well", "see openclaw logs")
    elif probe.is_configured or probe.is_listening:
        yield attention("gateway", probe.problem, "openclaw doctor says who is there; give its address and token")
    else:
        words = f"none at {probe.url}; orders are carried out by the agent in the server's own process"
        yield note("gateway", words, "openclaw up starts one")


def _check_sessions(folder: Path, snapshot: Snapshot, probe: GatewayProbe) -> Finding:
    if probe.answers:
        count = (probe.health.get("sessions") or {}).get("count")
        return fine("sessions", f"{'some' if count is None else count}; openclaw sessions lists them")
    where = store_location(folder, snapshot.config)
    if "://" not in where and not Path(where).exists():
        return note("sessions", "none yet")
    try:
        return fine("sessions", f"{len(store_file.read_sessions(where))} in {where}; openclaw sessions lists them")
    except store_file.NoStore as exc:
        return attention("sessions", str(exc), "openclaw doctor looks closer")


def _check_channels(probe: GatewayProbe) -> Iterator[Finding]:
    for name in probe.channels.get("channelOrder") or ():
        accounts = (probe.channels.get("channelAccounts") or {}).get(name) or ()
        for account in accounts:
            state = account.get("state") or ("running" if account.get("running") else "stopped")
            words = f"{name} {account.get('accountId', '')} {state}"
            trouble = account.get("lastError")
            yield note("channels", f"{words}: {trouble}") if trouble else fine("channels", words)
    for issue in probe.issues:
        yield attention("channels", issue, "openclaw channels shows each; correct its settings with openclaw config")


def _check_cron(probe: GatewayProbe) -> Iterator[Finding]:
    if not probe.cron:
        return
    if not probe.cron.get("enabled", True):
        yield note("cron", "switched off", "openclaw config set cron.enabled true")
        return
    due = probe.cron.get("nextWakeAtMs")
    words = f"next at {_format_time(due)}" if due else "nothing is due"
    yield fine("cron", f"{probe.cron.get('jobs', 0)} jobs, {words}")


def _format_time(ms: Any) -> str:
    return datetime.fromtimestamp(float(ms) / 1000).astimezone().isoformat(sep=" ", timespec="minutes")
