"""The types of openclaw.json: what the schema written by hand accepted and refused is accepted and refused, by path."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

import openclaw_mcp
from openclaw_mcp.cli.doctor_files import check_config
from openclaw_mcp.config.file import ConfigFile
from openclaw_mcp.config.json_schema import ConfigSchemaNode, config_schema
from openclaw_mcp.config.schema import NO_EFFECT, ConfigSchema
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


BELOW_TOOLS = re.compile(r"(agents\.list\.\d+\.)?tools\.")
"""Where any value was accepted, though rules that can't be read refuse every tool."""


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
        assert {path for path in new if not BELOW_TOOLS.match(path)} == old, config
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


MEANINGLESS: dict[str, tuple[Json, str, str]] = {
    "no list": ({"tools": {"deny": 5}}, "tools.deny", 'the value is not of type "array"'),
    "a contradiction": (
        {"tools": {"allow": ["a"], "alsoAllow": ["b"]}},
        "tools",
        "has both allow and alsoAllow; put the names into one of them",
    ),
    "an agent's contradiction": (
        {"agents": {"list": [{"id": "a", "tools": {"allow": ["a"], "alsoAllow": ["b"]}}]}},
        "agents.list[a].tools",
        "has both allow and alsoAllow; put the names into one of them",
    ),
    "a provider's contradiction": (
        {"tools": {"byProvider": {"openai": {"allow": ["a"], "alsoAllow": ["b"]}}}},
        "tools.byProvider.openai",
        "has both allow and alsoAllow; put the names into one of them",
    ),
    "an unknown profile": (
        {"tools": {"profile": "codding"}},
        "tools.profile",
        "must be one of minimal, coding, messaging, full",
    ),
    "an agent's unknown profile": (
        {"agents": {"list": [{"id": "a", "tools": {"profile": "codding"}}]}},
        "agents.list.0.tools.profile",
        "must be one of minimal, coding, messaging, full",
    ),
    "a misspelt list": (
        {"tools": {"toolsBySender": {"x": {"denny": []}}}},
        "tools.toolsBySender.x",
        'Unrecognized key: "denny"',
    ),
    "an unknown queue mode": (
        {"messages": {"queue": {"mode": "colect"}}},
        "messages.queue.mode",
        "must be one of steer, followup, collect, interrupt",
    ),
    "two agents of one id": (
        {"agents": {"list": [{"id": "a"}, {"id": "a"}]}},
        "agents.list",
        '2 agents have the id "a"; give each its own',
    ),
    "no credential": (
        {"gateway": {"auth": {"mode": "none"}}},
        "gateway.auth.mode",
        "none is not offered: this gateway always asks for a token; remove it, and use gateway.auth.token",
    ),
    "a password": (
        {"gateway": {"auth": {"password": "x"}}},
        "gateway.auth.password",
        "a password is not offered: this gateway always asks for a token; remove it, and use gateway.auth.token",
    ),
}


@pytest.mark.parametrize("case", MEANINGLESS)
def test_a_config_that_would_refuse_everything_or_be_ignored_is_not_valid(tmp_path: Path, case: str) -> None:
    config, path, message = MEANINGLESS[case]
    snapshot = ConfigFile(tmp_path, key=b"k").parse_snapshot(json.dumps(config))

    assert snapshot.issues == [{"path": path, "message": message}]


def test_the_rules_refuse_every_tool_where_a_config_is_read_without_the_schema() -> None:
    assert from_config({"tools": {"deny": 5}}).problem is not None
    assert from_config({"tools": {"allow": ["a"], "alsoAllow": ["b"]}}).problem is not None


def test_a_file_that_is_not_valid_sets_nothing(tmp_path: Path) -> None:
    snapshot = ConfigFile(tmp_path, key=b"k").parse_snapshot('{"gateway": {"port": 1, "bogus": 2}}')

    assert not snapshot.is_valid
    assert snapshot.config == Config()


