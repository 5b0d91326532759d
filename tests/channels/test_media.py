"""Files to send: from allowed folders, from the web outside our own network, never too large."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_mcp.channels.media import Media
from openclaw_mcp.core.channel import ChannelError, ChannelRefused
from openclaw_mcp.core.file_access import FileAccess

from .house import within

NOTHING = FileAccess()


def test_files_come_from_allowed_folders_only(tmp_path: Path) -> None:
    async def story() -> None:
        allowed, outside = tmp_path / "media", tmp_path / "secret.txt"
        allowed.mkdir()
        outside.write_text("secret")
        (allowed / "ok.txt").write_text("fine")
        (allowed / "link.txt").symlink_to(outside)
        media, access = Media(), FileAccess(folders=(allowed,))
        file = await media.load(str(allowed / "ok.txt"), access, most=100)
        assert (file.data, file.mime_type, file.name) == (b"fine", "text/plain", "ok.txt")
        assert (await media.load("ok.txt", access, most=100)).data == b"fine"
        assert (await media.load(f"file://{allowed}/ok.txt", access, most=100)).data == b"fine"
        for place, words in (
            (str(outside), "files are sent from"),
            (str(allowed / "link.txt"), "files are sent from"),
            (f"{allowed}/../secret.txt", "files are sent from"),
            ("/etc/passwd", "files are sent from"),
            (str(allowed / "none.txt"), "there is no file none.txt"),
            (str(allowed), "is no file"),
        ):
            with pytest.raises(ChannelRefused, match=words):
                await media.load(place, access, most=100)
        with pytest.raises(ChannelRefused, match="larger than 3 bytes"):
            await media.load("ok.txt", access, most=3)

    within(story())


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/away":
            self.send_response(302)
            self.send_header("location", "http://127.0.0.1:1/inside")
        elif self.path == "/again":
            self.send_response(302)
            self.send_header("location", "/again")
        else:
            self.send_response(200)
            self.send_header("content-type", "image/png")
        self.end_headers()
        if self.path == "/a.png":
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
    async def story(base: str) -> None:
        ours = Media(own_network=True)
        file = await ours.load(f"{base}/a.png", NOTHING, most=100)
        assert (file.data, file.mime_type, file.name) == (b"picture", "image/png", "a.png")
        with pytest.raises(ChannelRefused, match="larger than 3 bytes"):
            await ours.load(f"{base}/a.png", NOTHING, most=3)
        with pytest.raises(ChannelRefused, match="too many redirects"):
            await ours.load(f"{base}/again", NOTHING, most=100)
        with pytest.raises(ChannelError, match="could not be fetched"):
            await ours.load("http://127.0.0.1:1/a.png", NOTHING, most=100)
        guarded = Media()
        for address in (
            base,
            "http://localhost/x",
            "http://[::1]/x",
            "http://[::ffff:127.0.0.1]/x",
            "http://10.0.0.1/",
        ):
            with pytest.raises(ChannelRefused, match="private network"):
                await guarded.load(address, NOTHING, most=100)
        for address in ("http://169.254.169.254/latest", "http://0.0.0.0/", "http://2130706433/"):
            with pytest.raises(ChannelRefused, match=r"private network|can't be found"):
                await guarded.load(address, NOTHING, most=100)
        with pytest.raises(ChannelRefused, match="no password"):
            await guarded.load("http://user:word@example.com/", NOTHING, most=100)

    with web() as base:
        within(story(base))
