"""What was meant for the owner in a session others use too: none of it reaches them, by whichever way they ask.

A real gateway and a group of the local channel. What was said in the group is for its members; what was said to the
owner's client, to another session of the owner's or to the gateway itself is not.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.transcript import redact_for_others
from tests.gateway.agents.models.fake import FakeModel, Step, call, say
from tests.gateway.wiring.gateways import Json, Refused, World, comes, joined, world
from tests.gateway.wiring.test_other_senders import GROUP, MALLORY, OPEN, SECRET, behind, demo, send

CONFIG: Json = {
    "channels": OPEN, "agents": {"list": [{"id": "main"}]}, "tools": {"sessions": {"visibility": "agent"}},
    "session": {"agentToAgent": {"maxPingPongTurns": 0}},
}  # fmt: skip
ANSWER = f"!say it is {SECRET}"


@contextmanager
def stranger_in(server: World, key: str = GROUP) -> Iterator[World]:
    """A program of a run that answers another sender there."""
    token = server.ask("attach.grant", sessionKey=key, senderIsOwner=False)["token"]
    with joined(server.served, token=token) as program:
        yield program


def ask_json(program: World, method: str, **params: Any) -> str:
    """The answer as JSON; empty if the request is refused."""
    try:
        return json.dumps(program.ask(method, **params))
    except Refused:
        return ""


# ---- answers no member was given -------------------------------------------------------------------------------------


def by_another_session(server: World) -> None:
    note = {"sessionKey": GROUP, "message": ANSWER, "timeoutSeconds": 10}
    assert SECRET in server.say("agent:main:main", f"!tool sessions_send {json.dumps(note)}")


def by_a_client(server: World) -> None:
    assert SECRET in server.say(GROUP, ANSWER)


def by_agent(server: World) -> None:
    run = server.ask("agent", sessionKey=GROUP, message=ANSWER, idempotencyKey="asked-1")["runId"]
    assert SECRET in server.answer(run)


def by_wake(server: World) -> None:
    server.ask("wake", mode="now", text=f"\n{ANSWER}", sessionKey=GROUP)
    server.until("chat", lambda event: event["state"] == "final" and SECRET in json.dumps(event))


def by_inject(server: World) -> None:
    server.ask("chat.inject", sessionKey=GROUP, message=SECRET)


def by_a_job(server: World) -> None:
    fired(server, sessionTarget=f"session:{GROUP}", payload={"kind": "agentTurn", "message": ANSWER})


def by_a_job_that_tells_another_place(server: World) -> None:
    there = {"mode": "announce", "channel": "local", "to": "elsewhere"}
    job = {"sessionTarget": f"session:{GROUP}", "payload": {"kind": "agentTurn", "message": ANSWER}}
    fired(server, **job, delivery=there)


def by_a_lesser_client(server: World) -> None:
    with joined(server.served, "operator.read", "operator.write") as operator:
        assert SECRET in operator.say(GROUP, ANSWER)


def by_a_lesser_clients_wake(server: World) -> None:
    with joined(server.served, "operator.read", "operator.write") as operator:
        operator.ask("wake", mode="now", text=f"\n{ANSWER}", sessionKey=GROUP)
    server.until("chat", lambda event: event["state"] == "final" and SECRET in json.dumps(event))


def fired(server: World, **job: Any) -> None:
    """A job of the owner's, once; what it answers stays inside unless it says otherwise."""
    yearly = {"kind": "every", "everyMs": 365 * 24 * 3600 * 1000}
    added = server.ask("cron.add", **{"name": "r", "schedule": yearly, "delivery": {"mode": "none"}, **job})
    server.ask("cron.run", id=added["id"])
    server.until("cron", lambda event: event.get("action") == "finished" and event["jobId"] == added["id"])


ELSEWHERE = [
    by_another_session, by_a_client, by_agent, by_wake, by_inject, by_a_job, by_a_job_that_tells_another_place,
    by_a_lesser_client, by_a_lesser_clients_wake,
]  # fmt: skip


