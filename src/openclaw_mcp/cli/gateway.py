"""`openclaw gateway`: serve the gateway; `openclaw gateway call METHOD [JSON]`: ask one."""

import argparse
import asyncio
import json
import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from .. import __version__
from ..core.errors import BadRequest
from ..core.model import Json
from ..core.rpc import ADMIN, APPROVALS, PAIRING, READ, WRITE, Fault
from ..rpc.client import Client, gateway_url
from ..rpc.handshake import ClientInfo, Credentials, Introduction
from ..state import gateway_token, known_gateway_token, state_dir
from .commands import port

DEFAULT_PORT: Final = 18789
LOG_BYTES: Final = 5 << 20  # of one log file; KEPT_LOGS older ones stay beside it
KEPT_LOGS: Final = 3
EVERY_SCOPE: Final = (READ, WRITE, ADMIN, APPROVALS, PAIRING)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    words = f"port, 0 for any free one (default $OPENCLAW_GATEWAY_PORT, the config's gateway.port, {DEFAULT_PORT})"
    parser.add_argument("--port", type=port, default=os.environ.get("OPENCLAW_GATEWAY_PORT"), help=words)
    parser.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")
    parser.add_argument("-v", "--verbose", action="store_true", help="log to stderr as well, and more")
    verbs = parser.add_subparsers(dest="verb", metavar="call")
    call = verbs.add_parser("call", help="call a method of a running gateway and print its answer")
    call.add_argument("method")
    call.add_argument("params", nargs="?", default="{}", help="a JSON object")
    call.add_argument("--url", help="the gateway's address (default $OPENCLAW_GATEWAY_URL, else this machine's)")
    call.add_argument("--token", help="its token (default $OPENCLAW_GATEWAY_TOKEN, else the one kept here)")
    call.add_argument("--final", action="store_true", help="wait for the second answer of a method that gives two")
    call.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")


def run(options: argparse.Namespace) -> int:
    folder = state_dir(options.state_dir)
    if options.verb == "call":
        return _call(options, folder)
    return _serve(options, folder)


# ---- serving ---------------------------------------------------------------------------------------------------------


def _serve(options: argparse.Namespace, folder: Path) -> int:
    # Here for start-up: `gateway call` needs no server.
    from ..assembly import Plan, serve
    from ..web import listen

    _log_to(folder, verbose=options.verbose)
    number, again = _port(options, folder), False
    while True:
        token = os.environ.get("OPENCLAW_GATEWAY_TOKEN") or _configured(folder, "gateway", "auth", "token")
        listener = listen.bind(options.host, number)
        host, number = listener.getsockname()[:2]
        hosts = frozenset() if host in ("127.0.0.1", "::1") else frozenset({options.host})
        plan = Plan(folder=folder, token=str(token or gateway_token(folder)), hosts=hosts, again=again)

        def ready(host: str = host, number: int = number) -> None:
            print(f"gateway  ws://{host}:{number}  http://{host}:{number}/mcp\nstate    {folder}", flush=True)

        again = listen.run(serve(plan, listener, ready=ready))
        listener.close()
        if not again:
            return 0


def _port(options: argparse.Namespace, folder: Path) -> int:
    chosen = options.port if options.port is not None else _configured(folder, "gateway", "port")
    return DEFAULT_PORT if chosen is None else int(str(chosen))


def _configured(folder: Path, *path: str) -> object:
    """What the config file says there. Raises ConfigInvalid rather than serve with half a config."""
    from ..config.file import ConfigFile, invalid  # here for start-up: `gateway call` needs no config
    from ..config.text import at  # here for start-up, as above

    snapshot = ConfigFile(folder).read()
    # A reference nobody resolved must not serve as a token: anybody could guess it.
    unset = [warning for warning in snapshot.warnings if warning["path"] == ".".join(path)]
    if snapshot.issues or unset:
        raise invalid(snapshot.issues or unset)
    return at(snapshot.resolved, path)


def _log_to(folder: Path, *, verbose: bool) -> None:
    """To a file of bounded size in the state directory, which is what `logs.tail` reads."""
    file = RotatingFileHandler(folder / "gateway.log", maxBytes=LOG_BYTES, backupCount=KEPT_LOGS, encoding="utf-8")
    handlers: list[logging.Handler] = [file]
    if verbose:
        handlers.append(logging.StreamHandler())
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=handlers, format=layout)
    (folder / "gateway.log").chmod(0o600)
    logging.getLogger("websockets").setLevel(logging.WARNING)  # it would log message bodies
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log each poll of each channel


# ---- calling ---------------------------------------------------------------------------------------------------------


def _call(options: argparse.Namespace, folder: Path) -> int:
    try:
        params: Any = json.loads(options.params)
    except ValueError:
        raise BadRequest("the parameters are not JSON; give an object such as '{\"limit\":5}'") from None
    if not isinstance(params, dict):
        raise BadRequest("the parameters must be a JSON object, such as '{\"limit\":5}'")
    try:
        answer = asyncio.run(_asked(options, folder, params))
    except Fault as fault:
        details = f" {json.dumps(fault.details)}" if fault.details is not None else ""
        print(f"openclaw gateway call: {fault.kind}: {fault}{details}", file=sys.stderr)
        return 1
    print(json.dumps(answer, indent=2, ensure_ascii=False))
    return 0


async def _asked(options: argparse.Namespace, folder: Path, params: Json) -> Any:
    url = options.url or gateway_url(int(options.port or DEFAULT_PORT))
    me = ClientInfo(id="cli", mode="cli", version=__version__, platform=sys.platform)
    told = Introduction(client=me, scopes=EVERY_SCOPE)
    if is_this_machine(url):
        credentials = Credentials(token=options.token or known_gateway_token(folder))
        async with Client(url, told, credentials=credentials, redial=False) as client:
            return await client.call(options.method, params, within=options.timeout, final=options.final)
    # Here for start-up: only a gateway elsewhere wants a device, and with it cryptography.
    from ..rpc.identity import DeviceTokens, Identity

    tokens = DeviceTokens(folder / "device-tokens.json")
    # Never the token kept here: it is this machine's gateway's, and none of another's business.
    shared = options.token or os.environ.get("OPENCLAW_GATEWAY_TOKEN")
    credentials = Credentials(token=shared, device_token=None if shared else tokens.find(url, "operator"))
    device = Identity.load(folder / "device.json")
    async with Client(url, told, credentials=credentials, signer=device, redial=False) as client:
        given = (client.hello or {}).get("auth", {}).get("deviceToken")
        if given:
            tokens.keep(url, "operator", given)
        return await client.call(options.method, params, within=options.timeout, final=options.final)


def is_this_machine(url: str) -> bool:
    return (urlsplit(url).hostname or "") in ("localhost", "127.0.0.1", "::1")
