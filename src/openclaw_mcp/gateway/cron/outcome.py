"""What a run or a program came to. Pure."""

from typing import Any, Final

from ...core.model import Json
from ...core.sessions import Run, RunResult
from . import views
from .delivery import DeliveryReport
from .job_state import FiringResult
from .programs import JobProgramResult

SUMMARY_LENGTH: Final = 20_000  # characters of a result kept in the log
SILENT_REPLIES: Final = ("NO_REPLY", "HEARTBEAT_OK")


def describe_exit(result: JobProgramResult) -> str:
    if result.stop_reason is not None:
        return f"was stopped: {result.stop_reason}"
    code = result.exit_code or 0
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit status {code}"


def suppression_reason(text: str | None) -> str | None:
    """Why a result that went well is nobody's business."""
    plain = (text or "").strip()
    if not plain:
        return "empty"
    if plain.upper() in SILENT_REPLIES:
        return "silent" if plain.upper() == SILENT_REPLIES[0] else "heartbeat"
    return None


def result_from_run(run: Run) -> FiringResult:
    told, usage = run.result, run.result.usage
    more: Json = {name: value for name, value in (("model", told.model), ("provider", told.provider)) if value}
    if told != RunResult():
        counts = {"input_tokens": usage.input, "output_tokens": usage.output, "total_tokens": usage.total_tokens}
        more["usage"] = counts
    common: dict[str, Any] = {"session_key": run.session_key, "session_id": run.session_id, "more": more}
    common["run"] = run
    if run.status == "ok":
        return FiringResult(status="ok", summary=(told.text or "")[:SUMMARY_LENGTH], **common)
    error = run.error or f"the run ended as {run.status} ({run.stop_reason})"
    return FiringResult(status="error", error=error, completion="failed", **common)


def apply_delivery_report(result: FiringResult, report: DeliveryReport, *, best_effort: bool) -> FiringResult:
    """A result that had to arrive and did not is not a success, though the work was done."""
    if result.status == "error" or report.status == "delivered" or best_effort:
        return views.with_report(result, report)
    if report.status == "unknown":  # on its way, as far as anybody knows
        return views.with_report(result, report, completion="unknown")
    error = report.error or "the result could not be delivered"
    return views.with_report(result, report, status="error", error=error, completion="failed")
