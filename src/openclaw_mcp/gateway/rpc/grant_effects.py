"""What is done to others under a grant: the gateway's own record, for a program that dies before it writes down the
answer it was about to get. Kept in memory; it ends with the grant.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from msgspec.structs import replace

from ...core.channel import ChannelRefused
from ...core.claw_catalogue import CLAW_TOOLS
from ...core.claw_methods import AUXILIARY_METHODS, recorded_tool, tools_for_request
from ...core.clock import now_ms
from ...core.effects import CronAdded, RunEffects, SentMessage
from ...core.message_request import parse_action
from ...core.model import Json
from ...core.rpc import RpcCall

MAX_EFFECTS: Final = 1000  # the latest; older ones were long recorded by the program itself
SETTLE_TIMEOUT: Final = 30.0  # seconds; a message under way waits twenty for its channel, then it is kept for later
SENDING_TOOLS: Final = {name for name, tool in CLAW_TOOLS.items() if tool.records == "message_sent"}

GrantEffect = SentMessage | CronAdded


class GrantEffects:
    """Of one grant."""

    def __init__(self) -> None:
        self._effects: deque[GrantEffect] = deque(maxlen=MAX_EFFECTS)
        self._pending: set[EffectRecorder] = set()
        self._idle = asyncio.Event()

    @contextmanager
    def track(self, call: RpcCall) -> Iterator["EffectRecorder"]:
        """Around a call: its effects are recorded with its first answer, and not at all when it fails."""
        recorder = EffectRecorder(self, call)
        if recorder.pending_effects:
            self._pending.add(recorder)
        try:
            yield recorder
        finally:
            self.finish(recorder, ())

    def finish(self, recorder: "EffectRecorder", effects: tuple[GrantEffect, ...]) -> None:
        self._effects.extend(effects)
        self._pending.discard(recorder)
        if not self._pending:
            self._idle.set()

    async def settle(self) -> RunEffects:
        """All effects, once the calls at work have ended; those that take too long may or may not come to pass."""
        if self._pending:
            self._idle.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_TIMEOUT):
                    await self._idle.wait()
        pending = [effect for recorder in self._pending for effect in recorder.pending_effects]
        return RunEffects(
            sent=tuple(effect for effect in self._effects if isinstance(effect, SentMessage)),
            unsure=tuple(effect for effect in pending if isinstance(effect, SentMessage)),
            cron_added=tuple(effect for effect in self._effects if isinstance(effect, CronAdded)),
        )


class EffectRecorder:
    """Of one call."""

    def __init__(self, effects: GrantEffects, call: RpcCall) -> None:
        self._effects = effects
        self._call = call
        self.pending_effects = _expected_effects(call.method, call.params)

    def on_answer(self, answer: Any) -> None:
        """The method's first answer: from now on the effect counts as done, however long the rest takes."""
        if self.pending_effects:
            expected, self.pending_effects = self.pending_effects, ()
            self._effects.finish(self, _actual_effects(expected, answer if isinstance(answer, dict) else {}))


def _expected_effects(method: str, params: Json) -> tuple[GrantEffect, ...]:
    """What a call will do to others if it succeeds."""
    if method == "cron.add":
        return (CronAdded(),)
    tool = next(iter(tools_for_request(method, params) & SENDING_TOOLS), None)
    if tool is None or method in AUXILIARY_METHODS:
        return ()
    if tool == "sessions_send":
        to, text = _text_field(params, "sessionKey"), _text_field(params, "message")
        return (SentMessage(tool=tool, to=to, text=text or ""),)
    inner = params.get("params")
    try:
        request = parse_action(
            str(params.get("action", method)), {**params, **inner} if isinstance(inner, dict) else params
        )
    except ChannelRefused:
        return ()  # the channels will refuse it for the same reason
    media = next((file for file in request.media if not file.startswith("data:")), request.file_name)
    sent = SentMessage(
        tool=recorded_tool(tool),
        provider=request.channel or "",
        account=request.account,
        text=request.text,
        media_url=media,
        thread=request.thread,
    )
    return tuple(replace(sent, to=to) for to in request.targets or (request.target,))


def _actual_effects(expected: tuple[GrantEffect, ...], answer: Json) -> tuple[GrantEffect, ...]:
    """What the answer shows was done. A conversation has the name the gateway gives it, as in the agent's record."""
    now = now_ms()
    first = expected[0]
    if isinstance(first, CronAdded):
        return (CronAdded(job_id=_text_field(answer, "id"), ts=now),)
    if answer.get("dryRun") is True:
        return ()
    if first.tool == "sessions_send":
        return (replace(first, ts=now),)
    payload = answer.get("payload")
    inner = payload if isinstance(payload, dict) else {}
    results = inner.get("results")
    done = [one for one in results if one.get("ok") is True] if isinstance(results, list) else [{**inner, **answer}]
    return tuple(
        replace(
            first,
            provider=_text_field(one, "channel") or first.provider,
            to=_text_field(one, "to") or first.to,
            thread=_text_field(one, "threadId") or (first.thread if not isinstance(results, list) else None),
            ts=now,
        )
        for one in done
    )


def _text_field(values: Json, name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) and value else None
