"""Errors of models, classified by what can be done about them. Pure."""

import re
import time
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from ....core.errors import OpenClawError

ModelErrorKind = Literal[
    "auth", "rate_limit", "overloaded", "timeout", "context_length", "bad_request", "not_found", "network", "dropped",
    "limit",
]  # fmt: skip
TRANSIENT_KINDS: Final = frozenset(("overloaded", "timeout", "network", "dropped"))
"""Kinds that may be gone a moment later."""
MAX_QUOTE_LENGTH: Final = 300  # characters of a provider's own error text that are passed on

KINDS_BY_STATUS: Final[Mapping[int, ModelErrorKind]] = {
    401: "auth", 402: "auth", 403: "auth", 404: "not_found", 408: "timeout", 413: "context_length",
}  # fmt: skip

_OVERFLOW = re.compile(
    r"context.{0,20}(length|window|overflow|size)|(too many|maximum).{0,20}(tokens|context)|token limit|"
    r"prompt is too long|request_too_large|input is too long|exceeds? the (available )?context",
    re.IGNORECASE | re.DOTALL,
)
_RATE = re.compile(r"rate.?limit|too many requests|quota|resource.?exhausted", re.IGNORECASE)
_AUTH = re.compile(r"authentication|unauthorized|permission|invalid.{0,10}key|forbidden", re.IGNORECASE)
_BUSY = re.compile(r"overloaded|unavailable|server_error|api_error|internal|timeout", re.IGNORECASE)
_MISSING = re.compile(r"model.{0,40}not.{0,5}found|not_found|does not exist|unknown model", re.IGNORECASE | re.DOTALL)
KINDS_BY_TEXT: Final[tuple[tuple[re.Pattern[str], ModelErrorKind], ...]] = (
    (_OVERFLOW, "context_length"), (_RATE, "rate_limit"), (_BUSY, "overloaded"), (_AUTH, "auth"),
)  # fmt: skip


class ModelError(OpenClawError):
    """`retry_after`: seconds the provider asks us to wait. `status`: of HTTP, when there was an answer."""

    code = "model_trouble"

    def __init__(
        self, message: str, *, kind: ModelErrorKind, retry_after: float | None = None, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind: ModelErrorKind = kind
        self.retry_after = retry_after
        self.status = status


class ContextOverflow(ModelError):
    """What must be sent does not fit, however much else is left out."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="context_length")


def error_from_response(status: int, body: bytes, headers: Mapping[str, str]) -> ModelError:
    """What an HTTP answer that is no success means."""
    kind, message = _parse_error_body(body)
    return ModelError(
        message or f"HTTP {status}", kind=_kind_by_status(status, f"{kind} {message}"), status=status,
        retry_after=retry_after(headers),
    )  # fmt: skip


def error_from_stream(error: Any) -> ModelError:
    """What an error in the middle of a stream means."""
    kind, message = _parse_error(error)
    found = (meaning for pattern, meaning in KINDS_BY_TEXT if pattern.search(f"{kind} {message}"))
    return ModelError(message or kind or "the model reported an error", kind=next(found, "bad_request"))


def _kind_by_status(status: int, text: str) -> ModelErrorKind:
    if status == 429:
        # Some say "too many" of tokens in one request, which waiting does not cure.
        return "context_length" if re.search(r"context.?length|prompt is too long", text) else "rate_limit"
    if status in KINDS_BY_STATUS:
        return KINDS_BY_STATUS[status]
    if status >= 500:
        return "overloaded"
    if _OVERFLOW.search(text):
        return "context_length"
    return "not_found" if _MISSING.search(text) else "bad_request"


def _parse_error_body(body: bytes) -> tuple[str, str]:
    try:
        return _parse_error(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "", _shorten(body.decode("utf-8", "replace"))


def _parse_error(value: Any) -> tuple[str, str]:
    """The kind and the message, in any of the shapes providers give errors."""
    if isinstance(value, list) and value:
        value = value[0]
    error = value.get("error", value) if isinstance(value, dict) else value
    if not isinstance(error, dict):
        return "", _shorten(str(error or ""))
    kind = " ".join(str(error[name]) for name in ("type", "code") if error.get(name))
    return kind, _shorten(str(error.get("message") or error.get("detail") or ""))


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_QUOTE_LENGTH else f"{line[:MAX_QUOTE_LENGTH]}…"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from `retry-after-ms`, or `retry-after` as seconds or a date."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers.get(name, "")) / unit)
        except ValueError:
            continue
    written = headers.get("retry-after", "")
    if not written:
        return None
    from email.utils import mktime_tz, parsedate_tz  # here for start-up: hardly any provider writes a date

    date = parsedate_tz(written)
    return None if date is None else max(0.0, mktime_tz(date) - time.time())
