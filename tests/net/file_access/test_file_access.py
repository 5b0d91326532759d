"""The one rule about files that leave, asked directly: every way to name a file, links and races included."""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openclaw_mcp.config.file import ConfigFile
from openclaw_mcp.config.roster import roster_from_config
from openclaw_mcp.gateway.channels.action_context import ActionContext
from openclaw_mcp.gateway.wiring.file_rules import FileRules, secret_files
from openclaw_mcp.net.file_access import FileAccess, FileOutside, FileRefused, read_file, sendable_folders

from .folders import PLAN, SECRET, Ground

MOST = 1 << 20
TOKEN = "0123456789abcdef" * 4
STRANGER = ActionContext(agent="main", bound=True)
OWNER = ActionContext(agent="main", bound=True, owner=True)
OPERATOR = ActionContext(owner=True)
RACE = 1.5  # seconds of each race: one that reads what it judged by name loses two or three in a second


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    prepared = Ground(tmp_path)
    prepared.configure()
    prepared.token.write_text(TOKEN)
    prepared.plant()
    return prepared


def rules(ground: Ground, **config: object) -> FileRules:
    agents = [{"id": "main", "workspace": str(ground.work)}, {"id": "b", "workspace": str(ground.other)}]
    file = ConfigFile(ground.state, key=TOKEN.encode())
    snapshot = file.parse_snapshot(json.dumps({"agents": {"list": agents}, **config}))
    roster = roster_from_config(snapshot.config)
    return FileRules(state=ground.state, roster=lambda: roster, snapshot=lambda: snapshot, token=TOKEN)


def read_or_none(place: str, access: FileAccess) -> bytes | None:
    try:
        return read_file(place, access, max_bytes=MOST).data
    except FileRefused as exc:
        assert SECRET not in str(exc)
        assert TOKEN not in str(exc)
        return None


@pytest.mark.parametrize("asker", [STRANGER, OWNER, OPERATOR, ActionContext(agent="main")])
def test_files_of_the_workspace_may_leave(ground: Ground, asker: ActionContext) -> None:
    access = rules(ground).access_for(asker)
    read = {name: read_or_none(place, access) for name, place in ground.mine().items()}
    assert read == dict.fromkeys(ground.mine(), PLAN.encode())


def test_nothing_else_leaves_for_a_stranger(ground: Ground) -> None:
    access = rules(ground).access_for(STRANGER)
    assert {name: data for name, place in ground.refused().items() if (data := read_or_none(place, access))} == {}


@pytest.mark.parametrize("asker", [OWNER, OPERATOR, ActionContext(agent="main"), ActionContext()])
def test_what_is_the_gateways_own_is_never_sent(ground: Ground, asker: ActionContext) -> None:
    access = rules(ground).access_for(asker)
    assert {name: data for name, place in ground.secrets().items() if (data := read_or_none(place, access))} == {}


def test_the_owner_may_send_from_every_workspace_and_hidden_files_of_it(ground: Ground) -> None:
    access = rules(ground).access_for(OWNER)
    for name in ("another agent's", "hidden", "hidden folder"):
        assert read_or_none(ground.not_mine()[name], access) == SECRET.encode(), name
    outside = {name: place for name, place in ground.not_mine().items() if "outside" in name}
    assert {name: data for name, place in outside.items() if (data := read_or_none(place, access))} == {}


def test_whoever_asks_for_no_agent_known_has_no_workspace(ground: Ground) -> None:
    access = rules(ground).access_for(ActionContext(bound=True, agent="nobody"))
    assert access.folders == ()
    assert read_or_none(f"{ground.work}/plan.txt", access) is None
    assert read_file(f"{ground.state}/media/plan.txt", access, max_bytes=MOST).data == PLAN.encode()
    with pytest.raises(FileOutside, match="no folder only"):
        read_file("plan.txt", FileAccess(), max_bytes=MOST)


