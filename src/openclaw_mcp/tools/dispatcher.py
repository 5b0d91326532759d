"""The only way a tool is ever listed or called, whoever asks and however they came."""

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from ..core.errors import OpenClawError, ToolArguments, ToolDenied, ToolNotFound, ToolTimeout
from ..core.model import Caller, ToolCall, ToolResult, ToolSpec, Traffic
from ..core.signal import Signal
from .audit import AuditRecord, AuditSink, digest_arguments, is_audit_enabled, log_record
from .deadline import Deadlines
from .policy import Policy, PolicyDecision, apps_for_caller, scope_policy
from .registry import RegisteredTool, ToolRegistry

DEFAULT_DEADLINE: Final = 120.0  # a tool that may take longer says so in its spec
KEPT_TOOL_LISTS: Final = 256  # callers whose menu is remembered between changes
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
        deadlines: Deadlines | None = None,
        check_arguments: bool = True,
        digest_key: bytes | None = None,
        cache_key: Callable[[Caller], Hashable] = lambda caller: caller,
        app_change_interval: float = 0.0,
    ) -> None:
        """Desks may share their `deadlines`; `check=False` leaves the arguments to the tools themselves.

        With a `digest_key` (up to 64 bytes) records carry a digest of the arguments, comparable under that key. `alike`
        gives what `policy` looks at in a caller: fifty sessions of an agent share a menu that takes long to make.
        News of apps are told together, at most every `apps_pause` seconds.
        """
        self._registry = registry
        self._policy = policy
        self._audit = audit
        self._digest_key = digest_key
        self._deadline = deadline
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
        """The rules or the tools have changed: menus are made anew and clients told."""
        self._clear_lists()
        self.changed.emit(None)

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        """Only what `caller` could call: the menu and the rules never disagree."""
        return self._tool_list(caller).specs

    async def call(self, call: ToolCall) -> ToolResult:
        """Raises ToolError when the call was not made or did not end; a tool's own failure is a result."""
        begun = time.perf_counter()
        offer: RegisteredTool | None = None
        decision = UNKNOWN_TOOL
        outcome = "cancelled"
        traffic = None
        try:
            offer, decision = self._select_tool(call)
            if not decision.allowed:
                raise ToolDenied(decision.reason)
            if offer.spec.actions:
                _check_action(call, offer.spec)
            if self._check_arguments:
                offer.validator.check(call.arguments)
            seconds = offer.spec.deadline or self._deadline
            with self._deadlines.timeout(seconds) as bound:
                result = await offer.source.call(call)
            outcome = "failed" if result.failed else "ok"
            traffic = result.traffic
            return result
        except TimeoutError:
            outcome = ToolTimeout.code
            if not bound.expired:
                raise ToolTimeout(f"{call.name} ran out of time waiting for something of its own") from None
            raise ToolTimeout(f"{call.name} took longer than {seconds:g} s and was stopped") from None
        except OpenClawError as exc:
            outcome = exc.code
            raise
        except Exception:
            outcome = "internal"
            raise
        finally:
            if is_audit_enabled(self._audit):
                seconds = time.perf_counter() - begun
                self._write_record(call, offer, decision, outcome, traffic, seconds=seconds)

    def _write_record(
        self,
        call: ToolCall,
        tool: RegisteredTool | None,
        decision: PolicyDecision,
        outcome: str,
        traffic: Traffic | None,
        *,
        seconds: float,
    ) -> None:
        self._audit(
            AuditRecord(
                at=time.time() - seconds,
                caller=f"{call.caller.kind} {call.caller.name}",
                entry_point=call.caller.entry_point,
                session=call.caller.session,
                tool=call.name,
                source=tool.source_name if tool else None,
                digest=digest_arguments(call.arguments, self._digest_key) if self._digest_key else None,
                step=decision.step,
                rule=decision.reason,
                outcome=outcome,
                milliseconds=seconds * 1000,
                traffic=traffic,
            )
        )

    def _select_tool(self, call: ToolCall) -> tuple[RegisteredTool, PolicyDecision]:
        """The one offer this caller may order, or the first refusal."""
        menu = self._tool_list(call.caller)
        permitted = menu.allowed_tools.get(call.name)
        if permitted is not None:
            if call.name not in menu.argument_dependent:
                return permitted
            offer, whole = permitted
            return offer, menu.decide_by_arguments(call, whole)
        offers = self._registry.tools_by_name(apps_for_caller(call.caller)).get(call.name)
        if not offers:
            raise ToolNotFound(f"Unknown tool: {call.name}")
        judged = self._decide_all(call.caller, offers)
        allowed = [offer.source_name for offer, decision in judged if decision.allowed]
        if allowed:
            names = ", ".join(allowed)
            raise ToolDenied(f"{call.name} is offered by {names}; the credential must name one of them")
        return judged[0]

    def _tool_list(self, caller: Caller) -> "ToolList":
        menu = self._lists_by_caller.get(caller)
        if menu is None:
            if len(self._lists_by_caller) >= KEPT_TOOL_LISTS:
                self._clear_lists()
            kind = self._cache_key(caller)
            menu = self._lists_by_key.get(kind)
            if menu is None:
                apps = apps_for_caller(caller)
                judged = {
                    name: self._decide_all(caller, offers)
                    for name, offers in self._registry.tools_by_name(apps).items()
                }
                by_name = partial(self._decide_by_name, caller)
                menu = self._lists_by_key[kind] = ToolList(judged, by_name, apps)
            self._lists_by_caller[caller] = menu
        return menu

    def _decide_all(
        self, caller: Caller, tools: Sequence[RegisteredTool]
    ) -> Sequence[tuple[RegisteredTool, PolicyDecision]]:
        return [(offer, self._decide(caller, offer)) for offer in tools]

    def _decide(self, caller: Caller, tool: RegisteredTool) -> PolicyDecision:
        """A tool with many actions is allowed with the first of them that is."""
        whole = self._policy(caller, tool.source_name, tool.spec)
        if not tool.spec.actions:
            return whole
        decisions = list(self._decide_by_name(caller, tool, tool.spec.actions).values())
        found = next((decision for decision in decisions if decision.allowed), None)
        return found or (decisions[0] if whole.allowed else whole)

    def _decide_by_name(
        self, caller: Caller, tool: RegisteredTool, names: Mapping[str, str]
    ) -> dict[str, PolicyDecision]:
        """Each action or parameter as the tool that does it alone, which is refused under its family's name as well."""
        return {
            part: self._policy(caller, tool.source_name, structs.replace(tool.spec, name=name))
            for part, name in names.items()
        }

    def _clear_lists(self) -> None:
        self._lists_by_caller.clear()
        self._lists_by_key.clear()

    def _on_app_change(self, app: str) -> None:
        """Only the menus of those it is lent to are made anew."""
        self._lists_by_caller = {caller: menu for caller, menu in self._lists_by_caller.items() if app not in menu.apps}
        self._lists_by_key = {kind: menu for kind, menu in self._lists_by_key.items() if app not in menu.apps}
        if not self._app_change_interval:
            self.changed.emit(None)
        elif self._app_change_timer is None:
            self._app_change_timer = asyncio.get_running_loop().call_later(
                self._app_change_interval, self._emit_app_changes
            )

    def _emit_app_changes(self) -> None:
        self._app_change_timer = None
        self.changed.emit(None)