@pytest.mark.parametrize("speak", ELSEWHERE)
def test_an_answer_the_group_was_not_given_is_not_told_to_others(tmp_path: Path, speak: Any) -> None:
    """In the history, in the list, by the run's id; the owner's own runs see it."""
    with world(tmp_path, CONFIG) as server:
        send(server, "hi")
        speak(server)
        assert SECRET not in json.dumps(server.ask("local.read", conversation="#g"))
        last = server.ask("sessions.describe", key=GROUP)["session"]["lastRunId"]
        with stranger_in(server) as program:
            everything = ask_json(program, "chat.history", sessionKey=GROUP)
            assert "owner: hi" in everything
            everything += ask_json(program, "sessions.list", includeLastMessage=True, includeDerivedTitles=True)
            everything += ask_json(program, "sessions.describe", key=GROUP, includeLastMessage=True)
            everything += ask_json(program, "sessions.get", key=GROUP)
            everything += ask_json(program, "agent.wait", runId=last, timeoutMs=0)
            everything += ask_json(program, "agent", sessionKey=GROUP, message="x", idempotencyKey=last)
        assert SECRET not in everything
        assert SECRET in demo(server, "!tool sessions_history " + json.dumps({"sessionKey": GROUP}))


def test_neither_is_it_in_a_strangers_prompt(tmp_path: Path) -> None:
    steps = (say("hello all"), say(f"it is {SECRET}"), say("hi Mallory"), say("as I said"))
    with FakeModel(*steps) as model, world(tmp_path, behind("openai", model)) as server:
        send(server, "good morning")
        server.say(GROUP, "between us")
        send(server, "what was that?", sender=MALLORY)
        send(server, "and to me?")
        mallorys, owners = (json.dumps(model.wait_for(n).body["messages"]) for n in (3, 4))
    assert [word for word in ("between us", SECRET) if word in mallorys] == []
    assert [word for word in ("good morning", "hello all") if word not in mallorys] == []
    assert [word for word in ("between us", SECRET) if word not in owners] == []


def test_what_the_agent_sends_to_the_group_the_group_is_told_again(tmp_path: Path) -> None:
    """An answer to another session is the owner's; what the agent then says in the group is not."""
    note = {"sessionKey": GROUP, "message": "!say it is between us", "timeoutSeconds": 10}

    def model_of(request: Any) -> Step:
        last = json.dumps(request.body["messages"][-1])
        if "announce step" in last:
            return say("the group may know")
        if "between us" in last and '"tool"' not in last:
            return say(f"it is {SECRET}")
        return call("sessions_send", **note) if "write to them" in last else say("fine")

    with FakeModel(model_of) as model:
        config = behind("openai", model, tools=CONFIG["tools"], session=CONFIG["session"])
        with world(tmp_path, config) as server:
            send(server, "hi")
            server.say("agent:main:main", "write to them")
            assert comes(lambda: "delivery-mirror" in json.dumps(server.ask("chat.history", sessionKey=GROUP)))
            send(server, "what was that?", sender=MALLORY)
            prompt = json.dumps(model.requests[-1].body["messages"])
    assert "the group may know" in prompt
    assert SECRET not in prompt


def test_operators_of_one_gateway_and_jobs_know_what_clients_said(tmp_path: Path) -> None:
    """No conversation of others is there, and an operator with a client reads the transcript anyway."""
    key = "agent:main:main"
    with FakeModel(say("noted")) as model, world(tmp_path, behind("openai", model)) as server:
        server.say(key, "my dog is Rex")
        with joined(server.served, "operator.read", "operator.write") as operator:
            operator.say(key, "what is it called?")
            assert "my dog is Rex" in json.dumps(model.wait_for(2).body["messages"])
        job = {"name": "r", "schedule": {"kind": "every", "everyMs": 365 * 24 * 3600 * 1000}, "sessionTarget": "main"}
        job |= {"wakeMode": "now", "payload": {"kind": "systemEvent", "text": "walk it"}}
        server.ask("cron.run", id=server.ask("cron.add", **job)["id"])
        assert "my dog is Rex" in json.dumps(model.wait_for(3).body["messages"])


SHARED = [(GROUP, "#g"), ("agent:main:main", "main")]
"""Sessions the owner has in common with others, and their conversations."""


