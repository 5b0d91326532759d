"""The reason a CLI did not answer, in one sentence for the person who asked."""

import signal
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from ....core.agent import TurnFailed
from ....core.errors import OpenClawError
from .dialect import CliAdapter, CliErrorKind, classify_error
from .process import CliSilentError
from .stderr_text import clean_lines

QUOTE_LENGTH: Final = 300  # characters of the CLI's own error text that the sentence quotes
DETAIL_LENGTH: Final = 2000  # characters of it that are stored with the run


def installation_failure(adapter: CliAdapter, command: str) -> TurnFailed:
    if command != adapter.program:
        message = f"{adapter.title} can't be run: there is no program {command}; correct the agent's runtimeCommand."
    else:
        message = f"{adapter.title} is not installed here: run `{adapter.install}`, or set the agent's runtimeCommand."
    return TurnFailed(message=message, detail={"code": "not_installed"})


def start_failure(adapter: CliAdapter, exc: OpenClawError | OSError) -> TurnFailed:
    if isinstance(exc, OSError):
        reason, code = f"{exc.filename or 'a file'}: {exc.strerror or type(exc).__name__}", "os_error"
    else:
        reason, code = str(exc), exc.code
    return TurnFailed(message=f"{adapter.title} can't be started: {reason}", detail={"code": code})


def timeout_failure(adapter: CliAdapter, exc: CliSilentError) -> TurnFailed:
    setting = "runtimeStartupSeconds" if exc.when == "start" else "runtimeIdleSeconds"
    message = (
        f"{adapter.title} said nothing for {exc.seconds:g} s and was stopped; if it needs longer, raise {setting}."
    )
    return TurnFailed(message=message, kind="timeout", detail={"code": f"silent_{exc.when}"})


_MESSAGES: Final[dict[CliErrorKind, str]] = {
    "auth": "{title} may not use its model: {sign_in}. It said: {quote}",
    "rate": "{title}'s model is busy or its limit is reached; try again later. It said: {quote}",
    "context": "This conversation has grown too long for {title}'s model; the next message begins a new one.",
    "network": "{title} can't reach its model; check the network, or its base URL. It said: {quote}",
    "server": "{title} could not start the gateway's tools; the run's detail has its output. It said: {quote}",
}


class CliOutput(Struct, frozen=True):
    """What a CLI wrote about its failure."""

    cause: str
    """The part that names the cause; empty if it only warned, or said nothing."""
    whole: str


def run_failure(adapter: CliAdapter, said: CliOutput, status: int | None, *, secrets: Sequence[str]) -> TurnFailed:
    cause, whole = said.cause, said.whole
    for secret in secrets:
        cause, whole = cause.replace(secret, "…"), whole.replace(secret, "…")
    code, quote = classify_error(cause), _on_one_line(cause)
    if code in _MESSAGES:
        message = _MESSAGES[code].format(title=adapter.title, sign_in=adapter.sign_in, quote=quote)
    elif quote:
        message = f"{adapter.title} {_describe_exit(status)}: {quote}"
    else:
        warned = f"; it only warned: {_on_one_line(whole)}" if whole.strip() else " and said nothing."
        message = f"{adapter.title} {_describe_exit(status)}{warned}"
    return TurnFailed(
        message=message,
        kind="rate_limit" if code == "rate" else "context_length" if code == "context" else "unknown",
        detail={"code": code, "said": whole[-DETAIL_LENGTH:], "status": status},
        drop_resume=code in ("context", "resume"),
    )


def _on_one_line(text: str) -> str:
    """The beginning of the text, on one line."""
    line = " | ".join(clean_lines(text))
    printable = "".join(char if char.isprintable() else " " for char in line)
    return printable if len(printable) <= QUOTE_LENGTH else printable[:QUOTE_LENGTH] + "…"


def _describe_exit(status: int | None) -> str:
    if status is None:
        return "failed"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return "failed" if status == 0 else f"ended with status {status}"
