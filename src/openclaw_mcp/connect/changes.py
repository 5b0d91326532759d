"""Our edits of other programs' settings, recorded so that they can be undone to the byte."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, structs

from ..net.files import StateBroken, make_private_folder, read_if_exists, write_atomic
from .clients import SupportedClient
from .entries import ClientEntry
from .jsonc import CannotEdit

RECORDS_FILE: Final = "connections.json"
BACKUPS_FOLDER: Final = "backups"
LARGEST_FILE: Final = 16 << 20  # bytes of a settings file: Claude Code keeps its history in the same one


class ConnectionRecord(Struct, kw_only=True, rename="camel"):
    """Our edits of one settings file."""

    client: str
    names: list[str]
    """The names of our entries."""
    after: str
    """The hash of the file as we left it."""
    before: str | None = None
    """The backup of the file as we found it; None when there was no file, or when others wrote to it in between."""
    new: bool = False
    """Whether there was no file."""
    folders: list[str] = []
    """The folders that were made for the file, the innermost first."""
    made_room: bool = False
    """Whether there was no section for servers in it."""


class SettingsEdit(Struct, frozen=True, kw_only=True):
    """An edit that can be shown before it is applied. `new` None: the file is removed."""

    file: Path
    old: str | None
    new: str | None
    record: ConnectionRecord | None

    @property
    def is_empty(self) -> bool:
        return self.old == self.new


class SettingsEditor:
    """Plans and applies edits; their records are in the state directory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORDS_FILE
        self._backups = folder / BACKUPS_FOLDER
        found = read_if_exists(self._path)
        try:
            self._records = {} if found is None else msgspec.json.decode(found, type=dict[str, ConnectionRecord])
        except msgspec.MsgspecError as exc:
            problem = "can't be read; repair it, or remove it to forget what was connected"
            raise StateBroken(f"{self._path} {problem}") from exc

    def connect(
        self, client: SupportedClient, file: Path, entries: list[ClientEntry], *, force: bool = False
    ) -> SettingsEdit:
        """Raises CannotEdit when the file can't be edited or holds another's entry of that name."""
        file = file.expanduser().resolve()
        old, known = _read_text(file), self._records.get(str(file))
        text = old or ""
        with _prefix_errors(file):
            for entry in entries:
                is_foreign = not force and (known is None or entry.name not in known.names)
                if is_foreign and client.has_server(text, entry.name):
                    raise CannotEdit(f"it has a server called {entry.name} already; remove it first, or add --force")
                text = client.put(text, entry)
            made_room = not client.has_server(old or "")
        names = sorted({*(known.names if known else ()), *(entry.name for entry in entries)})
        if known is None:
            backup = None if old is None else f"{file.name}.{_hash_text(f'{file}:{old}')[:16]}"
            record = ConnectionRecord(
                client=client.id, names=names, after=_hash_text(text), before=backup, new=old is None,
                made_room=made_room, folders=[str(folder) for folder in file.parents if not folder.exists()],
            )  # fmt: skip
        else:
            record = _update_record(known, old or "", names, text)
        return SettingsEdit(file=file, old=old, new=text, record=record)

    def disconnect(self, client: SupportedClient, file: Path, names: list[str] | None = None) -> SettingsEdit:
        """Remove our entries of these names, or all. Without any, the edit is empty."""
        file = file.expanduser().resolve()
        old, known = _read_text(file), self._records.get(str(file))
        if known is None or old is None:
            return SettingsEdit(file=file, old=old, new=old, record=None)
        staying = [name for name in known.names if names is not None and name not in names]
        if not staying and known.after == _hash_text(old) and (known.new or known.before):
            return SettingsEdit(file=file, old=old, new=self._original_text(known), record=None)
        text = old
        with _prefix_errors(file):
            for name in known.names:
                text = text if name in staying else client.drop(text, name)
            if not staying and known.made_room:
                text = client.drop_empty_section(text)
        if staying:
            return SettingsEdit(file=file, old=old, new=text, record=_update_record(known, old, staying, text))
        is_left_over = known.new and client.is_empty(text)
        return SettingsEdit(file=file, old=old, new=None if is_left_over else text, record=None)

    def apply(self, edit: SettingsEdit) -> None:
        """Write backup, record and file, in this order: a crash may leave a record too many, never one too few."""
        record = edit.record
        if record is not None and record.before and edit.old is not None:
            make_private_folder(self._backups)
            backup = self._backup_path(record.before)
            if read_if_exists(backup) is None:
                write_atomic(backup, edit.old.encode())
        if record is not None:
            self._records[str(edit.file)] = record
            self._write_records()
        if _read_text(edit.file) != edit.old:
            raise CannotEdit(f"{edit.file} was changed by another program just now; try again")
        if edit.new is None:
            edit.file.unlink(missing_ok=True)
        elif edit.new != edit.old:
            mode = edit.file.stat().st_mode & 0o777 if edit.file.exists() else 0o600
            edit.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(edit.file, edit.new.encode())
            edit.file.chmod(mode)
        if record is None and str(edit.file) in self._records:
            self._forget(edit.file)

    def _forget(self, file: Path) -> None:
        """Drop the record, and what was made for it: an empty folder of the client's, the backup, our own list."""
        record = self._records.pop(str(file))
        with contextlib.suppress(OSError):  # the first folder that holds something else stays, and those around it
            for made in record.folders if not file.exists() else ():
                Path(made).rmdir()
        if record.before and all(other.before != record.before for other in self._records.values()):
            self._backup_path(record.before).unlink(missing_ok=True)
        if self._records:
            self._write_records()
            return
        self._path.unlink(missing_ok=True)
        for folder in (self._backups, self._path.parent):
            with contextlib.suppress(OSError):  # it holds something else, or was never made
                folder.rmdir()

    def records(self) -> dict[str, ConnectionRecord]:
        """Our edits, by file."""
        return dict(self._records)

    def _write_records(self) -> None:
        write_atomic(self._path, msgspec.json.format(msgspec.json.encode(self._records), indent=2) + b"\n")

    def _backup_path(self, name: str) -> Path:
        return self._backups / Path(name).name  # never elsewhere: a backup is removed when it is no longer needed

    def _original_text(self, record: ConnectionRecord) -> str | None:
        if record.new:
            return None
        found = read_if_exists(self._backup_path(record.before)) if record.before else None
        if found is None:
            raise StateBroken(f"the backup {record.before} is missing in {self._backups}; remove our entries by hand")
        return found.decode()


def _read_text(file: Path) -> str | None:
    found = read_if_exists(file)
    if found is None:
        return None
    if len(found) > LARGEST_FILE:
        raise CannotEdit(f"{file} is larger than a settings file should be; edit it by hand")
    try:
        return found.decode()
    except UnicodeDecodeError as exc:
        raise CannotEdit(f"{file} is not UTF-8; edit it by hand") from exc


def _update_record(record: ConnectionRecord, old: str, names: list[str], new: str) -> ConnectionRecord:
    """The record after one more edit. If another program wrote in between, the backup is out of date."""
    is_ours = record.after == _hash_text(old)
    before = record.before if is_ours else None
    return structs.replace(record, names=names, after=_hash_text(new), before=before)


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _prefix_errors(file: Path) -> Iterator[None]:
    """Name the file in errors."""
    try:
        yield
    except CannotEdit as exc:
        raise CannotEdit(f"{file}: {exc}") from exc
    except RecursionError:
        raise CannotEdit(f"{file}: its lists and objects are nested too deeply; edit it by hand") from None
