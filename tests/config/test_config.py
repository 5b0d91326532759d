"""The config: read with secrets hidden, written whole or not at all, checked, watched, published."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from openclaw_mcp.config import merge, parsing, redaction
from openclaw_mcp.config.file import ConfigFile, ConfigInvalid
from openclaw_mcp.config.rpc_methods import ConfigService, ConfigUpdate
from openclaw_mcp.config.schema import ConfigSchema
from openclaw_mcp.core.errors import BadRequest
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.store.small_repositories import SqlConfigHistory
from openclaw_mcp.store.store import open_store
from tests.gateway.sessions.gateways import GatewayHarness, TwinLink

WRITTEN = """{
  // the port
  gateway: { port: 18800, auth: { mode: 'token', token: 's3cret-"quoted"' }, },
  models: { providers: { fake: { apiKey: "${FAKE_KEY}", baseUrl: "http://127.0.0.1:1" } } },
  channels: { telegram: { botToken: "123:abc" } },
}
"""


def make_service(folder: Path, raw: str | None = WRITTEN, **more: Any) -> tuple[GatewayHarness, ConfigService]:
    if raw is not None:
        (folder / "openclaw.json").write_text(raw)
    gateway = GatewayHarness()
    service = ConfigService(ConfigFile(folder, environment={"FAKE_KEY": "from-env"}), gateway.publish, **more)
    gateway.offer(service.methods())
    return gateway, service


def test_secrets_are_hidden_everywhere_and_come_back_unchanged(tmp_path: Path) -> None:
    async def scenario() -> None:
        gateway, _ = make_service(tmp_path)
        config = await gateway.call("config.get")
        assert (config["valid"], config["exists"], config["issues"]) == (True, True, [])
        assert config["hash"].startswith("hmac-sha256:v1:")
        assert len(config["hash"].rpartition(":")[2]) == 43
        everything = json.dumps(config)
        for secret in ("s3cret", "123:abc", "from-env"):
            assert secret not in everything
        assert config["parsed"]["gateway"]["auth"]["token"] == redaction.REDACTED
        assert config["parsed"]["models"]["providers"]["fake"]["apiKey"] == "${FAKE_KEY}"
        assert "// the port" in config["raw"]
        assert config["config"]["gateway"]["bind"] == "loopback"
        result = await gateway.call(
            "config.set", {"raw": config["raw"].replace("18800", "18801"), "baseHash": config["hash"]}
        )
        assert result["ok"]
        assert (tmp_path / "openclaw.json").read_text() == WRITTEN.replace("18800", "18801").replace(
            "'s3cret-\"quoted\"'", "'s3cret-\\\"quoted\\\"'"
        )
        assert parsing.parse((tmp_path / "openclaw.json").read_text())["gateway"]["auth"]["token"] == 's3cret-"quoted"'
        assert (tmp_path / "openclaw.json.bak").read_text() == WRITTEN
        assert len(gateway.received("config.changed", hash=result["hash"])) == 1

    asyncio.run(scenario())


def test_a_write_needs_the_hash_of_what_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        gateway, _ = make_service(tmp_path)
        with pytest.raises(RpcError, match="base hash required"):
            await gateway.call("config.set", {"raw": "{}"})
        with pytest.raises(RpcError, match="changed since last load"):
            await gateway.call("config.patch", {"raw": "{}", "baseHash": "hmac-sha256:v1:other"})
        assert (tmp_path / "openclaw.json").read_text() == WRITTEN

    asyncio.run(scenario())


def test_the_first_write_needs_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        gateway, _ = make_service(tmp_path, None)
        assert not (await gateway.call("config.get"))["exists"]
        assert (await gateway.call("config.set", {"raw": "{session:{mainKey:'home'}}"}))["ok"]
        assert (await gateway.call("config.get"))["parsed"] == {"session": {"mainKey": "home"}}
        assert (tmp_path / "openclaw.json").stat().st_mode & 0o077 == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("raw", "path", "reason"),
    [
        ("{ui:{bogus:1}}", "ui", 'Unrecognized key: "bogus"'),
        ("{bogus:{}}", "", 'Unrecognized key: "bogus"'),
        ("{gateway:{port:'x'}}", "gateway.port", "integer"),
        ("{gateway:{port:99999}}", "gateway.port", "maximum"),
        ("{agents:{list:[{name:'x'}]}}", "agents.list.0", "id"),
        ("{agents:{list:[{id:'x',runtime:'cluade'}]}}", "agents.list.0.runtime", "must be one of demo, openai, "),
        ("{agents:{defaults:{runtime:'cluade'}}}", "agents.defaults.runtime", "opencode"),
        ("{mcp:{servers:{bad:{command:'x',args:'notalist'}}}}", "mcp.servers.bad.args", "array"),
        ("{mcp:{servers:{bad:{command:'x',env:{A:{}}}}}}", "mcp.servers.bad.env.A", "string"),
    ],
)
def test_bad_contents_are_refused_by_path_and_reason(tmp_path: Path, raw: str, path: str, reason: str) -> None:
    async def scenario() -> None:
        gateway, _ = make_service(tmp_path)
        base = (await gateway.call("config.get"))["hash"]
        with pytest.raises(RpcError, match="invalid config") as refused:
            await gateway.call("config.set", {"raw": raw, "baseHash": base})
        (issue,) = refused.value.details["issues"]
        assert issue["path"] == path
        assert reason in issue["message"]
        with pytest.raises(RpcError, match=r"not valid JSON5 \(line 2"):
            await gateway.call("config.set", {"raw": "{\n a: }", "baseHash": base})
        with pytest.raises(RpcError, match="JSON5: the array that begins at line 2, column 5 is not closed"):
            await gateway.call("config.set", {"raw": "{\n a: [1,\n", "baseHash": base})

    asyncio.run(scenario())


def test_a_patch_merges_deletes_and_does_not_shorten_lists_by_accident(tmp_path: Path) -> None:
    async def scenario() -> None:
        raw = '{"agents":{"list":[{"id":"main","name":"A"},{"id":"b"}]},"gateway":{"tools":{"allow":["x","y"]}}}'
        gateway, service = make_service(tmp_path, raw)

        async def patch(change: Any, **more: Any) -> Any:
            base = (await gateway.call("config.get"))["hash"]
            return await gateway.call("config.patch", {"raw": json.dumps(change), "baseHash": base, **more})

        result = await patch({"agents": {"list": [{"id": "b", "name": "B"}]}, "session": {"mainKey": "m"}}, note="why")
        assert result["changedPaths"] == ["agents.list", "session"]
        assert result["sentinel"]["payload"]["message"] == "why"
        assert result["sentinel"]["payload"]["stats"]["requiresRestart"] is False
        assert service.current.parsed["agents"]["list"] == [{"id": "main", "name": "A"}, {"id": "b", "name": "B"}]
        with pytest.raises(RpcError, match=r"gateway\.tools\.allow.*replacePaths"):
            await patch({"gateway": {"tools": {"allow": ["x"]}}})
        result = await patch({"gateway": {"tools": {"allow": ["x"]}}}, replacePaths=["gateway.tools.allow"])
        assert result["ok"]
        result = await patch({"session": None, "gateway": {"port": 1}})
        assert "session" not in service.current.parsed
        assert result["sentinel"]["payload"]["stats"]["requiresRestart"] is True

    asyncio.run(scenario())


def test_an_edit_by_hand_is_taken_in_and_a_broken_one_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        gateway, service = make_service(tmp_path, '{"session":{"mainKey":"a"}}')
        changes: list[ConfigUpdate] = []
        changed = asyncio.Event()
        service.changed.connect(changes.append)
        service.changed.connect(lambda _: changed.set())
        async with service:
            (tmp_path / "openclaw.json").write_text('{"session":{"mainKey":"bb"}}')
            await asyncio.wait_for(changed.wait(), 20)
            assert service.current.config.session.main_key == "bb"
            assert (changes[0].paths, changes[0].reload) == (("session.mainKey",), "none")
            (tmp_path / "openclaw.json").write_text("{ nonsense")
            await service.reload()
            assert service.current.config.session.main_key == "bb"
            config = await gateway.call("config.get")
            assert (config["valid"], config["raw"], len(config["issues"])) == (False, None, 1)
        assert len(changes) == 1

    asyncio.run(scenario())


def test_a_broken_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="invalid config"):
        make_service(tmp_path, "{ nonsense")
    assert (tmp_path / "openclaw.json").read_text() == "{ nonsense"


def test_history_keeps_every_change_even_one_made_while_we_were_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_store(str(tmp_path / "db")) as store:
            history = SqlConfigHistory(store)
            gateway, service = make_service(tmp_path, "{}", history=history)
            async with service:
                base = (await gateway.call("config.get"))["hash"]
                await gateway.call("config.set", {"raw": '{"ui":{}}', "baseHash": base})
            (tmp_path / "openclaw.json").write_text('{"ui":{"seamColor":"red"}}')
            _, again = make_service(tmp_path, None, history=history)
            async with again:
                assert [change.method for change in await history.last()] == ["start", "config.set", "start"]

    asyncio.run(scenario())


def test_the_schema_tells_what_may_stand_where_and_what_a_change_takes(tmp_path: Path) -> None:
    async def scenario() -> None:
        gateway, _ = make_service(tmp_path)
        answer = await gateway.call("config.schema")
        assert {"schema", "uiHints", "version", "generatedAt"} == set(answer)
        assert answer["uiHints"]["gateway.auth.token"]["sensitive"]
        found = await gateway.call("config.schema.lookup", {"path": "gateway.auth"})
        assert (found["path"], found["reloadKind"]) == ("gateway.auth", "restart")
        assert [child["key"] for child in found["children"]] == ["mode", "token", "password"]
        assert (await gateway.call("config.schema.lookup", {"path": "channels.telegram"}))["reloadKind"] == "hot"
        with pytest.raises(RpcError, match="not found"):
            await gateway.call("config.schema.lookup", {"path": "gateway.nothing"})
        with pytest.raises(RpcError, match="missing scope"):
            await gateway.call("config.set", {"raw": "{}"}, link=TwinLink("operator.write"))

    asyncio.run(scenario())


def test_the_published_schema_is_ours_and_is_one() -> None:
    published = Path(__file__).parents[2] / "docs" / "reference" / "openclaw.schema.json"
    assert json.loads(published.read_text()) == ConfigSchema().json_schema
    jsonschema_rs.meta.validate(ConfigSchema().json_schema)


FLAGS = [
    "db://u:p@h", "--token", "-H", "Authorization: Bearer b", "password=p w", "${A}", "env", "A=b", 'b.env={A="c"}',
    '{"token": "t", "a": [1]}', "--x={'a': 1, token: 2}", "https://u:p@h/a?b#c", "https://h/hook/x", "git+https://h/x",
]  # fmt: skip
Values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8) | st.sampled_from(FLAGS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "env", "token", "id", "apiKey", "x y", "command", "to", "webhookUrl"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(config=st.dictionaries(st.sampled_from(["a", "token", "password", "n"]), Values, max_size=4))
def test_every_hidden_value_comes_back(config: Any) -> None:
    raw = json.dumps(config)
    redacted = redaction.redact_text(raw, config)
    for path, _ in parsing.walk_values(config):
        assert not redaction.is_secret(config, path) or redaction.REDACTED in parsing.value_at(
            parsing.parse(redacted), path
        )
    assert parsing.parse(redaction.restore_text(redacted, config)) == config
    assert redaction.restore_secrets(redaction.redact_secrets(config), config) == config


@given(base=Values, patch=Values)
@example(base=None, patch=[{"id": "0", "a": None}])
@example(base=[1], patch=[{"id": "0", "a": None}, {"id": "1", "b": 1}])
@example(base=[{"id": "0", "a": 1}, {"id": "0"}], patch=[{"id": "0", "a": None}])
def test_a_patch_applied_twice_changes_nothing_more(base: Any, patch: Any) -> None:
    try:
        once = merge.merge_patch(base, patch)
    except BadRequest:  # it names one id twice
        assume(False)
    assert merge.merge_patch(once, patch) == once


@pytest.mark.parametrize("base", [None, [{"id": "main"}], [{"id": "twin"}]])
def test_a_patch_names_each_id_of_a_list_once(base: Any) -> None:
    patch = {"agents": {"list": [{"id": "twin", "model": "a/b"}, {"id": "twin"}]}}
    with pytest.raises(BadRequest, match=r"agents\.list: the id 'twin' is there twice"):
        merge.merge_patch({"agents": {"list": base}}, patch)


def test_a_hidden_secret_with_nothing_behind_it_is_refused() -> None:
    with pytest.raises(BadRequest, match="token"):
        redaction.restore_text(f'{{"token":"{redaction.REDACTED}"}}', {})


def openclaw(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from openclaw_mcp.cli import main; sys.exit(main())", *words]
    environment = {**os.environ, "OPENCLAW_STATE_DIR": str(folder)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_line_reads_changes_and_checks(tmp_path: Path) -> None:
    assert "does not exist" in openclaw(tmp_path, "config", "validate").stdout
    assert openclaw(tmp_path, "config", "set", "gateway.auth.token", "hush").returncode == 0
    changed = openclaw(tmp_path, "config", "set", "gateway.port", "18800")
    assert changed.stdout.endswith("openclaw.json; no gateway runs here; it counts from the next start\n")
    assert openclaw(tmp_path, "config", "get", "gateway.port").stdout == "18800\n"
    assert openclaw(tmp_path, "config", "get", "gateway.auth.token").stdout == f"{redaction.REDACTED}\n"
    assert json.loads((tmp_path / "openclaw.json").read_text())["gateway"]["auth"]["token"] == "hush"
    refused = openclaw(tmp_path, "config", "set", "gateway.port", "no")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "gateway.port" in refused.stderr
    assert openclaw(tmp_path, "config", "set", "gateway.port", "--unset").returncode == 0
    assert openclaw(tmp_path, "config", "get", "gateway.port").returncode == 1
    (tmp_path / "bad.json").write_text("{ui:{bogus:1}}")
    bad = openclaw(tmp_path, "config", "validate", str(tmp_path / "bad.json"))
    assert (bad.returncode, bad.stderr) == (1, 'ui: Unrecognized key: "bogus"\n')
    schema = json.loads(openclaw(tmp_path, "config", "schema").stdout)
    assert schema == ConfigSchema().json_schema


def test_a_config_that_is_not_valid_can_be_mended_by_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "openclaw.json").write_text("{ui: {bogus: 1}, gateway: {port: 1}}")

    assert openclaw(tmp_path, "config", "set", "gateway.port", "2").returncode == 1
    assert openclaw(tmp_path, "config", "unset", "ui.bogus").returncode == 0
    again = openclaw(tmp_path, "config", "unset", "ui.bogus")
    assert again.returncode == 1
    assert "ui.bogus is not set" in again.stderr

    assert json.loads((tmp_path / "openclaw.json").read_text()) == {"ui": {}, "gateway": {"port": 1}}


def test_keys_of_models_are_hidden_however_they_are_written() -> None:
    provider = {
        "apiKey": ["sk-one", {"source": "env", "id": "A_KEY"}, "${B_KEY}"],
        "headers": {"Authorization": "Bearer sk-two", "x-api-key": "sk-three", "x-team": "${TEAM}"},
    }
    config = {"models": {"providers": {"lab": provider, "other": {"apiKey": "sk-four"}}}}
    assert not ConfigSchema().find_issues(config)
    redacted = json.dumps(redaction.redact_secrets(config))
    assert "sk-" not in redacted
    assert all(word in redacted for word in ("A_KEY", "${B_KEY}", "${TEAM}"))


SECRETIVE: Any = {
    "mcp": {
        "servers": {
            "a": {
                "command": "x",
                "env": {"USER_ID": "hush-1", "PATH": "${PATH}", "PIN": 471100815},
                "args": [
                    "--token=hush-0",
                    "db://u:hush-2@h",
                    "--api-key",
                    "hush-12",
                    "-H",
                    "Authorization: Bearer hush-13",
                ],
            },
            "c": {
                "command": "x",
                "args": ["host=h password=hush-14 user=me", "https://hush-15@h/", "x --token hush-16"],
            },
            "b": {"url": "https://h/mcp?api_key=hush-3", "headers": {"Cookie": "hush-4"}},
        }
    },
    "env": {"vars": {"DATABASE_URL": "hush-5"}},
    "agents": {"list": [{"id": "one", "runtimeEnv": {"A": "hush-6"}}, {"id": "two", "runtimeEnv": {"A": "hush-7"}}]},
    "models": {"providers": {"p": {"baseUrl": "http://me:hush-8@h/v1", "headers": {"x-team": "hush-9"}}}},
    "store": {"url": "postgresql://me:hush-10@h/db"},
    "plugins": {"signingKey": "hush-11"},
}


def test_secrets_are_known_by_where_they_stand_and_by_what_they_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        gateway, _ = make_service(tmp_path, json.dumps(SECRETIVE))
        config = await gateway.call("config.get")
        assert config["valid"], config["issues"]
        assert "hush" not in json.dumps(config)
        assert "4711" not in json.dumps(config)
        for method in ("config.set", "config.apply", "config.patch"):
            raw = json.dumps(config["parsed"]) if method == "config.patch" else config["raw"]
            result = await gateway.call(method, {"raw": raw, "baseHash": (await gateway.call("config.get"))["hash"]})
            assert "hush" not in json.dumps(result)
            assert json.loads((tmp_path / "openclaw.json").read_text()) == SECRETIVE

    asyncio.run(scenario())


def test_values_of_the_environment_are_never_published(tmp_path: Path) -> None:
    servers = {"t": {"command": "/bin/false", "args": ["--token", "${FAKE_KEY}", "x${FAKE_KEY}"], "cwd": "${FAKE_KEY}"}}

    async def scenario() -> None:
        gateway, _ = make_service(tmp_path, json.dumps({"mcp": {"servers": servers}}))
        config = await gateway.call("config.get")
        assert "from-env" not in json.dumps(config)
        for view in ("parsed", "resolved", "config", "runtimeConfig"):
            assert config[view]["mcp"]["servers"] == servers
        change = {"raw": json.dumps({"mcp": {"servers": {"t": {"enabled": False}}}}), "baseHash": config["hash"]}
        assert "from-env" not in json.dumps(await gateway.call("config.patch", change))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "config",
    [
        {"mcp": {"servers": {"a": {"headers": ["hush"]}}}},
        {"mcp": {"servers": {"a": {"env": "hush"}}}},
        {"mcp": {"servers": {"a": {"args": "--token hush"}}}},
        {"gateway": {"auth": "hush"}},
        {"gateway": {"auth": {"token": {"a": "hush"}}}},
        {"gateway": {"auth": {"token": [["hush"]]}}},
        {"models": {"providers": {"p": {"apiKey": {"source": "env", "id": "A", "value": "hush"}}}}},
    ],
)
def test_secrets_are_hidden_in_a_config_of_the_wrong_shape_too(tmp_path: Path, config: Any) -> None:
    async def scenario() -> None:
        gateway, _ = make_service(tmp_path, "{}")
        (tmp_path / "openclaw.json").write_text(json.dumps(config))
        result = await gateway.call("config.get")
        assert "hush" not in json.dumps(result)
        assert redaction.REDACTED in result["raw"]
        assert redaction.restore_secrets(result["parsed"], config) == config

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "comment", ['// "apiKey": "hush"', "/* token:\n hush */", "// B: 'hush'", "// at https://hush@h/", '// "hush",']
)
def test_a_comment_that_may_hold_a_secret_is_left_out_and_others_stay(comment: str) -> None:
    raw = f"{{ // the 'port'\n  gateway: {{ port: 1, {comment}\n }}, ui: {{ seamColor: '// token' }} }}"
    assert "hush" not in redaction.redact_text(raw, parsing.parse(raw))
    assert "// the 'port'" in redaction.redact_text(raw, parsing.parse(raw))
    assert parsing.parse(redaction.redact_text(raw, parsing.parse(raw))) == parsing.parse(raw)


def test_what_only_looks_like_a_secret_stays_to_be_seen() -> None:
    plain = {
        "session": {"mainKey": "home"},
        "hooks": {"sessionKey": "agent:main:main", "url": "http://h:80/a"},
        "cron": {"declarationKey": "daily"},
        "store": {"url": "postgresql://me:${PASSWORD}@h/db"},
        "mcp": {
            "servers": {
                "a": {"env": {"TOKEN": "${TOKEN}"}, "headers": {"Authorization": "Bearer ${TOKEN}"}},
                "monkey": {"command": "npx", "args": ["-y", "@scope/monkey", "--token", "${TOKEN}", "-v"]},
                "env": {"command": "x", "args": ["-H", "Authorization: Bearer ${TOKEN}", "password=${PW} host=h"]},
                "url": {"url": "https://${TOKEN}@h/a@b?key=${KEY}"},
            }
        },
        "gateway": {"auth": {"mode": "token"}},
        "agents": {"defaults": {"limits": {"tokens": 5}}},
        "models": {"providers": {"p": {"apiKey": {"source": "env", "id": "A_KEY"}}}},
    }

    assert redaction.redact_secrets(plain) == plain


def test_a_hidden_secret_follows_its_owner_and_no_other() -> None:
    stored = {"agents": SECRETIVE["agents"], "args": ["-y", "db://u:hush@h"]}
    redacted = redaction.redact_secrets(stored)

    second = redaction.restore_secrets({"agents": {"list": redacted["agents"]["list"][1:]}}, stored)

    assert second["agents"]["list"] == stored["agents"]["list"][1:]
    with pytest.raises(BadRequest, match=r"args\.0: nothing is stored"):
        redaction.restore_secrets({"args": redacted["args"][1:]}, stored)


def test_a_hidden_argument_is_not_given_away_by_changing_the_one_before_it() -> None:
    stored = {"args": ["--token", "hush"]}
    assert redaction.restore_secrets({"args": ["--api-key", redaction.REDACTED]}, stored) == {
        "args": ["--api-key", "hush"]
    }
    with pytest.raises(BadRequest, match=r"args\.1: .* would be shown"):
        redaction.restore_secrets({"args": ["--name", redaction.REDACTED]}, stored)
    with pytest.raises(BadRequest, match=r"args\.1: .* would be shown"):
        redaction.restore_text(json.dumps({"args": ["--name", redaction.REDACTED]}), stored)


@pytest.mark.parametrize(
    ("providers", "path"),
    [
        ({"x": {"api": "telepathy"}}, "models.providers.x.api"),
        ({"x": {"apiKey": {"source": "file"}}}, "models.providers.x.apiKey"),
        ({"x": {"models": [{"name": "no id"}]}}, "models.providers.x.models.0"),
    ],
)
def test_an_unusable_provider_is_refused(providers: Any, path: str) -> None:
    assert [issue["path"] for issue in ConfigSchema().find_issues({"models": {"providers": providers}})] == [path]


def test_parts_by_name_have_hints_and_reload_like_others() -> None:
    blueprint = ConfigSchema()
    assert blueprint.ui_hints()["models.providers.*.apiKey"]["sensitive"] is True
    assert blueprint.reload_kind(("models", "providers", "lab", "baseUrl")) == "none"


def test_a_write_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path)
    file.change(lambda _: {"gateway": {"port": 1}})
    left = [tmp_path / name for name in (".openclaw.json.123.0a1b2c3d", ".openclaw.json.bak.123.0a1b2c3d")]
    for path in left:
        path.write_text("{")
    there = {path.name for path in tmp_path.iterdir()} - {path.name for path in left}

    file.change(lambda _: {"gateway": {"port": 2}})

    assert {path.name for path in tmp_path.iterdir()} == there | {"openclaw.json.bak"}
