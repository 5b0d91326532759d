"""The only way a tool is ever listed or called, for every caller and every entry point."""

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from ..core.errors import OpenClawError, ToolArguments, ToolDenied, ToolNotFound, ToolTimeout, ToolUnavailable
from ..core.model import Caller, Json, ToolCall, ToolResult, ToolSpec
from ..core.signal import Signal
from ..net.tasks import is_cancelling
from .audit import AuditSink, digest_arguments, is_audit_enabled, log_record, make_record
from .deadline import CallDeadline, Deadlines, ExtendingContext, ProgressExtension
from .policy import Policy, PolicyDecision, apps_for_caller, scope_policy
from .registry import RegisteredTool, ToolRegistry

DEFAULT_DEADLINE: Final = 120.0  # a tool that may take longer says so in its spec
KEPT_TOOL_LISTS: Final = 256  # callers whose tool list is kept between changes
UNKNOWN_TOOL: Final = PolicyDecision(False, "unknown tool", "menu")


class ToolDispatcher:
    """Choose, decide, validate, bound in time, make, audit. A `Toolbox`."""

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        policy: Policy = scope_policy,
        audit: AuditSink = log_record,
        deadline: float = DEFAULT_DEADLINE,
        extension: ProgressExtension | None = None,
        deadlines: Deadlines | None = None,
        check_arguments: bool = True,
        digest_key: bytes | None = None,
        cache_key: Callable[[Caller], Hashable] = lambda caller: caller,
        app_change_interval: float = 0.0,
    ) -> None:
        """Dispatchers may share their `deadlines`; `check_arguments=False` leaves arguments to the tools themselves.

        With an `extension`, progress extends the deadline of a call.
        With a `digest_key` (up to 64 bytes) records carry a digest of the arguments, comparable under that key.
        `cache_key` gives what `policy` looks at in a caller: fifty sessions of an agent share one tool list. Changes of
        apps are announced together, at most every `app_change_interval` seconds.
        """
        self._registry = registry
        self._policy = policy
        self._audit = audit
        self._digest_key = digest_key
        self._deadline = deadline
        self._extension = extension
        self._deadlines = deadlines or Deadlines()
        self._check_arguments = check_arguments
        self._cache_key = cache_key
        self._app_change_interval = app_change_interval
        self._app_change_timer: asyncio.TimerHandle | None = None
        self._lists_by_caller: dict[Caller, ToolList] = {}
        self._lists_by_key: dict[Hashable, ToolList] = {}
        self.changed: Signal[None] = Signal()
        registry.changed.connect(lambda _: self.refresh())
        registry.app_changed.connect(self._on_app_change)

    def refresh(self) -> None:
        """The rules or the tools have changed: tool lists are made again and clients notified."""
        self._clear_lists()
        self.changed.emit(None)

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        """Only what `caller` could call: the list and the rules never disagree."""
        return self._tool_list(caller).specs

    async def call(self, call: ToolCall) -> ToolResult:
        """Raises ToolError when the call was not made or did not end; a tool's own failure is a result."""
        started = time.perf_counter()
        tool: RegisteredTool | None = None
        decision = UNKNOWN_TOOL
        outcome = "cancelled"
        traffic = None
        try:
            tool, decision = self._select_tool(call)
            if not decision.allowed:
                raise ToolDenied(decision.reason)
            if tool.spec.actions:
                _check_action(call, tool.spec)
            if self._check_arguments:
                tool.validator.check(call.arguments)
            seconds = tool.spec.deadline or self._deadline
            with self._deadlines.timeout(seconds) as deadline:
                result = await _call_source(tool, self._extend_by_progress(call, deadline))
            outcome = "failed" if result.failed else "ok"
            traffic = result.traffic
            return result
        except TimeoutError:
            outcome = ToolTimeout.code
            if not deadline.expired:
                raise ToolTimeout(f"{call.name} ran out of time waiting for something of its own") from None
            raise ToolTimeout(self._timeout_message(call.name, seconds, deadline)) from None
        except OpenClawError as exc:
            outcome = exc.code
            raise
        except Exception:
            outcome = "internal"
            raise
        finally:
            if is_audit_enabled(self._audit):
                seconds = time.perf_counter() - started
                source = tool.source_name if tool else None
                digest = digest_arguments(call.arguments, self._digest_key) if self._digest_key else None
                self._audit(
                    make_record(
                        call.caller,
                        call.name,
                        decision,
                        outcome,
                        seconds,
                        source=source,
                        digest=digest,
                        traffic=traffic,
                    )
                )

    def _extend_by_progress(self, call: ToolCall, deadline: CallDeadline) -> ToolCall:
        if self._extension is None:
            return call
        context = ExtendingContext(call.context, deadline, self._extension.longest)
        return ToolCall(caller=call.caller, name=call.name, arguments=call.arguments, context=context)

    def _timeout_message(self, name: str, seconds: float, deadline: CallDeadline) -> str:
        limit = self._extension
        if limit is None:
            return f"{name} took longer than {seconds:g} s and was stopped"
        if deadline.is_exhausted:
            return f"{name} took longer than {limit.longest:g} s and was stopped; {limit.longest_setting} allows more"
        return (
            f"{name} took longer than {seconds:g} s without progress and was stopped; "
            f"{limit.deadline_setting} allows more"
        )

    def _select_tool(self, call: ToolCall) -> tuple[RegisteredTool, PolicyDecision]:
        """The one tool of that name this caller may call, or the first refusal."""
        verdict = self._tool_list(call.caller).verdicts.get(call.name)
        if verdict is not None:
            return verdict.tool, verdict.decide_call(call.arguments)
        tools = self._registry.tools_by_name(apps_for_caller(call.caller)).get(call.name)
        if not tools:
            raise ToolNotFound(f"Unknown tool: {call.name}")
        verdicts = [self._judge(call.caller, tool) for tool in tools]
        allowed = ", ".join(verdict.tool.source_name for verdict in verdicts if verdict.decision.allowed)
        if allowed:
            raise ToolDenied(f"{call.name} is offered by {allowed}; the credential must name one of them")
        return verdicts[0].tool, verdicts[0].decision

    def _tool_list(self, caller: Caller) -> "ToolList":
        found = self._lists_by_caller.get(caller)
        if found is None:
            if len(self._lists_by_caller) >= KEPT_TOOL_LISTS:
                self._clear_lists()
            key = self._cache_key(caller)
            found = self._lists_by_key.get(key)
            if found is None:
                apps = apps_for_caller(caller)
                by_name = self._registry.tools_by_name(apps).values()
                verdicts = [[self._judge(caller, tool) for tool in tools] for tools in by_name]
                found = self._lists_by_key[key] = ToolList(verdicts, apps)
            self._lists_by_caller[caller] = found
        return found

    def _judge(self, caller: Caller, tool: RegisteredTool) -> "ToolVerdict":
        """A tool with many actions is allowed with the first of them that is."""
        decision = self._policy(caller, tool.source_name, tool.spec)
        actions = self._judge_parts(caller, tool, tool.spec.actions)
        if actions:
            refusal = next(iter(actions.values())) if decision.allowed else decision
            decision = next((action for action in actions.values() if action.allowed), refusal)
        parameters = self._judge_parts(caller, tool, tool.spec.parameter_tools) if decision.allowed else {}
        denied = {name: each for name, each in parameters.items() if not each.allowed}
        return ToolVerdict(tool, decision, actions, denied)

    def _judge_parts(
        self, caller: Caller, tool: RegisteredTool, names: Mapping[str, str]
    ) -> Mapping[str, PolicyDecision]:
        """Each action or parameter as the tool that does it alone, which rules for its parent concern as well."""
        return {
            part: self._policy(caller, tool.source_name, structs.replace(tool.spec, name=name))
            for part, name in names.items()
        }

    def _clear_lists(self) -> None:
        self._lists_by_caller.clear()
        self._lists_by_key.clear()

    def _on_app_change(self, app: str) -> None:
        """Only the lists of callers that may use the app are made again."""
        self._lists_by_caller = {caller: each for caller, each in self._lists_by_caller.items() if app not in each.apps}
        self._lists_by_key = {key: each for key, each in self._lists_by_key.items() if app not in each.apps}
        if not self._app_change_interval:
            self.changed.emit(None)
        elif self._app_change_timer is None:
            self._app_change_timer = asyncio.get_running_loop().call_later(
                self._app_change_interval, self._emit_app_changes
            )

    def _emit_app_changes(self) -> None:
        self._app_change_timer = None
        self.changed.emit(None)


