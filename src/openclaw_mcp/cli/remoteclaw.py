"""`remoteclaw-mcp-server`: the gateway's tools for a CLI agent. Its settings come from the environment alone.

An agent waits for this process's first answers on every run, so nothing heavy is imported here.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` is too heavy for the fast path
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..mcp.server.boot import FirstReplies

REQUIRED_ENV = (
    "REMOTECLAW_GATEWAY_URL",
    "REMOTECLAW_GATEWAY_TOKEN",
    "REMOTECLAW_SESSION_KEY",
    "REMOTECLAW_SIDE_EFFECTS_FILE",
)
STATE_DIR = "REMOTECLAW_STATE_DIR"
"""Instead of address and token: the state directory whose gateway is meant, wherever it listens at the time."""

GRANT_PREFIX = "ocg_"  # how a run's token begins: `core.claw_methods` has it too, and is too heavy for the fast path


def main() -> int:
    if problem := _load_token():
        return _fatal(problem)
    required = REQUIRED_ENV[2:] if os.environ.get(STATE_DIR, "").strip() else REQUIRED_ENV
    missing = [name for name in required if not os.environ.get(name, "").strip()]
    if missing:
        return _fatal(f"Missing required environment variable: {missing[0]}")
    try:
        allowed, further = select_tools(os.environ), further_tools(os.environ)
    except ValueError as exc:
        return _fatal(str(exc))
    # Here for start-up: a missing setting is reported before anything is loaded.
    from . import stdio

    asks = not os.environ.get("REMOTECLAW_GATEWAY_TOKEN", "").strip().startswith(GRANT_PREFIX) or bool(further)
    return stdio.serve("claw", lambda opening: filter_first_replies(opening, allowed, asks_gateway=asks))


def _load_token() -> str | None:
    """Take the token from the file REMOTECLAW_GATEWAY_TOKEN_FILE names, so that no client's settings need hold it;
    without one, from where the gateway itself was given it."""
    path = os.environ.get("REMOTECLAW_GATEWAY_TOKEN_FILE")
    if os.environ.get("REMOTECLAW_GATEWAY_TOKEN"):
        return None
    if not path:
        if given := os.environ.get("OPENCLAW_GATEWAY_TOKEN"):
            os.environ["REMOTECLAW_GATEWAY_TOKEN"] = given
        return None
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib would cost the start
            os.environ["REMOTECLAW_GATEWAY_TOKEN"] = file.read(4096).strip()
    except OSError as exc:
        return f"REMOTECLAW_GATEWAY_TOKEN_FILE names {path}, which can't be read: {exc.strerror}"
    return None


def select_tools(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The tools this run lists: those that profile, owner flag and REMOTECLAW_TOOLS leave. Raises ValueError.

    A convenience for the agent, not a protection: the gateway decides again, by the token."""
    # Here for start-up: generated, and without imports of its own beyond the opening's.
    from ..mcp.first_replies.claw_lists import OWNER_ONLY, PROFILES

    profile = environ.get("REMOTECLAW_TOOL_PROFILE", "").strip().lower() or "full"
    if profile not in PROFILES:
        raise ValueError(f"REMOTECLAW_TOOL_PROFILE is {profile!r}; the profiles are {', '.join(PROFILES)}")
    # A person who starts the server with the gateway's own token is the owner without saying so.
    owner = environ.get("REMOTECLAW_SENDER_IS_OWNER", "true") == "true"
    named = _named_tools(environ)
    return tuple(
        name for name in PROFILES[profile] if (owner or name not in OWNER_ONLY) and (named is None or name in named)
    )


def further_tools(environ: Mapping[str, str]) -> frozenset[str] | None:
    """The tools besides the 29 that this run lists; None: all that the gateway has for it."""
    # Here for start-up, as in `select_tools`.
    from ..mcp.first_replies.claw_lists import PROFILES

    named = _named_tools(environ)
    if named is not None:
        return frozenset(named).difference(PROFILES["full"])
    profile = environ.get("REMOTECLAW_TOOL_PROFILE", "").strip().lower()
    return None if profile in ("", "full") else frozenset()


def _named_tools(environ: Mapping[str, str]) -> list[str] | None:
    listed = environ.get("REMOTECLAW_TOOLS")
    return None if listed is None else listed.replace(",", " ").split()


def filter_first_replies(opening: FirstReplies, allowed: tuple[str, ...], *, asks_gateway: bool) -> FirstReplies:
    """The first replies with only these tools in their lists. `asks_gateway`: without lists, since only the gateway
    knows which tools its own token opens in this session. A run's tools came with the environment."""
    # Here for start-up: `boot` has loaded it by now.
    from ..mcp.server.boot import FirstReplies

    if asks_gateway:
        return FirstReplies(initialize=opening.initialize, discover=opening.discover, tools=None, stateless_tools=None)
    from ..mcp.first_replies.claw_lists import PARAMETER_TOOLS, PROFILES  # here for start-up, as in `select_tools`

    if allowed == PROFILES["full"]:
        return opening
    import json  # here for start-up: `boot` has loaded it by now

    def only(listed: str | None) -> str | None:
        if listed is None:
            return None
        result = json.loads(listed)
        kept = [tool for tool in result["tools"] if tool["name"] in allowed]
        for tool in kept:
            for parameter, needed in PARAMETER_TOOLS.get(tool["name"], {}).items():
                if needed not in allowed:
                    del tool["inputSchema"]["properties"][parameter]
        return json.dumps({**result, "tools": kept}, separators=(",", ":"), ensure_ascii=False)

    return FirstReplies(
        initialize=opening.initialize,
        discover=opening.discover,
        tools=only(opening.tools),
        stateless_tools=only(opening.stateless_tools),
    )


def _fatal(reason: str) -> int:
    print(f"remoteclaw-mcp-server fatal: {reason}", file=sys.stderr)
    return 1
