"""Files to send: from allowed folders, from the web outside our own network, never too large."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from openclaw_mcp.core.channel import ChannelError, ChannelRefused
from openclaw_mcp.gateway.channels.attachments import MediaLoader
from openclaw_mcp.net.file_access import FileAccess

from .gateways import within

NOTHING = FileAccess()


def test_files_come_from_allowed_folders_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        allowed, outside = tmp_path / "media", tmp_path / "secret.txt"
        allowed.mkdir()
        outside.write_text("secret")
        (allowed / "ok.txt").write_text("fine")
        (allowed / "link.txt").symlink_to(outside)
        media, access = MediaLoader(), FileAccess(folders=(allowed,))
        file = await media.load(str(allowed / "ok.txt"), access, max_bytes=100)
        assert (file.data, file.mime_type, file.name) == (b"fine", "text/plain", "ok.txt")
        assert (await media.load("ok.txt", access, max_bytes=100)).data == b"fine"
        assert (await media.load(f"file://{allowed}/ok.txt", access, max_bytes=100)).data == b"fine"
        for place, words in (
            (str(outside), "files are sent from"),
            (str(allowed / "link.txt"), "files are sent from"),
            (f"{allowed}/../secret.txt", "files are sent from"),
            ("/etc/passwd", "files are sent from"),
            (str(allowed / "none.txt"), "there is no file none.txt"),
            (str(allowed), "is no file"),
        ):
            with pytest.raises(ChannelRefused, match=words):
                await media.load(place, access, max_bytes=100)
        with pytest.raises(ChannelRefused, match="larger than 3 bytes"):
            await media.load("ok.txt", access, max_bytes=3)
        assert (await media.load("ok.txt", access, max_bytes=4)).data == b"fine"

    within(scenario())


@pytest.mark.parametrize(
    ("name", "requested_name", "wanted"),
    [
        ("a.png", None, ("a.png", "image/png")),
        ("a.png", "b.txt", ("b.txt", "image/png")),
        ("a.unheard-of", None, ("a.unheard-of", "application/octet-stream")),
        ("note:one.txt", None, ("note:one.txt", "text/plain")),
    ],
)
def test_a_file_has_its_own_name_unless_another_is_given(
    tmp_path: Path, name: str, requested_name: str | None, wanted: tuple[str, str]
) -> None:
    async def scenario() -> None:
        (tmp_path / name).write_bytes(b"x")
        file = await MediaLoader().load(f" {name} ", FileAccess(folders=(tmp_path,)), max_bytes=1, name=requested_name)
        assert (file.name, file.mime_type) == wanted

    within(scenario())


@pytest.mark.parametrize(
    ("place", "data", "kind"),
    [
        ("data:text/html;base64,YWJj", b"abc", "text/html"),
        ("data:;base64,YWJj", b"abc", "text/plain"),
        ("DATA:,abc", b"abc", "text/plain"),
        ("data:text/css,abc", b"abc", "text/css"),
        ("data:,%61%62%63", b"abc", "text/plain"),  # longer than the file in it
    ],
)
def test_a_file_may_stand_in_its_address(place: str, data: bytes, kind: str) -> None:
    async def scenario() -> None:
        file = await MediaLoader().load(place, NOTHING, max_bytes=3, name="n")
        assert (file.data, file.mime_type, file.name) == (data, kind, "n")
        with pytest.raises(ChannelRefused, match="larger than 2 bytes"):
            await MediaLoader().load(place, NOTHING, max_bytes=2)

    within(scenario())


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("data:abc", "has no comma"),
        ("data:;base64,YW*Jj", "not valid base64"),
        ("data:;base64,YWJ", "not valid base64"),
        ("data:;base64,ä", "not valid base64"),
        ("ftp://example.com/a.txt", "over ftp"),
        ("gopher://example.com/a.txt", "over gopher"),
        ("http://:80/a.txt", "must name a host"),
        ("https://", "must name a host"),
        ("http://user@example.com/", "no password"),
        ("http://:word@example.com/", "no password"),
        ("http://[::1/x", "can't be understood"),
        ("http://example.com:99999/x", "can't be understood"),
        ("https://127.0.0.1/x", "private network"),
        (f"https://{'a' * 64}.example/x", "can't be found"),
    ],
)
def test_an_address_that_names_no_file_is_refused(place: str, words: str) -> None:
    async def scenario() -> None:
        with pytest.raises(ChannelRefused, match=words):
            await MediaLoader().load(place, NOTHING, max_bytes=100)

    within(scenario())


class Server(http.server.BaseHTTPRequestHandler):
    """`/after/3/a.png` is `/a.png` after three redirects."""

    def do_GET(self) -> None:
        _, what, *rest = self.path.split("/", 3)
        if what == "after":
            count = int(rest[0])
            self.send_response(302)
            self.send_header("location", f"/after/{count - 1}/{rest[1]}" if count > 1 else f"/{rest[1]}")
        elif what == "to":
            self.send_response(302)
            self.send_header("location", unquote(rest[0]))
        elif what == "again":
            self.send_response(302)
            self.send_header("location", "/again")
        elif what == "gone":
            self.send_response(404)
        elif what == "untold":
            self.send_response(200)
        else:
            self.send_response(200)
            self.send_header("content-type", "image/png")
        self.end_headers()
        if self.path.endswith("a.png"):
            self.wfile.write(b"picture")

    def log_message(self, format: str, *args: object) -> None:
        return


@contextlib.contextmanager
def web() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_files_from_the_web_are_bounded_and_never_from_our_own_network() -> None:
    async def scenario(base: str) -> None:
        ours = MediaLoader(allow_private_network=True)
        file = await ours.load(f"{base}/a.png", NOTHING, max_bytes=100)
        assert (file.data, file.mime_type, file.name) == (b"picture", "image/png", "a.png")
        with pytest.raises(ChannelRefused, match="larger than 3 bytes"):
            await ours.load(f"{base}/a.png", NOTHING, max_bytes=3)
        with pytest.raises(ChannelRefused, match="too many redirects"):
            await ours.load(f"{base}/again", NOTHING, max_bytes=100)
        with pytest.raises(ChannelError, match="could not be fetched"):
            await ours.load("http://127.0.0.1:1/a.png", NOTHING, max_bytes=100)
        guarded = MediaLoader()
        for address in (
            base,
            "http://localhost/x",
            "http://[::1]/x",
            "http://[::ffff:127.0.0.1]/x",
            "http://10.0.0.1/",
        ):
            with pytest.raises(ChannelRefused, match="private network"):
                await guarded.load(address, NOTHING, max_bytes=100)
        for address in ("http://169.254.169.254/latest", "http://0.0.0.0/", "http://2130706433/"):
            with pytest.raises(ChannelRefused, match=r"private network|can't be found"):
                await guarded.load(address, NOTHING, max_bytes=100)
        with pytest.raises(ChannelRefused, match="no password"):
            await guarded.load("http://user:word@example.com/", NOTHING, max_bytes=100)

    with web() as base:
        within(scenario(base))


@pytest.mark.parametrize(
    ("path", "requested_name", "wanted"),
    [
        ("a.png", None, ("a.png", "image/png")),
        ("a.png", "b.txt", ("b.txt", "image/png")),
        ("b/an%20a.png?x=1", None, ("an a.png", "image/png")),
        ("", None, (None, "image/png")),
        ("untold/a.png", None, ("a.png", "image/png")),
        ("untold/a.txt", None, ("a.txt", "text/plain")),
        ("untold/a", "b.txt", ("b.txt", "text/plain")),
        ("untold/", None, ("untold", "application/octet-stream")),
        ("after/5/a.png", None, ("a.png", "image/png")),
    ],
)
def test_a_file_from_the_web_has_the_name_of_its_address_and_the_type_its_server_says(
    path: str, requested_name: str | None, wanted: tuple[str | None, str]
) -> None:
    async def scenario(base: str) -> None:
        file = await MediaLoader(allow_private_network=True).load(
            f"{base}/{path}", NOTHING, max_bytes=7, name=requested_name
        )
        assert (file.name, file.mime_type) == wanted
        assert file.url == f"{base}/{path}"

    with web() as base:
        within(scenario(base))


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("after/6/a.png", ChannelRefused, "too many redirects"),
        ("gone", ChannelRefused, "answered 404"),
        ("a\x01b", ChannelError, "could not be fetched: InvalidURL"),
        (f"to/{quote('ftp://127.0.0.1/x', safe='')}", ChannelRefused, "leads nowhere"),
        (f"to/{quote('file:///etc/passwd', safe='')}", ChannelRefused, "leads nowhere"),
        (f"to/{quote('http://[::1/x', safe='')}", ChannelError, "could not be fetched"),
        (f"to/{quote('https://127.0.0.1:1/x', safe='')}", ChannelError, "could not be fetched"),
    ],
)
def test_where_a_server_sends_us_is_looked_at_like_the_first_address(
    path: str, error: type[Exception], words: str
) -> None:
    async def scenario(base: str) -> None:
        with pytest.raises(ChannelError, match=words) as refused:
            await MediaLoader(allow_private_network=True).load(f"{base}/{path}", NOTHING, max_bytes=100)
        assert refused.type is error

    with web() as base:
        within(scenario(base))


def test_files_are_fetched_from_the_address_that_was_judged_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(base: str) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
        assert (
            await MediaLoader(allow_private_network=True).load(f"{base}/a.png", NOTHING, max_bytes=7)
        ).data == b"picture"

    with web() as base:
        within(scenario(base))
