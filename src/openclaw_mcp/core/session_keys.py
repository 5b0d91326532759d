"""Session keys: `agent:<agent id>:<rest>`, and the short forms that people write."""

from typing import Final

from msgspec.structs import replace

from .agents import AGENT_ID_PATTERN, AgentRoster
from .rpc import RpcError
from .sessions import NewSession

MAX_KEY_LENGTH: Final = 512
SESSION_KINDS: Final = ("dashboard", "explicit", "subagent", "cron", "deleted", "hook", "node", "harness", "voice")
CHANNEL_KINDS: Final = frozenset({"main", "subagent", "cron", "deleted", "group"})
"""What a session stays also when a client chats in it; any other is a direct conversation then."""


def normalize_key(key: str, roster: AgentRoster, *, agent_id: str | None = None) -> str:
    """The full key. `main` is the main session of the agent; other short keys get the agent's prefix."""
    key = key.strip().lower()
    if not key or len(key) > MAX_KEY_LENGTH:
        raise RpcError(f"a session key has 1 to {MAX_KEY_LENGTH} characters")
    if not key.startswith("agent:"):
        owner = agent_id or roster.default_id
        return f"agent:{owner}:{roster.main_key if key in ('main', roster.main_key) else key}"
    owner, rest = split_key(key)
    if not rest or AGENT_ID_PATTERN.fullmatch(owner) is None:
        raise RpcError(f"malformed session key {key!r}: write agent:<agent id>:<name>")
    if agent_id is not None and agent_id != owner:
        raise RpcError(f"session {key} belongs to agent {owner}, not {agent_id}")
    return f"agent:{owner}:{roster.main_key}" if rest == "main" else key


def split_key(key: str) -> tuple[str, str]:
    _, _, tail = key.partition(":")
    owner, _, rest = tail.partition(":")
    return owner, rest


def classify_key(key: str, roster: AgentRoster) -> str:
    _, rest = split_key(key)
    if rest == roster.main_key:
        return "main"
    if rest.startswith("tui-"):
        return "tui"
    steps = rest.split(":")
    if steps[0] in SESSION_KINDS:
        return steps[0]
    if "direct" in steps or "dm" in steps:
        return "direct"
    return "group" if "group" in steps or "channel" in steps else "custom"


def new_session(key: str, roster: AgentRoster, **more: object) -> NewSession:
    """A session of that (canonical) key, to be created when it does not exist. Raises RpcError for an unknown agent."""
    owner, _ = split_key(key)
    roster.get_agent(owner)
    return NewSession(key=key, agent_id=owner, classification=classify_key(key, roster), **more)  # type: ignore[arg-type]  # the caller's fields


def new_chat_session(key: str, roster: AgentRoster, **more: object) -> NewSession:
    """The same, for a session that a client begins by writing in it."""
    new = new_session(key, roster, **more)
    return new if new.classification in CHANNEL_KINDS else replace(new, classification="direct")