def test_whether_a_file_outside_exists_is_not_revealed(ground: Ground) -> None:
    access, reasons = rules(ground).access_for(STRANGER), set()
    for place in (str(ground.outside), f"{ground.outside}.not", f"{ground.work}/link.txt", "/root/.ssh", "/no/such"):
        with pytest.raises(FileOutside) as refused:
            read_file(place, access, max_bytes=MOST)
        reasons.add(str(refused.value))
    assert len(reasons) == 1


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("", "that is no path"),
        ("  ", "that is no path"),
        ("a\0b", "that is no path"),
        ("file:///a%00b", "that is no path"),
        ("x" * 4097, "at most 4096 characters"),
        ("x" * 4096, "can't be read"),
        ("\ud800", "characters no file name can have"),
        ("file:plan.txt", "names a whole path"),
        ("file:", "names a whole path"),
        ("file://", "names a whole path"),
        ("file://elsewhere{work}/plan.txt", "a path of this machine"),
        ("file://localhost.example{work}/plan.txt", "a path of this machine"),
        ("nothing.txt", "there is no file nothing.txt"),
        ("sub/nothing/nothing.txt", "there is no file nothing.txt"),
        ("plan.txt/x", "x can't be read; it must be a plain file of its folder"),
        ("pipe", "pipe is no file"),
        ("socket", "socket is no file"),
        ("sub", "sub is no file"),
        (".", "work is no file"),
        ("hard.txt", "a second name"),
        (".env", "begins with a dot, which only the owner may send"),
        (".git/config", "begins with a dot"),
        ("copied.json", "holds a token of the gateway"),
        ("../vault/outside.txt", "files are sent from {work}, {state}/media only"),
        ("/proc/version", "files are sent from"),
    ],
)
def test_a_refusal_says_what_is_wrong(ground: Ground, place: str, words: str) -> None:
    def filled(text: str) -> str:
        return text.replace("{work}", str(ground.work)).replace("{state}", str(ground.state))

    access = FileAccess(folders=(ground.work, ground.state / "media"), secret_texts=(TOKEN.encode(),))
    with pytest.raises(FileRefused, match=re.escape(filled(words))):
        read_file(filled(place), access, max_bytes=MOST)


def test_a_file_is_of_the_nearest_folder_it_may_be_sent_from(ground: Ground) -> None:
    """Relative paths begin at the first folder, and a folder that is named may itself be hidden."""
    for folders in ((ground.work, ground.work / ".git"), (ground.work / ".git", ground.work)):
        access = FileAccess(folders=folders)
        assert read_or_none(f"{ground.work}/.git/config", access) == SECRET.encode()
        assert read_or_none(f"{ground.work}/.env", access) is None
        assert read_or_none("config", access) == (None if folders[0] == ground.work else SECRET.encode())
        assert read_or_none("plan.txt", access) == (None if folders[0] != ground.work else PLAN.encode())
    found = read_file("sub/deep plan.txt", FileAccess(folders=(ground.work,)), max_bytes=MOST)
    assert (found.name, found.path) == ("deep plan.txt", ground.work / "sub" / "deep plan.txt")


# ---- what is the gateway's own ---------------------------------------------------------------------------------------


def test_a_folder_to_send_from_that_is_a_secret_or_a_state_directory_is_none(ground: Ground) -> None:
    sub = ground.work / "sub"
    assert read_or_none("deep plan.txt", FileAccess(folders=(sub,), secrets=(sub,))) is None
    for secret in (sub, sub / "deep plan.txt", sub / "not there"):
        left = read_or_none("sub/deep plan.txt", FileAccess(folders=(ground.work,), secrets=(secret, ground.state)))
        assert left == (PLAN.encode() if secret.name == "not there" else None)
    assert read_or_none("openclaw.json", FileAccess(folders=(ground.state,))) is None
    (sub / "gateway-token.txt").symlink_to("not there")  # whatever it is: a gateway's folder has this name in it
    assert read_or_none("sub/deep plan.txt", FileAccess(folders=(ground.work,))) is None


