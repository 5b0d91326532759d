"""The config file: read, checked and replaced as one, under a lock, so that no writer undoes another's change."""

import base64
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from ..core.config.config import Config, read_config
from ..core.errors import BadRequest, OpenClawError
from ..core.model import Json
from ..net.files import (
    create_if_absent,
    lock_file,
    make_private_folder,
    open_private,
    read_if_exists,
    remove_drafts,
    write_atomic,
)
from . import parsing, redaction
from .schema import ConfigSchema
from .secrets import recipients

CONFIG_FILE: Final = "openclaw.json"
HASH_KEY_FILE: Final = "config-hash.key"

WriteCheck = Callable[["Snapshot", "Snapshot"], None]
"""Compares the file as it is with what is about to be written; raises when that may not be."""


class ConfigInvalid(OpenClawError):
    """`issues` holds `{path, message}` for each thing wrong."""

    code = "config_invalid"

    def __init__(self, message: str, issues: list[parsing.ConfigIssue]) -> None:
        super().__init__(message)
        self.issues = issues


class ConfigStale(OpenClawError):
    code = "config_stale"


class Snapshot(Struct, frozen=True, kw_only=True):
    """The file at one moment."""

    path: Path
    exists: bool
    raw: str
    hash: str
    parsed: Json
    resolved: Json
    config: Config
    """What the file sets, with defaults for the rest; all defaults, when the file is not valid."""
    issues: list[parsing.ConfigIssue]
    warnings: list[parsing.ConfigIssue] = []

    @property
    def is_valid(self) -> bool:
        return not self.issues

    @property
    def is_readable(self) -> bool:
        """Valid or not, its text could be parsed."""
        return self.is_valid or bool(self.parsed)


def allow_any(before: Snapshot, after: Snapshot) -> None:
    """For callers who could as well edit the file by hand."""


class ConfigFile:
    def __init__(
        self,
        folder: Path,
        *,
        environment: Mapping[str, str] = os.environ,
        key: bytes | None = None,
    ) -> None:
        """`key`: the key of the hashes; by default the one stored in the folder, which is created if there is none."""
        self.path = folder / CONFIG_FILE
        self.schema = ConfigSchema()
        self._environment = environment
        # Keyed, so that clients learn nothing from a hash about the secrets it covers.
        self._key = key or create_if_absent(make_private_folder(folder) / HASH_KEY_FILE, secrets.token_bytes(32))

    def read(self) -> Snapshot:
        """The file as it is now. A file that can't be parsed is a snapshot with issues, not an empty config."""
        data = read_if_exists(self.path)
        return self.parse_snapshot("" if data is None else data.decode(errors="replace"), exists=data is not None)

    def parse_snapshot(self, raw: str, *, exists: bool = True) -> Snapshot:
        parsed: Json = {}
        issues: list[parsing.ConfigIssue] = []
        try:
            parsed = parsing.parse(raw) if raw.strip() else {}
        except BadRequest as exc:
            issues = [{"path": "", "message": str(exc)}]
        resolved, warnings = parsing.resolve_environment(parsed, self._environment)
        issues = issues or self.schema.find_issues(resolved) or self.schema.find_conflicts(resolved)
        return Snapshot(
            path=self.path,
            exists=exists,
            raw=raw,
            hash=self._hash(raw),
            parsed=parsed,
            resolved=resolved,
            config=Config() if issues else read_config(resolved),
            issues=issues,
            warnings=warnings,
        )

    def redact_config(self, snapshot: Snapshot) -> Json:
        """Its config with defaults, for display: secrets are hidden, and `${NAME}` is shown as it is written."""
        return self.schema.fill_defaults(redaction.redact_secrets(snapshot.parsed))

    def _hash(self, raw: str) -> str:
        digest = hmac.digest(self._key, raw.encode(), hashlib.sha256)
        return f"hmac-sha256:v1:{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"

    @contextmanager
    def lock(self) -> Iterator[Snapshot]:
        """The file as it is; no other process writes it meanwhile."""
        descriptor = open_private(self.path.with_name(f".{CONFIG_FILE}.lock"), os.O_RDWR | os.O_CREAT)
        try:
            lock_file(descriptor)  # on Windows the base hash alone guards a write
            yield self.read()
        finally:
            os.close(descriptor)

    def replace(
        self, raw: str, *, base_hash: str | None, force: bool = False, check: WriteCheck = allow_any
    ) -> tuple[Snapshot, Snapshot]:
        """Write `raw`, secrets restored: the snapshots before and after.

        Raises ConfigStale unless `base_hash` is the hash of the file (`force` skips that), ConfigInvalid for contents
        that are not valid, BadRequest for a secret kept beside an address it was not given for, and what `check`
        raises. The file before stays beside it as `openclaw.json.bak`.
        """
        with self.lock() as before:
            if not force:
                check_base_hash(before, base_hash)
            restored = redaction.restore_text(raw, before.parsed)
            if restored != raw:
                recipients.find_misdirected_secrets(before.parsed, parsing.parse(restored), parsing.parse(raw))
            return before, self._write(before, restored, check)

    def change(self, edit: Callable[[Snapshot], Json], check: WriteCheck = allow_any) -> tuple[Snapshot, Snapshot]:
        """Write what `edit` makes of the config as it is now: the snapshots before and after. Comments are lost.

        No other process writes in between, so no change is lost and none is stale. A config that is not valid may be
        corrected this way. Raises ConfigInvalid as `replace` does, and for a file that can't be parsed.
        """
        with self.lock() as before:
            if not before.is_readable:
                raise invalid_config_error(before.issues, before.path)
            return before, self._write(before, json.dumps(edit(before), indent=2, ensure_ascii=False) + "\n", check)

    def _write(self, before: Snapshot, raw: str, check: WriteCheck) -> Snapshot:
        after = self._require_valid(raw)
        check(before, after)
        if before.exists:
            write_atomic(self.path.with_name(f"{CONFIG_FILE}.bak"), before.raw.encode())
        place = self.path.resolve()  # a config kept elsewhere through a link stays there
        write_atomic(place, after.raw.encode())
        remove_drafts(place)  # copies of a config hold its secrets
        return after

    def _require_valid(self, raw: str) -> Snapshot:
        after = self.parse_snapshot(raw)
        if not after.is_valid:
            raise invalid_config_error(after.issues)
        return after


def check_base_hash(before: Snapshot, base_hash: str | None) -> None:
    if base_hash is None and not before.exists:
        return
    if base_hash is None:
        raise ConfigStale("config base hash required; re-run config.get and retry")
    if not hmac.compare_digest(base_hash.encode(), before.hash.encode()):
        raise ConfigStale("config changed since last load; re-run config.get and retry")


def invalid_config_error(issues: list[parsing.ConfigIssue], path: Path | None = None) -> ConfigInvalid:
    """`path`: the file, for people at this machine."""
    listed = "; ".join(f"{i['path']}: {i['message']}" if i["path"] else str(i["message"]) for i in issues[:3])
    return ConfigInvalid(f"invalid config{f' in {path}' if path else ''}: {listed}", issues)
