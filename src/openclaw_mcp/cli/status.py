"""`openclaw status`: what runs here, whether each part answers, and which agent an order would reach."""

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from .. import __version__
from ..config import redaction
from ..config.file import ConfigFile, Snapshot
from ..config.locations import store_location
from ..core.errors import BadRequest
from ..gateway.channels.settings import read_accounts
from ..net.state_dir import existing_state_dir
from . import doctor_agents, doctor_files, report, run_state, store_file
from .channels import ChannelsStatus
from .cron_output import SchedulerStatus
from .probe import HTTP_TIMEOUT, GatewayProbe, arguments, has_http_server, probe_gateway

__all__ = ["arguments", "run"]


class SessionTotal(Struct, frozen=True):
    count: int | None = None


class GatewayHealth(Struct, frozen=True):
    """What `health` answers."""

    ok: bool = True
    sessions: SessionTotal = SessionTotal()


def run(options: argparse.Namespace) -> int:
    folder = existing_state_dir(options.state_dir)
    snapshot = ConfigFile(folder, key=b"the hash is not shown").read()
    seen = asyncio.run(probe_gateway(folder, snapshot.config, url=options.url, token=options.token))
    findings = list(_collect_findings(folder, snapshot, seen))
    if options.json:
        _print_json(folder, seen, findings)
    else:
        report.print_findings(findings)
        if report.has_problems(findings):
            print("openclaw doctor checks more.")
    return 1 if report.has_problems(findings) else 0


def _collect_findings(folder: Path, snapshot: Snapshot, probe: GatewayProbe) -> Iterator[report.Finding]:
    yield from _check_surfaces(folder)
    yield from doctor_files.check_disk(folder, snapshot.config)
    yield from _check_gateway(probe)
    if not probe.answers:
        yield from _check_waiting_work(folder, snapshot)
    yield _check_sessions(folder, snapshot, probe)
    yield from _check_channels(probe)
    yield from _check_cron(probe)
    if snapshot.is_valid:
        redacted = redaction.redact_secrets(snapshot.parsed, redaction.MASK)
        yield from doctor_agents.check_agents(snapshot.config, redacted)
    else:
        yield from doctor_files.check_config(snapshot)


def _print_json(folder: Path, probe: GatewayProbe, findings: list[report.Finding]) -> None:
    up = run_state.read(folder)
    health = probe.replies.get("health", {})
    found = {
        "version": __version__,
        "ok": not report.has_problems(findings),
        "stateDirectory": str(folder),
        "up": None if up is None else up.pid,
        "gateway": {"url": probe.url, "answers": probe.answers, "version": probe.version or None, "health": health},
        "channels": probe.replies.get("channels.status", {}),
        "cron": probe.replies.get("cron.status", {}),
        "findings": findings,
    }
    report.print_json(found)


def _check_surfaces(folder: Path) -> Iterator[report.Finding]:
    up = run_state.read(folder)
    if up is None:
        lost = run_state.read_lost(folder)
        if lost is not None:
            yield report.report_lost(lost.pid)
        else:
            message = "openclaw up does not run with this state directory"
            yield report.note("up", message, "openclaw up -d starts every surface")
        return
    yield report.fine("up", f"process {up.pid}, since {report.format_time(up.started * 1000)}")
    for surface in up.surfaces:
        if not surface.address:
            yield report.note(surface.name, f"{run_state.OFF_LABEL}: {surface.use}")
        elif has_http_server(surface.address):
            yield report.fine(surface.name, f"{surface.address}, {surface.use}")
        else:
            problem = f"{surface.address} does not answer within {HTTP_TIMEOUT:g} s"
            yield report.attention(surface.name, problem, "see openclaw logs; openclaw restart starts it again")


def _check_gateway(probe: GatewayProbe) -> Iterator[report.Finding]:
    if probe.answers:
        if probe.reply("health", GatewayHealth).ok:
            yield report.fine("gateway", f"{probe.title} at {probe.url} is healthy")
        else:
            problem = f"{probe.title} at {probe.url} reports that it is not healthy"
            yield report.attention("gateway", problem, "see openclaw logs")
    elif probe.is_configured or probe.is_listening:
        remedy = "openclaw doctor names what listens there; give its address and token"
        yield report.attention("gateway", probe.problem, remedy)
    else:
        message = f"none at {probe.url}; orders are carried out by the agent in the server's own process"
        yield report.note("gateway", message, "openclaw up starts one")


def _check_waiting_work(folder: Path, snapshot: Snapshot) -> Iterator[report.Finding]:
    """What only a gateway does, and none runs: channels that are to be answered, jobs that are to fire."""
    remedy = "openclaw up -d starts one"
    try:
        accounts = read_accounts(snapshot.config.channels)
    except BadRequest:  # of a config that is not valid, which is reported by itself
        accounts = []
    waiting = ", ".join(sorted({account.channel for account in accounts if account.channel != "local"}))
    if waiting:
        yield report.attention("channels", f"{waiting} should be answered, and no gateway runs", remedy)
    where = store_location(folder, snapshot.config)
    with suppress(store_file.NoStore):  # reported with the sessions
        jobs = store_file.count_waiting_jobs(where)
        if jobs and snapshot.config.cron.enabled:
            should = f"{report.count_of(jobs, 'job')} should run when due, and no gateway runs"
            yield report.attention("cron", should, remedy)


def _check_sessions(folder: Path, snapshot: Snapshot, probe: GatewayProbe) -> report.Finding:
    if probe.answers:
        count = probe.reply("health", GatewayHealth).sessions.count
        return report.fine("sessions", f"{'some' if count is None else count}; openclaw sessions lists them")
    where = store_location(folder, snapshot.config)
    if "://" not in where and not Path(where).exists():
        return report.note("sessions", "none yet")
    try:
        count = len(store_file.read_sessions(where))
        return report.fine("sessions", f"{count} in {where}; openclaw sessions lists them")
    except store_file.NoStore as exc:
        return report.attention("sessions", str(exc), "openclaw doctor checks more")


def _check_channels(probe: GatewayProbe) -> Iterator[report.Finding]:
    status = probe.reply("channels.status", ChannelsStatus)
    for name in status.channel_order:
        for account in status.channel_accounts.get(name, ()):
            state = account.state or ("running" if account.running else "stopped")
            text = f"{name} {account.account_id} {state}"
            error = account.last_error
            yield report.note("channels", f"{text}: {error}") if error else report.fine("channels", text)
    yield from probe.channel_findings()


def _check_cron(probe: GatewayProbe) -> Iterator[report.Finding]:
    if not probe.replies.get("cron.status"):
        return
    status = probe.reply("cron.status", SchedulerStatus)
    if not status.enabled:
        yield report.note("cron", "switched off", "openclaw config set cron.enabled true")
        return
    due = status.next_wake_at_ms
    next_due = f"next at {report.format_time(due)}" if due else "nothing is due"
    yield report.fine("cron", f"{report.count_of(status.jobs, 'job')}, {next_due}")
