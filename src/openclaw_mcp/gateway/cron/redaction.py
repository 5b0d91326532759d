"""Which parts of a job are shown to whom: its program's environment, input and secret arguments, and the path of its
webhooks, to admins only. Pure."""

from collections.abc import Callable
from typing import Final

from ...core.jobs import CommandPayload, CronJob, OnExitSchedule, StreamSchedule
from ...core.model import Caller, Json
from ...core.rpc import RpcError

MASK: Final = "***"
Redactor = Callable[[Json], Json]
"""A part of a job with the secrets among its arguments, its environment and its addresses hidden."""


def redact_all(part: Json) -> Json:
    """Where secrets can't be distinguished from the rest: a program's name only, and no address."""
    shown = {name: redact_all(value) if isinstance(value, dict) else value for name, value in part.items()}
    if "://" in str(part.get("to")):
        shown["to"] = MASK
    for name in ("argv", "command"):
        if value := part.get(name):
            shown[name] = value[:1] + [MASK] * len(value[1:]) if isinstance(value, list) else MASK
    if part.get("env"):
        shown["env"] = dict.fromkeys(part["env"], MASK)
    return shown


def can_see_programs(caller: Caller) -> bool:
    """Whether this caller is shown a job's program as it is: an admin, and no session's agent."""
    return not caller.acts_in_session and caller.grant is None and caller.is_owner


def redact_job(job: Json, redact: Redactor) -> Json:
    """A job, or a part of one, for a caller who may not see its secrets."""
    shown = dict(job)
    for name, kinds in (("payload", ("command",)), ("schedule", ("on-exit", "stream"))):
        part = job.get(name)
        if isinstance(part, dict) and part.get("kind") in kinds:
            shown[name] = redact(part) | ({"input": MASK} if part.get("input") else {})
    for name in ("delivery", "failureAlert"):
        if isinstance(job.get(name), dict):
            shown[name] = redact(job[name])
    return shown


def check_operator_program(job: CronJob, caller: Caller) -> None:
    """Raises RpcError when a session's agent wants to start or remove an operator's program."""
    is_program = isinstance(job.spec.payload, CommandPayload) or isinstance(
        job.spec.schedule, OnExitSchedule | StreamSchedule
    )
    if caller.acts_in_session and job.origin is None and is_program:
        raise RpcError(
            "an operator's program is run and removed by operators; make a job of your own", kind="FORBIDDEN"
        )
