"""What is done to others under a grant: the gateway's own record, for when the program that asked dies before it writes
down what it was about to be told. Kept in memory; it ends with the grant.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from msgspec.structs import replace

from ...core.claw_methods import tools_for_request
from ...core.effects import CronAdded, RunEffects, SentMessage
from ...core.model import Json
from ...core.rpc import RpcCall
from ...core.sessions import now_ms

MAX_EFFECTS: Final = 1000  # the latest; whoever asked has long written down the older ones
SETTLE_TIMEOUT: Final = 30.0  # seconds; a message under way waits twenty for its channel, then it is kept for later
SENDING_TOOLS: Final = frozenset({
    "message_send", "message_reply", "message_thread_reply", "message_broadcast", "message_send_attachment",
    "message_send_with_effect", "sessions_send",
})  # fmt: skip
TEXT_PARAMS: Final = ("message", "caption", "text")
TARGET_PARAMS: Final = ("to", "target", "sessionKey")

GrantEffect = SentMessage | CronAdded


class GrantEffects:
    """Of one grant."""

    def __init__(self) -> None:
        self._effects: deque[GrantEffect] = deque(maxlen=MAX_EFFECTS)
        self._pending: set[EffectRecorder] = set()
        self._idle = asyncio.Event()

    @contextmanager
    def track(self, call: RpcCall) -> Iterator["EffectRecorder"]:
        """Around a call: what it does is noted with its first answer, and nothing when it fails."""
        witness = EffectRecorder(self, call)
        if witness.pending_effects:
            self._pending.add(witness)
        try:
            yield witness
        finally:
            self.finish(witness, ())

    def finish(self, recorder: "EffectRecorder", effects: tuple[GrantEffect, ...]) -> None:
        self._effects.extend(effects)
        self._pending.discard(recorder)
        if not self._pending:
            self._idle.set()

    async def settle(self) -> RunEffects:
        """All of it, once what is under way has ended; what takes too long may or may not come to pass."""
        if self._pending:
            self._idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), SETTLE_TIMEOUT)
        open = [deed for witness in self._pending for deed in witness.pending_effects]
        return RunEffects(
            sent=tuple(deed for deed in self._effects if isinstance(deed, SentMessage)),
            unsure=tuple(deed for deed in open if isinstance(deed, SentMessage)),
            cron_added=tuple(deed for deed in self._effects if isinstance(deed, CronAdded)),
        )


class EffectRecorder:
    """Of one call."""

    def __init__(self, effects: GrantEffects, call: RpcCall) -> None:
        self._effects = effects
        self._call = call
        self.pending_effects = _effects_of_call(call.method, call.params)

    def on_answer(self, answer: Any) -> None:
        """The method's first answer: from here on it is done, however long the rest takes."""
        if self.pending_effects:
            intended, self.pending_effects = self.pending_effects, ()
            self._effects.finish(self, _actual_effects(intended, answer if isinstance(answer, dict) else {}))


def _effects_of_call(method: str, params: Json) -> tuple[GrantEffect, ...]:
    """What a call is to do to others, as far as it says so itself."""
    if method == "cron.add":
        return (CronAdded(),)
    tool = next(iter(tools_for_request(method, params) & SENDING_TOOLS), None)
    if tool is None or method in ("agent.wait", "sessions.resolve"):
        return ()
    inner = params.get("params")
    asked = {**params, **inner} if isinstance(inner, dict) else params
    targets = asked.get("targets")
    places = targets if isinstance(targets, list) else [_first_text(asked, TARGET_PARAMS)]
    text, channel, thread = (
        _first_text(asked, TEXT_PARAMS) or "",
        _first_text(asked, ("channel",)) or "",
        asked.get("threadId"),
    )
    if tool == "sessions_send":
        channel, thread = "", None
    sent = SentMessage(
        tool=tool,
        provider=channel,
        account=_first_text(asked, ("accountId",)),
        text=text,
        media_url=_first_text(asked, ("media", "mediaUrl", "filename")),
        thread=None if thread is None else str(thread),
    )
    return tuple(replace(sent, to=place) for place in places if place is None or isinstance(place, str))


def _actual_effects(expected: tuple[GrantEffect, ...], answer: Json) -> tuple[GrantEffect, ...]:
    """What came of it. A conversation is called what the gateway calls it, which is what the agent's side notes too."""
    now = now_ms()
    first = expected[0]
    if isinstance(first, CronAdded):
        return (CronAdded(job_id=_first_text(answer, ("id",)), ts=now),)
    if answer.get("dryRun") is True:
        return ()
    if first.tool == "sessions_send":
        return (replace(first, ts=now),)
    payload = answer.get("payload")
    inner = payload if isinstance(payload, dict) else {}
    results = inner.get("results")
    told = [one for one in results if one.get("ok") is True] if isinstance(results, list) else [{**inner, **answer}]
    return tuple(
        replace(
            first,
            provider=_first_text(one, ("channel",)) or first.provider,
            to=_first_text(one, ("to",)) or first.to,
            thread=_first_text(one, ("threadId",)) or (first.thread if not isinstance(results, list) else None),
            ts=now,
        )
        for one in told
    )


def _first_text(values: Json, names: tuple[str, ...]) -> str | None:
    """The first of these that is a text and says something."""
    return next((value for name in names if isinstance(value := values.get(name), str) and value), None)
