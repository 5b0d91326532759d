"""The agent: a model is asked, the tools it calls are used, it is asked again, until it has answered."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ....core.agent import AgentEvent, Failed, Model, Notice, Partial, Thinking, Turn, Usage
from ....core.agent import Final as Answered
from ....core.model import Json
from . import context_window, history
from .errors import ModelTrouble, TooMuch
from .event_stream import Tell
from .messages import Answer, Ask, Call, Heard, Offer, Part, Picture, Result, Said, Words
from .model_clients import Asking, Ear, Shop
from .settings import Choice, Limits
from .turn_tools import Bench

SHRINK: Final = 0.6  # of its size is left to a conversation each time a provider says it is too long
UNSEEN: Final = Words("[an image; this model does not see images]")


class Loop:
    """One turn."""

    def __init__(
        self, turn: Turn, shop: Shop, choices: Sequence[Choice], limits: Limits, *, system: str, tell: Tell
    ) -> None:
        self._turn = turn
        self._limits = limits
        self._system = system
        self._tell = tell
        self._asking = Asking(shop, choices, retries=limits.retries)
        self._bench = Bench(turn, tell, at_once=limits.parallel_tools)
        self._gauge = context_window.Gauge()
        self._talk: list[Said] = []
        self._before = 0
        """How many of them are from earlier turns."""
        self._recalled: Sequence[Json] = ()
        self._offers: Sequence[Offer] = ()
        self._estimated = 0
        self._text = ""
        self._kept_text = ""
        """What was said before the answer that comes now."""
        self._answering: Choice | None = None
        self._usage = Usage()
        self._model_calls = self._tool_calls = self._called = 0
        self._ids: set[str] = set()

    async def go(self) -> AgentEvent:
        """The end of the turn."""
        try:
            return await self._until_answered()
        except ModelTrouble as trouble:
            return self._failed(str(trouble), trouble.kind)

    async def _until_answered(self) -> AgentEvent:
        await self._remember()
        while True:
            self._check()
            answer = await self._ask()
            self._talk.append(Said("assistant", answer.parts))
            if answer.stop == "refusal":
                return self._failed("the model declined to answer", "refusal")
            if answer.calls:
                self._tool_calls += len(answer.calls)
                if self._tool_calls > self._limits.tool_calls:
                    raise _over(f"it called tools more than {self._limits.tool_calls} times", "toolCalls")
                most = context_window.most_of_result(self._asking.choice.card.window)
                self._talk.append(Said("user", await self._bench.use(answer.calls, most=most)))
            elif answer.stop != "pause":
                return Answered(text=self._text, stop_reason=answer.stop, usage=self._usage)

    async def _remember(self) -> None:
        self._offers = await self._bench.offers()
        if self._turn.recall is not None:
            self._recalled, cut = history.since_cut(await self._turn.recall(history.RECALLED))
            if cut:
                self._say(f"Only the last {len(self._recalled)} messages are still shown to the model.")
            self._talk = history.read(self._recalled, self._bench.spelling)
        self._before = len(self._talk)
        self._talk.append(history.asked_now(self._turn.prompt, self._turn.attachments))

    def _check(self) -> None:
        """Whether the run may ask the model once more."""
        if self._model_calls >= self._limits.model_calls:
            raise _over(f"it asked the model {self._model_calls} times without coming to an end", "modelCalls")
        if self._usage.total >= self._limits.tokens:
            raise _over(f"it used {self._usage.total} tokens", "tokens")
        self._model_calls += 1

    # ---- asking --------------------------------------------------------------------------------------------------

    async def _ask(self) -> Answer:
        self._offers = await self._bench.offers()
        self._kept_text = self._text
        answer = await self._asking.ask(self._prepare, Ear(self._begin, self._hear))
        answer = msgspec.structs.replace(answer, parts=tuple(self._named(part) for part in answer.parts))
        used = answer.usage
        self._gauge.learn(self._estimated, used.input + used.cache_read + used.cache_write)
        self._usage = _sum(self._usage, used, self._asking.choice)
        self._tell(self._usage)
        return answer

    def _named(self, part: Part) -> Part:
        """A call under an id of its own: some servers give every answer's calls the same ones."""
        if not isinstance(part, Call):
            return part
        self._called += 1
        unique = part if part.id not in self._ids else Call(f"{part.id}{self._called}", part.name, part.arguments)
        self._ids.add(unique.id)
        return unique

    def _prepare(self, choice: Choice, shrinks: int) -> Ask:
        """The question for a model, within its window. What no longer fits is gone for the rest of the session."""
        card = choice.card
        frame = self._gauge.overhead(self._system, self._offers)
        space = context_window.room(card.window, card.most_output) - frame
        total = self._gauge.whole(self._talk)
        if shrinks:
            space = min(space, int(total * SHRINK))
        if total > space:
            found = context_window.fitted(self._talk, self._before, space, self._gauge)
            if found is None:
                raise TooMuch(f"this turn alone is more than fits into its window of {card.window} tokens")
            self._talk, dropped = found
            total = self._gauge.whole(self._talk)
            if dropped:
                self._say_dropped(dropped)
        talk = self._talk
        if not card.sees and any(map(_has_pictures, talk)):
            talk = [_unseen(said) for said in talk]
            total = self._gauge.whole(talk)
        ask = Ask(
            choice=choice, system=self._system, talk=talk, offers=self._offers, thinking=self._turn.thinking
        )  # fmt: skip
        self._estimated = frame + total
        return ask

    def _say_dropped(self, dropped: int) -> None:
        kept = self._before - dropped
        share = len(self._recalled) * kept // self._before
        self._before = kept
        self._recalled = self._recalled[len(self._recalled) - share :]
        self._say(f"To stay within the model's window, {dropped} older messages are no longer shown to it.")

    def _say(self, words: str) -> None:
        self._tell(Notice(words, {"kind": history.CUT, "kept": len(self._recalled)}))

    def _begin(self, choice: Choice) -> None:
        if self._text != self._kept_text:  # a try that broke off said something
            self._text = self._kept_text
            self._tell(Partial(self._text, replace=True))
        if choice is not self._answering:
            self._answering = choice
            self._tell(Model(choice.provider.name, choice.card.id))

    def _hear(self, heard: Heard) -> None:
        if heard.thought:
            self._tell(Thinking(heard.text))
            return
        apart = "\n\n" if self._kept_text and self._text == self._kept_text else ""
        self._text += apart + heard.text
        self._tell(Partial(apart + heard.text))

    def _failed(self, words: str, kind: str) -> Failed:
        choice = self._answering or self._asking.choice
        sort = kind if kind in ("refusal", "timeout", "rate_limit", "context_length") else "unknown"
        return Failed(
            message=_sentence(choice, words, kind),
            kind=sort,  # type: ignore[arg-type]  # the words are those of Failed
            detail={"provider": choice.provider.name, "model": choice.card.id, "failoverReason": kind},
        )


