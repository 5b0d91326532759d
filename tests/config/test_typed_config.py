"""The types of openclaw.json: what the schema written by hand accepted and refused is accepted and refused, by path."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

import openclaw_mcp
from openclaw_mcp.cli.doctor_files import check_config
from openclaw_mcp.config.file import ConfigFile
from openclaw_mcp.config.schema import ConfigSchema
from openclaw_mcp.core.config.config import Config, read_config
from openclaw_mcp.core.model import Json
from openclaw_mcp.tools.policy_rules import from_config

from .test_config import SECRETIVE, openclaw
from .test_permission import CONFIG, PATCHES

BEFORE: Json = json.loads(Path(__file__).with_name("accepted_before.schema.json").read_text())
"""The schema as it was published while it was written by hand, without its titles."""
AT_A_PLACE: list[Any] = [
    None, True, False, -1, 0, 1, 5.0, 5.5, 64, 65, 999, 1000, 70_000, 10**12, 10**30, "", "x", "X y", "main", "token",
    "https://a.example", "24h", "1 2", "off", "open", "demo", [], ["x"], [1], [None], [{}], [{"id": "a"}], {}, {"x": 1},
    {"x": "y"}, {"x": {}}, {"id": "a"}, {"source": "env", "id": "A"}, {"source": "file", "path": "/k"},
    {"source": "file", "path": "/k", "more": 1}, {"source": "keyring", "id": "a"}, {"source": "other", "id": "a"},
    {"primary": "a/b", "fallbacks": ["c"]}, {"primary": 1},
]  # fmt: skip


def places(node: Json) -> Iterator[list[str | int]]:
    """Every place the schema describes, and one in each part where any name may be."""
    for choice in node.get("oneOf", ()):
        yield from places(choice)
    below = list(node.get("properties", {}).items())
    below += [(step, node.get(keyword)) for keyword, step in (("additionalProperties", "name"), ("items", 0))]
    if node.get("type") == "object":
        below.append(("unheardOf", {}))
    for step, inner in below:
        if inner is not None and inner is not False:
            yield [step]
            yield from ([step, *rest] for rest in places(inner if isinstance(inner, dict) else {}))


def config_with(path: list[str | int], value: Any) -> Json:
    """A config with nothing but this value, and the ids that entries of lists need."""
    for step in reversed(path):
        entry = {"id": "a", **value} if isinstance(value, dict) else value
        value = [entry] if isinstance(step, int) else {step: value}
    config: Json = value
    return config


CORPUS: list[Json] = [
    *(config_with(path, value) for path in places(BEFORE) for value in AT_A_PLACE),
    CONFIG,
    SECRETIVE,
    *(patch for _, patch, _ in PATCHES),
]


@pytest.fixture(scope="module")
def refused() -> list[set[str]]:
    """The paths at which the schema refuses each config of the corpus."""
    schema = ConfigSchema()
    return [{issue["path"] for issue in schema.find_issues(config)} for config in CORPUS]


def test_what_was_accepted_is_accepted_and_what_was_refused_is_refused_at_the_same_place(
    refused: list[set[str]],
) -> None:
    before = jsonschema_rs.validator_for(BEFORE)
    for config, new in zip(CORPUS, refused, strict=True):
        old = {".".join(map(str, error.instance_path)) for error in before.iter_errors(config)}
        assert new == old, config
    assert refused.count(set()) > len(CORPUS) / 20


def test_every_config_the_schema_accepts_has_types(refused: list[set[str]]) -> None:
    for config, paths in zip(CORPUS, refused, strict=True):
        if not paths:
            read_config(config)


def test_without_a_file_everything_has_its_default() -> None:
    config = read_config({})

    assert config == Config()
    assert (config.gateway.port, config.session.main_key, config.agents.list) == (18789, "main", ())
    assert (config.cron.max_concurrent_runs, config.cron.retention_ms) == (8, 86_400_000)


def test_the_schema_names_the_defaults_of_the_types() -> None:
    filled = ConfigSchema().fill_defaults({name: {} for name in ("gateway", "session", "cron", "commands")})

    assert read_config(filled) == read_config({})
    assert (filled["gateway"]["port"], filled["cron"]["sessionRetention"]) == (18789, "24h")


def test_an_agent_holds_what_the_defaults_set_and_its_own_settings_win() -> None:
    config = read_config(
        {
            "agents": {
                "defaults": {"model": "a/b", "runtimeStrict": False, "limits": {"toolCalls": 7, "retries": 1}},
                "list": [{"id": "one"}, {"id": "two", "runtimeStrict": True, "model": "c/d", "limits": {"retries": 2}}],
            }
        }
    )

    one, two = config.agents.list
    assert (one.model, one.runtime_strict, one.limits.tool_calls, one.limits.retries) == ("a/b", False, 7, 1)
    assert (two.model, two.runtime_strict, two.limits.tool_calls, two.limits.retries) == ("c/d", True, 7, 2)
    assert one.limits.model_calls == 50


def test_a_duration_without_a_meaning_leaves_the_defaults_of_cron() -> None:
    config = read_config({"cron": {"sessionRetention": "1 2", "enabled": False, "maxConcurrentRuns": 3}})

    assert not ConfigSchema().find_issues({"cron": {"sessionRetention": "1 2"}})
    assert (config.cron.enabled, config.cron.max_concurrent_runs, config.cron.session_retention) == (False, 8, "24h")


def test_rules_that_make_no_sense_are_a_valid_file_and_refuse_every_tool(tmp_path: Path) -> None:
    snapshot = ConfigFile(tmp_path, key=b"k").parse_snapshot('{"tools": {"deny": 5}}')

    assert snapshot.is_valid
    assert from_config(snapshot.resolved).problem is not None


def test_a_file_that_is_not_valid_sets_nothing(tmp_path: Path) -> None:
    snapshot = ConfigFile(tmp_path, key=b"k").parse_snapshot('{"gateway": {"port": 1, "bogus": 2}}')

    assert not snapshot.is_valid
    assert snapshot.config == Config()


UNUSED: list[tuple[Json, list[str]]] = [
    ({"hooks": {"enabled": True}, "skills": {}, "talk": {"x": 1}, "wizard": {}}, ["hooks", "skills", "talk", "wizard"]),
    ({"gateway": {"controlUi": {}, "auth": {"password": "x"}}}, ["gateway.auth.password", "gateway.controlUi"]),
    ({"gateway": {"bind": "lan", "auth": {"mode": "none"}}}, ["gateway.auth.mode", "gateway.bind"]),
    ({"gateway": {"bind": "loopback", "auth": {"mode": "token", "token": "t"}, "port": 1}}, []),
    ({"gateway": {"http": {"endpoints": {"responses": {"enabled": True}}}}}, ["gateway.http.endpoints.responses"]),
    ({"agents": {"defaults": {"maxConcurrent": 1, "heartbeat": {}}, "list": [{"id": "a", "identity": {}}]}},
     ["agents.defaults.heartbeat", "agents.defaults.maxConcurrent", "agents.list.0.identity"]),
    ({"models": {"mode": "merge"}, "session": {"scope": "global", "sendPolicy": {}}},
     ["models.mode", "session.scope", "session.sendPolicy"]),
    ({"$schema": "x", "meta": {"at": 1}, "tools": {"deny": ["x"]}, "channels": {"irc": {"x": 1}}}, []),
]  # fmt: skip


@pytest.mark.parametrize(("config", "paths"), UNUSED)
def test_keys_that_no_code_reads_are_named(config: Json, paths: list[str]) -> None:
    found = ConfigSchema().find_unused(config)

    assert sorted(warning["path"] for warning in found) == paths
    assert all(warning["message"] == "accepted, but this version does not use it" for warning in found)
    assert not ConfigSchema().find_issues(config)


def test_validate_and_doctor_name_them_and_the_file_stays_valid(tmp_path: Path) -> None:
    (tmp_path / "openclaw.json").write_text('{"hooks": {"enabled": true}, "gateway": {"controlUi": {"x": 1}}}')
    named = ["hooks: accepted, but this version does not use it", "gateway.controlUi: accepted, but this version"]

    checked = openclaw(tmp_path, "config", "validate")
    assert (checked.returncode, all(text in checked.stderr for text in named)) == (0, True)
    assert "is valid" in checked.stdout
    warnings = json.loads(openclaw(tmp_path, "config", "validate", "--json").stdout)["warnings"]
    assert {warning["path"] for warning in warnings} == {"hooks", "gateway.controlUi"}
    findings = list(check_config(ConfigFile(tmp_path).read()))
    assert [finding.state for finding in findings] == ["note", "note", "fine"]
    assert all(any(text in finding.says for finding in findings) for text in named)


def unused_paths(node: Json, path: str = "") -> Iterator[str]:
    if node.get("x-unused"):
        yield path
    for name, inner in node.get("properties", {}).items():
        yield from unused_paths(inner, f"{path}.{name}" if path else name)


WORDS_OF_THE_WIRE = "allow it in gateway.controlUi.allowedOrigins"
"""A refusal that is the reference gateway's, word for word: an interop test compares them."""


def test_no_text_advises_a_setting_that_no_code_reads() -> None:
    unused = {path for path in unused_paths(ConfigSchema().json_schema) if "." in path}
    assert "gateway.controlUi" in unused
    for module in Path(openclaw_mcp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                advised = [path for path in unused if path in node.value]
                assert not advised or WORDS_OF_THE_WIRE in node.value, module
