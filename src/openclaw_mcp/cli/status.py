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
from ..config import text
from ..config.file import ConfigFile, Snapshot
from ..config.views import database
from ..core.model import Json
from ..net.state_dir import state_dir
from . import doctor_agents, doctor_files, run_state, store_file
from .probe import Gateway, arguments, look
from .report import Finding, attention, fine, note, plain, show, troubled

__all__ = ["arguments", "run"]

ANSWER_WITHIN: Final = 5.0  # seconds for a surface to say anything at all


def run(options: argparse.Namespace) -> int:
    folder = state_dir(options.state_dir)
    snapshot = ConfigFile(folder).read()
    config = snapshot.config if snapshot.valid else {}
    seen = asyncio.run(look(folder, config, url=options.url, token=options.token))
    findings = list(_status(folder, snapshot, seen))
    if options.json:
        print(json.dumps(_report(folder, seen, findings), indent=2, ensure_ascii=False))
    else:
        show(findings)
        if troubled(findings):
            print("openclaw doctor looks closer.")
    return 1 if troubled(findings) else 0


def _status(folder: Path, snapshot: Snapshot, seen: Gateway) -> Iterator[Finding]:
    yield from _surfaces(folder)
    yield from _gateway(seen)
    yield _sessions(folder, snapshot, seen)
    yield from _channels(seen)
    yield from _cron(seen)
    if snapshot.valid:
        yield from doctor_agents.agents(snapshot.config, text.redacted(snapshot.parsed, text.MASK))
    else:
        yield from doctor_files.config(snapshot)


def _report(folder: Path, seen: Gateway, findings: list[Finding]) -> Json:
    up = run_state.read(folder)
    return {
        "version": __version__,
        "ok": not troubled(findings),
        "stateDirectory": str(folder),
        "up": None if up is None else up.pid,
        "gateway": {"url": seen.url, "answers": seen.answers, "version": seen.version or None, "health": seen.health},
        "channels": seen.channels,
        "cron": seen.cron,
        "findings": plain(findings),
    }


def _surfaces(folder: Path) -> Iterator[Finding]:
    up = run_state.read(folder)
    if up is None:
        yield note("up", "openclaw up does not run with this state directory", "openclaw up -d starts every surface")
        return
    yield fine("up", f"process {up.pid}, since {_time(up.started * 1000)}")
    for surface in up.surfaces:
        if not surface.address:
            yield note(surface.name, f"{run_state.OFF}: {surface.use}")
        elif _answers(surface.address):
            yield fine(surface.name, f"{surface.address}, {surface.use}")
        else:
            words = f"{surface.address} does not answer within {ANSWER_WITHIN:g} s"
            yield attention(surface.name, words, "see openclaw logs; openclaw down and openclaw up start it anew")


def _answers(address: str) -> bool:
    """Whether an HTTP server is there. What it says to a stranger does not matter."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=ANSWER_WITHIN)
    try:
        connection.request("GET", place.path or "/")
        return connection.getresponse().status > 0
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _gateway(seen: Gateway) -> Iterator[Finding]:
    if seen.answers:
        if seen.health.get("ok", True):
            yield fine("gateway", f"{seen.title} at {seen.url} is well")
        else:
            yield attention("gateway", f"{seen.title} at {seen.url} says it is not well", "see openclaw logs")
    elif seen.named or seen.listens:
        yield attention("gateway", seen.trouble, "openclaw doctor says who is there; give its address and token")
    else:
        words = f"none at {seen.url}; orders are carried out by the agent in the server's own process"
        yield note("gateway", words, "openclaw up starts one")


def _sessions(folder: Path, snapshot: Snapshot, seen: Gateway) -> Finding:
    if seen.answers:
        count = (seen.health.get("sessions") or {}).get("count")
        return fine("sessions", f"{'some' if count is None else count}; openclaw sessions lists them")
    where = database(folder, snapshot.config if snapshot.valid else {})
    if "://" not in where and not Path(where).exists():
        return note("sessions", "none yet")
    try:
        return fine("sessions", f"{len(store_file.sessions(where))} in {where}; openclaw sessions lists them")
    except store_file.NoStore as exc:
        return attention("sessions", str(exc), "openclaw doctor looks closer")


def _channels(seen: Gateway) -> Iterator[Finding]:
    for name in seen.channels.get("channelOrder") or ():
        accounts = (seen.channels.get("channelAccounts") or {}).get(name) or ()
        for account in accounts:
            state = account.get("state") or ("running" if account.get("running") else "stopped")
            words = f"{name} {account.get('accountId', '')} {state}"
            trouble = account.get("lastError")
            yield note("channels", f"{words}: {trouble}") if trouble else fine("channels", words)
    for issue in seen.issues:
        yield attention("channels", issue, "openclaw channels shows each; correct its settings with openclaw config")


def _cron(seen: Gateway) -> Iterator[Finding]:
    if not seen.cron:
        return
    if not seen.cron.get("enabled", True):
        yield note("cron", "switched off", "openclaw config set cron.enabled true")
        return
    due = seen.cron.get("nextWakeAtMs")
    words = f"next at {_time(due)}" if due else "nothing is due"
    yield fine("cron", f"{seen.cron.get('jobs', 0)} jobs, {words}")


def _time(at: Any) -> str:
    return datetime.fromtimestamp(float(at) / 1000).astimezone().isoformat(sep=" ", timespec="minutes")
