"""What a schema is made of: objects, texts, numbers, each with its title and what a change of it takes."""

from typing import Any, Literal

from ..core.model import Json

Reload = Literal["hot", "restart", "none"]


def section(title: str, properties: Json, *, reload: Reload = "none", open: bool = False, **more: Any) -> Json:
    """An object of the config. `open`: further keys are somebody else's and pass."""
    return {
        "type": "object",
        "title": title,
        "properties": properties,
        "additionalProperties": open,
        "x-reload": reload,
        **more,
    }


def text(title: str, **more: Any) -> Json:
    return {"type": "string", "title": title, **more}


def flag(title: str, default: bool | None = None) -> Json:
    return {"type": "boolean", "title": title} | ({} if default is None else {"default": default})


def number(title: str, *, least: int = 0, most: int | None = None, **more: Any) -> Json:
    return {"type": "integer", "title": title, "minimum": least} | ({} if most is None else {"maximum": most}) | more


def texts(title: str) -> Json:
    return {"type": "array", "title": title, "items": {"type": "string"}}


def free(title: str, *, reload: Reload = "none") -> Json:
    """A part that other rooms describe, or that is passed on as it is."""
    return {"type": "object", "title": title, "additionalProperties": True, "x-reload": reload}
