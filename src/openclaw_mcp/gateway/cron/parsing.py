"""Jobs as people and agents write them, normalized. Raises RpcError that names what to change."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...core.errors import BadRequest
from ...core.jobs import (
    AtSchedule,
    CommandPayload,
    CronJob,
    JobSpec,
    StreamSchedule,
    SystemEventPayload,
)
from ...core.json_values import drop_none
from ...core.model import Json
from ...core.model_name import check_model_name
from ...core.rpc import RpcError, schema_message
from .redaction import MASK
from .schedule import to_iso, validate_schedule

MAX_NAME_LENGTH: Final = 200
MAX_TEXT_LENGTH: Final = 100_000  # characters of a message or event; more belongs in a file the agent reads
DEFAULT_NAME_LENGTH: Final = 60  # characters of its text that name a job without a name

_SCHEDULES: Final = {"at": "at", "every": "every", "cron": "cron", "on-exit": "on-exit", "onexit": "on-exit",
                     "on_exit": "on-exit", "stream": "stream"}  # fmt: skip
_PAYLOADS: Final = {"systemevent": "systemEvent", "system_event": "systemEvent", "system-event": "systemEvent",
                    "agentturn": "agentTurn", "agent_turn": "agentTurn", "agent-turn": "agentTurn",
                    "command": "command", "script": "script", "heartbeat": "heartbeat"}  # fmt: skip
_MODES: Final = ("none", "announce", "webhook")
_FLAT_SCHEDULE: Final = ("at", "atMs", "every", "everyMs", "anchorMs", "cron", "expr", "tz", "staggerMs")
_FLAT_PAYLOAD: Final = ("message", "text", "model", "thinking", "timeoutSeconds", "fallbacks", "lightContext",
                        "toolsAllow", "argv")  # fmt: skip
_UNSUPPORTED: Final = {
    "trigger": "have the agent, or a command, check the condition",
    "pacing": "use an every or cron schedule, and let the agent change it",
}
_ACCEPTED: Final = ("kind", "toolsAllow", "toolsAllowIsDefault")  # of every payload; read of an agent's turn alone
_CLEARABLE: Final = ("agentId", "sessionKey", "displayName", "failureAlert", "description")


def parse_spec(params: Any, now: int, *, job_id: str, method: str = "cron.add") -> JobSpec:
    """The spec of a new job."""
    fields = drop_none(unwrap_job(params, method))
    fields["schedule"] = _parse_schedule(fields, method)
    fields["payload"] = _parse_payload(fields, method)
    usual = "main" if fields["payload"].get("kind") == "systemEvent" else "isolated"
    target = str(fields.get("sessionTarget") or usual).strip()
    fields["sessionTarget"] = target if target.lower().startswith("session:") else target.lower()
    if fields["sessionTarget"] == "current" and not fields.get("sessionKey"):
        fields["sessionTarget"] = "isolated"
    fields["wakeMode"] = str(fields.get("wakeMode", "now")).strip().lower()
    fields.setdefault("enabled", True)
    fields["name"] = _job_name(fields)
    if fields["schedule"].get("kind") == "at":
        fields.setdefault("deleteAfterRun", True)
    fields["delivery"] = _parse_delivery(fields)
    return _validate_spec(drop_none(fields), now, job_id, method)


def apply_patch(job: CronJob, patch: Any, now: int, *, method: str = "cron.update") -> JobSpec:
    """The changed spec. Payload and delivery change field by field, null clears a field; a schedule is replaced."""
    fields = unwrap_job(patch, method)
    spec = msgspec.to_builtins(job.spec)
    for name, value in fields.items():
        if value is None and name in _CLEARABLE:
            spec.pop(name, None)
        elif name == "schedule" and isinstance(value, dict):
            spec["schedule"] = _parse_schedule({"schedule": value}, method)
        elif name == "payload" and isinstance(value, dict):
            new = _parse_payload({"payload": value}, method)
            same = spec["payload"]["kind"] == new.get("kind")
            spec["payload"] = drop_none({**(spec["payload"] if same else {}), **new})
        elif name == "delivery" and isinstance(value, dict):
            spec["delivery"] = drop_none({**(spec.get("delivery") or {"mode": "announce"}), **value})
        elif name == "failureAlert" and isinstance(value, dict):
            before = spec.get("failureAlert")
            spec["failureAlert"] = drop_none({**(before if isinstance(before, dict) else {}), **value})
        elif name not in ("id", "state", "declarationKey", "owner") and value is not None:
            spec[name] = value
    unchanged = "schedule" not in fields or spec["schedule"] == msgspec.to_builtins(job.spec.schedule)
    return _validate_spec(spec, now, job.id, method, keep_schedule=unchanged)


def _validate_spec(fields: Json, now: int, job_id: str, method: str, *, keep_schedule: bool = False) -> JobSpec:
    try:
        spec = msgspec.convert(fields, JobSpec)
    except msgspec.ValidationError as exc:
        raise RpcError(f"invalid {method} params: {schema_message(str(exc))}") from None
    _refuse_unknown(fields, spec, "", method)
    _check_combination(spec, method)
    for model in (getattr(spec.payload, "model", None), *(getattr(spec.payload, "fallbacks", None) or ())):
        check_model_name(model)
    if keep_schedule:
        return spec
    try:
        schedule = validate_schedule(spec.schedule, now, job_id=job_id)
    except BadRequest as exc:
        wrong_at = isinstance(spec.schedule, AtSchedule)
        raise RpcError(str(exc) if wrong_at else f"invalid {method} params: {exc}") from None
    return msgspec.structs.replace(spec, schedule=schedule)


def _refuse_unknown(fields: Json, part: msgspec.Struct, path: str, method: str) -> None:
    """Raises RpcError for the first field that a job, or the part of one at this path, does not have."""
    known = {field.encode_name: getattr(part, field.name) for field in msgspec.structs.fields(part)}
    for name, value in fields.items():
        below = known.get(name)
        if isinstance(below, msgspec.Struct) and isinstance(value, dict):
            _refuse_unknown(value, below, f"{path}/{name}", method)
        elif name not in known and name not in _ACCEPTED:
            raise RpcError(f"invalid {method} params: at {path or 'root'}: unexpected property '{name}'")


def _check_combination(spec: JobSpec, method: str) -> None:
    """Raises RpcError when parts of the spec do not fit together."""
    event = isinstance(spec.payload, SystemEventPayload)
    if spec.session_target == "main" and not event:
        raise RpcError(f'invalid {method} params: main cron jobs require payload.kind="systemEvent"')
    if spec.session_target != "main" and event:
        problem = 'isolated cron jobs require payload.kind="agentTurn" or "command"'
        text = f"invalid {method} params: {problem}; a systemEvent goes to sessionTarget main"
        raise RpcError(text, kind="UNAVAILABLE", retryable=False)  # the code that the protocol's clients know for it
    if isinstance(spec.schedule, StreamSchedule) and isinstance(spec.payload, CommandPayload):
        raise RpcError(f"invalid {method} params: a stream tells an agent; use payload agentTurn or systemEvent")
    text = getattr(spec.payload, "message", None) or getattr(spec.payload, "text", None) or ""
    if len(text) > MAX_TEXT_LENGTH:
        raise RpcError(
            f"the payload's text is longer than {MAX_TEXT_LENGTH} characters; put it in a file and name the file"
        )
    if spec.failure_alert is True:
        raise RpcError(f"invalid {method} params: at /failureAlert: must be false or an object")
    hooks = [spec.delivery.to or ""] if spec.delivery and spec.delivery.mode == "webhook" else []
    if spec.delivery and spec.delivery.completion_destination:
        hooks.append(spec.delivery.completion_destination.to)
    for hook in hooks:
        if not hook.startswith(("http://", "https://")) or "@" in hook.split("/")[2]:
            raise RpcError(f"invalid {method} params: a webhook's `to` is an http(s) URL without user and password")
        if hook.endswith(f"/{MASK}"):
            raise RpcError(
                f"a webhook's address is shown with {MASK}; leave it out to keep it, or give the whole address"
            )


# ---- normalizing -----------------------------------------------------------------------------------------------------


def unwrap_job(params: Any, method: str) -> Json:
    if not isinstance(params, dict):
        raise RpcError(f"invalid {method} params: must be object")
    for wrapper in ("job", "data"):
        inner = params.get(wrapper)
        if isinstance(inner, dict) and "schedule" not in params:
            params = inner
    fields = dict(params)
    for name in ("agentId", "sessionKey", "name", "declarationKey"):
        if isinstance(fields.get(name), str):
            fields[name] = fields[name].strip() or None
    for name, instead in _UNSUPPORTED.items():
        if fields.get(name) is not None:
            raise RpcError(f"{name} is not served here; {instead}")
    return fields


def _parse_schedule(fields: Json, method: str) -> Json:
    if isinstance(fields.get("schedule"), str):
        fields["schedule"] = {"kind": "cron", "expr": fields["schedule"]}
    found = drop_none(_part(fields, "schedule", _FLAT_SCHEDULE, method))
    for old, new in (("cron", "expr"), ("every", "everyMs")):  # older spellings
        if old in found and new not in found:
            found[new] = found.pop(old)
    if "atMs" in found:
        found["at"] = found.pop("atMs")
    at = found.get("at")
    if isinstance(at, int | float) and not isinstance(at, bool):
        found["at"] = to_iso(int(at))
    kind = _kind(found, _SCHEDULES, {"at": "at", "everyMs": "every", "expr": "cron"})
    if kind == "stream" and (found.get("mode") == "match" or found.get("match")):
        raise RpcError("a stream's match is not served here; have its program print only what counts, as with grep")
    if kind is None:
        raise RpcError(f"invalid {method} params: at /schedule/kind: must be one of at, every, cron, on-exit, stream")
    return found | {"kind": kind}


def _part(fields: Json, name: str, flat_names: tuple[str, ...], method: str) -> Json:
    """The object of this name; without one, its fields from the job itself, where older clients write them."""
    found = fields.get(name)
    if isinstance(found, dict):
        return dict(found)
    flat = {key: fields.pop(key) for key in flat_names if fields.get(key) is not None}
    if not flat:
        raise RpcError(f"invalid {method} params: must have required property '{name}'")
    return flat


def _kind(part: Json, spellings: Mapping[str, str], kinds_by_key: Mapping[str, str]) -> str | None:
    """The kind in its one spelling; without one, the kind of the first key that decides it."""
    if "kind" in part:
        return spellings.get(str(part["kind"]).strip().lower())
    return next((kind for key, kind in kinds_by_key.items() if key in part), None)


def _parse_payload(fields: Json, method: str) -> Json:
    found = _part(fields, "payload", _FLAT_PAYLOAD, method)
    kind = _kind(found, _PAYLOADS, {"message": "agentTurn", "text": "systemEvent", "argv": "command"})
    if kind in ("script", "heartbeat"):
        raise RpcError(f"{kind} payloads are not served here; use agentTurn, systemEvent or command")
    if kind is None:
        raise RpcError(f"invalid {method} params: at /payload/kind: must be one of systemEvent, agentTurn, command")
    if kind == "agentTurn" and "text" in found and "message" not in found:
        found["message"] = found.pop("text")
    if kind == "systemEvent" and "message" in found and "text" not in found:
        found["text"] = found.pop("message")
    return found | {"kind": kind}


def _parse_delivery(fields: Json) -> Json | None:
    """The delivery asked for, or the default for this kind of job; older jobs have it in their payload."""
    found, payload = fields.get("delivery"), fields["payload"]
    old = {name: payload.pop(name) for name in ("deliver", "channel", "to", "bestEffortDeliver") if name in payload}
    if isinstance(found, dict):
        mode = str(found.get("mode", "announce")).strip().lower()
        if mode in _MODES:
            return {**drop_none(found), "mode": mode}
    if old.get("deliver") is False:
        return {"mode": "none"}
    if payload["kind"] == "systemEvent":
        return None
    where = {name: old[name] for name in ("channel", "to") if old.get(name)}
    return {"mode": "announce", **where}


def _job_name(fields: Json) -> str:
    name = str(fields.get("name") or "").strip()
    if not name:
        payload = fields["payload"]
        text = payload.get("message") or payload.get("text") or " ".join(map(str, payload.get("argv", ()))) or "job"
        name = " ".join(str(text).split())[:DEFAULT_NAME_LENGTH]
    return name[:MAX_NAME_LENGTH]


# ---- for display -----------------------------------------------------------------------------------------------------


def format_duration(ms: int) -> str:
    parts, left = [], ms
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"
