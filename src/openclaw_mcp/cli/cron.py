"""`openclaw cron`: scheduled jobs of a gateway, and when they are due next."""

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ..core.config.cron import parse_duration
from ..core.errors import BadRequest, OpenClawError
from ..core.jobs import (
    AtSchedule,
    CronSchedule,
    IntervalSchedule,
    JobDelivery,
    OnExitSchedule,
    Schedule,
    StreamSchedule,
)
from ..core.json_values import drop_none
from ..core.model import Json
from ..core.rpc import RpcError
from ..gateway.cron.delivery import DeliveryTarget, split_target
from ..gateway.cron.schedule import to_iso
from ..net.gateway_client.client import GatewayClient
from .cron_output import JobPage, JobRow, RunRow, format_answer, format_run, next_times
from .gateway_connection import add_connection_options, connect_from_options, read_reply
from .report import print_json

ANSWER_TIMEOUT: Final = 60.0  # seconds for an answer
POLL_INTERVAL: Final = 0.5  # seconds between two checks of a run that is waited for
MAX_RUN_WAIT: Final = 3600.0
AT_HELP: Final = (
    'once: 18:00, "tomorrow 9am", "in 20 minutes" (in --tz, else your zone); 2027-01-31T09:00 (in --tz, else UTC)'
)
ALIASES: Final = {"create": "add", "ls": "list", "show": "get", "remove": "rm", "delete": "rm"}


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, help: str, *, job: bool = False, aliases: tuple[str, ...] = ()) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = verbs.add_parser(name, help=help, aliases=aliases, allow_abbrev=False)
        if job:
            made.add_argument("job", help="the job's id, or enough of its beginning, or its name")
        made.add_argument("--json", action="store_true", help="print the gateway's answer as JSON")
        add_connection_options(made)
        return made

    verb("status", "whether the scheduler runs, how many jobs there are, when the next is due")
    add = verb("add", "add a job", aliases=("create",))
    add.add_argument("--name", help="its name (default: the beginning of its message)")
    _job_arguments(add)
    listing = verb("list", "the jobs, and the next five times of each", aliases=("ls",))
    listing.add_argument("--all", action="store_true", help="disabled ones too")
    listing.add_argument("--query", help="only those that contain this text")
    verb("get", "one job", job=True, aliases=("show",))
    edit = verb("edit", "change a job", job=True)
    edit.add_argument("--name", help="a new name")
    _job_arguments(edit)
    verb("rm", "remove a job; its log is kept", job=True, aliases=("remove", "delete"))
    verb("enable", "let it fire again", job=True)
    verb("disable", "keep it, but do not let it fire", job=True)
    run = verb("run", "run a job now", job=True)
    run.add_argument("--due", action="store_true", help="only if it is due")
    run.add_argument("--wait", action="store_true", help="until it has ended; exit status 1 unless it succeeded")
    runs = verb("runs", "the log of a job, or of all of them")
    runs.add_argument("job", nargs="?", help="the job's id or name (default: all)")
    runs.add_argument("--limit", type=int, default=20)


def _job_arguments(parser: argparse.ArgumentParser) -> None:
    when = parser.add_argument_group("schedule (one of)")
    when.add_argument("--at", metavar="TIME", help=AT_HELP)
    when.add_argument("--every", metavar="SPAN", help='again and again: 90s, "10 minutes", 1h30m, 2d')
    when.add_argument("--cron", metavar="EXPR", help='"0 9 * * 1-5"; six fields with seconds, seven with the year')
    when.add_argument("--on-exit", metavar="COMMAND", help="once this shell command, started by the gateway, has ended")
    when.add_argument(
        "--stream-command", metavar="COMMAND", help="whenever this program, kept running, prints something"
    )
    when.add_argument("--tz", metavar="ZONE", help="of --cron and --at, such as Europe/Vienna")
    when.add_argument("--stagger", metavar="SPAN", help="a fixed delay within this window, of its own")
    when.add_argument("--exact", action="store_true", help="no such delay, also at the full hour")
    what = parser.add_argument_group("work (one of)")
    what.add_argument("--message", help="what an agent is asked")
    what.add_argument("--system-event", metavar="TEXT", help="a text for the main session's agent")
    what.add_argument("--command", metavar="SHELL", help="a command on the gateway's machine")
    what.add_argument("--model", help="the model that answers")
    what.add_argument("--thinking", help="how much it thinks")
    what.add_argument("--timeout-seconds", type=float, metavar="N", help="the longest it may take; 0 = no limit")
    where = parser.add_argument_group("session and delivery")
    where.add_argument("--agent", help="whose job it is")
    where.add_argument("--session", help="main, isolated, current, or session:NAME")
    where.add_argument("--session-key", help="the session a current or main job belongs to")
    where.add_argument("--wake", choices=("now", "next-heartbeat"), help="when a system event is given to the agent")
    where.add_argument("--announce", action="store_true", help="send the answer to a conversation")
    where.add_argument("--no-deliver", action="store_true", help="do not send the answer anywhere")
    where.add_argument("--webhook", metavar="URL", help="POST the result there")
    where.add_argument("--channel", help="the conversation's channel (default: where the person last wrote)")
    where.add_argument("--to", help="the conversation")
    where.add_argument("--account", help="the channel's account")
    where.add_argument("--thread", help="the conversation's thread or topic")
    where.add_argument("--best-effort", action="store_true", help="an answer that can't be delivered is no failure")
    parser.add_argument("--description")
    parser.add_argument("--disabled", action="store_true", help="keep it, but do not let it fire")
    parser.add_argument("--keep-after-run", action="store_true", help="keep a job that fires once")


