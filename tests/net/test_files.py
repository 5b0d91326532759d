"""Files of ours that can't be opened."""

import os
from pathlib import Path

import pytest

from openclaw_mcp.net.files import StateBroken, open_to_append, read_if_exists


def test_a_file_that_may_not_even_be_looked_at_is_an_error_with_its_name(tmp_path: Path) -> None:
    """As in a folder of another user, which tests of root can't make."""
    path = tmp_path / ("x" * 300)

    with pytest.raises(StateBroken, match=r"x can't be opened: File name too long"):
        open_to_append(path)


def test_a_pipe_in_the_place_of_a_state_file_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "openclaw.json")
    (tmp_path / "link").symlink_to(tmp_path / "openclaw.json")
    for name in ("openclaw.json", "link"):
        with pytest.raises(StateBroken, match=f"{name} is no file; move it away"):
            read_if_exists(tmp_path / name)


def test_a_state_file_kept_elsewhere_is_read_through_its_link(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"{}")
    (tmp_path / "openclaw.json").symlink_to(tmp_path / "kept")
    assert read_if_exists(tmp_path / "openclaw.json") == b"{}"
    assert read_if_exists(tmp_path / "absent") is None