class ToolVerdict(Struct, frozen=True):
    """The policy's decisions on one tool for callers of one kind."""

    tool: RegisteredTool
    decision: PolicyDecision
    actions: Mapping[str, PolicyDecision]
    """Of a tool with many actions, the decision on each."""
    denied_parameters: Mapping[str, PolicyDecision]
    """Of a tool that does another's work by a parameter, the parameters that may not be given."""

    def decide_call(self, arguments: Json) -> PolicyDecision:
        """The call judged as the action it asks for, and as each tool whose work it does by a parameter it gives."""
        decision = self.decision
        if self.actions and isinstance(action := arguments.get("action"), str):
            decision = self.actions.get(action, decision)
        if self.denied_parameters and decision.allowed:
            return next(
                (self.denied_parameters[name] for name in self.denied_parameters if arguments.get(name)), decision
            )
        return decision

    def visible_spec(self) -> ToolSpec:
        """The tool with those actions and parameters alone that may be asked for."""
        spec, refused = self.tool.spec, {name for name, each in self.actions.items() if not each.allowed}
        if not refused and not self.denied_parameters:
            return spec
        fields: Json = spec.input_schema["properties"]
        shown = {name: about for name, about in fields.items() if name not in self.denied_parameters}
        if refused:
            shown["action"] = {**fields["action"], "enum": [name for name in self.actions if name not in refused]}
        return structs.replace(spec, input_schema={**spec.input_schema, "properties": shown})


class ToolList:
    """What callers of one kind may call: tools that exactly one source may serve them."""

    __slots__ = ("apps", "specs", "verdicts")

    def __init__(self, verdicts: Iterable[Sequence[ToolVerdict]], apps: Collection[str]) -> None:
        """`verdicts` are those on the tools of one name, for each name."""
        self.apps = apps
        allowed = [[verdict for verdict in same_name if verdict.decision.allowed] for same_name in verdicts]
        self.verdicts = {only[0].tool.spec.name: only[0] for only in allowed if len(only) == 1}
        self.specs = tuple(verdict.visible_spec() for verdict in self.verdicts.values())


async def _call_source(tool: RegisteredTool, call: ToolCall) -> ToolResult:
    """Raises ToolUnavailable where something the tool waited for was cancelled: it must not end the caller's work."""
    try:
        return await tool.source.call(call)
    except asyncio.CancelledError:
        if is_cancelling():
            raise
        raise ToolUnavailable(f"{call.name} was stopped: what it waited for has ended") from None


def _check_action(call: ToolCall, spec: ToolSpec) -> None:
    """Only an action that was judged is done, even if the tool itself takes others."""
    action = call.arguments.get("action")
    if not isinstance(action, str) or action not in spec.actions:
        raise ToolArguments(f"action must be one of {', '.join(spec.actions)}")
