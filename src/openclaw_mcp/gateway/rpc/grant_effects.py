"""What is done to others under a grant: the gateway's own record, for when the program that asked dies before it writes
down what it was about to be told. Kept in memory; it ends with the grant.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from msgspec.structs import replace

from ...core.claw_methods import tools_behind
from ...core.effects import CronAdded, Effects, Sent
from ...core.model import Json
from ...core.rpc import RpcCall
from .pairing import now_ms

MOST_KEPT: Final = 1000  # the latest; whoever asked has long written down the older ones
SETTLE_WITHIN: Final = 30.0  # seconds; a message under way waits twenty for its channel, then it is kept for later
SENDERS: Final = frozenset({
    "message_send", "message_reply", "message_thread_reply", "message_broadcast", "message_send_attachment",
    "message_send_with_effect", "sessions_send",
})  # fmt: skip
WORDS: Final = ("message", "caption", "text")
PLACES: Final = ("to", "target", "sessionKey")

Deed = Sent | CronAdded


class Record:
    """Of one grant."""

    def __init__(self) -> None:
        self._done: deque[Deed] = deque(maxlen=MOST_KEPT)
        self._under_way: set[Witness] = set()
        self._quiet = asyncio.Event()

    @contextmanager
    def of(self, call: RpcCall) -> Iterator["Witness"]:
        """Around a call: what it does is noted with its first answer, and nothing when it fails."""
        witness = Witness(self, call)
        if witness.intended:
            self._under_way.add(witness)
        try:
            yield witness
        finally:
            self.ended(witness, ())

    def ended(self, witness: "Witness", deeds: tuple[Deed, ...]) -> None:
        self._done.extend(deeds)
        self._under_way.discard(witness)
        if not self._under_way:
            self._quiet.set()

    async def settled(self) -> Effects:
        """All of it, once what is under way has ended; what takes too long may or may not come to pass."""
        if self._under_way:
            self._quiet.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), SETTLE_WITHIN)
        open = [deed for witness in self._under_way for deed in witness.intended]
        return Effects(
            sent=tuple(deed for deed in self._done if isinstance(deed, Sent)),
            unsure=tuple(deed for deed in open if isinstance(deed, Sent)),
            cron_added=tuple(deed for deed in self._done if isinstance(deed, CronAdded)),
        )


class Witness:
    """Of one call."""

    def __init__(self, record: Record, call: RpcCall) -> None:
        self._record = record
        self._call = call
        self.intended = _intended(call.method, call.params)

    def answered(self, answer: Any) -> None:
        """The method's first answer: from here on it is done, however long the rest takes."""
        if self.intended:
            intended, self.intended = self.intended, ()
            self._record.ended(self, _done(intended, answer if isinstance(answer, dict) else {}))


def _intended(method: str, params: Json) -> tuple[Deed, ...]:
    """What a call is to do to others, as far as it says so itself."""
    if method == "cron.add":
        return (CronAdded(),)
    tool = next(iter(tools_behind(method, params) & SENDERS), None)
    if tool is None or method in ("agent.wait", "sessions.resolve"):
        return ()
    inner = params.get("params")
    asked = {**params, **inner} if isinstance(inner, dict) else params
    targets = asked.get("targets")
    places = targets if isinstance(targets, list) else [_first(asked, PLACES)]
    text, channel, thread = _first(asked, WORDS) or "", _first(asked, ("channel",)) or "", asked.get("threadId")
    if tool == "sessions_send":
        channel, thread = "", None
    sent = Sent(
        tool=tool,
        provider=channel,
        account=_first(asked, ("accountId",)),
        text=text,
        media_url=_first(asked, ("media", "mediaUrl", "filename")),
        thread=None if thread is None else str(thread),
    )
    return tuple(replace(sent, to=place) for place in places if place is None or isinstance(place, str))


def _done(intended: tuple[Deed, ...], answer: Json) -> tuple[Deed, ...]:
    """What came of it. A conversation is called what the gateway calls it, which is what the agent's side notes too."""
    now = now_ms()
    first = intended[0]
    if isinstance(first, CronAdded):
        return (CronAdded(job_id=_first(answer, ("id",)), ts=now),)
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
            provider=_first(one, ("channel",)) or first.provider,
            to=_first(one, ("to",)) or first.to,
            thread=_first(one, ("threadId",)) or (first.thread if not isinstance(results, list) else None),
            ts=now,
        )
        for one in told
    )


def _first(told: Json, names: tuple[str, ...]) -> str | None:
    """The first of these that is a text and says something."""
    return next((value for name in names if isinstance(value := told.get(name), str) and value), None)
