"""The programs our tests drive: where they are, how they are installed, and what happens when one is missing.

`python -m tests.programs install` installs what it may (Debian or Ubuntu, as root or with sudo; npm packages into
`.tools/`, Python programs into an environment of their own there), and names what it could not; `install interop`
also fetches the large counterparts of `make interop`. A test asks with `need()`: without its program it is skipped,
and under CI it fails.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal, NoReturn

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / ".tools"
NPM = {TOOLS: Path(__file__).parent / "package.json"}
NPM_INTEROP = {TOOLS / "interop": Path(__file__).parent / "interop" / "package.json"}
"""Where npm packages go, and the manifest that names them with exact versions."""
INSTALL_WAIT = 1800  # seconds one package manager may take; a slow disk makes it a matter of minutes

DEBIAN = {
    "node": "nodejs",
    "npm": "npm",
    "chromium": "chromium",
    "Xvfb": "xvfb",
    "xsetroot": "x11-xserver-utils",
    "sway": "sway",
    "grim": "grim",
    "ffmpeg": "ffmpeg",
    "espeak-ng": "espeak-ng",
    "speech-dispatcher": "speech-dispatcher",
    "pulseaudio": "pulseaudio",
    "paplay": "pulseaudio-utils",
    "soxi": "sox",
    "dbus-daemon": "dbus-daemon",
    "dbus-run-session": "dbus",
    "gnome-keyring-daemon": "gnome-keyring",
    "/usr/libexec/geoclue": "geoclue-2.0",
    "/usr/lib/speech-dispatcher-modules/sd_espeak-ng": "speech-dispatcher-espeak-ng",
    "curl": "curl",
    "dunst": "dunst",
    "redis-server": "redis-server",
    "nginx": "nginx-light",
    "/usr/lib/postgresql/*/bin/initdb": "postgresql",
    "git": "git",
    "ip": "iproute2",
    "unshare": "util-linux",
    "openssl": "openssl",
    "bash": "bash",
    "dash": "dash",
    "ksh93": "ksh93u+m",
    "mksh": "mksh",
    "busybox": "busybox",
    "zsh": "zsh",
}
"""Program, or the pattern of its path, to the Debian package that brings it."""

PYPI = {
    "python": {"mcp-server-time": "2026.10.19", "mcp-server-git": "2026.10.19"},
}
PYPI_INTEROP = {
    "synapse": {"matrix-synapse": "1.163.2"},
}
"""Python programs that must not share our environment, by the environment under `.tools/` they share, with versions."""

NODE_AT_LEAST = (24, 16)  # what the real OpenClaw asks for; everything else is content with it


def need(name: str, *, package: str) -> str:
    """The path of a program. Without it the test is skipped, saying what to install; under CI it fails."""
    path = shutil.which(name)
    if path is None:
        _lacking(f"{name} is not installed (Debian package {package})")
    return path


def need_own(what: Literal["network", "mounts"]) -> list[str]:
    """The beginning of a command line that gives the rest a network or mounts of its own, gone with it."""
    kind = what[0]
    unshare = need("unshare", package="util-linux")
    ways = ([unshare, f"-Ur{kind}"], [unshare, f"-{kind}"])  # as a user; as root where a changed root forbids that
    found = next((way for way in ways if not _trouble([*way, "true"])), None)
    if found is None:
        _lacking(f"this machine lets nobody have {what} of their own")
    return found


def need_node() -> str:
    """A Node.js new enough for the packages in `.tools/`."""
    path = node()
    if path is None:
        _lacking(f"no Node.js {NODE_AT_LEAST[0]}.{NODE_AT_LEAST[1]} or newer: run `make programs`")
    return path


def need_npm(package: str) -> Path:
    """The folder of an npm package of `tests/package.json`."""
    folders = [home / "node_modules" / package for home in (*NPM, *NPM_INTEROP)]
    found = next((folder for folder in folders if folder.exists()), None)
    if found is None:
        _lacking(f"npm package {package} is not in .tools: run `make programs`, or `make interop` for the large ones")
    return found


def need_pypi(program: str, *, environment: str = "python") -> str:
    """The path of a Python program in an environment under `.tools/`."""
    path = TOOLS / environment / "bin" / program
    if not path.exists():
        _lacking(f"{program} is not in .tools/{environment}: run `make programs`")
    return str(path)


def node() -> str | None:
    bundled = sorted(TOOLS.glob("node_modules/node-*/bin/node"))
    for candidate in [*map(str, bundled), shutil.which("node")]:
        if candidate is not None and _node_version(candidate) >= NODE_AT_LEAST:
            return candidate
    return None


def install(*, interop: bool) -> int:
    """Install what is missing. Exits 0 even when something could not be had: its tests say so themselves."""
    missing = {name: package for name, package in DEBIAN.items() if not _present(name)}
    if missing:
        _install_debian(sorted(set(missing.values())))
    for folder, manifest in (NPM | NPM_INTEROP if interop else NPM).items():
        _install_npm(folder, manifest)
    for environment, packages in (PYPI | PYPI_INTEROP if interop else PYPI).items():
        _install_pypi(TOOLS / environment, packages)
    absent = [f"{name} ({package})" for name, package in DEBIAN.items() if not _present(name)]
    if node() is None:
        absent.append(f"Node.js >= {NODE_AT_LEAST[0]}.{NODE_AT_LEAST[1]}")
    if absent:
        print(f"programs: could not install {', '.join(absent)}; the tests that drive them will be skipped")
    return 1 if absent and os.environ.get("CI") else 0


def _present(name: str) -> bool:
    return any(Path("/").glob(name[1:])) if name.startswith("/") else shutil.which(name) is not None


def _lacking(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; under CI nothing is skipped")
    pytest.skip(reason)


def _install_debian(packages: list[str]) -> None:
    by_hand = f"apt-get install --no-install-recommends {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        print(f"programs: this is no Debian; please install what it calls {', '.join(packages)}")
        return
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if root and _trouble([*root, "true"]):
        print(f"programs: only root may install packages here; please run as root: {by_hand}")
        return
    print(f"programs: installing {', '.join(packages)}")
    for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        trouble = _trouble([*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", *words])
        if trouble:
            print(f"programs: apt-get {words[0]} failed ({trouble}); please run as root: {by_hand}")
            return


def _trouble(words: list[str]) -> str:
    """Run a program to its end; why it failed, in its own last words, or nothing."""
    try:
        result = subprocess.run(words, timeout=INSTALL_WAIT, capture_output=True, text=True, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)[:200]
    last = "".join(result.stderr.strip().splitlines()[-1:])
    return (last or f"status {result.returncode}") if result.returncode else ""


def _install_npm(folder: Path, manifest: Path) -> None:
    """The packages of a manifest, and a Node.js when this machine's own is too old for them."""
    npm, stamp = shutil.which("npm"), folder / "package.json"
    if npm is None or (stamp.exists() and stamp.read_bytes() == manifest.read_bytes() and node()):
        return
    print(f"programs: installing npm packages into {folder.relative_to(ROOT)}")
    work = folder / "installing"
    work.mkdir(parents=True, exist_ok=True)
    shutil.copy(manifest, work / "package.json")
    words = [npm, "install", "--prefix", str(work), "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    own = shutil.which("node")
    enough = folder != TOOLS or (own is not None and _node_version(own) >= NODE_AT_LEAST)
    extra = [] if enough else [f"node-{_platform()}@24"]
    for packages in ([], extra):
        if trouble := _trouble([*words, *packages]):
            print(f"programs: npm install failed: {trouble}")
            return
    shutil.rmtree(folder / "node_modules", ignore_errors=True)
    (work / "node_modules").rename(folder / "node_modules")
    shutil.rmtree(work)
    shutil.copy(manifest, stamp)


def _install_pypi(folder: Path, packages: dict[str, str]) -> None:
    stamp = folder / "installed"
    wanted = "\n".join(f"{name}=={version}" for name, version in packages.items())
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"programs: installing Python programs into {folder.relative_to(ROOT)}")
    shutil.rmtree(folder, ignore_errors=True)
    make = [sys.executable, "-m", "venv", str(folder)]
    fill = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *wanted.split()]
    for words in (make, fill):
        if trouble := _trouble(words):
            print(f"programs: installing Python programs failed: {trouble}")
            return
    stamp.write_text(wanted)


def _platform() -> str:
    machine = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), platform.machine())
    return f"{sys.platform}-{machine}"


def _node_version(path: str) -> tuple[int, ...]:
    result = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
    numbers = result.stdout.strip().removeprefix("v").split(".")
    return tuple(int(number) for number in numbers if number.isdecimal())


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what goes on is seen in a log as well
    if sys.argv[1:] not in (["install"], ["install", "interop"]):
        sys.exit("usage: python -m tests.programs install [interop]")
    sys.exit(install(interop="interop" in sys.argv))