class ToolList:
    """What callers of one kind may order: tools that exactly one source may serve them."""

    __slots__ = ("action_decisions", "allowed_tools", "apps", "argument_dependent", "denied_parameters", "specs")

    def __init__(
        self,
        decisions: Mapping[str, Sequence[tuple[RegisteredTool, PolicyDecision]]],
        decide_by_name: Callable[[RegisteredTool, Mapping[str, str]], Mapping[str, PolicyDecision]],
        apps: Collection[str],
    ) -> None:
        self.apps = apps
        self.allowed_tools: dict[str, tuple[RegisteredTool, PolicyDecision]] = {}
        self.action_decisions: dict[str, Mapping[str, PolicyDecision]] = {}
        """Of tools with many actions, what was decided of each."""
        self.denied_parameters: dict[str, Mapping[str, PolicyDecision]] = {}
        """Of tools that do others' work by a parameter, the parameters that may not be given."""
        for name, pairs in decisions.items():
            allowed = [pair for pair in pairs if pair[1].allowed]
            if len(allowed) == 1:
                self.allowed_tools[name] = allowed[0]
                offer = allowed[0][0]
                if offer.spec.actions:
                    self.action_decisions[name] = decide_by_name(offer, offer.spec.actions)
                if offer.spec.parameter_tools:
                    judged_too = decide_by_name(offer, offer.spec.parameter_tools)
                    self.denied_parameters[name] = {part: one for part, one in judged_too.items() if not one.allowed}
        self.argument_dependent = self.action_decisions.keys() | self.denied_parameters.keys()
        """Tools of which a call is judged by what it asks for."""
        self.specs = tuple(
            _filter_parameters(
                _filter_actions(offer.spec, self.action_decisions.get(name)), self.denied_parameters.get(name)
            )
            for name, (offer, _) in self.allowed_tools.items()
        )

    def decide_by_arguments(self, call: ToolCall, default: PolicyDecision) -> PolicyDecision:
        """The call judged as the action it asks for, and as each tool whose work it does by a parameter it gives."""
        action = call.arguments.get("action")
        decision = self.action_decisions.get(call.name, {}).get(action, default) if isinstance(action, str) else default
        if not decision.allowed:
            return decision
        refused = self.denied_parameters.get(call.name, {})
        return next((refused[name] for name in refused if call.arguments.get(name)), decision)


def _check_action(call: ToolCall, spec: ToolSpec) -> None:
    """Only what was judged is done, whatever the tool itself takes for an action."""
    action = call.arguments.get("action")
    if not isinstance(action, str) or action not in spec.actions:
        raise ToolArguments(f"action must be one of {', '.join(spec.actions)}")


def _filter_actions(spec: ToolSpec, decisions: Mapping[str, PolicyDecision] | None) -> ToolSpec:
    """The tool with the actions alone that may be asked for."""
    if decisions is None or all(decision.allowed for decision in decisions.values()):
        return spec
    left = [action for action, decision in decisions.items() if decision.allowed]
    fields = spec.input_schema["properties"]
    schema = {**spec.input_schema, "properties": {**fields, "action": {**fields["action"], "enum": left}}}
    return structs.replace(spec, input_schema=schema)


def _filter_parameters(spec: ToolSpec, denied: Mapping[str, PolicyDecision] | None) -> ToolSpec:
    """The tool with the parameters alone that may be given."""
    if not denied:
        return spec
    left = {name: about for name, about in spec.input_schema["properties"].items() if name not in denied}
    return structs.replace(spec, input_schema={**spec.input_schema, "properties": left})