@pytest.mark.parametrize(("key", "conversation"), SHARED)
@pytest.mark.parametrize("mode", ["none", "announce"])
def test_of_a_job_in_a_shared_session_others_are_told_what_was_announced_there(
    tmp_path: Path, mode: str, key: str, conversation: str
) -> None:
    """Later jobs and the owner know all of it."""
    steps = (say("hello all"), say(SECRET), say("again"), say("hi Mallory"), say("as I said"))
    with FakeModel(*steps) as model, world(tmp_path, behind("openai", model, session={"dmScope": "main"})) as server:
        send(server, "hi", conversation=conversation)
        job = {"sessionTarget": f"session:{key}", "delivery": {"mode": mode}}
        fired(server, **job, payload={"kind": "agentTurn", "message": "the order"})
        fired(server, **job, payload={"kind": "agentTurn", "message": "go on"})
        send(server, "what was that?", conversation=conversation, sender=MALLORY)
        send(server, "and to me?", conversation=conversation)
        later, mallorys, owners = (json.dumps(model.wait_for(n).body["messages"]) for n in (3, 4, 5))
        posted = SECRET in json.dumps(server.ask("local.read", conversation=conversation))
    assert posted is (mode == "announce")
    assert [SECRET in prompt for prompt in (later, mallorys, owners)] == [True, posted, True]
    assert ["the order" in prompt for prompt in (later, mallorys, owners)] == [True, False, True]


def test_an_operators_job_reads_what_an_earlier_one_did(tmp_path: Path) -> None:
    """In a session they have to themselves; its tool results too."""
    key = "agent:main:notes"
    look = "!tool agents_list {}"
    read = f"!tool sessions_history {json.dumps({'sessionKey': key, 'includeTools': True})}"
    with world(tmp_path, CONFIG) as server:
        for order in (f"x\n{look}", f"x\n{ANSWER}", f"x\n{read}"):
            fired(server, sessionTarget=f"session:{key}", payload={"kind": "agentTurn", "message": order})
        last = server.texts(key)[-1]
    assert [word in last for word in (SECRET, "allowAny")] == [True, True]


def test_what_an_event_says_to_a_main_session_others_are_not_told(tmp_path: Path) -> None:
    """Its answer goes to the conversation; the event itself and what clients said do not."""
    steps = (say("hello"), say("noted"), say("walk the dog"), say("hi Mallory"))
    with FakeModel(*steps) as model, world(tmp_path, behind("openai", model, session={"dmScope": "main"})) as server:
        send(server, "hi", conversation="main", sender=MALLORY)
        server.say("agent:main:main", "between us")
        fired(server, sessionTarget="main", wakeMode="now", payload={"kind": "systemEvent", "text": SECRET})
        send(server, "what was that?", conversation="main", sender=MALLORY)
        jobs, mallorys = (json.dumps(model.wait_for(n).body["messages"]) for n in (3, 4))
    assert [word in jobs for word in ("between us", SECRET)] == [True, True]
    assert [word in mallorys for word in ("between us", SECRET, "walk the dog")] == [False, False, True]


REDACTIONS: list[tuple[str, Json, bool]] = [
    ("of a run that somebody else started", {"role": "toolResult", "forOwner": False}, True),
    ("heard in the conversation", {"role": "user", "said": True}, True),
    ("answered there", {"role": "assistant", "said": True}, True),
    ("a tool's, in such a run", {"role": "toolResult", "said": True}, False),
    ("brought by a sub-agent", {"role": "user", "said": True, "provenance": {"kind": "inter_session"}}, False),
    ("written by a client", {"role": "user"}, False),
    ("told to a job", {"role": "user", "forOperators": True}, False),
    ("answered by a job, there", {"role": "assistant", "forOperators": True, "said": True}, True),
    ("answered to a client", {"role": "assistant"}, False),
    ("marked by somebody's words", {"role": "assistant", "said": "yes", "forOwner": 0}, False),
]


@pytest.mark.parametrize(("what", "marks", "visible"), REDACTIONS, ids=[row[0] for row in REDACTIONS])
def test_others_are_told_what_was_said_to_them(what: str, marks: Json, visible: bool) -> None:
    body = {"content": [{"type": "text", "text": SECRET}], **marks}
    assert (SECRET in json.dumps(redact_for_others(body))) is visible


# ---- the words of messages in lists ----------------------------------------------------------------------------------


def test_a_list_tells_others_no_words_of_messages(tmp_path: Path) -> None:
    """Whose they are a row does not know; the owner's own lists have them."""
    task = {"task": f"!say the code is {SECRET}", "label": "c"}
    with world(tmp_path, CONFIG) as server:
        demo(server, f"!tool sessions_spawn {json.dumps(task)}")
        server.until("chat", lambda event: event["sessionKey"] == GROUP and SECRET in json.dumps(event))
        wide = {"includeLastMessage": True, "includeDerivedTitles": True}
        with stranger_in(server) as program:
            answers = [
                ask_json(program, "sessions.list", **wide),
                ask_json(program, "sessions.describe", key=GROUP, **wide),
            ]
        answers.append(demo(server, "!tool sessions_list {}", sender=MALLORY))
        assert [GROUP in each for each in answers] == [True, True, True]
        assert [SECRET in each for each in answers] == [False, False, False]
        assert "lastMessagePreview" in demo(server, "!tool sessions_list {}")


