"""Figures of the source tree, for comparing two versions: `python scripts/figures.py [REPO …] [--list KIND]`.

Size, names, types and lifetimes, counted from the syntax tree. `--list` names the places instead: `participles`,
`twice`, `tasks`, `launchers` or `clients`.
"""

import argparse
import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

PACKAGE: Final = "src/openclaw_mcp"
PARTICIPLE: Final = re.compile(
    r"begun|bought|broken|brought|built|caught|chosen|done|drawn|driven|fed|felt|forgotten|given|gone|got|grown|heard|"
    r"held|hidden|kept|known|laid|lent|lost|made|meant|met|paid|risen|said|seen|sent|shown|spent|spoken|stood|stuck|"
    r"swept|taken|taught|thought|thrown|told|torn|understood|went|withdrawn|woken|won|worn|written|\w{3,}(?<!e)ed"
)
"""A word that is a past participle and nothing else: `read`, `set` and `run` are verbs in their plain form too."""
LIKE_ONE: Final = frozenset({"embed", "need", "nested", "shed"})
PREDICATES: Final = frozenset({"is", "are", "has", "have", "was", "can", "may", "must", "needs", "should", "on"})
TASK_STARTS: Final = frozenset({"create_task", "ensure_future", "gather"})
LAUNCHERS: Final = frozenset({"create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "Popen"})
CLIENTS: Final = frozenset({"AsyncClient", "HttpResponseParser", "urlopen"})
"""What an HTTP client is made of: a library's client, a parser of answers, the standard library's opener."""
TASK_MODULE: Final = "net/tasks.py"
BLANK_TOKENS: Final = frozenset(
    {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """One source file, parsed once."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path
        self.name = path.relative_to(root).as_posix()
        self.nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))

    def functions(self) -> Iterator[Function]:
        return (node for node in self.nodes if isinstance(node, Function))

    def calls(self, names: frozenset[str]) -> Iterator[str]:
        """Where one of these is called, unless by a task group."""
        for node in self.nodes:
            if isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                owner = ast.unparse(called.value) if isinstance(called, ast.Attribute) else ""
                if name in names and "group" not in owner and "tasks" not in owner:
                    yield f"{self.name}:{node.lineno}"

    def count_lines(self) -> tuple[int, int]:
        """Lines that hold code, and lines that hold a comment alone. Docstrings are neither."""
        docstrings: set[int] = set()
        for node in self.nodes:
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                docstrings |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        code, comments = set[int](), set[int]()
        with tokenize.open(self.path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.COMMENT:
                    comments.add(token.start[0])
                elif token.type not in BLANK_TOKENS:
                    code |= set(range(token.start[0], token.end[0] + 1))
        return len(code - docstrings), len(comments - code)

    def count_loose_types(self) -> int:
        """Times that `Json` or `dict[str, Any]` stands in the module."""
        names = sum(isinstance(node, ast.Name) and node.id == "Json" for node in self.nodes)
        return names + sum(isinstance(n, ast.Subscript) and ast.unparse(n) == "dict[str, Any]" for n in self.nodes)

    def count_late_asserts(self) -> int:
        """Asserts that something has been set by now."""
        return sum(
            isinstance(node, ast.Assert) and ast.unparse(node.test).endswith("is not None") for node in self.nodes
        )


def read_modules(repo: Path) -> list[Module]:
    root = repo / PACKAGE
    return [Module(root, path) for path in sorted(root.rglob("*.py"))]


def is_participle(name: str) -> bool:
    words = name.strip("_").split("_")
    ends = {words[0], words[-1]} - LIKE_ONE
    return words[0] not in PREDICATES and any(PARTICIPLE.fullmatch(word) for word in ends)


def list_participles(modules: Sequence[Module]) -> list[str]:
    return [
        f"{module.name}:{function.lineno} {function.name}"
        for module in modules
        for function in module.functions()
        if is_participle(function.name) and not any("property" in ast.unparse(d) for d in function.decorator_list)
    ]


def list_shared_names(modules: Sequence[Module]) -> list[str]:
    """Public class names that stand in several modules."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(module.name)
    return [f"{name}: {', '.join(sorted(where))}" for name, where in sorted(found.items()) if len(where) > 1]


def list_calls(modules: Sequence[Module], names: frozenset[str]) -> list[str]:
    return [place for module in modules for place in module.calls(names)]


def list_tasks(modules: Sequence[Module]) -> list[str]:
    return [place for place in list_calls(modules, TASK_STARTS) if not place.startswith(TASK_MODULE)]


def count_modules(places: Sequence[str]) -> int:
    return len({place.partition(":")[0] for place in places})


def measure(repo: Path) -> dict[str, str]:
    modules = read_modules(repo)
    code, comments = (sum(column) for column in zip(*(module.count_lines() for module in modules), strict=True))
    functions = sum(1 for module in modules for _ in module.functions())
    participles = len(list_participles(modules))
    loose = sum(module.count_loose_types() for module in modules)
    return {
        "files": str(len(modules)),
        "code lines": str(code),
        "comment lines per 100 code lines": f"{100 * comments / code:.1f}",
        "modules at the root": str(sum("/" not in module.name for module in modules)),
        "public class names used twice": str(len(list_shared_names(modules))),
        "functions named by a participle": f"{participles} of {functions} ({100 * participles / functions:.1f} %)",
        "bare task starts": str(len(list_tasks(modules))),
        "Json and dict[str, Any] per 1,000 code lines": f"{1000 * loose / code:.1f}",
        "modules that start programs": str(count_modules(list_calls(modules, LAUNCHERS))),
        "modules that are an HTTP client": str(count_modules(list_calls(modules, CLIENTS))),
        "asserts that something is not None": str(sum(module.count_late_asserts() for module in modules)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Figures of the source tree, one column a repository.")
    parser.add_argument("repos", nargs="*", type=Path, default=[Path(__file__).parent.parent], metavar="REPO")
    parser.add_argument("--list", choices=("participles", "twice", "tasks", "launchers", "clients"))
    options = parser.parse_args()
    if options.list is not None:
        modules = read_modules(options.repos[0])
        calls = {"tasks": TASK_STARTS, "launchers": LAUNCHERS, "clients": CLIENTS}
        if options.list in calls:
            rows = list_calls(modules, calls[options.list])
        else:
            rows = list_participles(modules) if options.list == "participles" else list_shared_names(modules)
        print("\n".join(rows))
        return
    columns = [measure(repo) for repo in options.repos]
    for label in columns[0]:
        print(f"{label:46}", *(f"{column[label]:>24}" for column in columns))


if __name__ == "__main__":
    main()
