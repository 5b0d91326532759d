"""`openclaw cron`: scheduled jobs of a gateway, and when they are due next."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from ..core.config.cron import parse_duration
from ..core.errors import BadRequest, OpenClawError
from ..core.jobs import Schedule
from ..core.model import Json
from ..core.rpc import RpcError
from ..gateway.cron.delivery import DeliveryTarget, split_target
from ..gateway.cron.parsing import format_duration
from ..gateway.cron.schedule import iterate_due, to_iso
from ..net.state_dir import state_dir
from . import gateway
from .commands import parse_port

NEXT_TIMES_SHOWN: Final = 5  # shown of each job
ANSWER_TIMEOUT: Final = 60.0  # seconds for an answer
POLL_INTERVAL: Final = 0.5  # seconds between looks at a run that is waited for
MAX_RESULT_CHARS: Final = 160  # characters of a result or an error in a line
MAX_RUN_WAIT: Final = 3600.0


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, help: str, *, job: bool = False, aliases: tuple[str, ...] = ()) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = verbs.add_parser(name, help=help, aliases=aliases, allow_abbrev=False)
        if job:
            made.add_argument("job", help="the job's id, or enough of its beginning, or its name")
        made.add_argument("--json", action="store_true", help="print the gateway's answer as JSON")
        made.add_argument("--url", help="the gateway's address (default $OPENCLAW_GATEWAY_URL, else this machine's)")
        made.add_argument("--token", help="its token (default $OPENCLAW_GATEWAY_TOKEN, else the one kept here)")
        made.add_argument("--port", type=parse_port, help="its port on this machine")
        made.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")
        return made

    verb("status", "whether the clock runs, how many jobs there are, when the next is due")
    add = verb("add", "add a job", aliases=("create",))
    add.add_argument("--name", help="what to call it (default: the beginning of its message)")
    _job_arguments(add)
    listing = verb("list", "the jobs, and the next five times of each", aliases=("ls",))
    listing.add_argument("--all", action="store_true", help="disabled ones too")
    listing.add_argument("--query", help="only those with these words")
    verb("get", "one job", job=True, aliases=("show",))
    edit = verb("edit", "change a job", job=True)
    edit.add_argument("--name", help="a new name")
    _job_arguments(edit)
    verb("rm", "remove a job; what came of it is kept", job=True, aliases=("remove", "delete"))
    verb("enable", "have it fire again", job=True)
    verb("disable", "keep it, but do not have it fire", job=True)
    run = verb("run", "run a job now", job=True)
    run.add_argument("--due", action="store_true", help="only if it is due")
    run.add_argument("--wait", action="store_true", help="until it has ended; exit status 1 unless it went well")
    runs = verb("runs", "what came of a job, or of all of them")
    runs.add_argument("job", nargs="?", help="the job's id or name (default: all)")
    runs.add_argument("--limit", type=int, default=20)


def _job_arguments(parser: argparse.ArgumentParser) -> None:
    when = parser.add_argument_group("when (one of)")
    when.add_argument("--at", metavar="TIME", help="once: 2027-01-31T09:00 (in --tz, else UTC), or from now: 20m")
    when.add_argument("--every", metavar="SPAN", help="again and again: 90s, 10m, 1h30m, 2d")
    when.add_argument("--cron", metavar="EXPR", help='"0 9 * * 1-5"; six fields with seconds, seven with the year')
    when.add_argument("--on-exit", metavar="COMMAND", help="once this shell command, started by the gateway, has ended")
    when.add_argument("--stream-command", metavar="COMMAND", help="whenever this program, kept running, says something")
    when.add_argument("--tz", metavar="ZONE", help="of --cron and --at, such as Europe/Vienna (default: the gateway's)")
    when.add_argument("--stagger", metavar="SPAN", help="a fixed delay of its own within this window")
    when.add_argument("--exact", action="store_true", help="no such delay, also at the full hour")
    what = parser.add_argument_group("what (one of)")
    what.add_argument("--message", help="what an agent is asked")
    what.add_argument("--system-event", metavar="TEXT", help="what the main session's agent is told")
    what.add_argument("--command", metavar="SHELL", help="a command on the gateway's machine")
    what.add_argument("--model", help="the model that answers")
    what.add_argument("--thinking", help="how much it thinks")
    what.add_argument("--timeout-seconds", type=float, metavar="N", help="the longest it may take; 0 = no limit")
    where = parser.add_argument_group("where, and to whom")
    where.add_argument("--agent", help="whose job it is")
    where.add_argument("--session", help="main, isolated, current, or session:NAME")
    where.add_argument("--session-key", help="the session a current or main job belongs to")
    where.add_argument("--wake", choices=("now", "next-heartbeat"), help="when a system event is heard")
    where.add_argument("--announce", action="store_true", help="send the answer to a conversation")
    where.add_argument("--no-deliver", action="store_true", help="keep the answer inside")
    where.add_argument("--webhook", metavar="URL", help="POST the result there")
    where.add_argument("--channel", help="the conversation's channel (default: where the person last wrote)")
    where.add_argument("--to", help="the conversation")
    where.add_argument("--account", help="the channel's account")
    where.add_argument("--thread", help="the conversation's thread or topic")
    where.add_argument("--best-effort", action="store_true", help="an answer that can't be delivered is no failure")
    parser.add_argument("--description")
    parser.add_argument("--disabled", action="store_true", help="keep it, but do not have it fire")
    parser.add_argument("--keep-after-run", action="store_true", help="keep a job that fires once")


def run(options: argparse.Namespace) -> int:
    try:
        return asyncio.run(_run_verb(options))
    except RpcError as fault:
        raise OpenClawError(str(fault)) from fault


async def _run_verb(options: argparse.Namespace) -> int:
    desk = _CronClient(options)
    verb = {"create": "add", "ls": "list", "show": "get", "remove": "rm", "delete": "rm"}.get(
        options.verb, options.verb
    )
    if verb == "run":
        return await _run_job(desk, options)
    answer: Any
    if verb == "add":
        answer = await desk.call("cron.add", {"name": options.name, **_job_params(options, adding=True)})
    elif verb == "list":
        answer = await desk.call("cron.list", {"includeDisabled": options.all, "query": options.query, "limit": 200})
    elif verb == "runs":
        scope = {"id": await desk.find_job(options.job)} if options.job else {"scope": "all"}
        answer = await desk.call("cron.runs", {**scope, "limit": options.limit})
    elif verb == "status":
        answer = await desk.call("cron.status", {})
    else:
        answer = await _run_job_verb(desk, verb, options)
    print(json.dumps(answer, indent=2, ensure_ascii=False) if options.json else _format_answer(verb, answer))
    if verb in ("add", "edit"):
        await _warn_missing_channel(desk, options)
    return 0


async def _warn_missing_channel(client: "_CronClient", options: argparse.Namespace) -> None:
    """Say so, beside the answer, when results were sent to a channel that is not there: it may come, or be a slip."""
    channel, _ = split_target(DeliveryTarget(channel=options.channel, to=options.to))
    if channel is None:
        return
    try:
        known = (await client.call("channels.status", {}))["channels"]
    except (RpcError, KeyError):
        return  # another gateway, or one that does not tell us
    if not known.get(channel, {}).get("configured"):
        words = f"no channel {channel} is configured now; results can't be delivered until there is"
        print(f"openclaw cron: {words}", file=sys.stderr)


async def _run_job_verb(client: "_CronClient", verb: str, options: argparse.Namespace) -> Any:
    job_id = await client.find_job(options.job)
    if verb == "get":
        return await client.call("cron.get", {"id": job_id})
    if verb == "rm":
        return await client.call("cron.remove", {"id": job_id})
    patch: Json = {"enabled": verb == "enable"}
    if verb == "edit":
        patch = {"name": options.name, **_job_params(options, adding=False)}
        patch = {name: value for name, value in patch.items() if value is not None}
        if "schedule" not in patch and (options.tz or options.stagger or options.exact):
            job = await client.call("cron.get", {"id": job_id})
            patch["schedule"] = _retime_schedule(job["schedule"], options)
        if not patch:
            raise BadRequest("say what to change; see openclaw cron edit --help")
    return await client.call("cron.update", {"id": job_id, "patch": patch})


async def _run_job(client: "_CronClient", options: argparse.Namespace) -> int:
    job_id = await client.find_job(options.job)
    answer = await client.call("cron.run", {"id": job_id, "mode": "due" if options.due else "force"})
    entry: Json | None = None
    until = time.monotonic() + MAX_RUN_WAIT
    while options.wait and answer.get("enqueued") and entry is None and time.monotonic() < until:
        await asyncio.sleep(POLL_INTERVAL)
        found = await client.call("cron.runs", {"id": job_id, "runId": answer["runId"]})
        entry = next(iter(found["entries"]), None)
    if options.json:
        print(json.dumps(answer if entry is None else entry, indent=2, ensure_ascii=False))
    elif entry is not None:
        print(_format_run(entry))
    elif answer.get("enqueued"):
        job = await client.call("cron.get", {"id": job_id})
        print(f"begun: {answer['runId']}\n" + "\n".join(_next_times(job)))
    else:
        print(f"not run: {answer['reason']}")
    if options.wait:
        return 0 if entry is not None and entry.get("completionStatus") == "succeeded" else 1
    return 0


class _CronClient:
    """The gateway these options name."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._folder: Path = state_dir(options.state_dir)
        self._options = argparse.Namespace(
            url=options.url, token=options.token, port=options.port, timeout=ANSWER_TIMEOUT, final=False, method=""
        )

    async def call(self, method: str, params: Json) -> Any:
        self._options.method = method
        given = {name: value for name, value in params.items() if value is not None}
        return await gateway.call_gateway(self._options, self._folder, given)

    async def find_job(self, name: str) -> str:
        """A job by its id, the beginning of it, or its name. Raises BadRequest when that is none or several."""
        offset, found = 0, []
        while True:
            page = await self.call(
                "cron.list", {"includeDisabled": True, "limit": 200, "offset": offset, "compact": True}
            )
            for job in page["jobs"]:
                if job["id"] == name:
                    return name
                if job["name"] == name or (len(name) >= 4 and job["id"].startswith(name)):
                    found.append(job)
            if not page["hasMore"]:
                break
            offset = page["nextOffset"]
        if len(found) > 1:
            ids = ", ".join(job["id"] for job in found[:5])
            raise BadRequest(f"{name!r} could be {ids}; give the id")
        # One that is gone has no place in the list, but may have a history.
        return str(found[0]["id"]) if found else name


