"""Whose run wrote a message of a transcript, where it was said, and what of it others are told. Pure.

In a session that several people share (a group, a main session) the transcript holds what the owner's runs read through
tools, and what was said to the owner alone: answers to an operator's client, to another session, to the gateway. So are
jobs, and operators with lesser rights, whom nobody of the conversation hears. What was said in the conversation itself,
all have heard; the rest is not for others to ask about.
"""

from typing import Final, Literal

from .model import Json
from .sessions import RunOptions, Session

FOR_OWNER: Final = "forOwner"
"""False in messages of runs that somebody else of the conversation started. One without it counts as the owner's."""
FOR_OPERATORS: Final = "forOperators"
"""True in messages of runs that neither the owner nor anybody of the conversation started: a lesser operator, a job.
Later runs of that kind are told them whole; to everybody else they are as the owner's."""
IN_CONVERSATION: Final = "said"
"""True in messages of the other runs that the session's conversation got: heard there, answered there, sent there."""
VISIBLE_BLOCK_TYPES: Final = frozenset({"text", "image", "audio", "video", "file"})
"""Parts of an answer that its reader got. Tool calls and thinking are none."""
MESSAGE_DERIVED_FIELDS: Final = ("derivedTitle", "lastMessagePreview")
"""What a session's row tells of its messages."""


RunStarter = Literal["owner", "operator", "other"]


def run_starter(options: RunOptions) -> RunStarter:
    """Who started a run, by its options: the owner, somebody else of the conversation, or nobody who is in it.

    A program of a run is that run's, also where nobody knows for whom it works; what an operator's job hands on stays
    the job's, which is told by its right to send anywhere."""
    grant = options.grant
    if grant.owner:
        return "owner"
    by_a_run = grant.handed_on and not grant.sends_anywhere
    return "other" if grant.sender is not None or by_a_run else "operator"


def mark_visibility(body: Json, starter: RunStarter, *, in_conversation: bool = False) -> Json:
    """A message as it is kept, with the standing of the run it belongs to."""
    if starter == "other":
        return {**body, FOR_OWNER: False}
    marks = {FOR_OPERATORS: starter == "operator", IN_CONVERSATION: in_conversation}
    return {**body, **{mark: True for mark, holds in marks.items() if holds}}


def redact_for_others(body: Json, *, include_elsewhere: bool = False, include_operators: bool = False) -> Json:
    """A message as a run is told it that is not the owner's: with no content, where all of it was the owner's.

    Of the owner's runs others get what people wrote in the conversation and what was answered there; not what tools
    were asked and told, nor what came from other sessions, sub-agents and the gateway itself. `unsaid`: also what
    people wrote and were answered elsewhere, see `among_operators`. `operators`: all of runs like it, see
    `knows_operators`."""
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
    """A session's row without the words of messages: the row does not know whose they are."""
    return {name: value for name, value in row.items() if name not in MESSAGE_DERIVED_FIELDS}


def is_answer_public(options: RunOptions, *, include_operators: bool = False) -> bool:
    """Whether a run's answer, by the options of the run, may be told to those who are not the owner. `operators`: as in
    `for_others`."""
    by = run_starter(options)
    return by == "other" or (include_operators and by == "operator") or options.answers_in_conversation


def is_operator_run(options: RunOptions) -> bool:
    """Whether a run was started by an operator's client, or by a job that was planned in no group."""
    grant = options.grant
    return not (grant.sender or grant.group or grant.handed_on)


def sees_operator_runs(options: RunOptions, session: Session) -> bool:
    """Whether a run that is not the owner's is told all of earlier runs of lesser operators and jobs there: it is one
    itself, or in a session of theirs it is what they started."""
    return is_operator_run(options) or (run_starter(options) == "operator" and not is_multi_user(session))


def is_private_operator_run(options: RunOptions, session: Session) -> bool:
    """Whether a run is an operator's or such a job's, and its session is no group's: then nobody is there who has not
    had the owner's clients' words in the same session to read."""
    return is_operator_run(options) and not is_group(session)


def is_multi_user(session: Session) -> bool:
    """Whether several people may write to it."""
    return session.classification == "main" or is_group(session)


def is_group(session: Session) -> bool:
    return session.classification == "group" or not {"group", "channel"}.isdisjoint(session.key.split(":"))
