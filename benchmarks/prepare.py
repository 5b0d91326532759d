"""Makes the peers to compare with, in benchmarks/.peers: two virtual environments and a node folder."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from report import say
from subjects import (
    FASTMCP_VERSION,
    HERE,
    PREPARED,
    READY,
    REPOSITORY,
    SDK_VERSION,
    SOURCES,
    TYPESCRIPT_VERSION,
    ours_python,
)

STEP_LIMIT = 900  # a slow mirror, not a stuck one
SERVING = ("uvicorn==0.54.0", "httptools==0.9.0", "uvloop==0.23.0")
NODE_PACKAGES = {"@modelcontextprotocol/sdk": TYPESCRIPT_VERSION, "zod": "4.6.7"}
OVERRIDES = "certifi\n"  # FastMCP may ask for a certifi that is not published; any will do on loopback


class StepFailed(Exception):
    """A command of the preparation did not succeed."""


def run(*argv: str, cwd: Path = PREPARED) -> None:
    """Run one step in view; what it says goes to the terminal."""
    say(f"  {' '.join(Path(argv[0]).name if n == 0 else word for n, word in enumerate(argv))}")
    settings = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    try:
        subprocess.run(argv, cwd=cwd, env=settings, check=True, timeout=STEP_LIMIT, stdin=subprocess.DEVNULL)
    except (subprocess.SubprocessError, OSError) as exc:
        raise StepFailed(str(exc)) from exc


def make_venv(folder: Path, python: str) -> str:
    run(python, "-m", "venv", "--clear", folder.name)
    return str(folder / "bin" / "python")


def make_sdk(folder: Path, python: str) -> None:
    inside = make_venv(folder, python)
    run(inside, "-m", "pip", "install", "--quiet", f"mcp=={SDK_VERSION}", *SERVING)
    compile_all(inside, folder)


def make_fastmcp(folder: Path, python: str) -> None:
    inside = make_venv(folder, python)
    run(inside, "-m", "pip", "install", "--quiet", "uv")
    overrides = folder / "overrides.txt"
    overrides.write_text(OVERRIDES)
    install = ("uv", "pip", "install", "--quiet", "--python", inside, "--override", str(overrides))
    run(inside, "-m", *install, f"fastmcp=={FASTMCP_VERSION}", *SERVING)
    compile_all(inside, folder)


def make_typescript(folder: Path, python: str) -> None:
    """The Python is not used here; every maker is called alike."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    package = {"name": "peers", "private": True, "type": "module", "dependencies": NODE_PACKAGES}
    (folder / "package.json").write_text(json.dumps(package, indent=2) + "\n")
    run("npm", "install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", cwd=folder)


def compile_all(python: str, folder: Path) -> None:
    """Bytecode for everything, so that a cold start never includes compiling."""
    libraries = [str(path) for path in folder.glob("lib/python*/site-packages")]
    run(python, "-I", "-m", "compileall", "-q", "-j", "0", *libraries, str(SOURCES))


MAKERS: dict[str, tuple[Callable[[Path, str], None], Sequence[str]]] = {
    "sdk": (make_sdk, (f"mcp=={SDK_VERSION}", *SERVING)),
    "fastmcp": (make_fastmcp, (f"fastmcp=={FASTMCP_VERSION}", *SERVING)),
    "ts": (make_typescript, tuple(f"{name}@{version}" for name, version in NODE_PACKAGES.items())),
}


def prepare(name: str, python: str, *, again: bool) -> None:
    """Make one peer unless it is whole, holds what is wanted and runs on this interpreter."""
    maker, holds = MAKERS[name]
    folder = PREPARED / name
    wanted = json.dumps({"holds": holds, "python": "" if name == "ts" else str(Path(python).resolve())})
    ready = folder / READY
    if not again and ready.exists() and ready.read_text() == wanted:
        say(f"{name}: ready")
        return
    say(f"{name}: making it with {', '.join(holds)}")
    ready.unlink(missing_ok=True)
    maker(folder, python)
    ready.write_text(wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=REPOSITORY / ".venv", help="whose interpreter to use")
    parser.add_argument("--again", action="store_true", help="make every peer again")
    options = parser.parse_args()
    ours = ours_python(options.venv.absolute())
    python = ours if Path(ours).exists() else sys.executable
    PREPARED.mkdir(exist_ok=True)
    say(f"peers in {os.path.relpath(PREPARED)}, on the interpreter of {os.path.relpath(python)}")
    try:
        for name in MAKERS:
            prepare(name, python, again=options.again)
    except StepFailed as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    for source in (SOURCES / "ts").glob("*.mjs"):
        shutil.copy(source, PREPARED / "ts")
    say(f"ready: python {os.path.relpath(HERE)}/stdio.py, python {os.path.relpath(HERE)}/http.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
