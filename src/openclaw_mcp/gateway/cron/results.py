"""The result of a firing: what the run or program returned, and whether it was delivered. Pure."""

from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType, structs

from ...core.jobs import DeliveryStatus, FiringStatus
from ...core.sessions import Run, RunResult
from .programs import JobProgramResult

SUMMARY_LENGTH: Final = 20_000  # characters of a result kept in the log
SILENT_REPLIES: Final = {"NO_REPLY": "silent", "HEARTBEAT_OK": "heartbeat"}


class _LogPart(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a log entry; `None` is left out."""


class DeliveryPlace(_LogPart, frozen=True, kw_only=True):
    channel: str | None = None
    to: str | None = None
    account_id: str | None = None
    thread_id: str | None = None
    source: Literal["explicit", "last"] | None = None
    ok: bool | None = None
    error: str | None = None


class DeliveryDetail(_LogPart, frozen=True, kw_only=True):
    """Where a result was to go, and where it went."""

    intended: DeliveryPlace
    resolved: DeliveryPlace | None = None
    fallback_used: bool | None = None
    delivered: bool | None = None


class DeliveryReport(Struct, frozen=True, kw_only=True):
    status: DeliveryStatus
    delivered: bool | None = None
    error: str | None = None
    detail: DeliveryDetail | None = None


class AlertOutcome(_LogPart, frozen=True, kw_only=True):
    """Whether the notice that a job failed was delivered."""

    delivered: bool
    status: DeliveryStatus
    error: str | None = None


class ModelUsage(Struct, frozen=True, kw_only=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int


class Diagnostic(_LogPart, frozen=True, kw_only=True):
    ts: int
    source: Literal["exec", "delivery", "agent-run"]
    severity: Literal["info", "error"]
    message: str
    exit_code: int | UnsetType | None = UNSET


class FiringResult(Struct, frozen=True, kw_only=True):
    status: FiringStatus
    error: str | None = None
    summary: str | None = None
    completion: Literal["succeeded", "failed", "unknown"] = "succeeded"
    delivered: bool | None = None
    delivery_status: DeliveryStatus = "not-requested"
    delivery_error: str | None = None
    suppressed: str | None = None
    delivery: DeliveryDetail | None = None
    alert: AlertOutcome | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    session_key: str | None = None
    session_id: str | None = None
    model: str | None = None
    provider: str | None = None
    usage: ModelUsage | None = None
    run: Run | None = None
    """The agent's run; None when a program did the work."""

    def with_report(self, report: DeliveryReport, **changes: Any) -> "FiringResult":
        return structs.replace(
            self,
            delivered=report.delivered,
            delivery_status=report.status,
            delivery_error=report.error,
            delivery=report.detail,
            **changes,
        )

    def apply_report(self, report: DeliveryReport, *, best_effort: bool) -> "FiringResult":
        """A result that had to arrive and did not is no success, although the work was done."""
        if self.status == "error" or report.status == "delivered" or best_effort:
            return self.with_report(report)
        if report.status == "unknown":  # it may still arrive
            return self.with_report(report, completion="unknown")
        error = report.error or "the result could not be delivered"
        return self.with_report(report, status="error", error=error, completion="failed")


def failed_result(error: str) -> FiringResult:
    return FiringResult(status="error", error=error, completion="failed")


def result_from_run(run: Run) -> FiringResult:
    answer = run.result
    result = FiringResult(
        status="ok",
        session_key=run.session_key,
        session_id=run.session_id,
        model=answer.model or None,
        provider=answer.provider or None,
        usage=None if answer == RunResult() else _model_usage(answer),
        run=run,
    )
    if run.status == "ok":
        return structs.replace(result, summary=(answer.text or "")[:SUMMARY_LENGTH])
    error = run.error or f"the run ended as {run.status} ({run.stop_reason})"
    return structs.replace(result, status="error", error=error, completion="failed")


def _model_usage(answer: RunResult) -> ModelUsage:
    usage = answer.usage
    return ModelUsage(input_tokens=usage.input, output_tokens=usage.output, total_tokens=usage.total_tokens)


def result_from_program(program: str, ran: JobProgramResult, now: int) -> FiringResult:
    ok = ran.exit_code == 0 and ran.stop_reason is None
    message = f"{program} {describe_exit(ran)}"
    note = Diagnostic(
        ts=now, source="exec", severity="info" if ok else "error", message=message, exit_code=ran.exit_code
    )
    text = ran.stdout or ran.stderr
    if ran.stdout and ran.stderr:
        text = f"stdout:\n{ran.stdout}\n\nstderr:\n{ran.stderr}"
    result = FiringResult(status="ok", summary=text, diagnostics=(note,))
    return result if ok else structs.replace(result, status="error", error=message, completion="failed")


def describe_exit(result: JobProgramResult) -> str:
    if result.stop_reason is not None:
        return f"was stopped: {result.stop_reason}"
    code = result.exit_code or 0
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit status {code}"


def suppression_reason(text: str | None) -> str | None:
    """Why a successful result is not sent to any person; None: it is sent."""
    plain = (text or "").strip()
    return SILENT_REPLIES.get(plain.upper()) if plain else "empty"
