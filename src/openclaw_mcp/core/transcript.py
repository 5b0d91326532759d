"""Whose run wrote a message of a transcript, where it was sent, and how much of it others may read. Pure.

In a session that several people share (a group, a main session) the transcript also holds what the owner's runs read
through tools, and what only the owner received: answers to an operator's client, to another session, to the gateway.
The same holds for jobs, and for operators with lesser rights, whose messages the conversation does not receive. All
have read what was sent in the conversation itself; the rest is not shown to others.
"""

from typing import Final, Literal

from .model import Json
from .sessions import RunOptions, Session

FOR_OWNER: Final = "forOwner"
"""False in messages of runs that another person of the conversation started. One without it counts as the owner's."""
FOR_OPERATORS: Final = "forOperators"
"""True in messages of runs that a lesser operator or a job started: neither the owner nor a person of the conversation.
Later runs of that kind read them whole; for all others they are as the owner's."""
IN_CONVERSATION: Final = "said"
"""True in messages of the other runs that the session's conversation received: written, answered or sent there."""
COMMAND_MARK: Final = "command"
"""True in a chat command and in the gateway's reply to it: people read them, models do not."""
GATEWAY_MODEL: Final = "gateway-injected"
"""The model of messages that the gateway itself wrote, for provider `openclaw`: clients of the protocol know it."""
VISIBLE_BLOCK_TYPES: Final = frozenset({"text", "image", "audio", "video", "file"})
"""Parts of an answer that its reader received. Tool calls and thinking are not among them."""
MESSAGE_DERIVED_FIELDS: Final = ("derivedTitle", "lastMessagePreview")
"""Fields of a session's row that hold text of its messages."""


RunStarter = Literal["owner", "operator", "other"]


def run_starter(options: RunOptions) -> RunStarter:
    """Who started a run, by its options: the owner, another person of the conversation, or an operator outside it.

    A program of a run counts as that run's, also where its sender is unknown; what an operator's job starts stays the
    job's, which is recognised by its right to send anywhere."""
    grant = options.grant
    if grant.owner:
        return "owner"
    by_a_run = grant.handed_on and not grant.sends_anywhere
    return "other" if grant.sender is not None or by_a_run else "operator"


def mark_visibility(body: Json, starter: RunStarter, *, in_conversation: bool = False) -> Json:
    """The body of a message as it is stored, marked with who started its run."""
    if starter == "other":
        return {**body, FOR_OWNER: False}
    marks = {FOR_OPERATORS: starter == "operator", IN_CONVERSATION: in_conversation}
    return {**body, **{mark: True for mark, holds in marks.items() if holds}}


def redact_for_others(body: Json, *, include_elsewhere: bool = False, include_operators: bool = False) -> Json:
    """A message as a run that is not the owner's reads it: without content, where all of it is the owner's.

    Of the owner's runs others read what people wrote in the conversation and what was answered there; not the calls and
    results of tools, nor what came from other sessions, sub-agents and the gateway itself. `include_elsewhere`: also
    what people wrote and were answered elsewhere, see `is_private_operator_run`. `include_operators`: all of
    operators' runs, see `sees_operator_runs`."""
    if body.get(FOR_OWNER) is False or (include_operators and body.get(FOR_OPERATORS) is True):
        return body
    role, content = body.get("role"), body.get("content")
    if include_elsewhere or body.get(IN_CONVERSATION) is True:
        if role == "user" and "provenance" not in body:
            return body
        if role == "assistant" and isinstance(content, str):
            return body
        if role == "assistant" and isinstance(content, list):
            return {**body, "content": [block for block in content if block.get("type") in VISIBLE_BLOCK_TYPES]}
    return {"role": role, "content": []}


def redact_row(row: Json) -> Json:
    """A session's row without text of messages: the row does not hold whose they are."""
    return {name: value for name, value in row.items() if name not in MESSAGE_DERIVED_FIELDS}


def is_answer_public(options: RunOptions, *, include_operators: bool = False) -> bool:
    """Whether a run's answer, by the options of the run, may be shown to others than the owner. `include_operators`: as
    in `redact_for_others`."""
    by = run_starter(options)
    return by == "other" or (include_operators and by == "operator") or options.answers_in_conversation


def is_operator_run(options: RunOptions) -> bool:
    """Whether a run was started by an operator's client, or by a job that was created in no group."""
    grant = options.grant
    return not (grant.sender or grant.group or grant.handed_on)


def sees_operator_runs(options: RunOptions, session: Session) -> bool:
    """Whether a run that is not the owner's reads all of earlier runs of lesser operators and jobs in its session: it
    is one itself, or they started it in a session of their own."""
    return is_operator_run(options) or (run_starter(options) == "operator" and not is_multi_user(session))


def is_private_operator_run(options: RunOptions, session: Session) -> bool:
    """Whether a run is an operator's or such a job's, and its session is not a group's: then all who read it could read
    the messages of the owner's clients in the same session anyway."""
    return is_operator_run(options) and not is_group(session)


def is_multi_user(session: Session) -> bool:
    """Whether several people may write to it."""
    return session.classification == "main" or is_group(session)


def is_group(session: Session) -> bool:
    return session.classification == "group" or not {"group", "channel"}.isdisjoint(session.key.split(":"))
