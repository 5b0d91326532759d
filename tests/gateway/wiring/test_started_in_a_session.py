"""What acts in a session by the gateway's own token is that session's agent.

Its rules hold for what it starts, and what a run of the session may not change it may not change either. A client that
names no session is a person's.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from openclaw_mcp.core.session_target import SessionAddress
from tests.gateway.wiring.gateways import Refused, World, comes, world
from tests.gateway.wiring.test_one_policy import tool_client

MAIN = "agent:main:main"
FREE = "agent:main:free"
GROUP = "agent:main:local:group:#g"
MODELLED = "agent:main:modelled"
CONFIG: dict[str, Any] = {
    "agents": {
        "defaults": {"runtime": "demo", "model": "a/one", "subagents": {"maxSpawnDepth": 2}},
        "list": [{"id": "main"}],
    },
    "channels": {
        "local": {
            "dmPolicy": "open",
            "allowFrom": ["*"],
            "groupPolicy": "open",
            "groups": {"#g": {"tools": {"deny": ["agents_list"]}}},
        }
    },
    "tools": {
        "byProvider": {"b": {"deny": ["agents_list"]}},
        "subagents": {"tools": {"alsoAllow": ["agents_list", "sessions_spawn"]}},
        "sessions": {"visibility": "agent"},
    },
    "gateway": {"tools": {"allow": ["sessions_spawn", "sessions_send", "gateway", "cron"]}},
    "session": {"agentToAgent": {"maxPingPongTurns": 0}},
}
ORDER = "x\n!tool agents_list {}"
YEARLY = {"kind": "every", "everyMs": 365 * 24 * 3600 * 1000}
EVENT: dict[str, Any] = {
    "sessionTarget": "main",
    "sessionKey": MAIN,
    "wakeMode": "next-heartbeat",
    "payload": {"kind": "systemEvent", "text": ORDER},
}
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), CONFIG) as gateway:
        for key in (MAIN, GROUP, FREE):
            gateway.say(key, "!say hi")
        gateway.ask("sessions.patch", key=MODELLED, model="b/two")
        yield gateway


# ---- what is started -------------------------------------------------------------------------------------------------


def unique() -> str:
    return os.urandom(8).hex()


def outcome(text: str) -> str:
    assert ("is refused" in text) != ("allowAny" in text), text
    return "refused" if "is refused" in text else "done"


def answers_of(server: World, key: str) -> str:
    """What the first run of a session answered."""
    assert comes(lambda: any(server.texts(key)))
    return " ".join(server.texts(key))


def fired(server: World, job: str) -> str:
    server.ask("cron.run", id=job)
    assert comes(lambda: bool(server.ask("cron.runs", id=job)["entries"]))
    return json.dumps(server.ask("cron.runs", id=job)["entries"])


def planned(**more: Any) -> dict[str, Any]:
    payload = {"kind": "agentTurn", "message": ORDER, "model": "a/one"}
    return {"name": unique(), "schedule": YEARLY, "payload": payload, "delivery": {"mode": "none"}, **more}


def spawned(server: World, ask: Ask) -> str:
    return answers_of(server, ask("sessions.spawn", task=ORDER, sessionKey=MAIN)["childSessionKey"])


def spawned_with_another_model(server: World, ask: Ask) -> str:
    result = ask("sessions.spawn", task=ORDER, sessionKey=MAIN, model="a/one")
    return answers_of(server, result["childSessionKey"])


def send_to_another_session(server: World, ask: Ask) -> str:
    run = ask("agent", sessionKey=MAIN, message=ORDER, idempotencyKey=unique())["runId"]
    return server.answer(run)


def planned_a_job(server: World, ask: Ask) -> str:
    return fired(server, ask("cron.add", **planned())["id"])


def planned_a_job_in_another_session(server: World, ask: Ask) -> str:
    return fired(server, ask("cron.add", **planned(sessionTarget=f"session:{FREE}"))["id"])


def changed_a_persons_job(server: World, ask: Ask) -> str:
    job = server.ask("cron.add", **planned(payload={"kind": "agentTurn", "message": "!say hi"}))["id"]
    ask("cron.update", id=job, patch={"payload": {"kind": "agentTurn", "message": ORDER}})
    return fired(server, job)


def _answer_in_main(server: World, job: str) -> str:
    return fired(server, job) + server.say(MAIN, "what is new?")


def left_words_for_the_owners_next_prompt(server: World, ask: Ask) -> str:
    return _answer_in_main(server, ask("cron.add", **planned(**EVENT))["id"])


def changed_words_a_person_left(server: World, ask: Ask) -> str:
    job = server.ask("cron.add", **planned(**EVENT | {"payload": {"kind": "systemEvent", "text": "hi"}}))["id"]
    ask("cron.update", id=job, patch={"payload": {"kind": "systemEvent", "text": ORDER}})
    return _answer_in_main(server, job)


DEEDS = [
    spawned,
    spawned_with_another_model,
    send_to_another_session,
    planned_a_job,
    planned_a_job_in_another_session,
    changed_a_persons_job,
    left_words_for_the_owners_next_prompt,
    changed_words_a_person_left,
]
BOUND = {GROUP: "refused", MODELLED: "refused", FREE: "done"}
"""Sessions, and what comes of a tool that the rules of the first two refuse."""


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("session", BOUND)
@pytest.mark.parametrize("credential", ["the gateway's token", "a grant by the key alone"])
def test_the_rules_of_a_session_hold_for_what_is_started_there(
    server: World, credential: str, session: str, deed: Callable[[World, Ask], str]
) -> None:
    granted = credential.startswith("a grant")
    token = server.ask("attach.grant", sessionKey=session)["token"] if granted else None
    with tool_client(server, None if granted else SessionAddress(session=session), token=token) as client:
        assert outcome(deed(server, client.ask)) == BOUND[session]


def by_mcp(server: World, session: str, tool: str, arguments: Any) -> Any:
    result = server.mcp("tools/call", quote(session), name=tool, arguments=arguments)["result"]
    return json.loads(result["content"][0]["text"])


def by_invoke(server: World, session: str, tool: str, arguments: Any) -> Any:
    return json.loads(server.invoke(tool, session, **arguments)["output"]["content"][0]["text"])


def by_post(server: World, session: str, tool: str, arguments: Any) -> Any:
    return json.loads(server.post(tool, session, **arguments).json["result"]["content"][0]["text"])


Use = Callable[[World, str, str, Any], Any]


def tool_spawns(server: World, session: str, use: Use) -> str:
    return answers_of(server, use(server, session, "sessions_spawn", {"task": ORDER})["childSessionKey"])


def tool_sends(server: World, session: str, use: Use) -> str:
    arguments = {"sessionKey": MAIN, "message": ORDER, "timeoutSeconds": 60}
    return json.dumps(use(server, session, "sessions_send", arguments))


def tool_plans(server: World, session: str, use: Use) -> str:
    return fired(server, use(server, session, "cron", {"action": "add", "job": planned()})["id"])


def tool_wakes(server: World, session: str, use: Use) -> str:
    before = len(server.texts(session))
    use(server, session, "cron", {"action": "wake", "text": ORDER, "mode": "now"})
    assert comes(lambda: len(server.texts(session)) > before and bool(server.texts(session)[-1]))
    return server.texts(session)[-1]


@pytest.mark.parametrize("deed", [tool_spawns, tool_sends, tool_plans, tool_wakes])
@pytest.mark.parametrize("session", BOUND)
@pytest.mark.parametrize("use", [by_mcp, by_invoke, by_post])
def test_the_rules_hold_for_what_its_tools_start_at_every_entry_point(
    server: World, use: Use, session: str, deed: Callable[[World, str, Use], str]
) -> None:
    assert outcome(deed(server, session, use)) == BOUND[session]


@pytest.mark.parametrize("session", [GROUP, MODELLED])
def test_the_rules_come_along_through_a_session_that_has_none(server: World, session: str) -> None:
    """A message sent to a session without rules sends to the next one."""
    send = {"sessionKey": FREE, "message": ORDER, "timeoutSeconds": 60}
    with tool_client(server, SessionAddress(session=session)) as client:
        order = f"x\n!tool sessions_send {json.dumps(send)}"
        run = client.ask("agent", sessionKey=MAIN, message=order, idempotencyKey=unique())["runId"]
    assert outcome(server.answer(run)) == "refused"


def test_depth_counts_from_the_session_acted_in_whichever_is_named(server: World) -> None:
    below = MAIN
    for _ in range(2):
        below = server.ask("sessions.spawn", sessionKey=below, task="!say x")["childSessionKey"]
    assert server.ask("sessions.spawn", sessionKey=MAIN, task="!say x")["status"] == "accepted"
    with tool_client(server, SessionAddress(session=below)) as client:
        result = client.ask("sessions.spawn", sessionKey=MAIN, task="!say x")
    assert result["status"] == "forbidden", result


# ---- what is changed -------------------------------------------------------------------------------------------------

FREELY = {"ui": {"seamColor": "#123456"}}
PATCHES: dict[str, dict[str, Any]] = {
    "the group's own rules": {"channels": {"local": {"groups": {"#g": {"tools": None}}}}},
    "a program": {"mcp": {"servers": {"x": {"command": "false", "enabled": False}}}},
    "who owns the gateway": {"commands": {"ownerAllowFrom": ["local:mallory"]}},
    "rules about tools": {"tools": {"loopDetection": {"enabled": True}}},
}


def refusal_of(server: World, session: str | None, method: str, **params: Any) -> str:
    """Over the WebSocket, in a session or in none; the refusal."""
    place = None if session is None else SessionAddress(session=session)
    try:
        with tool_client(server, place) if place else contextlib.nullcontext(server) as client:
            client.ask(method, **params)
    except Refused as exc:
        return str(exc)
    return ""


def patched_by_socket(server: World, session: str | None, raw: str) -> str:
    return refusal_of(server, session, "config.patch", raw=raw, baseHash=server.ask("config.get")["hash"])


def applied_by_socket(server: World, session: str | None, raw: str) -> str:
    """The whole config, with the patched section in it."""
    before, patch = server.ask("config.get"), json.loads(raw)
    section = next(iter(patch))
    whole = {**before["parsed"], section: {**before["parsed"].get(section, {}), **patch[section]}}
    return refusal_of(server, session, "config.apply", raw=json.dumps(whole), baseHash=before["hash"])


def patched_by_mcp(server: World, session: str | None, raw: str) -> str:
    arguments = {"action": "config.patch", "raw": raw}
    result = server.mcp("tools/call", quote(session) if session else None, name="gateway", arguments=arguments)[
        "result"
    ]
    return str(result["content"][0]["text"]) if result["isError"] else ""


def patched_by_invoke(server: World, session: str | None, raw: str) -> str:
    try:
        result = server.invoke("gateway", session, action="config.patch", raw=raw)
    except Refused as exc:  # of a session's key that is none
        return str(exc)
    return "" if result["ok"] else str(result["error"]["message"])


WRITERS = [patched_by_socket, applied_by_socket, patched_by_mcp, patched_by_invoke]
Write = Callable[[World, str | None, str], str]


@pytest.fixture
def config_before(server: World) -> Iterator[dict[str, Any]]:
    """The config, which is put back."""
    before = server.ask("config.get")["parsed"]
    yield before
    if server.ask("config.get")["parsed"] != before:
        server.ask("config.set", raw=json.dumps(before), baseHash=server.ask("config.get")["hash"])


@pytest.mark.parametrize("what", PATCHES)
@pytest.mark.parametrize("session", [GROUP, FREE, "agent:"])
@pytest.mark.parametrize("write", WRITERS)
def test_a_client_that_acts_in_a_session_changes_no_rules_programs_or_owners(
    server: World, config_before: dict[str, Any], write: Write, session: str, what: str
) -> None:
    refusal = write(server, session, json.dumps(PATCHES[what]))
    assert refusal, "it was written"
    assert server.ask("config.get")["parsed"] == config_before
    if session != "agent:":  # which is no session's key, so that other refusals may come first
        assert "openclaw config set PATH VALUE" in refusal


@pytest.mark.parametrize(("write", "what"), list(zip(WRITERS, PATCHES, strict=True)))
def test_a_persons_client_that_names_no_session_changes_all_of_it(
    server: World, config_before: dict[str, Any], write: Write, what: str
) -> None:
    assert write(server, None, json.dumps(PATCHES[what])) == ""
    assert server.ask("config.get")["parsed"] != config_before


@pytest.mark.parametrize("write", WRITERS)
def test_what_a_run_may_change_is_changed_unasked(server: World, config_before: dict[str, Any], write: Write) -> None:
    assert write(server, FREE, json.dumps(FREELY)) == ""


PROGRAMS: dict[str, dict[str, Any]] = {
    "command": {"payload": {"kind": "command", "argv": ["false"]}},
    "on-exit": {"schedule": {"kind": "on-exit", "command": "false"}},
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs_of_jobs_are_made_and_started_by_people(server: World, kind: str) -> None:
    job = planned(**PROGRAMS[kind])
    job_id = server.ask("cron.add", **job | {"enabled": False})["id"]
    result = server.mcp("tools/call", quote(FREE), name="cron", arguments={"action": "add", "job": job})["result"]
    assert result["isError"] and f"{kind} jobs are made by operators" in result["content"][0]["text"]
    with tool_client(server, SessionAddress(session=FREE)) as client:
        for method, params in (("cron.add", job), ("cron.run", {"id": job_id}), ("cron.remove", {"id": job_id})):
            with pytest.raises(Refused, match="by operators"):
                client.ask(method, **params)
    server.ask("cron.remove", id=job_id)


@pytest.mark.parametrize("session", [GROUP, MODELLED, FREE])
def test_a_sessions_model_is_not_chosen_there_while_rules_go_by_provider(server: World, session: str) -> None:
    arguments = {"sessionKey": MODELLED, "model": "a/one"}
    result = server.mcp("tools/call", quote(session), name="session_status", arguments=arguments)["result"]
    assert result["isError"] and "byProvider" in result["content"][0]["text"], result
    assert server.ask("sessions.describe", key=MODELLED)["session"]["model"] == "b/two"


def test_a_job_planned_in_a_session_is_that_sessions(server: World) -> None:
    with tool_client(server, SessionAddress(session=FREE)) as client:
        job = client.ask("cron.add", **planned())
    assert job["sessionKey"] == FREE
    assert server.ask("cron.add", **planned()).get("sessionKey") is None
