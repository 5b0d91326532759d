"""The bodies of the registration API: what an app sends when it registers a session or replaces its tools. Pure."""

import os
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from ..core.errors import BadRequest
from ..core.json_nesting import TOO_DEEP_MESSAGE, decode_json
from ..net.peers import peer_key
from ..protocol import bridge as wire
from .engine.app_session import AppRegistration
from .engine.frames import short_reason
from .engine.tool_list import BadTools

MAX_ABOUT_BYTES: Final = 16 << 10  # bytes an app may register besides its tools; each session keeps them

_SNAKE: Final = {"device_id", "device_name", "app_version", "chat_id"}
_CAMEL: Final = {"deviceId", "deviceName", "appVersion", "chatId"}

_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_text: Callable[[Raw], str | None] = msgspec.json.Decoder(str | None).decode
_decode_bool = msgspec.json.Decoder(bool).decode


class RegistrationRequest(Struct, frozen=True):
    registration: AppRegistration
    tools: bytes | None
    is_snake_case: bool
    is_camel_case: bool
    """Which spelling its fields have; both, or none, is possible."""


def parse_registration(body: bytes, *, client: Any, secret: str | None) -> RegistrationRequest:
    """A session for the app at the address `client`, its own if it has a `secret`. Raises BadRequest."""
    if secret is not None and not wire.MIN_SECRET_LENGTH <= len(secret) <= wire.MAX_SECRET_LENGTH:
        raise BadTools(
            f"{wire.SECRET_HEADER} has {len(secret)} characters; give {wire.MIN_SECRET_LENGTH} to "
            f"{wire.MAX_SECRET_LENGTH} that can't be guessed, such as 32 random bytes in hexadecimal"
        )
    fields = _decode_fields(body)
    tools = fields.pop("tools", None)
    texts = {name: _read_string(name, fields[name]) for name in (*_SNAKE, *_CAMEL) if name in fields}
    registration = AppRegistration(
        id=os.urandom(16).hex() if secret is None else wire.derive_session_id(secret),
        created=time.time(),
        about=_encode_about(fields),
        device=texts.get("device_id") or texts.get("deviceId"),
        peer=peer_key(client),
        validate=_read_bool("validate", fields),
        has_secret=secret is not None,
    )
    return RegistrationRequest(
        registration,
        None if tools is None or bytes(tools) == b"null" else bytes(tools),
        bool(fields.keys() & _SNAKE),
        bool(fields.keys() & _CAMEL),
    )


def _decode_fields(body: bytes) -> dict[str, Raw]:
    try:
        # Decoded first: the codec looks for bad UTF-8 only in the fields it reads, not in what is kept as it came.
        return _decode_object(body.decode())
    except msgspec.ValidationError:
        raise BadTools("the body must be a JSON object") from None
    except RecursionError:
        raise BadTools(f"the body is {TOO_DEEP_MESSAGE}") from None
    except ValueError:
        raise BadRequest("the body is not JSON") from None


def extract_tools(body: bytes) -> bytes:
    """The list in `{"tools": […]}`, or the bare list. Raises BadRequest."""
    if body.lstrip()[:1] == b"[":
        try:
            msgspec.json.decode(body.decode(), type=Raw)
        except RecursionError:
            raise BadTools(f"the body is {TOO_DEEP_MESSAGE}") from None
        except ValueError:
            raise BadRequest("the body is not JSON") from None
        return body.strip()
    tools = _decode_fields(body).get("tools")
    if tools is None:
        raise BadTools("`tools` is missing: send a list of tools, or an object that has one")
    return bytes(tools)


def _encode_about(fields: dict[str, Raw]) -> bytes:
    """All fields besides the tools, as they are kept and shown again. Raises BadTools."""
    about = msgspec.json.encode(fields)
    if len(about) > MAX_ABOUT_BYTES:
        raise BadTools(f"everything besides `tools` may take {MAX_ABOUT_BYTES} bytes; say less")
    try:
        decode_json(about)
    except ValueError as exc:
        raise BadTools(f"what the body says besides `tools` can't be kept: {short_reason(exc)}") from None
    return about


def _read_string(name: str, raw: Raw) -> str | None:
    try:
        return _decode_text(raw)
    except ValueError:
        raise BadTools(f"`{name}` must be a string") from None


def _read_bool(name: str, fields: dict[str, Raw]) -> bool:
    try:
        return _decode_bool(fields[name]) if name in fields else True
    except ValueError:
        raise BadTools(f"`{name}` must be true or false") from None
