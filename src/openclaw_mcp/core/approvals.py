"""Questions about commands as conversations see them: whose run caused one, its text, and the port to answer it."""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

from msgspec import Struct

from .channel import ChatAddress
from .model import Caller
from .session_keys import split_key
from .signal import Signal
from .visible_text import escape_command, escape_line

ExecApprovalDecision = Literal["allow-once", "allow-always", "deny"]
ApprovalEndReason = Literal["user", "timeout", "no-route", "run-aborted"]
DECISIONS: Final[tuple[ExecApprovalDecision, ...]] = ("allow-once", "allow-always", "deny")

MAX_SHOWN_COMMAND: Final = 3000  # characters: with the lines around it, one message of every channel
MAX_SHOWN_REASON: Final = 300  # characters
MAX_SHOWN_NODE_NAME: Final = 100  # characters
_LINE_MARK: Final = "| "
_FENCE: Final = "```"
"""Of one length, however many backticks a command has: no line with the mark closes it, and with a longer one the text
would be split over messages, where the rest of the command is Markdown that may show nothing."""
WHERE_TO_ANSWER: Final = "`openclaw approvals --gateway`"

_DECISION_WORDS: Final[dict[str, ExecApprovalDecision]] = {
    "once": "allow-once", "allow": "allow-once", "allow-once": "allow-once",
    "always": "allow-always", "allow-always": "allow-always",
    "deny": "deny", "reject": "deny", "block": "deny",
}  # fmt: skip
"""What may be typed, as OpenClaw's own gateway takes it."""
_SHORT_WORDS: Final[dict[ExecApprovalDecision, str]] = {
    "allow-once": "once",
    "allow-always": "always",
    "deny": "deny",
}
_END_TEXTS: Final[dict[ApprovalEndReason, str]] = {
    "timeout": "was not answered in time, so the command was denied",
    "no-route": "could be put to no person, so the command was denied",
    "run-aborted": "is no longer asked: it was answered at its node, or its run has ended",
}


class QuestionOrigin(Struct, frozen=True, kw_only=True):
    """The run whose call caused a question. Made from the caller's credential, never from what is asked."""

    agent_id: str | None = None
    session_key: str | None = None
    run_id: str | None = None
    address: ChatAddress | None = None
    """The run's conversation."""
    for_owner: bool = False
    """Whether the run is the owner's: only then may its conversation show the command."""


NO_ORIGIN: Final = QuestionOrigin()


class CommandQuestion(Struct, frozen=True, kw_only=True):
    """A question as it is put into a conversation. Its texts come from a node: only `describe` makes them safe."""

    code: str
    """Its name in conversations; made by the gateway, so that no asker can choose that of another question."""
    origin: QuestionOrigin
    place: str
    """Where the command would run."""
    command: str
    why: str
    decisions: tuple[ExecApprovalDecision, ...]
    expires_at_ms: int

    @property
    def is_too_long(self) -> bool:
        """Whether a conversation shows only its beginning: then it can't be allowed there."""
        return not is_shown_whole(self.command)

    def describe(self, now_ms: int) -> str:
        """The text for the owner, as Markdown that shows the command as it is."""
        agent = f", asked by agent {escape_line(self.origin.agent_id)}" if self.origin.agent_id else ""
        seconds = max(1, round((self.expires_at_ms - now_ms) / 1000))
        left = f"{round(seconds / 60)} min" if seconds >= 90 else f"{seconds} s"
        return (
            f"May this command run on {escape_line(self.place)}? (question {self.code}{agent})\n"
            f"{quote_command(self.command, self.why)}\n"
            f"{self.describe_how_to_answer()} Without an answer it is denied in {left}."
        )

    def describe_how_to_answer(self) -> str:
        if self.is_too_long:
            return f"It is too long to be allowed here: read and answer it in {WHERE_TO_ANSWER}."
        if len(self.decisions) == 1:
            return f"It can only be denied here: /approve {self.code} deny."
        choices = [f"/approve {self.code} {_SHORT_WORDS[decision]}" for decision in self.decisions]
        return f"Answer with {', '.join(choices[:-1])} or {choices[-1]}."

    def refuse(self, decision: ExecApprovalDecision) -> str | None:
        """Why it can't be answered so; None where it can."""
        if decision in self.decisions:
            return None
        return f"Question {self.code} can't be answered with {_SHORT_WORDS[decision]}. {self.describe_how_to_answer()}"

    def describe_wait(self) -> str:
        """The text for others than the owner, who may not see the command."""
        return f"The agent waits: the owner must first allow a command on {escape_line(self.place)}."


