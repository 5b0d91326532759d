"""The walls: which package may import which, and what holds in every module."""

import ast
from collections.abc import Iterator
from pathlib import Path

from scripts import mutate

import openclaw_mcp

ROOT = Path(openclaw_mcp.__file__).parent

SHARED = {"core", "protocol", "net"}
"""What everything above may import."""

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "protocol": {"core"},
    "net": {"core", "protocol"},
    "tools": {"core", "net"},
    "store": {"core", "net"},
    "config": {"core", "net"},
    "mcp.server": SHARED,
    "mcp.client": SHARED,
    "mcp.first_replies": {"mcp.server"},
    "apps": SHARED,
    "connect": SHARED,
    "order": SHARED,
    "claw": SHARED | {"tools", "mcp.server"},
    "node": SHARED | {"tools", "mcp.server"},
    "proxy": SHARED | {"tools", "mcp.server"},
    "gateway.rpc": SHARED,
    "gateway.sessions": SHARED,
    "gateway.runs": SHARED,
    "gateway.channels": SHARED,
    "gateway.cron": SHARED,
    "gateway.nodes": SHARED,
    "gateway.agents": SHARED,
    "gateway.agents.attachments": SHARED,
    "gateway.agents.cli": SHARED,
    "gateway.agents.models": SHARED,
    "gateway.agents.subagents": SHARED,
    "gateway.wiring": SHARED | {"tools", "store", "config", "mcp.server", "mcp.client", "gateway"},
    "cli": {""},
}
"""Each package and those it may import besides itself; `gateway` stands for all below it, `` for everything."""

NOT_IN_CODECS = {"asyncio", "socket", "time", "os", "logging", "threading", "subprocess", "pathlib"}
MAX_LINES = 450
"""Lines of one file: what a reader can hold."""


def modules() -> dict[str, Path]:
    """Every module by its dotted name below the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def package_of(module: str) -> str:
    """The longest entry of the table that holds the module; nothing for the package itself."""
    while module and module not in MAY_IMPORT:
        module = module.rpartition(".")[0]
    return module


def imported_modules(module: str, path: Path) -> Iterator[str]:
    """Our own modules that a module names, however deep in a function and for types alone as well."""
    parent = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names = [alias.name.removeprefix("openclaw_mcp.") for alias in node.names]
            yield from (name for name in names if name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            base = _imported_base(node, parent)
            if base is not None:
                for alias in node.names:
                    below = f"{base}.{alias.name}".lstrip(".")
                    yield below if below in MODULES else base


def _imported_base(node: ast.ImportFrom, parent: str) -> str | None:
    if not node.level:
        name = node.module or ""
        return name.removeprefix("openclaw_mcp").lstrip(".") if name.split(".")[0] == "openclaw_mcp" else None
    steps = parent.split(".") if parent else []
    steps = steps[: len(steps) - (node.level - 1)]
    return ".".join([*steps, *([node.module] if node.module else [])])


def libraries_imported(path: Path) -> set[str]:
    nodes = list(ast.walk(parse(path)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}


def test_every_module_belongs_to_a_package_of_the_table() -> None:
    assert {module for module in MODULES if not package_of(module)} == {"", "__main__", "gateway", "mcp"}


def test_packages_import_only_what_the_table_allows() -> None:
    for module, path in MODULES.items():
        package = package_of(module)
        allowed = MAY_IMPORT.get(package, {""}) | {package}
        for name in imported_modules(module, path):
            target = package_of(name)
            assert any(each in ("", target) or target.startswith(f"{each}.") for each in allowed) or not target, (
                f"{module} imports {name}"
            )


def test_codecs_and_policy_do_no_io() -> None:
    policy = ("policy", "config_policy", "tool_names", "policy_rules", "subject", "policy_pipeline")
    for path in [*(ROOT / "protocol").glob("*.py"), *(ROOT / "tools" / f"{name}.py" for name in policy)]:
        assert not libraries_imported(path) & NOT_IN_CODECS, path


def test_an_import_inside_a_function_has_its_reason_beside_it() -> None:
    for path in MODULES.values():
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    near = "\n".join(lines[max(0, node.lineno - 4) : node.lineno])
                    assert "for start-up" in near, f"{path}:{node.lineno} hides an import without saying why"


def test_a_module_opens_with_a_line_on_what_it_is() -> None:
    for path in MODULES.values():
        assert ast.get_docstring(parse(path)), path


def test_no_file_outgrows_what_a_reader_can_hold() -> None:
    for path in MODULES.values():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES, path


def test_text_from_outside_is_read_as_a_number_in_one_place() -> None:
    """`isdecimal` and its kin take every script's digits, and `int` raises for very many of them; of bytes neither."""
    asks = {"isdecimal", "isdigit", "isnumeric"}
    found = set()
    for path in MODULES.values():
        if any(isinstance(node, ast.Attribute) and node.attr in asks for node in ast.walk(parse(path))):
            found.add(path.relative_to(ROOT).as_posix())
    assert found == {"core/numbers.py", "protocol/sse.py", "order/media_types.py"}


def test_a_public_class_name_stands_for_one_thing() -> None:
    found: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, set()).add(module)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_tasks_are_started_in_one_module() -> None:
    """`net/tasks.py` owns background work; a `TaskGroup` owns its own."""
    starts = {"create_task", "ensure_future", "gather"}
    for module, path in MODULES.items():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in starts:
                owner = ast.unparse(node.func.value)
                assert module == "net.tasks" or "group" in owner or "tasks" in owner, f"{path}:{node.lineno}"


def test_every_module_that_mutants_are_made_of_is_there_with_its_tests() -> None:
    """A module that was moved would end the mutation run before its first mutant."""
    tree = ROOT.parent.parent
    lost = [module for module in mutate.GUARDS if not (ROOT / module).is_file()]
    lost += [test for tests in mutate.GUARDS.values() for test in tests if not (tree / test).exists()]

    assert lost == []