def run(options: argparse.Namespace) -> int:
    try:
        return asyncio.run(_run_verb(options))
    except RpcError as exc:
        raise OpenClawError(str(exc)) from exc


async def _run_verb(options: argparse.Namespace) -> int:
    verb = ALIASES.get(options.verb, options.verb)
    # Wrong options are reported before a gateway is looked for.
    params = _job_params(options, adding=verb == "add") if verb in ("add", "edit") else {}
    async with connect_from_options(options) as connection:
        client = _CronClient(connection)
        if verb == "run":
            return await _run_job(client, options)
        answer = await _call_verb(client, verb, options, params)
        print_json(answer) if options.json else print(format_answer(verb, answer, zone=getattr(options, "tz", None)))
        if verb in ("add", "edit"):
            await _warn_missing_channel(client, options)
    return 0


async def _call_verb(client: "_CronClient", verb: str, options: argparse.Namespace, params: Json) -> Any:
    if verb == "add":
        return await client.call("cron.add", **params)
    if verb == "list":
        return await client.call("cron.list", includeDisabled=options.all, query=options.query, limit=200)
    if verb == "status":
        return await client.call("cron.status")
    if verb == "runs" and not options.job:
        return await client.call("cron.runs", scope="all", limit=options.limit)
    job_id = await client.find_job(options.job)
    if verb == "runs":
        return await client.call("cron.runs", id=job_id, limit=options.limit)
    if verb in ("get", "rm"):
        return await client.call("cron.get" if verb == "get" else "cron.remove", id=job_id)
    if verb != "edit":
        return await client.call("cron.update", id=job_id, patch={"enabled": verb == "enable"})
    if "schedule" not in params and (options.tz or options.stagger or options.exact):
        job = read_reply(await client.call("cron.get", id=job_id), JobRow)
        params = {**params, "schedule": _retime_schedule(job.known_schedule, options)}
    if not params:
        raise BadRequest("name what to change; see openclaw cron edit --help")
    return await client.call("cron.update", id=job_id, patch=params)


async def _warn_missing_channel(client: "_CronClient", options: argparse.Namespace) -> None:
    """Print a warning when results go to a channel that is not configured: it may be added later, or be mistyped."""
    channel, _ = split_target(DeliveryTarget(channel=options.channel, to=options.to))
    if channel is None:
        return
    try:
        known = (await client.call("channels.status"))["channels"]
    except (RpcError, KeyError):
        return  # another kind of gateway, or one that refuses
    if not known.get(channel, {}).get("configured"):
        problem = f"no channel {channel} is configured now; results can't be delivered until there is"
        print(f"openclaw cron: {problem}", file=sys.stderr)


async def _run_job(client: "_CronClient", options: argparse.Namespace) -> int:
    job_id = await client.find_job(options.job)
    answer = await client.call("cron.run", id=job_id, mode="due" if options.due else "force")
    entry: Any = None
    until = time.monotonic() + MAX_RUN_WAIT
    while options.wait and answer.get("enqueued") and entry is None and time.monotonic() < until:
        await asyncio.sleep(POLL_INTERVAL)
        found = await client.call("cron.runs", id=job_id, runId=answer["runId"])
        entry = next(iter(found["entries"]), None)
    if options.json:
        print_json(answer if entry is None else entry)
    elif entry is not None:
        print(format_run(read_reply(entry, RunRow)))
    elif answer.get("enqueued"):
        job = read_reply(await client.call("cron.get", id=job_id), JobRow)
        print(f"begun: {answer['runId']}", *next_times(job), sep="\n")
    else:
        print(f"not run: {answer['reason']}")
    return 1 if options.wait and (entry is None or entry.get("completionStatus") != "succeeded") else 0


