"""The only way a tool is ever listed or called, whoever asks and however they came."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from ..core.alarm import alarm
from ..core.bell import Bell
from ..core.errors import OpenClawError, ToolDenied, ToolError, ToolNotFound, ToolTimeout
from ..core.model import Caller, ToolCall, ToolResult, ToolSpec
from .audit import Audit, Record, log
from .policy import Decision, Policy, by_scope
from .registry import Offer, Registry

DEFAULT_DEADLINE: Final = 120.0  # a tool that may take longer says so in its spec
KEPT_MENUS: Final = 256  # callers whose menu is remembered between changes


class Desk:
    """Choose, decide, validate, bound in time, make, audit. A `Toolbox`."""

    def __init__(
        self,
        registry: Registry,
        *,
        policy: Policy = by_scope,
        audit: Audit = log,
        deadline: float = DEFAULT_DEADLINE,
        check: bool = True,
    ) -> None:
        """`check=False` leaves the arguments to the tools themselves."""
        self._registry = registry
        self._policy = policy
        self._audit = audit
        self._deadline = deadline
        self._check = check
        self._menus: dict[Caller, tuple[ToolSpec, ...]] = {}
        registry.changed.listen(self._forget_menus)

    @property
    def changed(self) -> Bell[None]:
        return self._registry.changed

    def refresh(self) -> None:
        """The rules have changed: menus are made anew and clients told."""
        self.changed.ring(None)

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        """Only what `caller` could call: the menu and the rules never disagree."""
        menu = self._menus.get(caller)
        if menu is None:
            if len(self._menus) >= KEPT_MENUS:
                self._menus.clear()
            menu = self._menus[caller] = tuple(self._permitted(caller))
        return menu

    async def call(self, call: ToolCall) -> ToolResult:
        """Raises ToolError when the call was not made or did not end; a tool's own failure is a result."""
        begun = time.perf_counter()
        offer: Offer | None = None
        decision = Decision(False, "unknown tool")
        outcome = "cancelled"
        traffic = None
        try:
            offer, decision = self._choose(call)
            if not decision.allowed:
                raise ToolDenied(decision.reason)
            if self._check:
                offer.form.check(call.arguments)
            result = await self._make(offer, call)
            outcome = "failed" if result.failed else "ok"
            traffic = result.traffic
            return result
        except OpenClawError as exc:
            outcome = exc.code
            raise
        except Exception:
            outcome = "internal"
            raise
        finally:
            self._audit(
                Record(
                    caller=f"{call.caller.kind} {call.caller.name}",
                    session=call.caller.session,
                    tool=call.name,
                    source=offer.name if offer else None,
                    rule=decision.reason,
                    outcome=outcome,
                    milliseconds=(time.perf_counter() - begun) * 1000,
                    traffic=traffic,
                )
            )

    async def _make(self, offer: Offer, call: ToolCall) -> ToolResult:
        seconds = offer.spec.deadline or self._deadline
        bound = _Bound()
        limit = alarm(seconds)
        limit.set(bound, bound.ring)
        try:
            return await offer.source.call(call)
        except TimeoutError:
            raise ToolError(f"{call.name} timed out inside the tool") from None
        except asyncio.CancelledError:
            if bound.ours():
                raise ToolTimeout(f"{call.name} took longer than {seconds:g} s and was stopped") from None
            raise
        finally:
            limit.clear(bound)

    def _choose(self, call: ToolCall) -> tuple[Offer, Decision]:
        """The one offer this caller may order, or the first refusal."""
        offers = self._registry.offers().get(call.name)
        if not offers:
            raise ToolNotFound(f"Unknown tool: {call.name}")
        if len(offers) == 1:
            return offers[0], self._policy(call.caller, offers[0].name, offers[0].spec)
        judged = [(offer, self._policy(call.caller, offer.name, offer.spec)) for offer in offers]
        allowed = [pair for pair in judged if pair[1].allowed]
        if len(allowed) > 1:
            names = ", ".join(offer.name for offer, _ in allowed)
            raise ToolDenied(f"{call.name} is offered by {names}; the credential must name one of them")
        return (allowed or judged)[0]

    def _permitted(self, caller: Caller) -> Sequence[ToolSpec]:
        permitted = []
        for offers in self._registry.offers().values():
            allowed = [o.spec for o in offers if self._policy(caller, o.name, o.spec).allowed]
            if len(allowed) == 1:
                permitted.append(allowed[0])
        return permitted

    def _forget_menus(self, _: None) -> None:
        self._menus.clear()


class _Bound:
    """The limit on one call: cancels the task that makes it, and knows its own cancellation from others'."""

    __slots__ = ("_before", "_rung", "_task")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        self._rung = False

    def ring(self) -> None:
        if self._task is not None:
            self._rung = True
            self._task.cancel()

    def ours(self) -> bool:
        """Whether the cancellation that arrived is this bound's alone; if so it is taken back."""
        return self._rung and self._task is not None and self._task.uncancel() <= self._before
