"""Change the modules that guard, one small random change at a time, and see whether their tests notice.

`python scripts/mutate.py` tries mutants until `--seconds` are over or `--count` are done, and prints those that no test
noticed, to be read one by one. `--only` limits it to modules whose path contains that text. The tree is never touched:
each worker changes a copy of its own. Exit status 1 when fewer than `--least` percent were noticed.
"""

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = Path("src/openclaw_mcp")
COPIED: Final = ("src", "tests", "scripts", "docs", "examples", "deploy", "benchmarks", "pyproject.toml", "README.md")
ONE_MUTANT: Final = 120.0  # seconds; tests that hang have noticed

GUARDS: Final[dict[str, tuple[str, ...]]] = {
    "node/exec/rules.py": (
        "tests/node/exec/test_verdicts.py",
        "tests/node/exec/test_stricter_from_afar.py",
        "tests/node/test_system.py",
        "tests/node/exec/test_rule_families.py",
        "tests/node/exec/test_default_rules.py",
        "tests/node/exec/test_always.py",
        "tests/node/exec/test_always_lists.py",
        "tests/node/exec/test_bypasses.py",
    ),
    "node/exec/shell_reader.py": (
        "tests/node/exec/test_reading.py",
        "tests/node/exec/test_opening.py",
        "tests/fuzz/test_shell.py",
        "tests/node/exec/test_first_to_start.py",
        "tests/node/exec/test_what_starts.py",
        "tests/node/exec/test_bypasses.py",
    ),
    "node/exec/wrappers.py": (
        "tests/node/exec/test_opening.py",
        "tests/node/exec/test_trusted_programs.py",
        "tests/node/exec/test_first_to_start.py",
        "tests/node/exec/test_default_rules.py",
        "tests/node/exec/test_what_starts.py",
        "tests/node/exec/test_bypasses.py",
    ),
    "node/exec/pattern_matching.py": (
        "tests/node/exec/test_verdicts.py",
        "tests/node/exec/test_rule_families.py",
        "tests/node/exec/test_same_file.py",
        "tests/node/exec/test_default_rules.py",
        "tests/node/exec/test_trusted_programs.py",
        "tests/node/exec/test_bypasses.py",
    ),
    "mcp/server/http_gate.py": (
        "tests/mcp/server/test_http_gate.py",
        "tests/net/test_hosts.py",
        "tests/node/test_http_endpoint.py",
    ),
    "mcp/server/request_state.py": (
        "tests/mcp/server/test_elicitation.py",
        "tests/mcp/server/test_results.py",
        "tests/mcp/server",
    ),
    "gateway/rpc/authenticator.py": (
        "tests/gateway/rpc/test_authenticator.py",
        "tests/gateway/rpc/test_grants.py",
        "tests/net/gateway_client/test_client.py",
    ),
    "gateway/rpc/grants.py": (
        "tests/gateway/rpc/test_grants.py",
        "tests/gateway/rpc/test_grant_effects.py",
        "tests/claw/test_server.py",
    ),
    "gateway/rpc/pairing.py": (
        "tests/gateway/rpc/test_pairing.py",
        "tests/gateway/rpc/test_authenticator.py",
        "tests/gateway/rpc",
    ),
    "gateway/nodes/approval_queue.py": (
        "tests/gateway/nodes/test_approval_queue.py",
        "tests/gateway/nodes/test_approvers.py",
        "tests/gateway/nodes/test_approvals.py",
    ),
    "tools/policy.py": ("tests/tools/test_config_policy.py", "tests/tools/test_policy_cases.py", "tests/tools"),
    "tools/config_policy.py": (
        "tests/tools/test_config_policy.py",
        "tests/tools/test_explanations.py",
        "tests/tools",
        "tests/gateway/wiring/test_entry_points.py",
    ),
    "tools/policy_rules.py": ("tests/tools/test_policy_rules.py", "tests/tools"),
    "tools/policy_pipeline.py": ("tests/tools/test_explanations.py", "tests/tools/test_policy_cases.py", "tests/tools"),
    "gateway/channels/inbound_rules.py": (
        "tests/gateway/channels/test_rules.py",
        "tests/gateway/channels/test_action_families.py",
    ),
    "gateway/channels/message_actions.py": (
        "tests/gateway/channels/test_action_families.py",
        "tests/gateway/channels/test_actions.py",
        "tests/gateway/channels/test_own_conversation.py",
    ),
    "net/file_access.py": ("tests/net/file_access/test_file_access.py", "tests/net/file_access/test_entry_points.py"),
    "gateway/channels/attachments.py": (
        "tests/gateway/channels/test_media.py",
        "tests/gateway/channels/test_actions.py",
    ),
    "store/writer.py": ("tests/store/test_writer.py", "tests/store/test_store.py", "tests/store/test_messages.py"),
    "store/runs.py": ("tests/store/test_runs.py", "tests/store/test_store.py", "tests/gateway/wiring/test_owner.py"),
    "config/rpc_methods.py": (
        "tests/config/test_rpc_methods.py",
        "tests/config/test_config.py",
        "tests/config/test_permission.py",
    ),
    "config/permission.py": ("tests/config/test_permission.py",),
    "config/key_permissions.py": ("tests/config/test_permission.py",),
    "gateway/cron/schedule.py": ("tests/gateway/cron/test_schedules.py", "tests/gateway/cron/test_clock.py"),
    "proxy/engine/bridge.py": (
        "tests/proxy/test_one_bridge.py",
        "tests/proxy/test_mcp.py",
        "tests/proxy/test_bridge.py",
    ),
    "proxy/engine/quotas.py": ("tests/proxy/engine/test_quotas.py",),
}
"""Each module that guards, and the tests that should notice a change in it, the quickest first."""

COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


class Mutant(NamedTuple):
    module: str
    line: int
    what: str
    source: str


def mutants_of(module: str) -> Iterator[Mutant]:
    """Every small change we know to make in a module."""
    source = (ROOT / PACKAGE / module).read_text()
    tree = ast.parse(source)
    for node in _code_nodes(tree):
        for replacement in _replacements(node):
            old, new = ast.unparse(node), ast.unparse(replacement) if replacement is not None else "pass"
            changed = _replaced(source, node, new if isinstance(node, ast.stmt) else f"({new})")
            yield Mutant(module, node.lineno, f"{_short(old)}  ->  {_short(new)}", changed)


def _code_nodes(node: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    """Statements and expressions that do something: no annotations, no docstrings, no words for people."""
    for child in _children(node):
        if isinstance(child, (ast.stmt, ast.expr)):
            yield child
        yield from _code_nodes(child)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.JoinedStr() | ast.Subscript(value=ast.Name(id="Literal" | "dict" | "list" | "tuple" | "Callable")):
            pass
        case ast.AnnAssign(value=value):
            if value is not None:
                yield value
        case ast.ClassDef(body=body):  # not its bases and keywords: `frozen=True` guards nothing
            yield from body
        case ast.FunctionDef(args=args, body=body) | ast.AsyncFunctionDef(args=args, body=body):
            yield from args.defaults
            yield from (default for default in args.kw_defaults if default is not None)
            yield from body
        case ast.Lambda(body=expression):
            yield expression
        case _:
            yield from ast.iter_child_nodes(node)


def _replacements(node: ast.stmt | ast.expr) -> Iterator[ast.AST | None]:  # noqa: C901  (a table)
    match node:
        case ast.Compare(left=left, ops=[op], comparators=comparators) if type(op) in COMPARED:
            yield ast.Compare(left, [COMPARED[type(op)]()], comparators)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for at in range(len(values)):
                rest = values[:at] + values[at + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Set(elts=[*elements]) | ast.Tuple(elts=[*elements], ctx=ast.Load()) if len(elements) > 1:
            for at in range(len(elements)):
                yield type(node)(elements[:at] + elements[at + 1 :])
        case ast.Expr(value=ast.Await() | ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Break():
            yield None
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))


def _replaced(source: str, node: ast.stmt | ast.expr, new: str) -> str:
    lines = source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    first, last = lines[node.lineno - 1], lines[node.end_lineno - 1]
    lines[node.lineno - 1 : node.end_lineno] = [
        first[: node.col_offset] + new.encode() + last[node.end_col_offset :],
    ]
    return b"".join(lines).decode()


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:87]}..."


class Workshop:
    """A copy of the tree in which one mutant at a time is tried."""

    def __init__(self, place: Path) -> None:
        self._place = place
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
            else:
                shutil.copy(source, place / name)
        for name in (".venv", ".tools"):
            if (ROOT / name).exists():
                (place / name).symlink_to((ROOT / name).resolve())

    def notices(self, mutant: Mutant) -> bool:
        """Whether some test of the module fails with this change."""
        file = self._place / PACKAGE / mutant.module
        before = file.read_text()
        file.write_text(mutant.source)
        try:
            return not self.passes(GUARDS[mutant.module])
        finally:
            file.write_text(before)

    def passes(self, tests: Sequence[str]) -> bool:
        tests = [test for test in tests if (self._place / test).exists()]
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not interop", *tests]
        # Compiled files are distinguished by the second and the size: two mutants may share both.
        environment = os.environ | {"PYTHONPATH": str(self._place / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        child = subprocess.Popen(
            command, cwd=self._place, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            return child.wait(timeout=ONE_MUTANT) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end_group(child)


def _end_group(child: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.wait()


def choose(only: str, count: int, chance: random.Random) -> list[Mutant]:
    """Random mutants, spread over the modules by the number of changes each offers."""
    every = [mutant for module in GUARDS if only in module for mutant in mutants_of(module)]
    return chance.sample(every, min(count, len(every)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="mutants at the most")
    parser.add_argument("--seconds", type=float, default=600.0, help="no mutant begins after that")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed gives the same mutants")
    parser.add_argument("--only", default="", help="only modules whose path contains this")
    parser.add_argument("--least", type=float, default=90.0, help="percent that must be noticed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()

    chosen = choose(options.only, options.count, random.Random(options.seed))  # noqa: S311  (no secret)
    print(f"mutate: {len(chosen)} mutants, seed {options.seed}", flush=True)
    until = time.monotonic() + options.seconds
    noticed, survived = [0], list[Mutant]()
    queue, lock = iter(chosen), Lock()

    def work(place: Path) -> None:
        workshop = Workshop(place)
        while time.monotonic() < until:
            with lock:
                mutant = next(queue, None)
            if mutant is None:
                return
            detected = workshop.notices(mutant)
            with lock:
                noticed[0] += detected
                if not detected:
                    survived.append(mutant)
                    print(f"survived  {mutant.module}:{mutant.line}  {mutant.what}", flush=True)

    with TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(options.workers) as pool:
        for future in [pool.submit(work, Path(folder) / str(worker)) for worker in range(options.workers)]:
            future.result()

    tried = noticed[0] + len(survived)
    share = 100.0 * noticed[0] / max(tried, 1)
    print(f"mutate: {tried} tried, {noticed[0]} noticed ({share:.0f} %), {len(survived)} survived, seed {options.seed}")
    return 0 if tried and share >= options.least else 1


if __name__ == "__main__":
    raise SystemExit(main())
