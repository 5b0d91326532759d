"""A remembered answer is judged by files as they are when a text starts: it holds for what starts first, not for what
starts after others of the same text."""

import json
from pathlib import Path

import pytest

from .evaluating import script
from .test_always import PLAIN_PATH, Machine

ALLOWED = [{"pattern": pattern, "action": "allow"} for pattern in ("ls *", "echo *", "true", "find *", "sudo *")]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Where `python3 script.py` was said always to, and yes to `git pull` and `make`."""
    monkeypatch.setenv("PATH", PLAIN_PATH)
    machine = Machine(tmp_path)
    for text in ("python3 script.py", "make", "git pull"):
        machine.run("sh", "-c", text)
        machine.run(*text.split())
    path = machine.state / "exec-policy.json"
    policy = json.loads(path.read_text())
    path.write_text(json.dumps(policy | {"rules": [*policy["rules"], *ALLOWED]}))
    return machine


LATER = """
    ls -lR / >/dev/null; python3 script.py
    ls && python3 script.py
    ls || python3 script.py
    ls & python3 script.py
    true; make
    echo x; (python3 script.py)
    (ls; python3 script.py)
    (ls; python3 script.py) | cat
    echo x | (ls; python3 script.py)
    ls | cat; python3 script.py | cat
    git pull && make
    git pull; python3 script.py
    echo $(ls -R /; python3 script.py)
    echo $(ls -R /) | python3 script.py
    echo `ls -R /` | python3 script.py
    echo $(ls -R /) $(python3 script.py)
    echo "$(ls -R /)$(python3 script.py)"
    echo `ls -R /` "`python3 script.py`"
    echo $(echo $(ls -R /) $(python3 script.py))
    ls $(git pull) $(make)
    ls; timeout 5 python3 script.py
    ls; sh -c 'python3 script.py'
    timeout 5 sh -c 'ls; python3 script.py'
    ls -R / | xargs -I@ python3 script.py
    xargs -I@ python3 script.py
    find / -name x -exec python3 script.py ;
    find / -name x -exec nice python3 script.py ;
    sudo -n python3 script.py
"""


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("text", _lines(LATER))
def test_an_answer_does_not_hold_for_what_starts_after_others(machine: Machine, text: str) -> None:
    assert machine.run("sh", "-c", text.replace(" ;", r" \;")) == 1
    assert not machine.asked[-1].always


@pytest.mark.parametrize("text", ["find / -exec python3 script.py ;", "xargs -I@ python3 script.py"])
def test_nor_where_no_shell_starts_it(machine: Machine, text: str) -> None:
    assert machine.run(*text.split()) == 1
    assert not machine.asked[-1].always


FIRST = """
    python3 script.py
    python3 script.py; ls
    python3 script.py && ls || echo x
    (python3 script.py; ls)
    echo $(python3 script.py) $(ls)
    ls `python3 script.py`
    python3 script.py | cat
    ls | python3 script.py
    ls | cat | python3 script.py
    (ls; echo x) | python3 script.py
    timeout 5 python3 script.py
    sh -c 'python3 script.py; ls'
"""


@pytest.mark.parametrize("text", _lines(FIRST))
def test_it_holds_for_what_starts_first_or_with_the_first(machine: Machine, text: str) -> None:
    machine.run("sh", "-c", "ls | cat")

    assert machine.run("sh", "-c", text) == 0


def test_what_only_reads_and_a_rule_by_hand_hold_anywhere_in_a_text(machine: Machine) -> None:
    path = machine.state / "exec-policy.json"
    machine.run("sh", "-c", "ls; cat a.txt")
    assert machine.run("sh", "-c", "ls; cat a.txt") == 0

    by_hand = {"pattern": "python3 script.py", "action": "allow", "cwd": str(machine.here.resolve())}
    path.write_text(json.dumps({"defaultAction": "prompt", "rules": [by_hand, *ALLOWED]}))
    assert machine.run("sh", "-c", "ls; python3 script.py") == 0
    assert machine.run("sh", "-c", "ls; python3 script.py", cwd=machine.there) == 1


@pytest.mark.parametrize("text", ["ls; some-program x", "make; make", "python3 script.py; python3 sub/x.py"])
def test_always_is_not_offered_for_what_would_not_hold(machine: Machine, text: str) -> None:
    script(machine.here / "x")

    assert machine.run("sh", "-c", text) == 1
    assert not machine.asked[-1].always
