"""The walls. A room imports only what this table says."""

import ast
from pathlib import Path

import openclaw_mcp

ROOT = Path(openclaw_mcp.__file__).parent

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "wire": {"core"},
    "tools": {"core"},
    "mcp": {"core", "wire"},
    "servers": {"core", "wire"},
    "openings": {"mcp"},
    "web": {"core"},
    "apps": {"core", "wire"},
    "rpc": {"core", "wire"},
    "store": {"core"},
    "sessions": {"core"},
    "agents": {"core"},
    "config": {"core"},
    "order": {"core"},
    "node": {"core"},
    "nodes": {"core"},
    "models": {"core", "wire"},
    "channels": {"core"},
    "cron": {"core"},
    "claw": {"core"},
    "clients": {"core"},
    "media": {"core"},
    "delegation": {"core"},
}
CARETAKERS = {"cli", "proxy"}
"""Rooms that may know every other."""

NOT_IN_CODECS = {"asyncio", "socket", "time", "os", "logging", "threading", "subprocess", "pathlib"}


def rooms_imported(path: Path) -> set[str]:
    """The rooms of the house a module of a room names, however deep in a function."""
    found = set()
    up = len(path.relative_to(ROOT).parts)  # dots that lead to the house itself
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == up:
            found |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("openclaw_mcp.")}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("openclaw_mcp"):
            found |= {(node.module or "").partition(".")[2].split(".")[0]}
    return {room for room in found if (ROOT / room).is_dir()}


def modules_imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}


def test_every_room_is_in_the_table() -> None:
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}

    assert rooms == MAY_IMPORT.keys() | CARETAKERS


def test_rooms_import_only_what_the_table_allows() -> None:
    for room, allowed in MAY_IMPORT.items():
        for path in (ROOT / room).rglob("*.py"):
            assert rooms_imported(path) <= allowed | {room}, path


def test_codecs_and_policy_do_no_io() -> None:
    policy = [ROOT / "tools" / f"{name}.py" for name in ("policy", "house", "names", "rulebook", "standing", "steps")]
    for path in [*(ROOT / "wire").glob("*.py"), *policy]:
        assert not modules_imported(path) & NOT_IN_CODECS, path


def test_an_import_inside_a_function_has_its_reason_beside_it() -> None:
    for path in ROOT.rglob("*.py"):
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
    for path in ROOT.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_no_file_outgrows_what_a_reader_can_hold() -> None:
    for path in ROOT.rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 450, path


def test_text_from_outside_is_read_as_a_number_in_one_place() -> None:
    """`isdecimal` and its kin take every script's digits, and `int` raises for very many of them; of bytes neither."""
    asks = {"isdecimal", "isdigit", "isnumeric"}
    found = set()
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.Attribute) and node.attr in asks for node in ast.walk(tree)):
            found.add(path.relative_to(ROOT).as_posix())
    assert found == {"core/numbers.py", "wire/sse.py", "order/kinds.py"}
