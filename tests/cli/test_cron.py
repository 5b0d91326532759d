"""`openclaw cron`: what a person types, and what they read."""

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from ..gateway.wiring.gateways import serving
from ..gateway.wiring.test_gateway import WAIT, Served, environment
from ..running import OPENCLAW


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("state"), TZ="America/New_York") as gateway:
        yield gateway


def ran(served: Served, *words: str, zone: str = "America/New_York") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [OPENCLAW, "cron", *words, "--port", served.port],
        env=environment(served.folder, TZ=zone),
        capture_output=True,
        text=True,
        timeout=WAIT * 2,
        check=False,
    )


def cron(served: Served, *words: str, fails: int = 0) -> str:
    result = ran(served, *words)
    assert result.returncode == fails, (words, result.stdout, result.stderr)
    return result.stderr if fails else result.stdout


def read_json(served: Served, *words: str) -> Any:
    return json.loads(cron(served, *words, "--json"))


def test_a_new_job_shows_its_next_five_times_in_its_own_zone(served: Served) -> None:
    output = cron(served, "add", "--name", "morning", "--cron", "30 9 * * 1-5", "--tz", "Asia/Tokyo", "--message", "hi",
                "--no-deliver")  # fmt: skip
    times = re.findall(r"^    (Mon|Tue|Wed|Thu|Fri) \d{4}-\d\d-\d\d 09:30:00 JST$", output, re.MULTILINE)
    assert len(times) == 5
    assert re.findall(r"^    .* JST$", cron(served, "list"), re.MULTILINE)[:5] == output.splitlines()[1:6]
    job = read_json(served, "get", "morning")
    assert job["schedule"] == {"kind": "cron", "expr": "30 9 * * 1-5", "tz": "Asia/Tokyo"}
    assert job["delivery"] == {"mode": "none"}
    edited = read_json(
        served, "edit", job["id"][:8], "--every", "1h30m", "--announce", "--channel", "telegram", "--to", "7"
    )
    assert edited["schedule"]["everyMs"] == 5_400_000
    assert edited["delivery"] == {"mode": "announce", "channel": "telegram", "to": "7"}
    assert len(cron(served, "get", "morning").splitlines()) == 6
    assert re.search(r"morning .*\[announce -> telegram:7\]", cron(served, "list"))
    assert "[disabled]" in cron(served, "disable", "morning")
    assert "morning" not in cron(served, "list")
    assert "morning" in cron(served, "list", "--all")
    assert cron(served, "rm", "morning") == "removed\n"


def test_a_job_without_a_zone_is_in_the_gateways(served: Served) -> None:
    printed = cron(served, "add", "--name", "local", "--cron", "0 9 1 7 *", "--message", "x", "--no-deliver")
    assert re.search(r"-07-01 09:00:00 EDT", printed)
    once = read_json(served, "add", "--at", "2030-07-01T09:00", "--tz", "Europe/Vienna", "--system-event", "tea")
    assert once["schedule"]["at"] == "2030-07-01T07:00:00.000Z"
    assert (once["sessionTarget"], once["name"]) == ("main", "tea")
    soon = read_json(served, "add", "--at", "20m", "--command", "true", "--webhook", "https://example.com/x")
    assert 19 * 60_000 < soon["nextRunAtMs"] - soon["createdAtMs"] <= 20 * 60_000
    assert soon["payload"]["argv"] == ["sh", "-lc", "true"]


def test_in_another_zone_than_the_gateways_no_time_is_shown_at_which_a_job_does_not_run(served: Served) -> None:
    cron(served, "add", "--name", "nine", "--cron", "0 9 * * *", "--message", "x", "--no-deliver")
    for zone, shown in (("America/New_York", 5), ("Asia/Tokyo", 1)):
        times = ran(served, "get", "nine", zone=zone).stdout.splitlines()[1:]
        hours = {line.split()[2].partition(":")[0] for line in times}
        assert len(times) == shown
        assert hours <= ({"09"} if zone == "America/New_York" else {"22", "23"})
    cron(served, "rm", "nine")


def test_times_are_taken_as_people_say_them_and_shown_in_the_jobs_zone(served: Served) -> None:
    printed = cron(served, "add", "--at", "tomorrow 9am", "--tz", "Asia/Tokyo", "--message", "x", "--no-deliver")
    assert re.search(r"\(at \w{3} \d{4}-\d\d-\d\d 09:00:00 JST\)", printed), printed
    assert re.search(r"^    \w{3} \d{4}-\d\d-\d\d 09:00:00 JST$", printed, re.MULTILINE)
    here = cron(served, "add", "--at", "18:00", "--message", "x", "--no-deliver")
    assert re.search(r"\(at \w{3} \S+ 18:00:00 E[SD]T\)", here), here
    assert (
        read_json(served, "add", "--every", "10 minutes", "--message", "x", "--no-deliver")["schedule"]["everyMs"]
        == 600_000
    )


