"""What comes in with an order: base64 to bytes, sizes and types checked, names made safe. Never opens an archive."""

import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..core.agent import Attachment
from ..core.errors import ToolArguments
from ..core.model import Json
from .media_types import EXTENSIONS, FILE_TYPES, IMAGE_TYPES, looks_like

MEGABYTE: Final = 1024 * 1024
LARGEST_ITEM: Final = 15 * MEGABYTE
MAX_IMAGES: Final = 10
MAX_FILES: Final = 5
MAX_NAME_LENGTH: Final = 120

TOO_LARGE: Final = f"larger than {LARGEST_ITEM // MEGABYTE} MB; send less of it"
ENCODINGS: Final = "UTF-8, UTF-16 with a byte order mark, or Latin-1"
NOT_BASE64: Final = (
    "`data` is not base64; send the file's bytes in base64, not an address, and without `data:` before it"
)

_UNSAFE = re.compile(
    r'[\x00-\x1f\x7f-\x9f<>:"|?*\\/'
    r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+"  # these turn a name around, so that it reads as another
)
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\.|$)")


def read_attachments(arguments: Json) -> tuple[Attachment, ...]:
    """The order's images and files. Raises ToolArguments with one sentence on the first that can't be taken.

    Each text is let go of once it is bytes: an order may hold a hundred megabytes, and both at once would double that.
    """
    taken: set[str] = set()
    images = _list_items(arguments, "images", most=MAX_IMAGES)
    files = _list_items(arguments, "files", most=MAX_FILES)
    return (*_read_items("images", images, IMAGE_TYPES, taken), *_read_items("files", files, FILE_TYPES, taken))


def _list_items(arguments: Json, field: str, *, most: int) -> Sequence[Json]:
    items = arguments.get(field) or []
    if len(items) > most:
        raise ToolArguments(f"at most {most} {field} can go with one order, and this one has {len(items)}")
    return items


def _read_items(field: str, items: Sequence[Json], allowed: frozenset[str], names: set[str]) -> Iterator[Attachment]:
    for number, item in enumerate(items, 1):
        where = f"{field}[{number - 1}]"
        mime_type = item["mimeType"].partition(";")[0].strip().lower()
        if mime_type not in allowed:
            raise ToolArguments(f"{where}: {_type_problem(mime_type, allowed)}")
        data = _decode_data(item, where)
        if not looks_like(mime_type, data):
            what = f"{mime_type} in {ENCODINGS}" if mime_type.startswith("text/") else mime_type
            raise ToolArguments(f"{where}: the data is not {what}; send it under the type it has")
        name = _safe_name(item.get("filename"), default=f"{field[:-1]}-{number}{EXTENSIONS[mime_type]}")
        yield Attachment(mime_type=mime_type, name=_make_unique(names, name), data=data)


def _type_problem(mime_type: str, allowed: frozenset[str]) -> str:
    if mime_type in EXTENSIONS:
        return f"{mime_type} belongs into `{'images' if mime_type in IMAGE_TYPES else 'files'}`; send it there"
    return f"{mime_type[:80]!r} is not supported; use one of {', '.join(sorted(allowed))}"


def _decode_data(item: Json, where: str) -> bytes:
    text: Any = item.pop("data")
    if len(text) * 3 // 4 > LARGEST_ITEM + 3:
        raise ToolArguments(f"{where}: {TOO_LARGE}")
    try:
        data = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except UnicodeEncodeError:
        raise ToolArguments(f"{where}: {NOT_BASE64}") from None
    except binascii.Error:
        data = _decode_lenient(text, where)
    if not data:
        raise ToolArguments(f"{where}: `data` is empty; send the file's bytes in base64")
    if len(data) > LARGEST_ITEM:
        raise ToolArguments(f"{where}: {TOO_LARGE}")
    return data


def _decode_lenient(text: str, where: str) -> bytes:
    """Base64 as some clients write it: in lines, in the URL alphabet, or without its padding."""
    text = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return binascii.a2b_base64((text + "=" * (-len(text) % 4)).encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ToolArguments(f"{where}: {NOT_BASE64}") from None


def _safe_name(name: Any, *, default: str) -> str:
    """A name that is only a name: no folders, no control characters, nothing a shell or a disk would take otherwise."""
    if type(name) is not str:
        return default
    base = name.replace("\\", "/").rpartition("/")[2]
    base = _UNSAFE.sub("_", base).strip(" .")
    if not base or _RESERVED.match(base):
        return default
    stem, dot, extension = base.rpartition(".")
    if len(base) > MAX_NAME_LENGTH and dot and len(extension) < 16:
        return stem[: MAX_NAME_LENGTH - len(extension) - 1] + "." + extension
    return base[:MAX_NAME_LENGTH]


def _make_unique(names: set[str], name: str) -> str:
    """`name`, or its first variation that is free in this order."""
    stem, dot, extension = name.rpartition(".")
    if not dot:
        stem, extension = name, ""
    number, candidate = 1, name
    while candidate.lower() in names:
        number += 1
        candidate = f"{stem}-{number}{dot}{extension}"
    names.add(candidate.lower())
    return candidate
