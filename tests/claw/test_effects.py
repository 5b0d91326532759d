"""The side-effects file: whole lines whatever happens, and a reader that takes what is usable."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_mcp.core.effects import RunEffects, SentMessage
from openclaw_mcp.net.side_effects_file import CannotRecord, EffectsFile, read_effects


def written(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_sent_message_is_the_line_the_protocol_shows(tmp_path: Path) -> None:
    path = tmp_path / "effects.ndjson"
    file = EffectsFile(path, provider="telegram", account="bot")

    file.record_messages([SentMessage(tool="message", to="group:123", text="Hello")])

    (line,) = written(path)
    assert list(line) == ["type", "tool", "provider", "accountId", "to", "text", "mediaUrl", "ts"]
    assert line.pop("ts")
    assert line == {
        "type": "message_sent",
        "tool": "message",
        "provider": "telegram",
        "accountId": "bot",
        "to": "group:123",
        "text": "Hello",
        "mediaUrl": None,
    }
    assert path.read_bytes().endswith(b"}\n")


def test_what_is_empty_is_left_out_but_text_and_media(tmp_path: Path) -> None:
    path = tmp_path / "effects.ndjson"
    file = EffectsFile(path)

    file.record_messages([SentMessage(tool="sessions_send")])
    file.record_cron_job("job-xyz")
    file.record_cron_job(None)

    assert [list(line) for line in written(path)] == [
        ["type", "tool", "provider", "text", "mediaUrl", "ts"],
        ["type", "jobId", "ts"],
        ["type", "ts"],
    ]


def test_the_file_is_private_and_made_by_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "effects.ndjson"
    file = EffectsFile(path)
    assert not path.exists()

    file.record_cron_job("one")

    assert path.stat().st_mode & 0o777 == 0o600


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "effects.ndjson"
    EffectsFile(path).record_messages([SentMessage(tool="message_send", text="first")])
    with path.open("ab") as torn:
        torn.write(b'{"type":"message_sent","tool":"mess')

    EffectsFile(path).record_messages([SentMessage(tool="message_send", text="second")])

    effects = read_effects(path)
    assert effects.texts == ("first", "second")
    assert effects.skipped == 1


def test_a_last_line_without_its_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "effects.ndjson"
    path.write_bytes(b'{"type":"cron_added","jobId":"a","ts":1}\n{"type":"message_sent","tool":"t","text":"x","ts":2}')

    effects = read_effects(path)

    assert (len(effects.cron_added), effects.texts) == (1, ("x",))


@pytest.mark.parametrize(
    "bad",
    [
        "null",
        "[]",
        "7",
        '"x"',
        "{",
        "{}",
        '{"type":5}',
        '{"type":"message_sent","text":5}',
        '{"type":"other"}',
        "\ufffd",
    ],
)
def test_a_bad_line_is_skipped_and_its_neighbours_are_not(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "effects.ndjson"
    good = '{"type":"message_sent","tool":"message_send","provider":"","text":"kept","mediaUrl":"u","ts":1}'
    path.write_text(f"{good}\n{bad}\n\n{good}\n", encoding="utf-8")

    effects = read_effects(path)

    assert effects.texts == ("kept", "kept")
    assert effects.media_urls == ("u", "u")
    assert effects.skipped == 1


def test_no_file_is_no_effects(tmp_path: Path) -> None:
    assert read_effects(tmp_path / "nothing") == RunEffects()
    assert read_effects(tmp_path) == RunEffects()


def test_a_file_that_cannot_be_written_is_found_out_before_the_effect(tmp_path: Path) -> None:
    file = EffectsFile(tmp_path / "missing" / "effects.ndjson")

    with pytest.raises(CannotRecord, match="No such file"):
        file.ensure_open()


@given(st.lists(st.text(max_size=60) | st.sampled_from(["\n", "\u2028", '"', "\\", "\x00"]), max_size=20))
def test_any_text_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("effects") / "effects.ndjson"
    file = EffectsFile(path)
    for text in texts:
        file.record_messages([SentMessage(tool="message_send", to="room", text=text)])
    file.close()

    assert list(read_effects(path).texts) == texts


@given(st.binary(max_size=300))
def test_the_reader_survives_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("effects") / "effects.ndjson"
    path.write_bytes(data)
    EffectsFile(path).record_messages([SentMessage(tool="message_send", text="after all that")])

    assert read_effects(path).texts[-1] == "after all that"


FILL = """
import sys
from openclaw_mcp.core.effects import SentMessage
from openclaw_mcp.net.side_effects_file import EffectsFile
file = EffectsFile(sys.argv[1])
for number in range(200):
    file.record_messages([SentMessage(tool="message_send", to=sys.argv[2], text=f"{number} " + "x" * 3000)])
"""


def test_servers_that_share_a_file_never_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "effects.ndjson"
    writers = [subprocess.Popen([sys.executable, "-c", FILL, str(path), str(who)]) for who in range(3)]
    for writer in writers:
        assert writer.wait(60) == 0

    effects = read_effects(path)

    assert (len(effects.sent), effects.skipped) == (600, 0)
    for who in range(3):
        own = [int(sent.text.split()[0]) for sent in effects.sent if sent.to == str(who)]
        assert own == list(range(200))