def _sentence(choice: Choice, words: str, kind: str) -> str:
    match kind:
        case "limit":
            return f"The agent was stopped: {words}."
        case "auth":
            return f"The model {choice.name} can't be used: its provider refuses us or no key is set: {words}"
        case "rate_limit":
            return f"The model {choice.name} is asked too often, or its quota is used up: {words}"
        case "context_length":
            return f"The conversation is too long for the model {choice.name}: {words}"
    return f"The model {choice.name} did not answer: {words}"


def _over(words: str, name: str) -> ModelTrouble:
    return ModelTrouble(f"{words} in one run; raise limits.{name} of the agent if it needs more", kind="limit")


def _sum(so_far: Usage, more: Usage, choice: Choice) -> Usage:
    price, cost = choice.card.cost, so_far.cost_usd
    if price is not None:
        dollars = more.input * price.input + more.output * price.output
        dollars += more.cache_read * price.cache_read + more.cache_write * price.cache_write
        cost = (cost or 0.0) + dollars / 1e6
    return Usage(
        input=so_far.input + more.input,
        output=so_far.output + more.output,
        cache_read=so_far.cache_read + more.cache_read,
        cache_write=so_far.cache_write + more.cache_write,
        cost_usd=cost,
    )


def _has_pictures(said: Said) -> bool:
    for part in said.parts:
        if isinstance(part, Picture) or (isinstance(part, Result) and any(isinstance(p, Picture) for p in part.parts)):
            return True
    return False


def _unseen(said: Said) -> Said:
    parts = tuple(
        UNSEEN
        if isinstance(part, Picture)
        else msgspec.structs.replace(part, parts=tuple(UNSEEN if isinstance(p, Picture) else p for p in part.parts))
        if isinstance(part, Result)
        else part
        for part in said.parts
    )
    return Said(said.role, parts)
