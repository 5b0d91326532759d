"""Whose run wrote a message of a transcript, and what of it others are told. Pure.

In a session that several people share (a group, a main session) the transcript holds what the owner's runs read through
tools. The answers were said to all; what the tools told is not for others to ask about.
"""

from typing import Final

from .model import Json

FOR_OWNER: Final = "forOwner"
"""False in messages of runs that were not the owner's. A message without it counts as the owner's."""
SAID: Final = frozenset({"text", "image", "audio", "video", "file"})
"""Parts of an answer that its reader got. Tool calls and thinking are none."""


def marked(body: Json, *, owner: bool) -> Json:
    """A message as it is kept, with the standing of the run it belongs to."""
    return body if owner else {**body, FOR_OWNER: False}


def for_others(body: Json) -> Json:
    """A message as a run is told it that is not the owner's: with no content, where all of it was the owner's.

    Of the owner's runs others get what people wrote and what was answered; not what tools were asked and told, nor
    what came from other sessions, sub-agents and the gateway itself."""
    if body.get(FOR_OWNER) is False:
        return body
    role, content = body.get("role"), body.get("content")
    if role == "user" and "provenance" not in body:
        return body
    if role == "assistant" and isinstance(content, str):
        return body
    if role == "assistant" and isinstance(content, list):
        return {**body, "content": [block for block in content if block.get("type") in SAID]}
    return {"role": role, "content": []}
