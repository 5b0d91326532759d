"""Files of ours that can't be opened."""

from pathlib import Path

import pytest

from openclaw_mcp.net.files import StateBroken, open_to_append


def test_a_file_that_may_not_even_be_looked_at_is_an_error_with_its_name(tmp_path: Path) -> None:
    """As in a folder of another user, which tests of root can't make."""
    path = tmp_path / ("x" * 300)

    with pytest.raises(StateBroken, match=r"x can't be opened: File name too long"):
        open_to_append(path)
