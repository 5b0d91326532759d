"""Unknown parameters are refused wherever OpenClaw refuses them: a misspelt limit never becomes a call without it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.gateway.rpc.gateways import CONNECT
from tests.gateway.wiring.gateways import WAIT, Refused, World, world

TAKES_ANY = {
    "diagnostics.lanes", "exec.approval.list", "exec.approval.waitDecision", "exec.approvals.node.set",
    "gateway.identity.get", "gateway.restart.preflight", "gateway.restart.request", "health", "last-heartbeat",
    "openclaw.approval.list", "plugin.approval.list", "status", "system-presence", "usage.status", "wake",
    "attach.revoke",
}  # fmt: skip
"""Advertised methods that refuse no unknown parameter, as in OpenClaw."""
OTHERS = ("sessions.resolve", "sessions.steer", "chat.inject", "poll", "channels.restart")
"""Methods that `hello-ok` does not name."""
WHOLE: dict[str, Any] = {
    "cron.add": {"schedule": {"kind": "every", "everyMs": 1}, "payload": {"kind": "agentTurn", "message": "x"}}
}
"""Parameters of a method that is refused first for what it lacks."""
AGENTS = [{"id": "main", "default": True}, {"id": "thinker", "model": "openai/gpt-5"}]
FOR_NODES = "unauthorized role"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), {"agents": {"list": AGENTS}}) as gateway:
        yield gateway


def _connect(server: World, params: dict[str, Any]) -> Any:
    with connect(server.served.ws, compression=None) as socket:
        socket.recv(timeout=WAIT)
        sent = CONNECT | {"auth": {"token": server.served.token}} | params
        socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": sent}))
        return json.loads(socket.recv(timeout=WAIT))


def test_every_method_refuses_a_parameter_it_does_not_know(server: World) -> None:
    accepted = []
    for method in [*_connect(server, {})["payload"]["features"]["methods"], *OTHERS]:
        if method == "connect" or method in TAKES_ANY:
            continue
        try:
            server.ask(method, noSuchParameter=1, **WHOLE.get(method, {}))
        except Refused as refused:
            text = str(refused)
            if FOR_NODES not in text and "at root: unexpected property 'noSuchParameter'" not in text:
                accepted.append(f"{method}: {text}")
        else:
            accepted.append(method)
    assert accepted == []


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"noSuchKey": 1}, "at root: unexpected property 'noSuchKey'"),
        ({"client": CONNECT["client"] | {"colour": "red"}}, "at /client: unexpected property 'colour'"),
        ({"auth": {"tokn": "x"}}, "at /auth: unexpected property 'tokn'"),
        ({"device": {"id": "d"}}, "at /device: must have required property 'publicKey'"),
    ],
)
def test_connect_refuses_what_it_does_not_know(server: World, params: dict[str, Any], problem: str) -> None:
    answer = _connect(server, params)
    assert answer["error"]["message"] == f"invalid connect params: {problem}"


def test_connect_takes_every_key_that_openclaws_own_clients_send(server: World) -> None:
    extra = {"computerUse": {}, "modelCatalog": {"agentId": "main"}, "locale": "en", "userAgent": "x"}
    assert _connect(server, extra)["ok"]


def test_parameters_of_openclaw_that_mean_nothing_here_are_accepted(server: World) -> None:
    assert server.ask("sessions.list", includeGlobal=True, ownerFirst=True, limit=1)["count"] <= 1
    sent = server.ask(
        "chat.send", sessionKey="main", message="!say hi", idempotencyKey="quiet", deliver=False, fastMode="auto"
    )
    assert server.answer(sent["runId"]) == "hi"


def test_a_job_has_no_field_that_nothing_reads(server: World) -> None:
    job: dict[str, Any] = {
        "schedule": {"kind": "every", "everyMs": 86_400_000},
        "payload": {"kind": "agentTurn", "message": "x"},
    }
    for extra, place in (
        ({"limt": 1}, "at root: unexpected property 'limt'"),
        ({"payload": job["payload"] | {"toolsAlow": []}}, "at /payload: unexpected property 'toolsAlow'"),
        ({"schedule": job["schedule"] | {"tz": "UTC"}}, "at /schedule: unexpected property 'tz'"),
    ):
        with pytest.raises(Refused) as refused:
            server.ask("cron.add", **(job | extra))
        assert str(refused.value) == f"invalid cron.add params: {place}"


def test_one_error_names_what_is_missing_and_what_is_too_much(server: World) -> None:
    with pytest.raises(Refused) as refused:
        server.ask("chat.history", sesionKey="main")
    assert str(refused.value) == (
        "invalid chat.history params: must have required property 'sessionKey'; "
        "at root: unexpected property 'sesionKey'"
    )


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("sendPolicy", "maybe", "invalid sessions.patch params: at /sendPolicy: must be equal to one of"),
        ("groupActivation", "sometimes", "at /groupActivation: must be equal to one of the allowed values"),
        ("thinkingLevel", "enormous", "invalid thinkingLevel (use off|minimal|low|"),
        ("thinkingLevel", "", "at /thinkingLevel: must not have fewer than 1 characters"),
        ("thinkingLevel", 5, "at /thinkingLevel: must be string"),
        ("verboseLevel", "loud", "invalid verboseLevel (use on|off|full)"),
        ("reasoningLevel", "x", "invalid reasoningLevel (use on|off|stream)"),
        ("elevatedLevel", "x", "invalid elevatedLevel (use on|off|ask|full)"),
        ("execHost", "x", "invalid execHost (use auto|sandbox|gateway|node)"),
        ("execSecurity", "deny", "execSecurity/execAsk are retired"),
        ("color", "zz", "invalid color (use red|"),
        ("fastMode", "x", "at /fastMode: must be"),
        ("archived", None, "at /archived: must be boolean"),
        ("ttlMinutes", -1, "at /ttlMinutes: must be >= 1"),
        ("label", "", "at /label: must not have fewer than 1 characters"),
        ("spawnDepth", 3, "at root: unexpected property 'spawnDepth'"),
        ("spawnedBy", "agent:main:main", "at root: unexpected property 'spawnedBy'"),
        ("extraSystemPrompt", "x", "at root: unexpected property 'extraSystemPrompt'"),
        ("model", "nosuch/model", 'Unknown provider "nosuch"; add models.providers.nosuch to the config'),
        ("model", "", "at /model: must not have fewer than 1 characters"),
        ("permissionMode", "read-only", "this gateway does not enforce permissionMode of a session"),
        ("sendPolicy", "deny", "this gateway does not enforce sendPolicy of a session"),
        ("toolOverrides", {"webSearch": False}, "this gateway does not enforce toolOverrides of a session"),
    ],
)
def test_a_session_takes_no_field_or_value_that_openclaw_refuses(
    server: World, field: str, value: Any, problem: str
) -> None:
    with pytest.raises(Refused) as refused:
        server.ask("sessions.patch", key="agent:thinker:probe", **{field: value})
    assert problem in str(refused.value)
    assert refused.value.kind == "INVALID_REQUEST"
    assert server.ask("sessions.describe", key="agent:thinker:probe")["session"] is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("thinkingLevel", "high"), ("verboseLevel", "full"), ("reasoningLevel", "stream"), ("fastMode", "auto"),
        ("groupActivation", "mention"), ("responseUsage", "tokens"), ("color", "red"), ("category", "work"),
        ("sendPolicy", "allow"), ("model", "openai/gpt-5-mini"), ("model", "ollama/any"),
    ],
)  # fmt: skip
def test_a_session_keeps_what_openclaw_keeps_and_null_clears_it(server: World, field: str, value: Any) -> None:
    entry = server.ask("sessions.patch", key="agent:thinker:kept", **{field: value})["entry"]
    assert entry[field] == value
    entry = server.ask("sessions.patch", key="agent:thinker:kept", **{field: None})["entry"]
    assert entry.get(field) != value


def test_a_patch_that_expects_another_state_changes_nothing(server: World) -> None:
    server.ask("sessions.patch", key="agent:main:expecting", label="before")
    with pytest.raises(Refused, match="changed since it was read"):
        server.ask("sessions.patch", key="agent:main:expecting", label="after", expectedPermissionMode="guarded")
    server.ask("sessions.patch", key="agent:main:expecting", label="after", expectedPermissionMode=None)
    row = server.ask("sessions.describe", key="agent:main:expecting")["session"]
    assert row["label"] == "after"


def test_a_session_is_not_created_with_a_model_of_no_provider(server: World) -> None:
    with pytest.raises(Refused, match='Unknown provider "nosuch"'):
        server.ask("sessions.create", key="agent:thinker:fresh", model="nosuch/model")
    assert server.ask("sessions.describe", key="agent:thinker:fresh")["session"] is None