def test_a_zone_or_a_delay_alone_changes_the_schedule_there_is(served: Served) -> None:
    read_json(
        served,
        "add",
        "--name",
        "moved",
        "--cron",
        "30 9 * * *",
        "--tz",
        "Asia/Tokyo",
        "--message",
        "hi",
        "--no-deliver",
    )
    assert " 09:30:00 CE" in cron(served, "edit", "moved", "--tz", "Europe/Vienna")
    edited = read_json(served, "edit", "moved", "--stagger", "30s")
    expected = {"kind": "cron", "expr": "30 9 * * *", "tz": "Europe/Vienna", "staggerMs": 30_000}
    assert edited["schedule"] == expected
    assert read_json(served, "edit", "moved", "--exact")["schedule"] == expected | {"staggerMs": 0}
    read_json(served, "add", "--name", "beat", "--every", "1h", "--message", "hi", "--no-deliver")
    assert "this job has none" in cron(served, "edit", "beat", "--tz", "UTC", fails=1)


def test_a_run_can_be_waited_for_and_read_about(served: Served) -> None:
    read_json(served, "add", "--name", "good", "--every", "1d", "--message", "!say all is well", "--no-deliver")
    read_json(served, "add", "--name", "bad", "--every", "1d", "--message", "!fail no luck", "--no-deliver")
    assert "all is well" in cron(served, "run", "good", "--wait")
    cron(served, "run", "bad", "--wait", fails=1)
    assert "not run: not-due" in cron(served, "run", "good", "--due")
    printed = cron(served, "runs")
    assert re.search(r"  ok +good .*\n    all is well", printed)
    assert re.search(r"  error +bad .*\n    no luck", printed)
    assert read_json(served, "runs", "good")["total"] == 1
    assert "begun: manual:" in (output := cron(served, "run", "good"))
    assert len(output.splitlines()) == 6  # with its next five times
    assert "last error: no luck" in cron(served, "list")
    assert re.match(r"on; \d+ jobs; the next is due ", cron(served, "status"))


def test_a_result_for_a_channel_that_is_not_there_is_warned_of_and_fails_with_the_reason(served: Served) -> None:
    words = ("--name", "lost", "--every", "1d", "--message", "!say all is well", "--announce")
    result = ran(served, "add", *words, "--channel", "telegram", "--to", "7", "--json")
    assert json.loads(result.stdout)["delivery"]["channel"] == "telegram"
    warning = "no channel telegram is configured now; results can't be delivered until there is"
    assert result.stderr == f"openclaw cron: {warning}\n"
    assert warning in ran(served, "edit", "lost", "--to", "telegram:8").stderr
    assert ran(served, "edit", "lost", "--channel", "local", "--to", "main").stderr == ""
    cron(served, "edit", "lost", "--channel", "telegram", "--to", "7")
    cron(served, "run", "lost", "--wait", fails=1)
    assert re.search(
        r"  error +lost .*not-delivered\)\n    .*telegram.*\n    all is well", cron(served, "runs", "lost")
    )
    assert re.search(r"lost .*\[last error: .*telegram", cron(served, "list"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add", "--message", "x"), "give one time of firing"),
        (("add", "--every", "1h"), "give one kind of work"),
        (("add", "--every", "1h", "--at", "2m", "--message", "x"), "give one time of firing"),
        (("add", "--every", "soon", "--message", "x"), "'soon' is no duration"),
        (("add", "--at", "tomorrow", "--message", "x"), "--at 'tomorrow' is no time; it has no time of day"),
        (("add", "--at", "whenever", "--message", "x"), "--at 'whenever' is no time; write 18:00"),
        (("add", "--every", "1h", "--tz", "UTC", "--message", "x"), "--tz goes with --cron and --at"),
        (("add", "--cron", "61 * * * *", "--message", "x"), "bad minute"),
        (("add", "--every", "1h", "--message", "x", "--no-deliver", "--to", "1"), "one of them"),
        (("edit", "nothing", "--every", "1h"), "cron job not found: nothing"),
        (("get", "nothing"), "cron job not found: nothing"),
    ],
)
def test_a_mistake_is_reported_in_one_sentence(served: Served, words: tuple[str, ...], message: str) -> None:
    printed = cron(served, *words, fails=1)
    assert printed.startswith("openclaw cron: ")
    assert message in printed
    assert len(printed.splitlines()) == 1