UNUSED: list[tuple[Json, list[str]]] = [
    ({"hooks": {"enabled": True}, "skills": {}, "talk": {"x": 1}, "wizard": {}}, ["hooks", "skills", "talk", "wizard"]),
    ({"gateway": {"controlUi": {}, "bind": "custom"}}, ["gateway.bind", "gateway.controlUi"]),
    ({"gateway": {"bind": "lan"}}, []),
    ({"tools": {"exec": {"ask": "always"}, "profile": "coding", "message": {"broadcast": {"max": 1}}}},
     ["tools.exec", "tools.message.broadcast.max"]),
    ({"agents": {"list": [{"id": "a", "tools": {"elevated": {}, "deny": ["x"]}}]}}, ["agents.list.0.tools.elevated"]),
    ({"commands": {"restart": True, "text": True}, "messages": {"tts": {}}}, ["commands.text", "messages.tts"]),
    ({"mcp": {"servers": {"a": {"command": "x", "colour": "red"}}}}, ["mcp.servers.a.colour"]),
    ({"gateway": {"bind": "loopback", "auth": {"mode": "token", "token": "t"}, "port": 1}}, []),
    ({"gateway": {"http": {"endpoints": {"responses": {"enabled": True}}}}}, []),
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
    assert all(warning["message"] == NO_EFFECT for warning in found)
    assert not ConfigSchema().find_issues(config)


def test_validate_and_doctor_name_them_and_the_file_stays_valid(tmp_path: Path) -> None:
    (tmp_path / "openclaw.json").write_text('{"hooks": {"enabled": true}, "gateway": {"controlUi": {"x": 1}}}')
    named = [f"hooks: {NO_EFFECT}", f"gateway.controlUi: {NO_EFFECT}"]

    checked = openclaw(tmp_path, "config", "validate")
    assert (checked.returncode, all(text in checked.stderr for text in named)) == (0, True)
    assert "is valid" in checked.stdout
    warnings = json.loads(openclaw(tmp_path, "config", "validate", "--json").stdout)["warnings"]
    assert {warning["path"] for warning in warnings} == {"hooks", "gateway.controlUi"}
    findings = list(check_config(ConfigFile(tmp_path).read()))
    assert [finding.state for finding in findings] == ["note", "note", "fine"]
    assert all(any(text in finding.says for finding in findings) for text in named)


def unused_paths(node: Json, path: str = "") -> Iterator[str]:
    if node.get("x-unused") is True:
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


def declared_keys(node: ConfigSchemaNode, path: str = "") -> Iterator[tuple[str, str]]:
    """Path and name of every key that is not named as unused."""
    below: list[tuple[str, Any]] = [*node.properties.items()]
    below += [("*", inner) for inner in (node.items, node.additional_properties) if inner]
    below += [("", choice) for choice in node.one_of]
    for name, inner in below:
        place = f"{path}.{name}" if path else name
        if not isinstance(inner, ConfigSchemaNode) or inner.x_unused is True:
            continue
        if name not in ("", "*"):
            yield place, name
        yield from declared_keys(inner, place)


def test_every_declared_key_is_read_by_code_or_named_as_having_no_effect() -> None:
    package = Path(openclaw_mcp.__file__).parent
    declared = package / "core" / "config"
    text = "\n".join(path.read_text() for path in package.rglob("*.py") if path.parent != declared)
    own = "\n".join(path.read_text() for path in declared.glob("*.py"))
    words = set(re.findall(r"(?:\.|[\"'])(\w+)", text)) | set(re.findall(r"(?:self|settings|triggers)\.(\w+)", own))
    fields = set(re.findall(r"^    (\w+): ", text, re.MULTILINE))  # of the structs that single readers have

    def snake(name: str) -> str:
        return re.sub(r"(?<=[a-z])([A-Z])", lambda found: f"_{found[1].lower()}", name)

    unread = {path for path, name in declared_keys(config_schema()) if not {name, snake(name)} & (words | fields)}
    assert unread == ANNOTATIONS


ANNOTATIONS = {"$schema"}
"""Keys for editors alone."""
