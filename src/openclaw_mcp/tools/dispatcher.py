"""The only way a tool is ever listed or called, whoever asks and however they came."""

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from ..core.errors import OpenClawError, ToolArguments, ToolDenied, ToolNotFound, ToolTimeout
from ..core.model import Caller, ToolCall, ToolResult, ToolSpec, Traffic
from ..core.signal import Bell
from .audit import Audit, Record, digest, is_kept, log
from .deadline import Deadlines
from .policy import Decision, Policy, apps_of, by_scope
from .registry import Offer, Registry

DEFAULT_DEADLINE: Final = 120.0  # a tool that may take longer says so in its spec
KEPT_MENUS: Final = 256  # callers whose menu is remembered between changes
UNKNOWN: Final = Decision(False, "unknown tool", "menu")


class Desk:
    """Choose, decide, validate, bound in time, make, audit. A `Toolbox`."""

    def __init__(
        self,
        registry: Registry,
        *,
        policy: Policy = by_scope,
        audit: Audit = log,
        deadline: float = DEFAULT_DEADLINE,
        deadlines: Deadlines | None = None,
        check: bool = True,
        digest_key: bytes | None = None,
        alike: Callable[[Caller], Hashable] = lambda caller: caller,
        apps_pause: float = 0.0,
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
        self._check = check
        self._alike = alike
        self._apps_pause = apps_pause
        self._telling: asyncio.TimerHandle | None = None
        self._menus: dict[Caller, _Menu] = {}
        self._shared: dict[Hashable, _Menu] = {}
        self.changed: Bell[None] = Bell()
        registry.changed.listen(lambda _: self.refresh())
        registry.app_changed.listen(self._app_changed)

    def refresh(self) -> None:
        """The rules or the tools have changed: menus are made anew and clients told."""
        self._forget_menus()
        self.changed.ring(None)

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        """Only what `caller` could call: the menu and the rules never disagree."""
        return self._menu(caller).specs

    async def call(self, call: ToolCall) -> ToolResult:
        """Raises ToolError when the call was not made or did not end; a tool's own failure is a result."""
        begun = time.perf_counter()
        offer: Offer | None = None
        decision = UNKNOWN
        outcome = "cancelled"
        traffic = None
        try:
            offer, decision = self._choose(call)
            if not decision.allowed:
                raise ToolDenied(decision.reason)
            if offer.spec.actions:
                _check_action(call, offer.spec)
            if self._check:
                offer.form.check(call.arguments)
            seconds = offer.spec.deadline or self._deadline
            with self._deadlines.bound(seconds) as bound:
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
            if is_kept(self._audit):
                seconds = time.perf_counter() - begun
                self._write(call, offer, decision, outcome, traffic, seconds=seconds)

    def _write(
        self,
        call: ToolCall,
        offer: Offer | None,
        decision: Decision,
        outcome: str,
        traffic: Traffic | None,
        *,
        seconds: float,
    ) -> None:
        self._audit(
            Record(
                at=time.time() - seconds,
                caller=f"{call.caller.kind} {call.caller.name}",
                door=call.caller.door,
                session=call.caller.session,
                tool=call.name,
                source=offer.name if offer else None,
                digest=digest(call.arguments, self._digest_key) if self._digest_key else None,
                step=decision.step,
                rule=decision.reason,
                outcome=outcome,
                milliseconds=seconds * 1000,
                traffic=traffic,
            )
        )

    def _choose(self, call: ToolCall) -> tuple[Offer, Decision]:
        """The one offer this caller may order, or the first refusal."""
        menu = self._menu(call.caller)
        permitted = menu.permitted.get(call.name)
        if permitted is not None:
            if call.name not in menu.in_parts:
                return permitted
            offer, whole = permitted
            return offer, menu.judge_parts(call, whole)
        offers = self._registry.offers(apps_of(call.caller)).get(call.name)
        if not offers:
            raise ToolNotFound(f"Unknown tool: {call.name}")
        judged = self._judge(call.caller, offers)
        allowed = [offer.name for offer, decision in judged if decision.allowed]
        if allowed:
            names = ", ".join(allowed)
            raise ToolDenied(f"{call.name} is offered by {names}; the credential must name one of them")
        return judged[0]

    def _menu(self, caller: Caller) -> "_Menu":
        menu = self._menus.get(caller)
        if menu is None:
            if len(self._menus) >= KEPT_MENUS:
                self._forget_menus()
            kind = self._alike(caller)
            menu = self._shared.get(kind)
            if menu is None:
                apps = apps_of(caller)
                judged = {name: self._judge(caller, offers) for name, offers in self._registry.offers(apps).items()}
                by_name = partial(self._by_name, caller)
                menu = self._shared[kind] = _Menu(judged, by_name, apps)
            self._menus[caller] = menu
        return menu

    def _judge(self, caller: Caller, offers: Sequence[Offer]) -> Sequence[tuple[Offer, Decision]]:
        return [(offer, self._decide(caller, offer)) for offer in offers]

    def _decide(self, caller: Caller, offer: Offer) -> Decision:
        """A tool with many actions is allowed with the first of them that is."""
        whole = self._policy(caller, offer.name, offer.spec)
        if not offer.spec.actions:
            return whole
        decisions = list(self._by_name(caller, offer, offer.spec.actions).values())
        found = next((decision for decision in decisions if decision.allowed), None)
        return found or (decisions[0] if whole.allowed else whole)

    def _by_name(self, caller: Caller, offer: Offer, names: Mapping[str, str]) -> dict[str, Decision]:
        """Each action or parameter as the tool that does it alone, which is refused under its family's name as well."""
        return {
            part: self._policy(caller, offer.name, structs.replace(offer.spec, name=name))
            for part, name in names.items()
        }

    def _forget_menus(self) -> None:
        self._menus.clear()
        self._shared.clear()

    def _app_changed(self, app: str) -> None:
        """Only the menus of those it is lent to are made anew."""
        self._menus = {caller: menu for caller, menu in self._menus.items() if app not in menu.apps}
        self._shared = {kind: menu for kind, menu in self._shared.items() if app not in menu.apps}
        if not self._apps_pause:
            self.changed.ring(None)
        elif self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(self._apps_pause, self._tell_of_apps)

    def _tell_of_apps(self) -> None:
        self._telling = None
        self.changed.ring(None)


class _Menu:
    """What callers of one kind may order: tools that exactly one source may serve them."""

    __slots__ = ("actions", "apps", "closed", "in_parts", "permitted", "specs")

    def __init__(
        self,
        judged: Mapping[str, Sequence[tuple[Offer, Decision]]],
        by_name: Callable[[Offer, Mapping[str, str]], Mapping[str, Decision]],
        apps: Collection[str],
    ) -> None:
        self.apps = apps
        self.permitted: dict[str, tuple[Offer, Decision]] = {}
        self.actions: dict[str, Mapping[str, Decision]] = {}
        """Of tools with many actions, what was decided of each."""
        self.closed: dict[str, Mapping[str, Decision]] = {}
        """Of tools that do others' work by a parameter, the parameters that may not be given."""
        for name, pairs in judged.items():
            allowed = [pair for pair in pairs if pair[1].allowed]
            if len(allowed) == 1:
                self.permitted[name] = allowed[0]
                offer = allowed[0][0]
                if offer.spec.actions:
                    self.actions[name] = by_name(offer, offer.spec.actions)
                if offer.spec.parameter_tools:
                    judged_too = by_name(offer, offer.spec.parameter_tools)
                    self.closed[name] = {part: one for part, one in judged_too.items() if not one.allowed}
        self.in_parts = self.actions.keys() | self.closed.keys()
        """Tools of which a call is judged by what it asks for."""
        self.specs = tuple(
            _without(_shown(offer.spec, self.actions.get(name)), self.closed.get(name))
            for name, (offer, _) in self.permitted.items()
        )

    def judge_parts(self, call: ToolCall, whole: Decision) -> Decision:
        """The call judged as the action it asks for, and as each tool whose work it does by a parameter it gives."""
        action = call.arguments.get("action")
        decision = self.actions.get(call.name, {}).get(action, whole) if isinstance(action, str) else whole
        if not decision.allowed:
            return decision
        refused = self.closed.get(call.name, {})
        return next((refused[name] for name in refused if call.arguments.get(name)), decision)


def _check_action(call: ToolCall, spec: ToolSpec) -> None:
    """Only what was judged is done, whatever the tool itself takes for an action."""
    action = call.arguments.get("action")
    if not isinstance(action, str) or action not in spec.actions:
        raise ToolArguments(f"action must be one of {', '.join(spec.actions)}")


def _shown(spec: ToolSpec, decided: Mapping[str, Decision] | None) -> ToolSpec:
    """The tool with the actions alone that may be asked for."""
    if decided is None or all(decision.allowed for decision in decided.values()):
        return spec
    left = [action for action, decision in decided.items() if decision.allowed]
    fields = spec.input_schema["properties"]
    schema = {**spec.input_schema, "properties": {**fields, "action": {**fields["action"], "enum": left}}}
    return structs.replace(spec, input_schema=schema)


def _without(spec: ToolSpec, closed: Mapping[str, Decision] | None) -> ToolSpec:
    """The tool with the parameters alone that may be given."""
    if not closed:
        return spec
    left = {name: about for name, about in spec.input_schema["properties"].items() if name not in closed}
    return structs.replace(spec, input_schema={**spec.input_schema, "properties": left})