@pytest.mark.parametrize("visibility", ["tree", "agent", "all"])
def test_a_session_is_found_by_its_name_and_not_by_its_first_words(tmp_path: Path, visibility: str) -> None:
    config = {**CONFIG, "tools": {"sessions": {"visibility": visibility}, "agentToAgent": {"enabled": True}}}
    with world(tmp_path, config) as server:
        server.say(GROUP, f"!say ok\nthe code is {SECRET}")
        with stranger_in(server) as program:
            assert program.ask("sessions.list", search=SECRET[:8])["sessions"] == []
            assert [row["key"] for row in program.ask("sessions.list", search="#g")["sessions"]] == [GROUP]
        assert [row["key"] for row in server.ask("sessions.list", search=SECRET[:8])["sessions"]] == [GROUP]


# ---- what waits for the next prompt ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "conversation"), SHARED)
def test_what_the_owner_left_for_the_next_prompt_waits_for_the_owner(
    tmp_path: Path, key: str, conversation: str
) -> None:
    steps = (say("one"), say("two"), say("three"), say("four"))
    with FakeModel(*steps) as model, world(tmp_path, behind("openai", model, session={"dmScope": "main"})) as server:
        send(server, "hi", conversation=conversation)
        server.ask("wake", mode="next-heartbeat", text=f"remind me: {SECRET}", sessionKey=key)
        send(server, "hello", conversation=conversation, sender=MALLORY)
        send(server, "what is there?", conversation=conversation)
        send(server, "what was there?", conversation=conversation, sender=MALLORY)
        prompts = [json.dumps(model.wait_for(n).body["messages"]) for n in (1, 2, 3, 4)]
    assert [SECRET in prompt for prompt in prompts] == [False, False, True, False]


def test_a_job_of_the_owners_waits_in_the_same_way(tmp_path: Path) -> None:
    job = {"name": "r", "schedule": {"kind": "every", "everyMs": 365 * 24 * 3600 * 1000}, "sessionTarget": "main"}
    job |= {"wakeMode": "next-heartbeat", "payload": {"kind": "systemEvent", "text": SECRET}}
    shared = {"dmScope": "main"}
    with FakeModel(say("ok")) as model, world(tmp_path, behind("openai", model, session=shared)) as server:
        server.ask("cron.run", id=server.ask("cron.add", **job)["id"])
        server.until("cron", lambda event: event.get("action") == "finished")
        send(server, "hello", conversation="main", sender=MALLORY)
        send(server, "hello", conversation="main")
        prompts = [json.dumps(model.wait_for(n).body["messages"]) for n in (1, 2)]
    assert [SECRET in prompt for prompt in prompts] == [False, True]


def test_what_is_left_for_somebodys_own_session_is_heard_there(tmp_path: Path) -> None:
    """The client that left it named the session, and no other sender writes in it."""
    with FakeModel(say("ok")) as model, world(tmp_path, behind("openai", model)) as server:
        send(server, "hello", conversation="room", sender=MALLORY)
        [key] = [row["key"] for row in server.ask("sessions.list")["sessions"]]
        server.ask("wake", mode="next-heartbeat", text="she likes tea", sessionKey=key)
        send(server, "tea?", conversation="room", sender=MALLORY)
        assert "she likes tea" in json.dumps(model.wait_for(2).body["messages"])


def test_what_others_leave_takes_no_room_from_what_the_owner_left(tmp_path: Path) -> None:
    key = "agent:main:room"
    with FakeModel(say("ok")) as model, world(tmp_path, behind("openai", model)) as server:
        server.ask("wake", mode="next-heartbeat", text=SECRET, sessionKey=key)
        with joined(server.served, "operator.read", "operator.write") as operator:
            for number in range(25):
                operator.ask("wake", mode="next-heartbeat", text=f"noise {number}", sessionKey=key)
        server.say(key, "hi")
        prompt = json.dumps(model.wait_for(1).body["messages"])
    assert SECRET in prompt
    assert "noise" not in prompt
