"""Whatever schema or arguments somebody sends, an answer comes soon, in little memory, and says what to change."""

import json
import re
import subprocess
import sys

import pytest

from tests.proxy.engines import Redis, one_redis
from tests.running import ROOT

from .bombs import BOMBS
from .doors import DOORS

__all__ = ["one_redis"]

DEADLINE = 120.0  # seconds for all doors together: generous, for a machine that has more to do
SECONDS = 5.0  # of the processor's time, for one door with everything around it
MEMORY = 300 << 10  # KiB
OF_NODES = "bytes to describe"  # how nodes are refused a description of more than 16 KiB


@pytest.mark.parametrize("name", BOMBS)
def test_it_is_refused_at_every_door_with_a_sentence(one_redis: Redis, name: str) -> None:
    words = (sys.executable, "-m", "tests.tools.schemas.doors", name, one_redis.url)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=DEADLINE, check=False)
    *doors, memory = [json.loads(line) for line in done.stdout.splitlines()] or [None]
    assert done.returncode == 0, (doors, memory, done.returncode, done.stderr[-2000:])
    assert [door for door, _, _ in doors] == [door.__name__ for door in DOORS]
    for door, said, seconds in doors:
        assert re.search(BOMBS[name].says, said) or (door == "described_by_a_node" and OF_NODES in said), (door, said)
        assert seconds < SECONDS, (door, seconds)
    assert memory[1] < MEMORY
