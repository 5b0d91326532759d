"""Why a CLI did not answer, in one sentence for the person who asked."""

import signal
from collections.abc import Sequence
from typing import Final

from ....core.agent import Failed
from ....core.errors import OpenClawError
from .dialect import Dialect, trouble
from .process import Silent

WORDS: Final = 300  # characters of the CLI's own complaint that the sentence repeats
DETAIL: Final = 2000  # characters of it that are kept with the run


def not_installed(dialect: Dialect, command: str) -> Failed:
    if command != dialect.program:
        said = f"{dialect.title} can't be run: there is no program {command}; correct the agent's runtimeCommand."
    else:
        said = f"{dialect.title} is not installed here: run `{dialect.install}`, or set the agent's runtimeCommand."
    return Failed(message=said, detail={"code": "not_installed"})


def not_started(dialect: Dialect, exc: OpenClawError | OSError) -> Failed:
    if isinstance(exc, OSError):
        reason, code = f"{exc.filename or 'a file'}: {exc.strerror or type(exc).__name__}", "os_error"
    else:
        reason, code = str(exc), exc.code
    return Failed(message=f"{dialect.title} can't be started: {reason}", detail={"code": code})


def silent(dialect: Dialect, exc: Silent) -> Failed:
    setting = "runtimeStartupSeconds" if exc.when == "start" else "runtimeIdleSeconds"
    said = f"{dialect.title} said nothing for {exc.seconds:g} s and was stopped; if it needs longer, raise {setting}."
    return Failed(message=said, kind="timeout", detail={"code": f"silent_{exc.when}"})


def failure(dialect: Dialect, complaint: str, status: int | None, *, masked: Sequence[str]) -> Failed:
    """`complaint` is what it said itself: an error event, else the end of its stderr."""
    for secret in masked:
        complaint = complaint.replace(secret, "…")
    what, words = trouble(complaint), _words(complaint)
    detail = {"code": what, "said": complaint[-DETAIL:], "status": status}
    match what:
        case "auth":
            said = f"{dialect.title} may not use its model: {dialect.sign_in}. It said: {words}"
            return Failed(message=said, detail=detail)
        case "rate":
            said = f"{dialect.title}'s model is busy or its limit is reached; try again later. It said: {words}"
            return Failed(message=said, kind="rate_limit", detail=detail)
        case "context":
            said = (
                f"This conversation has grown too long for {dialect.title}'s model; the next message begins a new one."
            )
            return Failed(message=said, kind="context_length", detail=detail, drop_resume=True)
        case "network":
            said = f"{dialect.title} can't reach its model; check the network, or its base URL. It said: {words}"
            return Failed(message=said, detail=detail)
        case "server":
            said = f"{dialect.title} could not start the gateway's tools; see its words in the run. It said: {words}"
            return Failed(message=said, detail=detail)
        case _:
            said = f"{dialect.title} {_ending(status)}" + (f": {words}" if words else " and said nothing.")
            return Failed(message=said, detail=detail, drop_resume=what == "resume")


def _words(complaint: str) -> str:
    """The last lines of it, on one."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    text = " | ".join(lines)
    printable = "".join(char if char.isprintable() else " " for char in text)
    return printable if len(printable) <= WORDS else "…" + printable[-WORDS:]


def _ending(status: int | None) -> str:
    if status is None:
        return "failed"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return "failed" if status == 0 else f"ended with status {status}"
