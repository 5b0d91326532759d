"""What a decision about one tool costs: house rules against scopes alone, in one interleaved run."""

import time
from collections.abc import Callable

from openclaw_mcp.core.model import Caller, Grant, Sender, ToolSpec
from openclaw_mcp.tools.house import HouseRules
from openclaw_mcp.tools.names import CLAW_TOOLS
from openclaw_mcp.tools.policy import Policy, by_scope
from openclaw_mcp.tools.rulebook import RuleBook, from_config

ROUNDS, REPEATS = 25, 200
SPECS = [ToolSpec(name=name) for name in CLAW_TOOLS]
BUSY = from_config({
    "tools": {
        "profile": "coding",
        "alsoAllow": ["group:messaging", "browser_*"],
        "deny": ["message_delete", "group:nodes", "x*y"],
        "byProvider": {"openai": {"deny": ["exec"]}},
        "toolsBySender": {"id:7": {"deny": ["process"]}, "*": {"deny": ["*"]}},
    },
    "agents": {"list": [{"id": "main", "tools": {"deny": ["sessions_spawn"]}}]},
    "channels": {"telegram": {"groups": {"-1": {"tools": {"deny": ["message_pin"]}}}}},
})  # fmt: skip
CALLER = Caller(
    kind="agent",
    name="run",
    scopes=frozenset({"*"}),
    session="agent:main:telegram:group:-1",
    grant=Grant(model="openai/gpt", sender=Sender(id="7"), owner=True),
)


def decisions(policy: Policy) -> Callable[[], float]:
    """Microseconds of this process's time for one decision."""

    def measure() -> float:
        begun = time.process_time()
        for _ in range(REPEATS):
            for spec in SPECS:
                policy(CALLER, "claw", spec)
        return (time.process_time() - begun) / (REPEATS * len(SPECS)) * 1e6

    return measure


def compiling() -> float:
    rules = HouseRules(BUSY)
    begun = time.process_time()
    for _ in range(REPEATS):
        rules.adopt(BUSY)
        rules(CALLER, "claw", SPECS[0])
    return (time.process_time() - begun) / REPEATS * 1e6


def main() -> None:
    subjects = {
        "scopes alone (floor)": decisions(by_scope),
        "house rules, empty book": decisions(HouseRules(RuleBook())),
        "house rules, six steps speaking": decisions(HouseRules(BUSY)),
        "compiling those for a caller": compiling,
    }
    best = dict.fromkeys(subjects, float("inf"))
    for _ in range(ROUNDS):
        for name, measure in subjects.items():
            best[name] = min(best[name], measure())
    floor = best["scopes alone (floor)"]
    for name, value in best.items():
        print(f"{name:36} {value:7.2f} µs  {value / floor:6.1f} x")


if __name__ == "__main__":
    main()
