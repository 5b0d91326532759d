"""What a decision about one tool costs: config policy against scopes alone, and exec rules, in one interleaved run."""

import time
from collections.abc import Callable

from openclaw_mcp.core.model import Caller, Grant, Sender, ToolSpec
from openclaw_mcp.node.exec.rules import DEFAULT_POLICY, evaluate_policy
from openclaw_mcp.node.exec.shell_reader import ParsedCommand, ShellWord
from openclaw_mcp.node.exec.wrappers import unwrap
from openclaw_mcp.tools.config_policy import ConfigPolicy
from openclaw_mcp.tools.policy import Policy, scope_policy
from openclaw_mcp.tools.policy_rules import PolicyRules, from_config
from openclaw_mcp.tools.tool_names import CLAW_TOOLS

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
    grant=Grant(models=("openai/gpt",), sender=Sender(id="7"), owner=True),
)
COMMANDS = (
    "ls -la /tmp/some/folder",
    "echo hello && uname -a; whoami",
    'git log --oneline -n 20 | head -5 && echo "done with $HOME" 2>&1',
    "env LANG=C ls -l '/var/log' \\\n  --sort=time 2>/dev/null | sort | uniq -c",
    "ls -l \"$(pwd)/data\" 'a file with spaces' | grep -v total > /dev/null 2>&1; echo done at $(date +%s); df -h /",
)


def decisions(policy: Policy) -> Callable[[], float]:
    """Microseconds of this process's time for one decision."""

    def measure() -> float:
        start = time.process_time()
        for _ in range(REPEATS):
            for spec in SPECS:
                policy(CALLER, "claw", spec)
        return (time.process_time() - start) / (REPEATS * len(SPECS)) * 1e6

    return measure


def exec_decisions() -> float:
    """Microseconds for one decision about a text for a shell, under the default rules."""
    pieces = [ParsedCommand((ShellWord("sh"), ShellWord("-c"), ShellWord(text))) for text in COMMANDS]
    start = time.process_time()
    for _ in range(REPEATS // 10):
        for piece in pieces:
            evaluate_policy(DEFAULT_POLICY, unwrap([piece]), locate=lambda name: f"/usr/bin/{name}")
    return (time.process_time() - start) / (REPEATS // 10 * len(pieces)) * 1e6


def compiling() -> float:
    rules = ConfigPolicy(BUSY)
    start = time.process_time()
    for _ in range(REPEATS):
        rules.replace_rules(BUSY)
        rules(CALLER, "claw", SPECS[0])
    return (time.process_time() - start) / REPEATS * 1e6


def main() -> None:
    subjects = {
        "scopes alone (floor)": decisions(scope_policy),
        "config policy, no rules": decisions(ConfigPolicy(PolicyRules())),
        "config policy, six steps that decide": decisions(ConfigPolicy(BUSY)),
        "compiling those for a caller": compiling,
        "exec rules, text for a shell": exec_decisions,
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
