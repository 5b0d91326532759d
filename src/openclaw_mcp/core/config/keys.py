"""How a key of openclaw.json is declared: title, bounds, what a change of it takes and who may make one. Pure."""

from typing import Any, ClassVar, Final, Literal

from msgspec import Meta, Struct

ReloadKind = Literal["hot", "restart", "none"]

FREE: Final = "free"
MODEL: Final = "free within a provider, while no rules go by provider"
PROGRAM: Final = "starts programs"
PERMISSIONS: Final = "decides what agents may do"
SENDERS: Final = "decides who may write, and as whom"
SECRET: Final = "holds a secret"
ADDRESS: Final = "decides where secrets and messages go"
ACCESS: Final = "grants or restricts access"
FILES: Final = "decides which files are read or written"
LIMIT: Final = "limits usage"
HISTORY: Final = "decides what people can see later"
UNKNOWN: Final = "is read by others than this table knows"

DEFAULT_GATEWAY_PORT: Final = 18789

LISTENER_PATHS: Final = frozenset({"gateway.port", "gateway.bind"})
"""Where a gateway listens: a restart in place goes on listening there, so that only another start applies a change."""

WHOLE_SECONDS: Final = {"type": "integer", "minimum": 1}


class Section(Struct, frozen=True, kw_only=True, rename="camel"):
    """An object of the config; the first line of a section's docstring is its title in the schema.

    Unknown keys are refused by the schema, not here: `is_open` says that they are accepted.
    """

    is_open: ClassVar[bool] = False


class OpenObject(Section, frozen=True):
    """An object of which no key is known here: every one is accepted, and none is kept."""

    is_open = True


def key(
    title: str = "",
    agents: str = "",
    *,
    reload: ReloadKind | None = None,
    unused: bool | tuple[str, ...] = False,
    any_object: bool = False,
    section: type[Section] | None = None,
    entries: dict[str, type[Section]] | None = None,
    whole_seconds: bool = False,
    **bounds: Any,
) -> Meta:
    """The declaration of one key, for `Annotated`.

    `agents` is the class of the value for an agent's run (above); what is below inherits it. `unused`: accepted, and
    read by no code, or those of its values that are not. `any_object`: the schema accepts every object, the reader
    checks it. `section`: what describes an object that is kept as it is written. `entries`: the sections of such an
    object, by name, `*` for all other names. `whole_seconds`: the file may hold whole numbers from 1 on, where the
    Python type accepts more.
    """
    values = list(unused) if isinstance(unused, tuple) else unused
    published = {"x-agents": agents, "x-reload": reload, "x-unused": values, **(WHOLE_SECONDS if whole_seconds else {})}
    return Meta(
        title=title or None,
        extra_json_schema={name: value for name, value in published.items() if value} or None,
        extra={"entries": entries}
        if entries
        else {"section": section}
        if section
        else {"any_object": True}
        if any_object
        else None,
        **bounds,
    )
