"""`openclaw status`: what runs here, whether each part answers, and which agent an order would reach."""

import argparse
import asyncio
import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from .. import __version__
from ..config import redaction
from ..config.file import ConfigFile, Snapshot
from ..config.locations import store_location
from ..core.model import Json
from ..net.state_dir import existing_state_dir
from . import doctor_agents, doctor_files, report, run_state, store_file
from .probe import GatewayProbe, arguments, probe_gateway

__all__ = ["arguments", "run"]

ANSWER_TIMEOUT: Final = 5.0  # seconds for a surface to answer


def run(options: argparse.Namespace) -> int:
    folder = existing_state_dir(options.state_dir)
    snapshot = ConfigFile(folder, key=b"the hash is not shown").read()
    seen = asyncio.run(probe_gateway(folder, snapshot.config, url=options.url, token=options.token))
    findings = list(_collect_findings(folder, snapshot, seen))
    if options.json:
        report.print_json(_json_report(folder, seen, findings))
    else:
        report.print_findings(findings)
        if report.has_problems(findings):
            print("openclaw doctor checks more.")
    return 1 if report.has_problems(findings) else 0


def _collect_findings(folder: Path, snapshot: Snapshot, probe: GatewayProbe) -> Iterator[report.Finding]:
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


def _json_report(folder: Path, probe: GatewayProbe, findings: list[report.Finding]) -> Json:
    up = run_state.read(folder)
    return {
        "version": __version__,
        "ok": not report.has_problems(findings),
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
        "findings": report.findings_to_json(findings),
    }


def _check_surfaces(folder: Path) -> Iterator[report.Finding]:
    up = run_state.read(folder)
    if up is None:
        yield report.note(
            "up", "openclaw up does not run with this state directory", "openclaw up -d starts every surface"
        )
        return
    yield report.fine("up", f"process {up.pid}, since {report.format_time(up.started * 1000)}")
    for surface in up.surfaces:
        if not surface.address:
            yield report.note(surface.name, f"{run_state.OFF_LABEL}: {surface.use}")
        elif _has_http_server(surface.address):
            yield report.fine(surface.name, f"{surface.address}, {surface.use}")
        else:
            problem = f"{surface.address} does not answer within {ANSWER_TIMEOUT:g} s"
            yield report.attention(surface.name, problem, "see openclaw logs; openclaw down and openclaw up restart it")


def _has_http_server(address: str) -> bool:
    """Whether an HTTP server answers there, with any status."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=ANSWER_TIMEOUT)
    try:
        connection.request("GET", place.path or "/")
        return connection.getresponse().status > 0
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _check_gateway(probe: GatewayProbe) -> Iterator[report.Finding]:
    if probe.answers:
        if probe.health.get("ok", True):
            yield report.fine("gateway", f"{probe.title} at {probe.url} is healthy")
        else:
            yield report.attention(
                "gateway", f"{probe.title} at {probe.url} reports that it is not healthy", "see openclaw logs"
            )
    elif probe.is_configured or probe.is_listening:
        yield report.attention(
            "gateway", probe.problem, "openclaw doctor names what listens there; give its address and token"
        )
    else:
        message = f"none at {probe.url}; orders are carried out by the agent in the server's own process"
        yield report.note("gateway", message, "openclaw up starts one")


def _check_sessions(folder: Path, snapshot: Snapshot, probe: GatewayProbe) -> report.Finding:
    if probe.answers:
        count = (probe.health.get("sessions") or {}).get("count")
        return report.fine("sessions", f"{'some' if count is None else count}; openclaw sessions lists them")
    where = store_location(folder, snapshot.config)
    if "://" not in where and not Path(where).exists():
        return report.note("sessions", "none yet")
    try:
        return report.fine(
            "sessions", f"{len(store_file.read_sessions(where))} in {where}; openclaw sessions lists them"
        )
    except store_file.NoStore as exc:
        return report.attention("sessions", str(exc), "openclaw doctor checks more")


def _check_channels(probe: GatewayProbe) -> Iterator[report.Finding]:
    for name in probe.channels.get("channelOrder") or ():
        accounts = (probe.channels.get("channelAccounts") or {}).get(name) or ()
        for account in accounts:
            state = account.get("state") or ("running" if account.get("running") else "stopped")
            account_state = f"{name} {account.get('accountId', '')} {state}"
            error = account.get("lastError")
            yield (
                report.note("channels", f"{account_state}: {error}")
                if error
                else report.fine("channels", account_state)
            )
    for issue in probe.issues:
        yield report.attention(
            "channels", issue, "openclaw channels shows each; correct its settings with openclaw config"
        )


def _check_cron(probe: GatewayProbe) -> Iterator[report.Finding]:
    if not probe.cron:
        return
    if not probe.cron.get("enabled", True):
        yield report.note("cron", "switched off", "openclaw config set cron.enabled true")
        return
    due = probe.cron.get("nextWakeAtMs")
    next_due = f"next at {report.format_time(due)}" if due else "nothing is due"
    yield report.fine("cron", f"{report.count_of(probe.cron.get('jobs', 0), 'job')}, {next_due}")
