"""What a schema is made of: objects, texts, numbers, each with its title and what a change of it takes."""

from typing import Any, Literal

from ..core.model import Json

ReloadKind = Literal["hot", "restart", "none"]


def section(
    title: str, properties: Json, *, reload: ReloadKind = "none", allow_extra: bool = False, **more: Any
) -> Json:
    """An object of the config. `open`: further keys are somebody else's and pass."""
    return {
        "type": "object",
        "title": title,
        "properties": properties,
        "additionalProperties": allow_extra,
        "x-reload": reload,
        **more,
    }


def string(title: str, **more: Any) -> Json:
    return {"type": "string", "title": title, **more}


def boolean(title: str, default: bool | None = None) -> Json:
    return {"type": "boolean", "title": title} | ({} if default is None else {"default": default})


def integer(title: str, *, minimum: int = 0, maximum: int | None = None, **more: Any) -> Json:
    return (
        {"type": "integer", "title": title, "minimum": minimum}
        | ({} if maximum is None else {"maximum": maximum})
        | more
    )


def strings(title: str) -> Json:
    return {"type": "array", "title": title, "items": {"type": "string"}}


def open_object(title: str, *, reload: ReloadKind = "none") -> Json:
    """A part that other rooms describe, or that is passed on as it is."""
    return {"type": "object", "title": title, "additionalProperties": True, "x-reload": reload}
