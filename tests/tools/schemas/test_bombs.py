"""For any schema and arguments, an answer comes soon, in little memory, and says what to change."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.proxy.engines import Redis, one_redis
from tests.running import ROOT

from .bombs import BOMBS
from .entry_points import ENTRY_POINTS

__all__ = ["one_redis"]

SECONDS = 5.0  # of the processor's time, for one entry point with everything around it
MEMORY = 300 << 10  # KiB
OF_NODES = "bytes to describe"  # how nodes are refused a description of more than 16 KiB


class Attempts:
    """The program that has a process attempt each bomb it is told."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program

    def results(self, name: str) -> list[list[Any]]:
        """What the process for one bomb printed, and its exit code."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(name + "\n")
        self._program.stdin.flush()
        results: list[list[Any]] = []
        while not results or results[-1][0] != "exit":
            results.append(json.loads(self._program.stdout.readline()))
        return results


@pytest.fixture(scope="module")
def attempts(one_redis: Redis) -> Iterator[Attempts]:
    words = (sys.executable, "-m", "tests.tools.schemas.entry_points", one_redis.url)
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        yield Attempts(program)
    assert program.returncode == 0


@pytest.mark.parametrize("name", BOMBS)
def test_it_is_refused_at_every_entry_point_with_a_sentence(attempts: Attempts, name: str) -> None:
    *results, memory, code = attempts.results(name)
    assert code == ["exit", 0], results
    assert [entry_point for entry_point, _, _ in results] == [entry_point.__name__ for entry_point in ENTRY_POINTS]
    for entry_point, answer, seconds in results:
        assert re.search(BOMBS[name].says, answer) or (entry_point == "described_by_a_node" and OF_NODES in answer), (
            entry_point,
            answer,
        )
        assert seconds < SECONDS, (entry_point, seconds)
    assert memory[1] < MEMORY
