"""Documents made for tests, by hand: nothing in them but what a test needs."""

import zlib


def pdf(*pages: str) -> bytes:
    """A PDF with these words, one text a page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", ""]
    kids = []
    for words in pages:
        stream = f"BT /F1 12 Tf 72 720 Td ({words}) Tj ET"
        kids.append(f"{len(objects) + 1} 0 R")
        font = "<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
        contents = f"{len(objects) + 2} 0 R"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources {font} /Contents {contents} >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    return _bound([text.encode() for text in objects])


def bomb() -> bytes:
    """A PDF whose only page unfolds to four gigabytes."""
    # Each block is packed as if it stood alone, so they are all alike: to squeeze one is enough.
    squeezer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = squeezer.compress(bytes(1 << 20)) + squeezer.flush(zlib.Z_FULL_FLUSH)
    checksum = (4096 << 20) % 65521 << 16 | 1
    packed = b"\x78\xda" + block * 4096 + squeezer.flush() + checksum.to_bytes(4, "big")
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R >>"
    stream = b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(packed), packed)
    return _bound([b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>", page, stream])


def _bound(objects: list[bytes]) -> bytes:
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    count = len(objects) + 1
    return out + b"xref\n0 %d\n0000000000 65535 f \n%strailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        count, table, count, len(out),
    )  # fmt: skip
