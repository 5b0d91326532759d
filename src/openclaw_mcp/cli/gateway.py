"""`openclaw gateway`: serve the gateway; `openclaw gateway call METHOD [JSON]`: ask one."""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from ..core.model import Json
from ..core.rpc import RpcError
from ..net.gateway_client.address import DEFAULT_GATEWAY_PORT
from ..net.state_dir import TOKEN_FILE, ensure_gateway_token, state_dir, sync_token_file
from .commands import parse_object, parse_port, repeat_options
from .gateway_connection import (
    LOOPBACK,
    add_gateway_options,
    connect_operator,
    hosts_from_env,
    read_config_value,
    resolve_host,
    resolve_port,
)
from .logging_setup import log_to_file
from .report import print_json


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help=f"address to listen on (default the config's gateway.bind, else {LOOPBACK})")
    text = (
        f"port, 0 for any free one (default $OPENCLAW_GATEWAY_PORT, the config's gateway.port, {DEFAULT_GATEWAY_PORT})"
    )
    parser.add_argument("--port", type=parse_port, default=os.environ.get("OPENCLAW_GATEWAY_PORT"), help=text)
    _common_arguments(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="also log to stderr, with debug messages")
    verbs = parser.add_subparsers(dest="verb", metavar="call")
    call = verbs.add_parser("call", help="call a method of a running gateway and print its answer")
    call.add_argument("method")
    call.add_argument("params", nargs="?", default="{}", help="a JSON object")
    add_gateway_options(call)
    call.add_argument("--final", action="store_true", help="wait for the second answer of a method that gives two")
    call.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    repeat_options(_common_arguments, call)


def _common_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", help="where state is kept (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)")


def run(options: argparse.Namespace) -> int:
    folder = state_dir(options.state_dir)
    if options.verb == "call":
        return _call(options, folder)
    return _serve(options, folder)


# ---- serving ---------------------------------------------------------------------------------------------------------


def _serve(options: argparse.Namespace, folder: Path) -> int:
    # Here for start-up: `gateway call` needs no server.
    from ..gateway.wiring.assembly import GatewayOptions, serve
    from ..net import listen

    log_to_file(folder, verbose=options.verbose)
    number, is_restart = resolve_port(options.port, folder), False
    while True:
        chosen = resolve_host(options.host, folder)
        listener = listen.bind(chosen, number)
        host, number = listener.getsockname()[:2]
        accepts_remote = host not in (LOOPBACK, "::1")
        hosts = hosts_from_env() | ({chosen} if accepts_remote else set())
        plan = GatewayOptions(
            folder=folder,
            token=resolve_token(folder),
            hosts=hosts,
            accepts_remote=accepts_remote,
            is_restart=is_restart,
        )

        def ready(host: str = host, number: int = number) -> None:
            print(f"gateway  ws://{host}:{number}  http://{host}:{number}/mcp\nstate    {folder}", flush=True)

        is_restart = listen.run(serve(plan, listener, ready=ready))
        listener.close()
        if not is_restart:
            return 0


def resolve_token(folder: Path) -> str:
    """The gateway's token: $OPENCLAW_GATEWAY_TOKEN, else the configured one, else the one stored in the folder."""
    if not os.environ.get("OPENCLAW_GATEWAY_TOKEN", "").strip():
        token = read_config_value(folder, "gateway", "auth", "token")
        sync_token_file(folder, str(token or "").strip())
    return ensure_gateway_token(folder)


def ensure_token_file(folder: Path) -> Path | None:
    """The file that holds that token, written when this returns; None as below."""
    resolve_token(folder)
    return token_file_path(folder)


def token_file_path(folder: Path) -> Path | None:
    """The path of that file, whether it exists or not; None when the token comes from $OPENCLAW_GATEWAY_TOKEN, which
    keeps it off the disk."""
    return None if os.environ.get("OPENCLAW_GATEWAY_TOKEN", "").strip() else folder / TOKEN_FILE


# ---- calling ---------------------------------------------------------------------------------------------------------


def _call(options: argparse.Namespace, folder: Path) -> int:
    params = parse_object(options.params, '{"limit":5}')
    try:
        answer = asyncio.run(call_gateway(options, folder, params))
    except RpcError as fault:
        details = f" {json.dumps(fault.details)}" if fault.details is not None else ""
        print(f"openclaw gateway call: {fault.kind}: {fault}{details}", file=sys.stderr)
        return 1
    print_json(answer)
    return 0


async def call_gateway(options: argparse.Namespace, folder: Path, params: Json) -> Any:
    """A gateway's answer; `options` are those of `gateway call`."""
    port = int(options.port) if options.port else None
    async with connect_operator(folder, url=options.url, token=options.token, port=port) as client:
        return await client.call(options.method, params, within=options.timeout, final=options.final)
