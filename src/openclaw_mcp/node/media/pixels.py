"""Pixels of the screen, and pictures of pixels: mss and Pillow. Imported at the first picture, never before."""

import io
from typing import Final

import mss
from msgspec import Struct
from PIL import Image

PNG_EFFORT: Final = 3  # of 9; more costs the caller time and saves little on a screen's flat colours


class NoScreen(Exception):
    """The display can't be read."""


class Wanted(Struct, frozen=True, kw_only=True):
    png: bool
    width: int
    """The widest picture wanted; a narrower screen stays as it is."""
    quality: int


class Picture(Struct, frozen=True):
    data: bytes
    width: int
    height: int


class Area(Struct, frozen=True):
    left: int
    top: int
    width: int
    height: int


def areas(display: str | None) -> list[Area]:
    """The screens, the primary one first."""
    try:
        with _opened(display, pointer=False) as screen:
            return _areas(screen)
    except mss.ScreenShotError as exc:
        raise NoScreen from exc


def photograph(display: str | None, *, index: int, pointer: bool, wanted: Wanted) -> Picture:
    """The screen at `index`, or the primary one when there is none."""
    try:
        with _opened(display, pointer=pointer) as screen:
            found = _areas(screen)
            area = found[index] if index < len(found) else found[0]
            shot = screen.grab({"left": area.left, "top": area.top, "width": area.width, "height": area.height})
    except mss.ScreenShotError as exc:
        raise NoScreen from exc
    return encode(Image.frombuffer("RGB", shot.size, shot.bgra, "raw", "BGRX", 0, 1), wanted)


def developed(data: bytes, wanted: Wanted) -> Picture:
    """A picture of another program, in the wanted size and form."""
    with Image.open(io.BytesIO(data)) as picture:
        return encode(picture.convert("RGB"), wanted)


def size(data: bytes) -> tuple[int, int]:
    """Width and height of an encoded picture; only its head is read."""
    with Image.open(io.BytesIO(data)) as picture:
        return picture.size


def encode(picture: Image.Image, wanted: Wanted) -> Picture:
    if picture.width > wanted.width:
        height = max(1, round(picture.height * wanted.width / picture.width))
        picture = picture.resize((wanted.width, height), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    if wanted.png:
        picture.save(file, "PNG", compress_level=PNG_EFFORT)
    else:
        picture.save(file, "JPEG", quality=wanted.quality)
    return Picture(file.getvalue(), picture.width, picture.height)


def _opened(display: str | None, *, pointer: bool) -> mss.MSS:
    # Opened for each picture: the screens may have changed since the last one.
    return mss.MSS(with_cursor=pointer) if display is None else mss.MSS(display=display, with_cursor=pointer)


def _areas(screen: mss.MSS) -> list[Area]:
    # The first entry is the union of all screens.
    entries = sorted(screen.monitors[1:], key=lambda entry: not entry.get("is_primary", False))
    if not entries:
        raise NoScreen
    return [Area(entry["left"], entry["top"], entry["width"], entry["height"]) for entry in entries]
