"""What may come in with an order."""

import base64
import gzip
import io
import tarfile
import zipfile
from typing import Any

import pytest

from openclaw_mcp.core.agent import Attachment
from openclaw_mcp.core.errors import ToolArguments
from openclaw_mcp.order import attachments
from openclaw_mcp.order.media_types import FILE_TYPES, IMAGE_TYPES

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", b"\0" * 1_000_000)
    return out.getvalue()


def tarred(kind: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
        entry = tarfile.TarInfo("hello")
        entry.size = 5
        archive.addfile(entry, io.BytesIO(b"hello"))
    return out.getvalue()


SAMPLES = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0" + b"\0" * 16,
    "image/gif": b"GIF89a" + b"\0" * 16,
    "image/webp": b"RIFF\x10\0\0\0WEBPVP8 ",
    "application/pdf": b"%PDF-1.7\n",
    "text/plain": "grüß Gott".encode(),
    "text/markdown": b"# Title",
    "text/html": b"<p>hi",
    "text/csv": b"a,b\n1,2\n",
    "application/json": b'{"a": [1, 2]}',
    "audio/mpeg": b"\xff\xfb\x90\x00",
    "audio/wav": b"RIFF\x24\0\0\0WAVEfmt ",
    "audio/ogg": b"OggS\0\2",
    "audio/mp4": b"\0\0\0\x20ftypM4A ",
    "audio/aac": b"\xff\xf1\x50\x80",
    "audio/flac": b"fLaC\0\0",
    "audio/opus": b"OggS\0\2OpusHead",
    "video/mp4": b"\0\0\0\x20ftypisom",
    "video/webm": b"\x1a\x45\xdf\xa3\x01",
    "video/quicktime": b"\0\0\0\x14ftypqt  ",
    "video/x-msvideo": b"RIFF\x24\0\0\0AVI LIST",
    "application/zip": zipped(),
    "application/gzip": gzip.compress(b"x"),
    "application/x-tar": tarred(tarfile.USTAR_FORMAT),
    "application/x-compressed-tar": gzip.compress(tarred(tarfile.GNU_FORMAT)),
}


def item(data: bytes, mime_type: str, **more: Any) -> dict[str, Any]:
    return {"data": base64.b64encode(data).decode(), "mimeType": mime_type, **more}


def read_attachments(**arguments: Any) -> tuple[Attachment, ...]:
    return attachments.read_attachments(arguments)


def refused(**arguments: Any) -> str:
    with pytest.raises(ToolArguments) as error:
        attachments.read_attachments(arguments)
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("mime_type", sorted(IMAGE_TYPES | FILE_TYPES))
def test_every_supported_type_is_taken_byte_for_byte(mime_type: str) -> None:
    field = "images" if mime_type in IMAGE_TYPES else "files"

    (one,) = read_attachments(**{field: [item(SAMPLES[mime_type], mime_type)]})

    assert (one.data, one.mime_type) == (SAMPLES[mime_type], mime_type)


@pytest.mark.parametrize(
    "mime_type", sorted((IMAGE_TYPES | FILE_TYPES) - {"text/plain", "text/markdown", "text/html", "text/csv"})
)
def test_bytes_that_are_something_else_are_refused(mime_type: str) -> None:
    field = "images" if mime_type in IMAGE_TYPES else "files"

    assert f"the data is not {mime_type}; send it under the type it has" in refused(
        **{field: [item(b"certainly not {", mime_type)]}
    )


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"nul \0 inside", b"\xff\xfe\x00\xd8", b"caf\xe9 \x01", PNG])
def test_text_is_text(data: bytes) -> None:
    reason = "files[0]: the data is not text/plain in UTF-8, UTF-16 with a byte order mark, or Latin-1; send it under"
    assert refused(files=[item(data, "text/plain")]).startswith(reason)


