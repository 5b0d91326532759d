"""Session keys: `agent:<agent id>:<rest>`, and the short forms people write."""

from typing import Final

from .agents import AGENT_ID, Roster
from .rpc import Fault
from .sessions import NewSession

LONGEST: Final = 512
FAMILIES: Final = ("dashboard", "subagent", "cron", "deleted", "hook", "node")


def canonical(key: str, roster: Roster, *, agent_id: str | None = None) -> str:
    """The full key. `main` is the main session of the agent; other short keys get the agent's prefix."""
    key = key.strip().lower()
    if not key or len(key) > LONGEST:
        raise Fault(f"a session key has 1 to {LONGEST} characters")
    if not key.startswith("agent:"):
        owner = agent_id or roster.default_id
        return f"agent:{owner}:{roster.main_key if key in ('main', roster.main_key) else key}"
    owner, rest = parts(key)
    if not rest or AGENT_ID.fullmatch(owner) is None:
        raise Fault(f"malformed session key {key!r}: write agent:<agent id>:<name>")
    if agent_id is not None and agent_id != owner:
        raise Fault(f"session {key} belongs to agent {owner}, not {agent_id}")
    return f"agent:{owner}:{roster.main_key}" if rest == "main" else key


def parts(key: str) -> tuple[str, str]:
    _, _, tail = key.partition(":")
    owner, _, rest = tail.partition(":")
    return owner, rest


def classification(key: str, roster: Roster) -> str:
    _, rest = parts(key)
    if rest == roster.main_key:
        return "main"
    family = rest.partition(":")[0]
    if family in FAMILIES:
        return family
    steps = rest.split(":")
    if "direct" in steps or "dm" in steps:
        return "direct"
    return "group" if "group" in steps or "channel" in steps else "custom"


def new_session(key: str, roster: Roster, **more: object) -> NewSession:
    """A session of that (canonical) key, should there be none. Raises Fault for an unknown agent."""
    owner, _ = parts(key)
    roster.card(owner)
    return NewSession(key=key, agent_id=owner, classification=classification(key, roster), **more)  # type: ignore[arg-type]  # the caller's fields
