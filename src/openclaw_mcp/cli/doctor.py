"""`openclaw doctor`: what is in order here, what is not, and what to do about it. It changes nothing."""

import argparse
import asyncio
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .. import __version__
from ..config import redaction
from ..config.file import ConfigFile
from ..core.errors import OpenClawError
from ..net.listening_ports import find_port_owner
from ..net.state_dir import existing_state_dir
from ..node.settings import DEFAULT_PORT as NODE_PORT
from . import doctor_agents, doctor_clients, doctor_files, run_state
from .mcp_server import DEFAULT_PORT as ORDER_PORT
from .probe import GatewayProbe, arguments, probe_gateway
from .proxy import DEFAULT_PORT as PROXY_PORT
from .report import Finding, attention, fine, has_problems, note, print_findings, print_json, report_lost

__all__ = ["arguments", "run"]


def run(options: argparse.Namespace) -> int:
    folder = existing_state_dir(options.state_dir)
    findings = list(_examine(options, folder))
    if options.json:
        print_json({"version": __version__, "ok": not has_problems(findings), "findings": findings})
    else:
        print_findings(findings)
        print(_summary(findings))
    return 1 if has_problems(findings) else 0


def _examine(options: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    yield from _check_program()
    yield from _run_check("state", lambda: doctor_files.check_state_dir(folder))
    snapshot = ConfigFile(folder, key=b"the hash is not shown").read()
    yield from doctor_files.check_config(snapshot)
    config = snapshot.config  # the defaults, when the file is not valid: that is reported once, above
    yield from _run_check("store", lambda: doctor_files.check_store(folder, config))
    yield from doctor_files.check_disk(folder, config)
    gateway = asyncio.run(probe_gateway(folder, config, url=options.url, token=options.token))
    yield from _check_gateway(gateway)
    yield from _check_ports(folder)
    redacted = redaction.redact_secrets(snapshot.parsed, redaction.MASK)
    if snapshot.is_valid:
        yield from doctor_agents.check_agents(config, redacted)
    yield from doctor_agents.check_cli_agents()
    yield from doctor_agents.check_servers(config, redacted)
    yield from _run_check("node", lambda: doctor_agents.check_node(folder))
    yield from _run_check("rules", lambda: doctor_agents.check_exec_rules(folder))
    yield from _run_check("clients", lambda: doctor_clients.check_clients(folder))


def _run_check(area: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of a check; a failure of the check is a finding too."""
    try:
        return list(check())
    except OpenClawError as exc:
        return [attention(area, str(exc), "do what it says, then run openclaw doctor again")]


def _check_program() -> Iterator[Finding]:
    ours, found = Path(sys.argv[0]), shutil.which("openclaw")
    text = f"openclaw-mcp {__version__} on Python {sys.version.split()[0]}"
    if found is None:
        remedy = f"name it by its full path in clients' settings: {ours.resolve()}"
        yield note("program", f"{text}; openclaw is not on the PATH", remedy)
    elif ours.exists() and Path(found).resolve() != ours.resolve():
        remedy = "call this program openclaw-mcp where both are installed; openclaw connect writes its full path"
        yield note("program", f"{text}; the openclaw on the PATH is another one, {found}", remedy)
    else:
        yield fine("program", f"{text}, {found}")


def _check_gateway(probe: GatewayProbe) -> Iterator[Finding]:
    if probe.answers:
        yield fine("gateway", f"{probe.title} answers at {probe.url}")
    elif probe.is_listening:
        yield attention("gateway", probe.problem, "stop what is there, or give the gateway's address and token")
    elif probe.is_configured:
        yield attention("gateway", probe.problem, "start it, or correct the address that was set for it")
    else:
        text = f"none answers at {probe.url}; orders are carried out by the agent in the server's own process"
        yield note("gateway", text, "openclaw up starts one")
    yield from probe.channel_findings()


def _check_ports(folder: Path) -> Iterator[Finding]:
    """The ports `openclaw up` would take. What holds one while it is up is it itself."""
    up = run_state.read(folder)
    if up is not None:
        addresses = ", ".join(surface.address for surface in up.surfaces if surface.address)
        yield fine("ports", f"openclaw is up as process {up.pid}: {addresses}")
        return
    if (lost := run_state.read_lost(folder)) is not None:
        yield report_lost(lost.pid)
    taken = [(name, port, find_port_owner(port)) for name, port in DEFAULT_PORTS.items()]
    for name, port, who in taken:
        if who is not None:
            remedy = f"stop it, or give the {name} another port"
            yield note("ports", f"port {port}, the {name}'s, is held by {who}", remedy)
    if not any(who for _, _, who in taken):
        yield fine("ports", f"{', '.join(str(port) for port in DEFAULT_PORTS.values())} are free")


DEFAULT_PORTS = {"node": NODE_PORT, "proxy": PROXY_PORT, "order server": ORDER_PORT}


def _summary(findings: list[Finding]) -> str:
    wrong = sum(finding.state == "attention" for finding in findings)
    needs = "needs" if wrong == 1 else "need"
    return f"{wrong} of these {needs} attention." if wrong else "Everything is in order."