class _CronClient:
    def __init__(self, connection: GatewayClient) -> None:
        self._connection = connection

    async def call(self, method: str, **params: Any) -> Any:
        return await self._connection.call(method, drop_none(params), within=ANSWER_TIMEOUT)

    async def find_job(self, name: str) -> str:
        """A job by its id, the beginning of it, or its name. Raises BadRequest when several match."""
        offset: int | None = 0
        found: list[str] = []
        while offset is not None:
            answer = await self.call("cron.list", includeDisabled=True, limit=200, offset=offset, compact=True)
            page = read_reply(answer, JobPage)
            for job in page.jobs:
                if job.id == name:
                    return name
                if job.name == name or (len(name) >= 4 and job.id.startswith(name)):
                    found.append(job.id)
            offset = page.next_offset if page.has_more else None
        if len(found) > 1:
            raise BadRequest(f"{name!r} could be {', '.join(found[:5])}; give the id")
        # A removed job is not in the list, but may have a history.
        return found[0] if found else name


# ---- parameters ------------------------------------------------------------------------------------------------------


def _job_params(options: argparse.Namespace, *, adding: bool) -> Json:
    """What the options say of a job, as `cron.add` and the patch of `cron.update` take it."""
    params = {
        "name": options.name,
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
    return drop_none(params)


def _schedule(options: argparse.Namespace, *, adding: bool) -> Schedule | None:
    ways = ("at", "every", "cron", "on_exit", "stream_command")
    given = [name for name in ways if getattr(options, name) is not None]
    if len(given) > 1 or (adding and not given):
        raise BadRequest("give one time of firing: --at, --every, --cron, --on-exit or --stream-command")
    if given and options.tz and given[0] not in ("at", "cron"):
        raise BadRequest("--tz goes with --cron and --at")
    match given:
        case []:
            return None
        case ["every"]:
            return IntervalSchedule(every_ms=parse_duration(options.every))
        case ["stream_command"]:
            return StreamSchedule(command=_argv(options.stream_command))
        case ["on_exit"]:
            return OnExitSchedule(command=options.on_exit)
        case ["at"]:
            return AtSchedule(at=_parse_time(options.at, options.tz))
    return _retime_schedule(CronSchedule(expr=options.cron), options)


def _retime_schedule(schedule: Schedule | None, options: argparse.Namespace) -> CronSchedule:
    """A cron expression in the zone and with the delay of the options; those that are not given stay."""
    if not isinstance(schedule, CronSchedule):
        problem = "--tz, --stagger and --exact by themselves change a cron expression, and this job has none"
        raise BadRequest(f"{problem}; give its whole schedule")
    stagger = 0 if options.exact else parse_duration(options.stagger) if options.stagger else schedule.stagger_ms
    return msgspec.structs.replace(schedule, tz=options.tz or schedule.tz, stagger_ms=stagger)


def _argv(text: str) -> list[str]:
    """A JSON array of arguments, or a line for the shell."""
    if not text.lstrip().startswith("["):
        return ["sh", "-c", text]
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        raise BadRequest('--stream-command is a shell command, or arguments as JSON: ["tail", "-F", "log"]') from None


def _parse_time(text: str, tz: str | None) -> str:
    """A time, or a duration from now, as the gateway expects it."""
    # Here for start-up: only a time needs the zones.
    from .spoken_times import parse_moment

    return to_iso(round(parse_moment(text, tz, datetime.now(UTC)).timestamp() * 1000))


def _payload(options: argparse.Namespace, *, adding: bool) -> Json | None:
    given = [name for name in ("message", "system_event", "command") if getattr(options, name) is not None]
    if len(given) > 1 or (adding and not given):
        raise BadRequest("give one kind of work: --message, --system-event or --command")
    if given == ["system_event"]:
        return {"kind": "systemEvent", "text": options.system_event}
    more = drop_none({"model": options.model, "thinking": options.thinking, "timeoutSeconds": options.timeout_seconds})
    if given == ["command"]:
        return {"kind": "command", "argv": ["sh", "-lc", options.command], **more}
    message = drop_none({"message": options.message})  # a job's message stays, when it is not given
    return {"kind": "agentTurn", **message, **more} if message or more else None


def _delivery(options: argparse.Namespace) -> JobDelivery | None:
    modes = [name for name in ("announce", "no_deliver", "webhook") if getattr(options, name)]
    has_place = any(part is not None for part in (options.channel, options.to, options.account, options.thread))
    if len(modes) > 1 or (has_place and modes in (["no_deliver"], ["webhook"])):
        raise BadRequest("--announce with --channel and --to, or --webhook, or --no-deliver: one of them")
    best_effort = options.best_effort or None
    if modes == ["no_deliver"]:
        return JobDelivery(mode="none")
    if modes == ["webhook"]:
        return JobDelivery(mode="webhook", to=options.webhook, best_effort=best_effort)
    if not (modes or has_place or best_effort):
        return None
    return JobDelivery(
        mode="announce",
        channel=options.channel,
        to=options.to,
        account_id=options.account,
        thread_id=options.thread,
        best_effort=best_effort,
    )
