"""For any schema and arguments, an answer comes soon, in little memory, and says what to change."""

import json
import re
import subprocess
import sys

import pytest

from tests.proxy.engines import Redis, one_redis
from tests.running import ROOT

from .bombs import BOMBS
from .entry_points import ENTRY_POINTS

__all__ = ["one_redis"]

DEADLINE = 120.0  # seconds for all entry points together: generous, for a machine that has more to do
SECONDS = 5.0  # of the processor's time, for one entry point with everything around it
MEMORY = 300 << 10  # KiB
OF_NODES = "bytes to describe"  # how nodes are refused a description of more than 16 KiB


@pytest.mark.parametrize("name", BOMBS)
def test_it_is_refused_at_every_entry_point_with_a_sentence(one_redis: Redis, name: str) -> None:
    words = (sys.executable, "-m", "tests.tools.schemas.entry_points", name, one_redis.url)
    result = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=DEADLINE, check=False)
    *results, memory = [json.loads(line) for line in result.stdout.splitlines()] or [None]
    assert result.returncode == 0, (results, memory, result.returncode, result.stderr[-2000:])
    assert [entry_point for entry_point, _, _ in results] == [entry_point.__name__ for entry_point in ENTRY_POINTS]
    for entry_point, answer, seconds in results:
        assert re.search(BOMBS[name].says, answer) or (entry_point == "described_by_a_node" and OF_NODES in answer), (
            entry_point,
            answer,
        )
        assert seconds < SECONDS, (entry_point, seconds)
    assert memory[1] < MEMORY
