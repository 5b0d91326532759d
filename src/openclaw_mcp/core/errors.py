"""Errors this package raises on purpose.

* OpenClawError
    * BadRequest            the peer's message can't be understood; it should change the message
    * Unauthorized          no credential, or one we don't know
    * ResourceNotFound      there is nothing at that URI
    * PromptNotFound
    * InputRequired         the stateless era's way of asking: the call is to be sent again with answers
    * StoreError            the store could not do what was asked; nothing half-done is left
        * StoreDamaged      the database is broken, or not one of ours; a person must act
        * StoreFull         no room on the disk; what was stored before is safe
        * StoreBusy         too much is waiting, or another process holds the database; try again
    * ToolError             a call could not be completed
        * ToolNotFound      no such tool for this caller
        * ToolArguments     the arguments do not fit the schema
        * ToolDenied        the policy, or a person, said no
        * ToolTimeout       it took longer than it may
        * ToolUnavailable   what owns the tool is gone
        * ToolBusy          too much is waiting already
        * CannotAsk         the call needs a person's answer and the client can't ask one

An error's text is one sentence for the reader at the other end: what is wrong and what to change. No secrets in it.
"""


class OpenClawError(Exception):
    """Base of every error we raise on purpose; `code` is its stable name on every wire."""

    code = "internal"


class BadRequest(OpenClawError):
    code = "bad_request"


class Unauthorized(OpenClawError):
    code = "unauthorized"


class ResourceNotFound(OpenClawError):
    code = "resource_not_found"


class PromptNotFound(OpenClawError):
    code = "prompt_not_found"


class PromptArguments(OpenClawError):
    """An argument of a prompt is missing or can't be used."""

    code = "prompt_arguments"


class InputRequired(OpenClawError):
    """Raised by a call context, caught by the server; a tool lets it pass."""

    code = "input_required"


class StoreError(OpenClawError):
    code = "store_error"


class StoreDamaged(StoreError):
    code = "store_damaged"


class StoreFull(StoreError):
    code = "store_full"


class StoreBusy(StoreError):
    code = "store_busy"


class ToolError(OpenClawError):
    code = "tool_error"


class ToolNotFound(ToolError):
    code = "tool_not_found"


class ToolArguments(ToolError):
    code = "tool_arguments"


class ToolDenied(ToolError):
    code = "tool_denied"


class ToolTimeout(ToolError):
    code = "tool_timeout"


class ToolUnavailable(ToolError):
    code = "tool_unavailable"


class ToolBusy(ToolError):
    code = "tool_busy"


class CannotAsk(ToolError):
    """`capability` is what the client would have to declare: elicitation, sampling or roots."""

    code = "cannot_ask"

    def __init__(self, message: str, *, capability: str) -> None:
        super().__init__(message)
        self.capability = capability


def _subclass_tree(cls: type[OpenClawError]) -> list[type[OpenClawError]]:
    return [cls, *(below for sub in cls.__subclasses__() for below in _subclass_tree(sub))]


ERRORS_BY_CODE: dict[str, type[OpenClawError]] = {cls.code: cls for cls in _subclass_tree(OpenClawError)}
"""Stable code to class, so that an error crosses a socket and is raised as itself."""
