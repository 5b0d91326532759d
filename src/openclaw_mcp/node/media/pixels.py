"""Pixels of the screen, and pictures of pixels: mss and Pillow. Imported at the first picture, never before."""

import io
from typing import Final

import mss
from msgspec import Struct
from PIL import Image

PNG_EFFORT: Final = 3  # of 9; more costs the caller time and saves little on a screen's flat colours


class ScreenUnavailable(Exception):
    """The display can't be read."""


class ImageOptions(Struct, frozen=True, kw_only=True):
    png: bool
    width: int
    """The widest picture wanted; a narrower screen stays as it is."""
    quality: int


class EncodedImage(Struct, frozen=True):
    data: bytes
    width: int
    height: int


class ScreenArea(Struct, frozen=True):
    left: int
    top: int
    width: int
    height: int


def list_screens(display: str | None) -> list[ScreenArea]:
    """The screens, the primary one first."""
    try:
        with _open_display(display, pointer=False) as screen:
            return _screen_areas(screen)
    except mss.ScreenShotError as exc:
        raise ScreenUnavailable from exc


def capture_screen(display: str | None, *, index: int, pointer: bool, options: ImageOptions) -> EncodedImage:
    """The screen at `index`, or the primary one when there is none."""
    try:
        with _open_display(display, pointer=pointer) as screen:
            found = _screen_areas(screen)
            area = found[index] if index < len(found) else found[0]
            shot = screen.grab({"left": area.left, "top": area.top, "width": area.width, "height": area.height})
    except mss.ScreenShotError as exc:
        raise ScreenUnavailable from exc
    return encode_image(Image.frombuffer("RGB", shot.size, shot.bgra, "raw", "BGRX", 0, 1), options)


def reencode(data: bytes, options: ImageOptions) -> EncodedImage:
    """A picture of another program, in the wanted size and form."""
    with Image.open(io.BytesIO(data)) as picture:
        return encode_image(picture.convert("RGB"), options)


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height of an encoded picture; only its head is read."""
    with Image.open(io.BytesIO(data)) as picture:
        return picture.size


def encode_image(picture: Image.Image, options: ImageOptions) -> EncodedImage:
    if picture.width > options.width:
        height = max(1, round(picture.height * options.width / picture.width))
        picture = picture.resize((options.width, height), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    if options.png:
        picture.save(file, "PNG", compress_level=PNG_EFFORT)
    else:
        picture.save(file, "JPEG", quality=options.quality)
    return EncodedImage(file.getvalue(), picture.width, picture.height)


def _open_display(display: str | None, *, pointer: bool) -> mss.MSS:
    # Opened for each picture: the screens may have changed since the last one.
    return mss.MSS(with_cursor=pointer) if display is None else mss.MSS(display=display, with_cursor=pointer)


def _screen_areas(screen: mss.MSS) -> list[ScreenArea]:
    # The first entry is the union of all screens.
    entries = sorted(screen.monitors[1:], key=lambda entry: not entry.get("is_primary", False))
    if not entries:
        raise ScreenUnavailable
    return [ScreenArea(entry["left"], entry["top"], entry["width"], entry["height"]) for entry in entries]