class QuestionEnd(Struct, frozen=True, kw_only=True):
    question: CommandQuestion
    decision: ExecApprovalDecision | None
    reason: ApprovalEndReason

    def describe(self) -> str:
        """For people."""
        code = self.question.code
        if self.reason != "user":
            return f"Question {code} {_END_TEXTS[self.reason]}."
        words = {"allow-once": "allowed once", "allow-always": "allowed, always", "deny": "denied"}
        return f"Question {code}: {words[self.decision or 'deny']}."

    def describe_for_others(self) -> str:
        """For others than the owner."""
        if self.reason == "run-aborted":
            return "The owner is no longer asked."
        allowed = self.reason == "user" and self.decision != "deny"
        return f"The command was {'allowed' if allowed else 'not allowed'}; the agent goes on."


class ConversationAnswerer(Struct, frozen=True, kw_only=True):
    """Who answers in a conversation, as its channel attests."""

    channel: str
    sender_id: str
    is_owner: bool


class OpenQuestions(Protocol):
    """The questions that wait for an answer, for conversations."""

    @property
    def asked(self) -> Signal[CommandQuestion]: ...

    @property
    def ended(self) -> Signal[QuestionEnd]: ...

    def pending(self) -> Sequence[CommandQuestion]:
        """The oldest first."""

    def answer(self, code: str, decision: ExecApprovalDecision, by: ConversationAnswerer) -> QuestionEnd:
        """Answer it. Raises RpcError with the reason, for people: unknown, answered already, or not by this sender."""


def origin_of(caller: Caller, run_id: str | None) -> QuestionOrigin:
    """The origin of what this caller causes; `run_id` is the run active in its session."""
    if not caller.acts_in_session or caller.session is None:
        return NO_ORIGIN
    grant = caller.grant if caller.kind == "agent" else caller.session_grant
    agent_id = (grant.agent if grant else None) or split_key(caller.session)[0] or None
    if caller.kind != "agent" or grant is None:  # a client that works in a session is no run of it
        return QuestionOrigin(agent_id=agent_id, session_key=caller.session)
    address = None
    # A job's run has no person behind it: what it asks is for those who watch for questions.
    if grant.channel and grant.account and grant.to and grant.delivers_to is None:
        address = ChatAddress(channel=grant.channel, account=grant.account, to=grant.to, thread=grant.thread)
    return QuestionOrigin(
        agent_id=agent_id, session_key=caller.session, run_id=run_id, address=address, for_owner=grant.owner
    )


def describe_place(*, node_name: str | None, node_id: str | None, host: str | None) -> str:
    """Where a command would run, for people. Not escaped."""
    name = (node_name or (node_id or "")[:12])[:MAX_SHOWN_NODE_NAME]
    return f"node {name}" if name else host or "the gateway"


def parse_decision_word(word: str) -> ExecApprovalDecision | None:
    return _DECISION_WORDS.get(word.lower())


def is_shown_whole(command: str) -> bool:
    """Whether `quote_command` shows all of it. Only then may it be allowed by who reads that, and nothing else."""
    text = escape_command(command)  # much longer than the command, if that has characters that can't be seen
    return len(text) + len(_LINE_MARK) * text.count("\n") <= MAX_SHOWN_COMMAND


def quote_command(command: str, why: str) -> str:
    """A command and the reason for the question in a block of Markdown, each line marked: none can pass for ours."""
    text = escape_command(command)
    left = len(text) - MAX_SHOWN_COMMAND
    if left > 0:
        text = f"{text[:MAX_SHOWN_COMMAND]}\n[{left} more characters are not shown]"
    reason = escape_line(why)
    reason = reason if len(reason) <= MAX_SHOWN_REASON else f"{reason[:MAX_SHOWN_REASON]} …"
    lines = [*text.split("\n"), *([f"({reason})"] if reason else [])]
    return "\n".join([_FENCE, *(f"{_LINE_MARK}{line}" for line in lines), _FENCE])
