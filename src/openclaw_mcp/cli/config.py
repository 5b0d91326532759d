"""`openclaw config`: read, change and check the config file; print its schema."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from ..config import merge, parsing, redaction
from ..config.file import ConfigFile, Snapshot, invalid_config_error
from ..config.schema import NO_EFFECT, ConfigSchema
from ..core.errors import BadRequest
from ..core.model import Json
from ..core.numbers import parse_whole_number
from ..net.state_dir import state_dir
from .commands import repeat_options
from .config_effect import describe_effect
from .report import print_json


def arguments(parser: argparse.ArgumentParser) -> None:
    _common_arguments(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="get|set|unset|validate|schema", required=True)
    get = verbs.add_parser("get", help="print the config, or one part of it; secrets are hidden")
    get.add_argument("path", nargs="?", help="such as gateway.port")
    get.add_argument("--defaults", action="store_true", help="fill in what is not set")
    change = verbs.add_parser("set", help="change one value")
    change.add_argument("path", help="such as gateway.port")
    change.add_argument("value", nargs="?", help="JSON5, or plain text; - reads it from stdin")
    change.add_argument("--unset", action="store_true", help="remove it")
    unset = verbs.add_parser("unset", help="remove one value, so that its default applies")
    unset.add_argument("path", help="such as gateway.port")
    unset.set_defaults(value=None, unset=True)
    validate = verbs.add_parser("validate", help="check the config, or another file")
    validate.add_argument("file", nargs="?", type=Path)
    validate.add_argument("--json", action="store_true", help="print {valid, issues, warnings}")
    verbs.add_parser("schema", help="print the JSON Schema, for editors")
    repeat_options(_common_arguments, *verbs.choices.values())


def _common_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", help="where state is kept (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)")


def run(options: argparse.Namespace) -> int:
    if options.verb == "schema":
        print_json(ConfigSchema().json_schema)
        return 0
    file = ConfigFile(state_dir(options.state_dir))
    if options.verb == "get":
        return _get(file, options)
    if options.verb == "set":
        return _set(file, options)
    if options.verb == "unset":
        return _unset(file, options)
    return _validate(file, options)


def _get(file: ConfigFile, options: argparse.Namespace) -> int:
    snapshot = file.read()
    if not snapshot.is_valid:
        raise invalid_config_error(snapshot.issues, snapshot.path)
    value: Any = file.redact_config(snapshot) if options.defaults else redaction.redact_secrets(snapshot.parsed)
    if options.path:
        value = parsing.value_at(value, _parse_path(options.path))
        if value is None:
            print(f"openclaw config: {options.path} is not set", file=sys.stderr)
            return 1
    print(value) if isinstance(value, str) else print_json(value)
    return 0


def _set(file: ConfigFile, options: argparse.Namespace) -> int:
    steps = _parse_path(options.path)
    if (options.value is None) != options.unset:
        raise BadRequest("give a value, or --unset")
    value = None if options.unset else _parse_value(sys.stdin.read() if options.value == "-" else options.value)
    if any(isinstance(step, int) for step in steps):
        raise BadRequest("an entry of a list can't be set by its number; set the whole list")
    patch: Any = value
    for step in reversed(steps):
        patch = {step: patch}

    def edit(before: Snapshot) -> Json:
        result: Json = merge.merge_patch(before.parsed, patch)
        if value is not None:  # a merge patch can't say "exactly this"
            holder = parsing.value_at(result, steps[:-1])
            holder[steps[-1]] = value
        kept: Json = redaction.restore_secrets(result, before.parsed)
        return kept

    _, after = file.change(edit)
    kind = file.schema.reload_kind(steps)
    verb = "removed from" if options.unset else "set in"
    unused = [issue["path"] for issue in file.schema.find_unused(after.parsed)]
    has_effect = not any(f"{options.path}.".startswith(f"{path}.") for path in unused)
    effect = describe_effect(after.path.parent, after, kind, options.path) if has_effect else NO_EFFECT
    print(f"{options.path} {verb} {after.path}; {effect}")
    for path in unused:
        if path.startswith(f"{options.path}."):
            print(f"{path}: {NO_EFFECT}", file=sys.stderr)
    return 0


def _unset(file: ConfigFile, options: argparse.Namespace) -> int:
    if parsing.value_at(file.read().parsed, _parse_path(options.path)) is None:
        print(f"openclaw config: {options.path} is not set in {file.path}", file=sys.stderr)
        return 1
    return _set(file, options)


def _validate(file: ConfigFile, options: argparse.Namespace) -> int:
    if options.file is not None:
        try:
            snapshot = file.parse_snapshot(options.file.read_text(encoding="utf-8"))
        except OSError as exc:
            raise BadRequest(f"{options.file} can't be read: {exc.strerror}") from exc
    else:
        snapshot = file.read()
    unused = file.schema.find_unused(snapshot.parsed) if snapshot.is_valid else []
    warnings = [*snapshot.warnings, *unused]
    if options.json:
        print(json.dumps({"valid": snapshot.is_valid, "issues": snapshot.issues, "warnings": warnings}))
        return 0 if snapshot.is_valid else 1
    where = options.file or file.path
    for issue in [*snapshot.issues, *warnings]:
        print(f"{issue['path'] or where}: {issue['message']}", file=sys.stderr)
    if snapshot.is_valid:
        print(f"{where} is valid" if snapshot.exists or options.file else f"{where} does not exist; defaults are used")
    return 0 if snapshot.is_valid else 1


def _parse_path(path: str) -> parsing.ConfigPath:
    steps = [step for step in path.replace("[", ".").replace("]", "").split(".") if step]
    if not steps:
        raise BadRequest("name a part of the config, such as gateway.port")
    return tuple(step if (index := parse_whole_number(step)) is None else index for step in steps)


def _parse_value(raw: str) -> Any:
    """JSON5 when it is that, else the text itself; `null` is not a value, --unset removes."""
    try:
        return parsing.parse(f'{{"value": {raw}}}')["value"]
    except (BadRequest, msgspec.DecodeError):
        return raw