# ---- what was asked for ----------------------------------------------------------------------------------------------


def _job_params(options: argparse.Namespace, *, adding: bool) -> Json:
    wanted: Json = {
        "schedule": _schedule(options, adding=adding),
        "payload": _payload(options, adding=adding),
        "delivery": _delivery(options),
        "agentId": options.agent,
        "sessionTarget": options.session,
        "sessionKey": options.session_key,
        "wakeMode": options.wake,
        "description": options.description,
        "enabled": False if options.disabled else None,
        "deleteAfterRun": False if options.keep_after_run else None,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _schedule(options: argparse.Namespace, *, adding: bool) -> Json | None:
    ways = ("at", "every", "cron", "on_exit", "stream_command")
    given = [name for name in ways if getattr(options, name) is not None]
    if len(given) > 1 or (adding and not given):
        raise BadRequest("say when, in one way: --at, --every, --cron, --on-exit or --stream-command")
    if not given:
        return None
    if options.tz and given[0] not in ("at", "cron"):
        raise BadRequest("--tz goes with --cron and --at")
    if given[0] == "every":
        return {"kind": "every", "everyMs": parse_duration(options.every)}
    if given[0] == "stream_command":
        return {"kind": "stream", "command": _argv(options.stream_command)}
    if given[0] == "on_exit":
        return {"kind": "on-exit", "command": options.on_exit}
    if given[0] == "at":
        return {"kind": "at", "at": _parse_time(options.at, options.tz)}
    return {"kind": "cron", "expr": options.cron} | _schedule_options(options)


def _schedule_options(options: argparse.Namespace) -> Json:
    """What else there is to say of a cron expression."""
    stagger = 0 if options.exact else parse_duration(options.stagger) if options.stagger else None
    return {name: value for name, value in (("tz", options.tz), ("staggerMs", stagger)) if value is not None}


def _retime_schedule(schedule: Json, options: argparse.Namespace) -> Json:
    """The job's own schedule, in another zone or with another delay."""
    if schedule["kind"] != "cron":
        words = "--tz, --stagger and --exact by themselves change a cron expression, and this job has none"
        raise BadRequest(f"{words}; say anew when it is due")
    return schedule | _schedule_options(options)


def _argv(text: str) -> list[str]:
    """A JSON array of words, or a line for the shell."""
    if not text.lstrip().startswith("["):
        return ["sh", "-c", text]
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        raise BadRequest('--stream-command is a shell command, or words as JSON: ["tail", "-F", "log"]') from None


def _parse_time(text: str, tz: str | None) -> str:
    """A time, or so long from now, as the gateway reads it."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        try:
            return to_iso(round(time.time() * 1000) + parse_duration(text))
        except BadRequest:
            words = "write 2027-01-31T09:00, or a span from now such as 20m"
            raise BadRequest(f"--at {text!r} is no time; {words}") from None
    if moment.tzinfo is None:
        # Here for start-up: only a time in a zone needs the zones.
        from ..gateway.cron.expression import find_zone

        moment = moment.replace(tzinfo=find_zone(tz) if tz else UTC)
    return to_iso(round(moment.timestamp() * 1000))


def _payload(options: argparse.Namespace, *, adding: bool) -> Json | None:
    given = [name for name in ("message", "system_event", "command") if getattr(options, name) is not None]
    if len(given) > 1 or (adding and not given):
        raise BadRequest("say what, in one way: --message, --system-event or --command")
    more = {"model": options.model, "thinking": options.thinking, "timeoutSeconds": options.timeout_seconds}
    more = {name: value for name, value in more.items() if value is not None}
    if not given:
        return {"kind": "agentTurn", **more} if more else None
    if given[0] == "system_event":
        return {"kind": "systemEvent", "text": options.system_event}
    if given[0] == "command":
        return {"kind": "command", "argv": ["sh", "-lc", options.command], **more}
    return {"kind": "agentTurn", "message": options.message, **more}


def _delivery(options: argparse.Namespace) -> Json | None:
    where = {"channel": options.channel, "to": options.to, "accountId": options.account, "threadId": options.thread}
    where = {name: value for name, value in where.items() if value is not None}
    modes = [name for name in ("announce", "no_deliver", "webhook") if getattr(options, name)]
    if len(modes) > 1 or (where and modes in (["no_deliver"], ["webhook"])):
        raise BadRequest("--announce with --channel and --to, or --webhook, or --no-deliver: one of them")
    lenient = {"bestEffort": True} if options.best_effort else {}
    if modes == ["no_deliver"]:
        return {"mode": "none"}
    if modes == ["webhook"]:
        return {"mode": "webhook", "to": options.webhook, **lenient}
    if modes or where or lenient:
        return {"mode": "announce", **where, **lenient}
    return None


# ---- in words --------------------------------------------------------------------------------------------------------


def _format_answer(verb: str, answer: Any) -> str:
    if verb == "rm":
        return "removed"
    if verb == "status":
        due = answer.get("nextWakeAtMs")
        shown = "none is due" if due is None else f"the next is due {_format_time(due, None)}"
        return f"{'on' if answer['enabled'] else 'switched off'}; {answer['jobs']} jobs; {shown}"
    if verb == "runs":
        return "\n".join(map(_format_run, answer["entries"])) or "no job has run yet"
    if verb == "list":
        shown = (
            "\n".join(_format_job(job) for job in answer["jobs"]) or "there are no jobs; add one with openclaw cron add"
        )
        more = answer["total"] - len(answer["jobs"])
        return f"{shown}\n… and {more} more; narrow them with --query" if more else shown
    return _format_job(answer)


def _format_job(job: Json) -> str:
    state = job.get("state", {})
    last = state.get("lastRunStatus")
    words = [] if job["enabled"] else ["disabled"]
    if state.get("runningAtMs"):
        words.append("running")
    if last:
        words.append(f"last {last}" + (f": {state['lastError']}" if state.get("lastError") else ""))
    head = f"{job['id']}  {job.get('displayName') or job['name']}  ({_format_schedule(job['schedule'])})"
    preview = job.get("deliveryPreview", {}).get("label")
    words += [preview] if preview and preview != "not requested" else []
    return "\n".join([head + (f"  [{'; '.join(words)}]" if words else ""), *_next_times(job)])


def _format_schedule(schedule: Json) -> str:
    match schedule["kind"]:
        case "at":
            return f"at {schedule['at']}"
        case "every":
            return f"every {format_duration(schedule['everyMs'])}"
        case "cron":
            return f"cron {schedule['expr']}" + (f" {schedule['tz']}" if schedule.get("tz") else "")
        case other:
            return f"{other} {schedule.get('command', '')}".strip()


def _next_times(job: Json) -> Iterable[str]:
    """The next times, in the job's own zone: the first as the gateway has it, the others from the schedule."""
    first = job.get("state", {}).get("nextRunAtMs")
    if first is None or not job["enabled"]:
        return
    try:
        schedule = msgspec.convert(job["schedule"], Schedule)
        times = [first, *islice(iterate_due(schedule, first, job_id=job["id"]), NEXT_TIMES_SHOWN - 1)]
    except (msgspec.ValidationError, BadRequest):
        times = [first]  # another gateway's schedule, which we need not understand
    for due in times:
        yield f"    {_format_time(due, job['schedule'].get('tz'))}"


def _format_time(ms: int, tz: str | None) -> str:
    from ..gateway.cron.expression import find_zone  # here for start-up: `cron add --json` needs no zones

    try:
        moment = datetime.fromtimestamp(ms / 1000, find_zone(tz))
    except BadRequest:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%a %Y-%m-%d %H:%M:%S %Z")


def _format_run(entry: Json) -> str:
    took = format_duration(entry.get("durationMs", 0))
    begun: int = entry.get("runAtMs") or entry["ts"]
    name = entry.get("jobName") or entry["jobId"]
    words = f"{_format_time(begun, None)}  {entry.get('status', '?'):7}  {name}"
    sent = entry.get("deliveryStatus", "not-requested")
    shown = "" if sent == "not-requested" else f"; {sent}"
    told = [entry.get("error"), entry.get("summary"), entry.get("deliveryError")]
    lines = [" ".join(str(text).split())[:MAX_RESULT_CHARS] for text in dict.fromkeys(told) if text]
    return "\n    ".join([f"{words}  ({took}{shown})", *lines])
