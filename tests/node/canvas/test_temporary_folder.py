"""What a browser of the canvas writes beside its profile is gone with it."""

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest

from openclaw_mcp.core.errors import ToolError
from openclaw_mcp.node.canvas.canvas import CanvasCapability
from openclaw_mcp.node.canvas.temporary_folder import LINK_NAME, make_temporary_folder, remove_temporary_folder
from openclaw_mcp.node.settings import NodeSettings
from tests.node.calling import call
from tests.node.canvas.test_canvas import NO_SCREEN, RED, canvas, value


def folder_of(pid: int | None) -> Path:
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return Path(next(one.removeprefix("TMPDIR=") for one in variables if one.startswith("TMPDIR=")))


def test_a_browser_leaves_no_temporary_files_however_it_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with canvas(tmp_path) as made:
            await call(made, "canvas.present", html=RED)
            killed = folder_of(made.browser_pid)
            assert killed != Path(tempfile.gettempdir())
            assert list(killed.iterdir())  # it does write there
            os.kill(made.browser_pid or 0, signal.SIGKILL)
            assert await value(made, "1 + 1") == 2
            assert not killed.exists()

            closed = folder_of(made.browser_pid)
            assert closed.exists()
            await call(made, "canvas.hide")
            assert not closed.exists()

    asyncio.run(scenario())


def test_a_browser_that_does_not_start_leaves_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary, settings = tmp_path / "temporary", NodeSettings(canvas_browser="false")
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    made = CanvasCapability(state_dir=tmp_path / "state", settings=lambda: settings, environ=NO_SCREEN)

    with pytest.raises(ToolError, match="false did not start"):
        asyncio.run(call(made, "canvas.present", html=RED))

    assert list(temporary.iterdir()) == []


def test_it_is_private_and_removed_once(tmp_path: Path) -> None:
    folder = make_temporary_folder(tmp_path)
    assert folder.stat().st_mode & 0o077 == 0

    remove_temporary_folder(tmp_path)
    remove_temporary_folder(tmp_path)

    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_that_of_a_node_that_was_killed_is_removed_at_the_next_start(tmp_path: Path) -> None:
    left = make_temporary_folder(tmp_path)
    (left / "org.chromium").mkdir()

    made = make_temporary_folder(tmp_path)

    assert not left.exists()
    assert made.is_dir()
    remove_temporary_folder(tmp_path)


@pytest.mark.parametrize("name", ["oc-other", "other"])
@pytest.mark.parametrize("is_temporary", [True, False])
def test_what_another_link_leads_to_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_temporary: bool
) -> None:
    """Except for a folder of ours: the link is in a folder that only we write to."""
    profile, temporary = tmp_path / "profile", tmp_path / "temporary"
    other = (temporary if is_temporary else tmp_path) / name
    for folder in (profile, temporary, other):
        folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (profile / LINK_NAME).symlink_to(other)

    remove_temporary_folder(profile)

    assert other.exists() is not (is_temporary and name.startswith("oc-"))
    assert list(profile.iterdir()) == []


def test_a_folder_replaced_by_a_link_removes_nothing_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, temporary, other = tmp_path / "profile", tmp_path / "temporary", tmp_path / "other"
    for folder in (profile, temporary, other):
        folder.mkdir()
    (other / "kept").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    made = make_temporary_folder(profile)
    made.rmdir()
    made.symlink_to(other)

    remove_temporary_folder(profile)

    assert (other / "kept").exists()