def test_the_state_directory_inside_a_workspace_stays_closed(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.token.write_text(TOKEN)
    ground.configure()
    ground.work = tmp_path  # the state directory and all the rest lie in it
    for asker in (STRANGER, OWNER, OPERATOR):
        access = rules(ground).access_for(asker)
        assert read_or_none(str(ground.outside), access) == SECRET.encode()
        for place in ("state/openclaw.json", "state/gateway-token.txt", "./vault/../state/openclaw.json"):
            assert read_or_none(place, access) is None, place
        assert read_or_none(f"{ground.state}/media/plan.txt", access) == PLAN.encode()


@pytest.mark.parametrize("place", [".", "runs", "channels", "canvas/files", "mediation", "workspaces.d"])
def test_a_workspace_that_is_the_gateways_own_folder_is_none(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "state" / place
    folder.mkdir(parents=True)
    (folder / "x.txt").write_text(SECRET)
    assert sendable_folders([folder], tmp_path / "state") == ()


@pytest.mark.parametrize("place", ["workspace", "workspaces/main", "workspace-main", "media", "media/pictures"])
def test_a_workspace_may_lie_in_the_state_directory_where_workspaces_lie(tmp_path: Path, place: str) -> None:
    assert sendable_folders([tmp_path / place], tmp_path) == (tmp_path / place,)


def test_another_gateways_state_directory_stays_closed_too(ground: Ground) -> None:
    another = ground.work / "deploy"
    another.mkdir()
    for name in ("gateway-token.txt", "openclaw.json"):
        (another / name).write_text(SECRET)
    for asker in (STRANGER, OWNER):
        assert read_or_none("deploy/openclaw.json", rules(ground).access_for(asker)) is None
        assert read_or_none("deploy/gateway-token.txt", rules(ground).access_for(asker)) is None


def test_files_the_config_keeps_secrets_in_stay_closed_wherever_they_lie(ground: Ground) -> None:
    names = ("bot.txt", "key.txt", "store.db", "store.db-wal", "kept.json")
    for name in names:
        (ground.work / name).write_text(SECRET)
    (ground.state / "openclaw.json").unlink()
    (ground.state / "openclaw.json").symlink_to(ground.work / "kept.json")
    key = {"source": "file", "path": str(ground.work / "key.txt"), "id": "value"}
    config = {
        "channels": {"telegram": {"accounts": {"a": {"tokenFile": str(ground.work / "bot.txt")}}}},
        "models": {"providers": {"x": {"apiKey": [key]}}},
        "store": {"url": str(ground.work / "store.db")},
    }
    assert list(map(str, secret_files(config))) == [f"{ground.work}/bot.txt", f"{ground.work}/key.txt"]
    for asker in (STRANGER, OWNER, OPERATOR):
        access = rules(ground, **config).access_for(asker)
        assert {name: data for name in names if (data := read_or_none(name, access))} == {}
        assert read_or_none("plan.txt", access) == PLAN.encode()


def test_the_folders_made_for_files_to_send_are_no_links(ground: Ground) -> None:
    """A user who can write in the temporary directory could else make all of this machine such a folder."""
    link = ground.folder / "openclaw"
    link.symlink_to(ground.outside.parent)
    assert read_or_none(f"{link}/outside.txt", FileAccess(own_folders=(link,))) is None
    assert read_or_none(str(ground.outside), FileAccess(own_folders=(link,))) is None
    assert read_or_none(f"{ground.other}/outside.txt", FileAccess(own_folders=(ground.other,))) == SECRET.encode()


def test_the_folders_made_for_files_to_send_are_there_and_ours(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileOutside, match="no folder only"):
        read_file(
            f"{ground.folder}/not there/x", FileAccess(own_folders=(ground.folder / "not there",)), max_bytes=MOST
        )
    for no_folder in (ground.work / "inner", ground.work / "plan.txt"):
        with pytest.raises(FileOutside, match="no folder only"):
            read_file(f"{no_folder}/x", FileAccess(own_folders=(no_folder,)), max_bytes=MOST)
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    assert read_or_none(f"{ground.other}/outside.txt", FileAccess(own_folders=(ground.other,))) is None
    assert read_or_none(f"{ground.other}/outside.txt", FileAccess(folders=(ground.other,))) == SECRET.encode()


def test_a_workspace_that_is_a_link_is_the_folder_it_leads_to(ground: Ground) -> None:
    link = ground.folder / "shortcut"
    link.symlink_to(ground.work)
    for place in ("plan.txt", f"{link}/plan.txt", f"{ground.work}/plan.txt"):
        assert read_or_none(place, FileAccess(folders=(link,))) == PLAN.encode()
    assert read_or_none(f"{link}/link.txt", FileAccess(folders=(link,))) is None


def test_kernel_files_do_not_leave_where_a_folder_holds_them() -> None:
    everything = FileAccess(folders=(Path("/"),), allows_hidden=True)
    for place in ("/proc/self/environ", "/proc/version", "/sys/kernel/notes", "/dev/null", "/tmp/../proc/version"):
        assert read_or_none(place, everything) is None, place
        if "tmp" not in place:
            with pytest.raises(FileOutside):
                read_file(place, everything, max_bytes=MOST)
    with pytest.raises(FileRefused, match="no file of a disk"):
        read_file("/tmp/../proc/version", everything, max_bytes=MOST)
    assert read_or_none("/etc/passwd", everything)


def test_a_file_has_a_size(ground: Ground) -> None:
    access = rules(ground).access_for(STRANGER)
    assert read_file("plan.txt", access, max_bytes=len(PLAN)).data == PLAN.encode()
    with pytest.raises(FileRefused, match=f"larger than {len(PLAN) - 1} bytes"):
        read_file("plan.txt", access, max_bytes=len(PLAN) - 1)


def test_a_folder_that_may_only_be_passed_through_is_passed_through(ground: Ground) -> None:
    (ground.work / "sub").chmod(0o711)
    assert read_or_none("sub/deep plan.txt", rules(ground).access_for(STRANGER)) == PLAN.encode()


def test_no_descriptor_is_left_open(ground: Ground) -> None:
    access = rules(ground).access_for(STRANGER)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for place in (*ground.mine().values(), *ground.refused().values()):
        read_or_none(place, access)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# ---- races -----------------------------------------------------------------------------------------------------------


@contextmanager
def flipping(place: Path, other: Path) -> Iterator[None]:
    """`place` and `other` change places as fast as it goes."""
    stop, aside = threading.Event(), place.with_name("aside")

    def flip() -> None:
        while not stop.is_set():
            place.rename(aside)
            other.rename(place)
            place.rename(other)
            aside.rename(place)

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _file_to_link(ground: Ground) -> tuple[Path, Path, str]:
    good, bad = ground.work / "sub" / "good", ground.work / "sub" / "bad"
    good.write_text(PLAN)
    bad.symlink_to(ground.outside)
    return good, bad, "sub/flip"


def _folder_to_link(ground: Ground) -> tuple[Path, Path, str]:
    good, bad = ground.work / "sub" / "good", ground.work / "sub" / "bad"
    good.mkdir()
    (good / "outside.txt").write_text(PLAN)
    bad.symlink_to(ground.outside.parent)
    return good, bad, "sub/flip/outside.txt"


def _link_to_link(ground: Ground) -> tuple[Path, Path, str]:
    good, bad = ground.work / "sub" / "good", ground.work / "sub" / "bad"
    good.symlink_to(ground.work / "plan.txt")
    bad.symlink_to(ground.token)
    return good, bad, "sub/flip"


def _folder_to_state(ground: Ground) -> tuple[Path, Path, str]:
    good, bad = ground.work / "sub" / "good", ground.work / "sub" / "bad"
    good.mkdir()
    (good / "gateway-token.txt.bak").write_text(PLAN)
    (ground.state / "gateway-token.txt.bak").write_text(SECRET)
    bad.symlink_to(ground.state)
    return good, bad, "sub/flip/gateway-token.txt.bak"


def _file_to_pipe(ground: Ground) -> tuple[Path, Path, str]:
    good = ground.work / "sub" / "good"
    good.write_text(PLAN)
    return good, ground.work / "pipe", "sub/flip"


@pytest.mark.parametrize("race", [_file_to_link, _folder_to_link, _link_to_link, _folder_to_state, _file_to_pipe])
def test_what_is_swapped_while_it_is_judged_does_not_leave(
    ground: Ground, race: Callable[[Ground], tuple[Path, Path, str]]
) -> None:
    good, bad, path = race(ground)
    flip = ground.work / "sub" / "flip"
    good.rename(flip)
    access, reads, end = rules(ground).access_for(STRANGER), 0, time.monotonic() + RACE
    with flipping(flip, bad):
        while time.monotonic() < end:
            data = read_or_none(path, access)
            reads += data is not None
            assert data in (None, PLAN.encode())
    assert reads
