"""What we wrote into other programs' settings, so that it can be taken out again to the byte."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ..net.files import StateBroken, private_folder, read_whole, write_whole
from .clients import Client
from .entries import Entry
from .jsonc import CannotEdit

FILE: Final = "connections.json"
BACKUPS: Final = "backups"
LARGEST: Final = 16 << 20  # bytes of a settings file: Claude Code keeps its history in the same one


class Written(Struct, kw_only=True, rename="camel"):
    """What we know of one settings file."""

    client: str
    names: list[str]
    """The entries that are ours."""
    after: str
    """The hash of the file as we left it."""
    before: str | None = None
    """The backup of the file as we found it; None when there was no file, or when others wrote to it in between."""
    new: bool = False
    """Whether there was no file."""
    made_room: bool = False
    """Whether there was no place for servers in it."""


class Change(Struct, frozen=True, kw_only=True):
    """An edit that may be looked at before it is made. `new` None: the file goes."""

    file: Path
    old: str | None
    new: str | None
    written: Written | None

    @property
    def empty(self) -> bool:
        return self.old == self.new


class Ledger:
    """The book of edits, in the state directory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._backups = folder / BACKUPS
        found = read_whole(self._path)
        try:
            self._book = {} if found is None else msgspec.json.decode(found, type=dict[str, Written])
        except msgspec.MsgspecError as exc:
            raise StateBroken(
                f"{self._path} can't be read; mend it, or remove it to forget what was connected"
            ) from exc

    def connect(self, client: Client, file: Path, entries: list[Entry], *, force: bool = False) -> Change:
        """Raises CannotEdit when the file can't be edited or holds another's entry of that name."""
        file = file.expanduser().resolve()
        old, known = _text(file), self._book.get(str(file))
        text = old or ""
        with _naming(file):
            for entry in entries:
                stranger = not force and (known is None or entry.name not in known.names)
                if stranger and client.holds(text, entry.name):
                    raise CannotEdit(f"it has a server called {entry.name} already; take it out first, or add --force")
                text = client.put(text, entry)
            made_room = not client.holds(old or "")
        names = sorted({*(known.names if known else ()), *(entry.name for entry in entries)})
        if known is None:
            backup = None if old is None else f"{file.name}.{_hash(f'{file}:{old}')[:16]}"
            written = Written(
                client=client.id, names=names, after=_hash(text), before=backup, new=old is None, made_room=made_room
            )
        else:
            written = _updated(known, old or "", names, text)
        return Change(file=file, old=old, new=text, written=written)

    def disconnect(self, client: Client, file: Path, names: list[str] | None = None) -> Change:
        """Take out `names` of ours, or all. Nothing of ours: an empty change."""
        file = file.expanduser().resolve()
        old, known = _text(file), self._book.get(str(file))
        if known is None or old is None:
            return Change(file=file, old=old, new=old, written=None)
        staying = [name for name in known.names if names is not None and name not in names]
        if not staying and known.after == _hash(old) and (known.new or known.before):
            return Change(file=file, old=old, new=self._as_found(known), written=None)
        text = old
        with _naming(file):
            for name in known.names:
                text = text if name in staying else client.drop(text, name)
            if not staying and known.made_room:
                text = client.drop_room(text)
        return Change(file=file, old=old, new=text, written=_updated(known, old, staying, text) if staying else None)

    def make(self, change: Change) -> None:
        """Write it: backup, then book, then file. After a crash the book knows too much, never too little."""
        written = change.written
        if written is not None and written.before and change.old is not None:
            backup = private_folder(self._backups) / written.before
            if read_whole(backup) is None:
                write_whole(backup, change.old.encode())
        if written is not None:
            self._book[str(change.file)] = written
            self._write()
        if _text(change.file) != change.old:
            raise CannotEdit(f"{change.file} was changed by another program just now; try again")
        if change.new is None:
            change.file.unlink(missing_ok=True)
        elif change.new != change.old:
            mode = change.file.stat().st_mode & 0o777 if change.file.exists() else 0o600
            change.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(change.file, change.new.encode())
            change.file.chmod(mode)
        if written is None and str(change.file) in self._book:
            del self._book[str(change.file)]
            self._write()

    def connected(self) -> dict[str, Written]:
        """What is ours, by file."""
        return dict(self._book)

    def _write(self) -> None:
        write_whole(self._path, msgspec.json.format(msgspec.json.encode(self._book), indent=2) + b"\n")

    def _as_found(self, known: Written) -> str | None:
        if known.new:
            return None
        found = read_whole(self._backups / known.before) if known.before else None
        if found is None:
            raise StateBroken(f"the backup {known.before} is gone from {self._backups}; take our entries out by hand")
        return found.decode()


def _text(file: Path) -> str | None:
    found = read_whole(file)
    if found is None:
        return None
    if len(found) > LARGEST:
        raise CannotEdit(f"{file} is larger than a settings file should be; edit it by hand")
    try:
        return found.decode()
    except UnicodeDecodeError as exc:
        raise CannotEdit(f"{file} is not UTF-8; edit it by hand") from exc


def _updated(known: Written, old: str, names: list[str], new: str) -> Written:
    """What we know after one more edit. If others wrote in between, the backup is no longer what they had."""
    return Written(
        client=known.client,
        names=names,
        after=_hash(new),
        before=known.before if known.after == _hash(old) else None,
        new=known.new and known.after == _hash(old),
        made_room=known.made_room,
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Say which file it is that can't be edited."""
    try:
        yield
    except CannotEdit as exc:
        raise CannotEdit(f"{file}: {exc}") from exc
