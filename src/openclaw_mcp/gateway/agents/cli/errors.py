"""Why a CLI did not answer, in one sentence for the person who asked."""

import signal
from collections.abc import Sequence
from typing import Final

from ....core.agent import TurnFailed
from ....core.errors import OpenClawError
from .dialect import CliAdapter, classify_error
from .process import CliSilentError

QUOTE_LENGTH: Final = 300  # characters of the CLI's own complaint that the sentence repeats
DETAIL_LENGTH: Final = 2000  # characters of it that are kept with the run


def installation_failure(adapter: CliAdapter, command: str) -> TurnFailed:
    if command != adapter.program:
        said = f"{adapter.title} can't be run: there is no program {command}; correct the agent's runtimeCommand."
    else:
        said = f"{adapter.title} is not installed here: run `{adapter.install}`, or set the agent's runtimeCommand."
    return TurnFailed(message=said, detail={"code": "not_installed"})


def start_failure(adapter: CliAdapter, exc: OpenClawError | OSError) -> TurnFailed:
    if isinstance(exc, OSError):
        reason, code = f"{exc.filename or 'a file'}: {exc.strerror or type(exc).__name__}", "os_error"
    else:
        reason, code = str(exc), exc.code
    return TurnFailed(message=f"{adapter.title} can't be started: {reason}", detail={"code": code})


def timeout_failure(adapter: CliAdapter, exc: CliSilentError) -> TurnFailed:
    setting = "runtimeStartupSeconds" if exc.when == "start" else "runtimeIdleSeconds"
    said = f"{adapter.title} said nothing for {exc.seconds:g} s and was stopped; if it needs longer, raise {setting}."
    return TurnFailed(message=said, kind="timeout", detail={"code": f"silent_{exc.when}"})


def run_failure(adapter: CliAdapter, error_text: str, status: int | None, *, secrets: Sequence[str]) -> TurnFailed:
    """`complaint` is what it said itself: an error event, else the end of its stderr."""
    for secret in secrets:
        error_text = error_text.replace(secret, "…")
    what, words = classify_error(error_text), _last_lines(error_text)
    detail = {"code": what, "said": error_text[-DETAIL_LENGTH:], "status": status}
    match what:
        case "auth":
            said = f"{adapter.title} may not use its model: {adapter.sign_in}. It said: {words}"
            return TurnFailed(message=said, detail=detail)
        case "rate":
            said = f"{adapter.title}'s model is busy or its limit is reached; try again later. It said: {words}"
            return TurnFailed(message=said, kind="rate_limit", detail=detail)
        case "context":
            said = (
                f"This conversation has grown too long for {adapter.title}'s model; the next message begins a new one."
            )
            return TurnFailed(message=said, kind="context_length", detail=detail, drop_resume=True)
        case "network":
            said = f"{adapter.title} can't reach its model; check the network, or its base URL. It said: {words}"
            return TurnFailed(message=said, detail=detail)
        case "server":
            said = f"{adapter.title} could not start the gateway's tools; see its words in the run. It said: {words}"
            return TurnFailed(message=said, detail=detail)
        case _:
            said = f"{adapter.title} {_describe_exit(status)}" + (f": {words}" if words else " and said nothing.")
            return TurnFailed(message=said, detail=detail, drop_resume=what == "resume")


def _last_lines(error_text: str) -> str:
    """The last lines of it, on one."""
    lines = [line.strip() for line in error_text.splitlines() if line.strip()]
    text = " | ".join(lines)
    printable = "".join(char if char.isprintable() else " " for char in text)
    return printable if len(printable) <= QUOTE_LENGTH else "…" + printable[-QUOTE_LENGTH:]


def _describe_exit(status: int | None) -> str:
    if status is None:
        return "failed"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return "failed" if status == 0 else f"ended with status {status}"
