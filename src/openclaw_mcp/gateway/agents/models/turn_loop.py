"""The agent: a model is asked, the tools it calls are used, it is asked again, until it has answered."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ....core.agent import (
    AgentEvent,
    ModelSelected,
    Notice,
    PartialAnswer,
    ThinkingText,
    Turn,
    TurnCompleted,
    TurnFailed,
    Usage,
)
from ....core.chat_messages import ChatMessage
from ....core.config.agents import ModelRunLimits
from . import context_window, history
from .errors import ContextOverflow, ModelError
from .event_stream import EmitEvent
from .messages import (
    AnswerDelta,
    MessagePart,
    ModelAnswer,
    ModelMessage,
    ModelRequest,
    ModelTool,
    TextPart,
    ToolCallPart,
    replace_images,
)
from .model_clients import ModelClients, ModelFailover, StreamHandler
from .settings import ModelChoice
from .turn_tools import TurnTools

SHRINK_FACTOR: Final = 0.6  # of its size is left to a conversation each time a provider refuses it as too long
IMAGE_UNSUPPORTED: Final = TextPart("[an image; this model does not see images]")

NO_ANSWER: Final = "The model {model} did not answer: {reason}"
MESSAGES: Final = {
    "limit": "The agent was stopped: {reason}.",
    "bad_request": "The provider of {model} refused the request: {reason}",
    "not_found": "The provider of {model} refused the request: {reason}",
    "auth": "The model {model} can't be used, its key is refused or not set: {reason}",
    "rate_limit": "The model {model} is asked too often, or its quota is used up: {reason}",
    "context_length": "The conversation is too long for the model {model}: {reason}",
}


class AgentLoop:
    """One turn."""

    def __init__(
        self,
        turn: Turn,
        clients: ModelClients,
        choices: Sequence[ModelChoice],
        limits: ModelRunLimits,
        *,
        system: str,
        emit: EmitEvent,
    ) -> None:
        self._turn = turn
        self._limits = limits
        self._system = system
        self._emit = emit
        self._failover = ModelFailover(clients, choices, retries=limits.retries)
        self._turn_tools = TurnTools(turn, emit, concurrency=limits.parallel_tools)
        self._estimator = context_window.TokenEstimator()
        self._messages: list[ModelMessage] = []
        self._history_count = 0
        """How many of them are from earlier turns."""
        self._recalled: Sequence[ChatMessage] = ()
        self._model_tools: Sequence[ModelTool] = ()
        self._estimated = 0
        self._text = ""
        self._text_before = ""
        """The text of the answers before the present one."""
        self._answering_model: ModelChoice | None = None
        self._usage = Usage()
        self._model_calls = self._tool_calls = self._call_count = 0
        self._ids: set[str] = set()

    async def run(self) -> AgentEvent:
        """The end of the turn."""
        try:
            await self._load_history()
            while True:
                self._check_limits()
                answer = await self._ask()
                self._messages.append(ModelMessage("assistant", answer.parts))
                if answer.stop == "refusal":
                    return self._failure("the model declined to answer", "refusal")
                if answer.calls:
                    self._tool_calls += len(answer.calls)
                    if self._tool_calls > self._limits.tool_calls:
                        raise _limit_error(f"it called tools more than {self._limits.tool_calls} times", "toolCalls")
                    most = context_window.max_result_chars(self._failover.current.model.window)
                    results = await self._turn_tools.call_all(answer.calls, max_chars=most)
                    self._messages.append(ModelMessage("user", results))
                elif answer.stop != "pause":
                    return TurnCompleted(text=self._text, stop_reason=answer.stop, usage=self._usage)
        except ModelError as trouble:
            return self._failure(str(trouble), trouble.kind)

    async def _load_history(self) -> None:
        self._model_tools = await self._turn_tools.list_tools()
        if self._turn.load_history is not None:
            self._recalled, cut = history.visible_messages(await self._turn.load_history(history.RECALLED_MESSAGES))
            if cut:
                self._emit_notice(f"Only the last {len(self._recalled)} messages are still shown to the model.")
            self._messages = history.parse_transcript(self._recalled, self._turn_tools.api_name)
        self._history_count = len(self._messages)
        self._messages.append(history.prompt_message(self._turn.prompt, self._turn.attachments))

    def _check_limits(self) -> None:
        """Whether the run may ask the model once more."""
        if self._model_calls >= self._limits.model_calls:
            raise _limit_error(f"it asked the model {self._model_calls} times without coming to an end", "modelCalls")
        if self._usage.total >= self._limits.tokens:
            raise _limit_error(f"it used {self._usage.total} tokens", "tokens")
        self._model_calls += 1

    # ---- asking --------------------------------------------------------------------------------------------------

    async def _ask(self) -> ModelAnswer:
        self._model_tools = await self._turn_tools.list_tools()
        self._text_before = self._text
        answer = await self._failover.ask(self._build_request, StreamHandler(self._on_start, self._on_delta))
        answer = msgspec.structs.replace(answer, parts=tuple(self._ensure_unique_id(part) for part in answer.parts))
        used = answer.usage
        self._estimator.calibrate(self._estimated, used.input + used.cache_read + used.cache_write)
        self._usage = _add_usage(self._usage, used, self._failover.current)
        self._emit(self._usage)
        return answer

    def _ensure_unique_id(self, part: MessagePart) -> MessagePart:
        """A call under an id of its own: some servers give every answer's calls the same ones."""
        if not isinstance(part, ToolCallPart):
            return part
        self._call_count += 1
        if part.id in self._ids:
            part = ToolCallPart(f"{part.id}{self._call_count}", part.name, part.arguments)
        self._ids.add(part.id)
        return part

    def _build_request(self, choice: ModelChoice, shrinks: int) -> ModelRequest:
        """The question for a model, within its window. What no longer fits is gone for the rest of the session."""
        card = choice.model
        frame = self._estimator.overhead(self._system, self._model_tools)
        space = context_window.request_budget(card.window, card.max_output) - frame
        total = self._estimator.total(self._messages)
        if shrinks:
            space = min(space, int(total * SHRINK_FACTOR))
        if total > space:
            found = context_window.fit_messages(self._messages, self._history_count, space, self._estimator)
            if found is None:
                raise ContextOverflow(f"this turn alone is more than fits into its window of {card.window} tokens")
            self._messages, dropped = found
            total = self._estimator.total(self._messages)
            if dropped:
                self._announce_cut(dropped)
        messages = self._messages
        if not card.accepts_images:
            shown = [tuple(replace_images(part, IMAGE_UNSUPPORTED) for part in each.parts) for each in messages]
            messages = [ModelMessage(each.role, parts) for each, parts in zip(messages, shown, strict=True)]
            total = self._estimator.total(messages)
        self._estimated = frame + total
        return ModelRequest(
            choice=choice, system=self._system, messages=messages, tools=self._model_tools, thinking=self._turn.thinking
        )  # fmt: skip

    def _announce_cut(self, dropped: int) -> None:
        kept = self._history_count - dropped
        share = len(self._recalled) * kept // self._history_count
        self._history_count = kept
        self._recalled = self._recalled[len(self._recalled) - share :]
        self._emit_notice(f"To stay within the model's window, {dropped} older messages are no longer shown to it.")

    def _emit_notice(self, message: str) -> None:
        self._emit(Notice(message, {"kind": history.DROPPED_NOTICE, "kept": len(self._recalled)}))

    def _on_start(self, choice: ModelChoice) -> None:
        if self._text != self._text_before:  # an attempt that broke off had sent text
            self._text = self._text_before
            self._emit(PartialAnswer(self._text, replace=True))
        if choice is not self._answering_model:
            self._answering_model = choice
            self._emit(ModelSelected(choice.provider.name, choice.model.id))

    def _on_delta(self, delta: AnswerDelta) -> None:
        if delta.is_thinking:
            self._emit(ThinkingText(delta.text))
            return
        apart = "\n\n" if self._text_before and self._text == self._text_before else ""
        self._text += apart + delta.text
        self._emit(PartialAnswer(apart + delta.text))

    def _failure(self, message: str, kind: str) -> TurnFailed:
        choice = self._answering_model or self._failover.current
        sort = kind if kind in ("refusal", "timeout", "rate_limit", "context_length") else "unknown"
        return TurnFailed(
            message=MESSAGES.get(kind, NO_ANSWER).format(model=choice.name, reason=message),
            kind=sort,  # type: ignore[arg-type]  # the kinds are those of TurnFailed
            detail={"provider": choice.provider.name, "model": choice.model.id, "failoverReason": kind},
        )


def _limit_error(message: str, name: str) -> ModelError:
    return ModelError(f"{message} in one run; raise limits.{name} of the agent if it needs more", kind="limit")


def _add_usage(so_far: Usage, more: Usage, choice: ModelChoice) -> Usage:
    price, cost = choice.model.cost, so_far.cost_usd
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