@pytest.mark.parametrize("mime_type", ["text/plain", "text/csv", "application/json"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1252"])
def test_text_of_the_common_encodings_is_taken(mime_type: str, encoding: str) -> None:
    data = '{"name": "Zoë"}'.encode(encoding)
    (one,) = read_attachments(files=[item(data, mime_type)])
    assert one.data == data


def test_json_with_comments_and_trailing_commas_is_taken() -> None:
    data = b"{ // settings\n  size: 1,\n}\n"
    (one,) = read_attachments(files=[item(data, "application/json", filename="tsconfig.json")])
    assert one.data == data


@pytest.mark.parametrize("mime_type", ["image/bmp", "image/svg+xml", "application/x-msdownload", "", "image/*"])
def test_an_unsupported_type_is_refused_with_those_that_are(mime_type: str) -> None:
    assert "image/png" in refused(images=[item(PNG, mime_type)])


def test_what_is_sent_in_the_wrong_list_is_reported_the_right_one() -> None:
    assert refused(files=[item(PNG, "image/png")]) == "files[0]: image/png belongs into `images`; send it there"
    assert refused(images=[item(b"x", "text/csv")]) == "images[0]: text/csv belongs into `files`; send it there"


@pytest.mark.parametrize(
    "data", ["!!!", "a", "YWJj\u00e9", "YWJ$", "data:image/png;base64,YWJj", "https://x.org/y.png"]
)
def test_what_is_no_base64_is_refused(data: str) -> None:
    text = refused(images=[{"data": data, "mimeType": "image/png"}])
    assert text.startswith("images[0]: `data` is not base64; send the file's bytes")


@pytest.mark.parametrize("data", ["", "===="])
def test_no_data_is_refused(data: str) -> None:
    assert refused(images=[{"data": data, "mimeType": "image/png"}]).startswith("images[0]: `data` is empty; send")


def test_base64_in_lines_in_the_url_alphabet_or_without_padding_is_base64() -> None:
    data = PNG + bytes(range(256))
    plain = base64.b64encode(data).decode()
    for text in (
        "\n".join(plain[i : i + 76] for i in range(0, len(plain), 76)),
        base64.urlsafe_b64encode(data).decode(),
        plain.rstrip("="),
    ):
        assert read_attachments(images=[{"data": text, "mimeType": "image/png"}])[0].data == data


def test_too_many_are_refused() -> None:
    assert "at most 10 images" in refused(images=[item(PNG, "image/png")] * 11)
    assert "at most 5 files" in refused(files=[item(b"x", "text/plain")] * 6)


def test_fifteen_megabytes_are_taken_and_one_byte_more_is_not() -> None:
    full = PNG + b"\0" * (attachments.LARGEST_ITEM - len(PNG))

    assert len(read_attachments(images=[item(full, "image/png")])[0].data or b"") == attachments.LARGEST_ITEM
    assert "larger than 15 MB" in refused(images=[item(full + b"\0", "image/png")])


@pytest.mark.parametrize(
    ("filename", "safe"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Windows\\system32\\evil.pdf", "evil.pdf"),
        ("a\0b\nc.pdf", "a_b_c.pdf"),
        ("...", "file-1.pdf"),
        ("", "file-1.pdf"),
        ("/", "file-1.pdf"),
        ("NUL.pdf", "file-1.pdf"),
        (".bashrc", "bashrc"),
        ("x" * 300 + ".pdf", "x" * 116 + ".pdf"),
        ("日本語.pdf", "日本語.pdf"),
        ("invoice\u202efdp.exe", "invoice_fdp.exe"),
        ("a\u2028b\x85.pdf", "a_b_.pdf"),
        (None, "file-1.pdf"),
    ],
)
def test_a_file_name_is_only_a_name(filename: Any, safe: str) -> None:
    assert read_attachments(files=[item(b"%PDF-1.7", "application/pdf", filename=filename)])[0].name == safe


def test_two_files_of_one_name_keep_apart() -> None:
    files = [item(b"one", "text/plain", filename="a.txt"), item(b"two", "text/plain", filename="A.txt")]

    assert [one.name for one in read_attachments(files=files)] == ["a.txt", "A-2.txt"]


def test_an_archive_is_never_opened() -> None:
    bomb = gzip.compress(b"\0" * 14_000_000)

    assert read_attachments(files=[item(bomb, "application/gzip")])[0].data == bomb


def test_the_text_is_let_go_of_once_it_is_bytes() -> None:
    arguments = {"images": [item(PNG, "image/png")]}

    attachments.read_attachments(arguments)

    assert "data" not in arguments["images"][0]
