"""`openclaw doctor`: what is in order here, what is not, and what to do about it. It changes nothing."""

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .. import __version__
from ..config import text
from ..config.file import ConfigFile
from ..core.errors import OpenClawError
from ..net.state_dir import state_dir
from ..node.settings import DEFAULT_PORT as NODE_PORT
from . import doctor_agents, doctor_files, run_state
from .mcp_server import DEFAULT_PORT as ORDER_PORT
from .probe import Gateway, arguments, holder, look
from .proxy import DEFAULT_PORT as PROXY_PORT
from .report import Finding, attention, fine, note, plain, show, troubled

__all__ = ["arguments", "run"]


def run(options: argparse.Namespace) -> int:
    folder = state_dir(options.state_dir)
    findings = list(_examined(options, folder))
    if options.json:
        print(json.dumps({"version": __version__, "ok": not troubled(findings), "findings": plain(findings)}, indent=2))
    else:
        show(findings)
        print(_summary(findings))
    return 1 if troubled(findings) else 0


def _examined(options: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    yield from _program()
    yield from _checked("state", lambda: doctor_files.folder(folder))
    snapshot = ConfigFile(folder).read()
    yield from doctor_files.config(snapshot)
    # What can't be read is said once; the rest is looked at as if nothing were configured.
    config = snapshot.config if snapshot.valid else {}
    yield from _checked("store", lambda: doctor_files.store(folder, config))
    gateway = asyncio.run(look(folder, config, url=options.url, token=options.token))
    yield from _gateway(gateway)
    yield from _ports(folder)
    shown = text.redacted(snapshot.parsed, text.MASK)
    if snapshot.valid:
        yield from doctor_agents.agents(config, shown)
    yield from doctor_agents.command_lines()
    yield from doctor_agents.servers(config, shown)
    yield from _checked("node", lambda: doctor_agents.node(folder))
    yield from _checked("rules", lambda: doctor_agents.rules(folder))
    yield from _checked("clients", lambda: doctor_files.clients(folder))


def _checked(area: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What a check found; what keeps it from looking is a finding too."""
    try:
        return list(check())
    except OpenClawError as exc:
        return [attention(area, str(exc), "do what it says, then run openclaw doctor again")]


def _program() -> Iterator[Finding]:
    ours, found = Path(sys.argv[0]), shutil.which("openclaw")
    words = f"openclaw-mcp {__version__} on Python {sys.version.split()[0]}"
    if found is None:
        remedy = f"name it by its full path in clients' settings: {ours.resolve()}"
        yield note("program", f"{words}; openclaw is not on the PATH", remedy)
    elif ours.exists() and Path(found).resolve() != ours.resolve():
        remedy = "call this program openclaw-mcp where both are installed; openclaw connect writes its full path"
        yield note("program", f"{words}; the openclaw on the PATH is another one, {found}", remedy)
    else:
        yield fine("program", f"{words}, {found}")


def _gateway(seen: Gateway) -> Iterator[Finding]:
    if seen.answers:
        yield fine("gateway", f"{seen.title} answers at {seen.url}")
    elif seen.listens:
        yield attention("gateway", seen.trouble, "stop what is there, or give the gateway's address and token")
    elif seen.named:
        yield attention("gateway", seen.trouble, "start it, or correct the address that was set for it")
    else:
        words = f"none answers at {seen.url}; orders are carried out by the agent in the server's own process"
        yield note("gateway", words, "openclaw up starts one")
    for issue in seen.issues:
        yield attention("channels", issue, "openclaw channels shows each; correct its settings with openclaw config")


def _ports(folder: Path) -> Iterator[Finding]:
    """The ports `openclaw up` would take. What holds one while it is up is it itself."""
    up = run_state.read(folder)
    if up is not None:
        yield fine(
            "ports", f"openclaw is up as process {up.pid}: {', '.join(s.address for s in up.surfaces if s.address)}"
        )
        return
    taken = [(name, port, holder(port)) for name, port in PORTS.items()]
    for name, port, who in taken:
        if who is not None:
            remedy = f"stop it, or give the {name} another port"
            yield note("ports", f"port {port}, the {name}'s, is held by {who}", remedy)
    if not any(who for _, _, who in taken):
        yield fine("ports", f"{', '.join(str(port) for port in PORTS.values())} are free")


PORTS = {"node": NODE_PORT, "proxy": PROXY_PORT, "order server": ORDER_PORT}


def _summary(findings: list[Finding]) -> str:
    wrong = sum(finding.state == "attention" for finding in findings)
    return (
        "Everything is in order." if not wrong else f"{wrong} of these {'needs' if wrong == 1 else 'need'} attention."
    )
