"""Who the owner is, is a matter of the credential: every method that starts a run, at every credential, by the effect.

Each row has a run started and lets it call `gateway`, which is for the owner alone. A method that is in none of the
tables below fails a test: its author has to say what it does.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.channel import ChatAddress, InboundMessage
from openclaw_mcp.core.model import Grant, Sender
from openclaw_mcp.core.owner import intersect_grants
from openclaw_mcp.core.rpc import RpcMethod
from openclaw_mcp.gateway.channels.inbound_rules import is_continuation
from openclaw_mcp.gateway.wiring.assembly import GatewayOptions, assemble_gateway
from tests import web_client
from tests.gateway.wiring.gateways import Refused, World, comes, joined, world

ORDER = '!tool gateway {"action": "config.get", "path": "commands"}'
OWNED = "ownerAllowFrom"
"""What the tool answers to the owner; to others it says who it is for."""
REFUSED = "gateway is refused: it is for the owner only"
CONFIG: dict[str, Any] = {
    "commands": {"ownerAllowFrom": ["local:alice", "777", "+49151", "telegram:888"]},
    "channels": {"local": {"dmPolicy": "open", "allowFrom": ["*"], "groupPolicy": "open", "requireMention": False}},
    "agents": {"list": [{"id": "main", "runtime": "demo"}]},
    "tools": {"subagents": {"tools": {"alsoAllow": ["gateway"]}}},
    "gateway": {
        "tools": {"allow": ["gateway", "sessions_spawn", "sessions_send"]},
        "http": {"endpoints": {"chatCompletions": {"enabled": True}}},
    },
}

# ---- what each method is ---------------------------------------------------------------------------------------------

Start = Callable[[World, str], str | None]
"""Has a run started in (or for) a session and gives its id; None: it is answered in the session itself."""


def _unique() -> str:
    return os.urandom(8).hex()


def _local(operator: World, session: str, **more: Any) -> str:
    run: str = operator.ask("local.send", text=ORDER, conversation=f"talk-{_unique()}", **more)["runId"]
    return run


STARTS: dict[str, Start] = {
    "chat.send": lambda w, s: w.ask("chat.send", sessionKey=s, message=ORDER, idempotencyKey=_unique())["runId"],
    "sessions.send": lambda w, s: w.ask("sessions.send", key=s, message=ORDER, idempotencyKey=_unique())["runId"],
    "sessions.steer": lambda w, s: w.ask("sessions.steer", key=s, message=ORDER, idempotencyKey=_unique())["runId"],
    "sessions.create": lambda w, s: w.ask("sessions.create", key=s, message=ORDER)["runId"],
    "agent": lambda w, s: w.ask("agent", sessionKey=s, message=ORDER, idempotencyKey=_unique())["runId"],
    "sessions.spawn": lambda w, s: w.ask("sessions.spawn", sessionKey=s, task=ORDER)["runId"],
    "sessions.converse": lambda w, s: w.ask("sessions.converse", sessionKey=s, message=ORDER)["runId"],
    "wake": lambda w, s: w.ask("wake", mode="now", sessionKey=s, text=f"\n{ORDER}") and None,
    "local.send": lambda w, s: _local(w, s, sender={"id": "guest"}),
}
"""Methods that start a run. As the owner, where the credential is one; `local.send` for the sender it names."""
NEVER_OWNED = ("local.send",)
"""Here it is not the owner that is named."""
JOBS = ("cron.add", "cron.update", "cron.run", "cron.remove")
"""For admins. A job runs for no sender."""
SENDS = (
    "send", "poll", "message.action", "message:send", "message:reply", "message:thread-reply", "message:broadcast",
    "message:react", "message:delete", "message:edit", "message:pin", "message:sendAttachment",
    "message:sendWithEffect", "outbox.retry",
)  # fmt: skip
"""They speak as the agent, to the outside; nothing they send is taken as an order."""
TOOLS = ("tools.call", "tools.invoke")
STEERS = ("sessions.subagents",)
ADMINS = (
    "attach.grant", "attach.revoke", "audit.list", "channels.pairing.approve", "channels.pairing.list",
    "channels.pairing.remove", "channels.restart", "chat.inject", "config.apply", "config.patch", "config.set",
    "exec.approvals.get", "exec.approvals.node.get", "exec.approvals.node.set", "exec.approvals.set",
    "gateway.restart.request", "outbox.drop", "secrets.reload", "sessions.compact", "sessions.reset",
    "set-heartbeats", "update.status",
)  # fmt: skip
"""A caller that may call these is the owner already."""
NO_RUN = (
    "agent.identity.get", "agent.wait", "agents.allowed", "agents.list", "approval.get", "approval.history",
    "approval.resolve", "channels.status", "chat.abort", "chat.history", "chat.message.get", "config.get",
    "config.schema", "config.schema.lookup", "cron.get", "cron.list", "cron.runs", "cron.status",
    "device.pair.approve", "device.pair.list", "device.pair.reject", "device.pair.remove", "device.pair.rename",
    "device.token.revoke", "device.token.rotate", "exec.approval.get", "exec.approval.grants.list",
    "exec.approval.list", "exec.approval.request", "exec.approval.resolve", "exec.approval.waitDecision",
    "gateway.identity.get", "gateway.restart.preflight", "health", "last-heartbeat", "local.conversations",
    "local.file", "local.read", "local.subscribe", "local.unsubscribe", "logs.tail", "message:readMessages",
    "node.describe", "node.event", "node.invoke", "node.invoke.progress", "node.invoke.result", "node.list",
    "node.pair.approve", "node.pair.list", "node.pair.reject", "node.pair.remove", "node.pending.ack",
    "node.pending.drain", "node.pending.enqueue", "node.pending.pull", "node.pluginTools.update", "node.rename",
    "node.runnerInventory.update", "node.skills.update", "openclaw.approval.list", "outbox.list",
    "plugin.approval.list", "sessions.abort", "sessions.delete", "sessions.describe", "sessions.get", "sessions.list",
    "sessions.messages.subscribe", "sessions.messages.unsubscribe", "sessions.patch", "sessions.preview",
    "sessions.resolve", "sessions.search", "sessions.subscribe", "sessions.unsubscribe", "skills.bins", "status",
    "system-presence", "system.info", "tasks.cancel", "tasks.get", "tasks.list", "tools.catalog", "tools.effective",
    "tools.list", "chat.startup", "chat.metadata", "commands.list", "audit.activity.list", "models.list",
    "models.authStatus", "usage.cost", "question.list", "sessions.observer.visibility", "sessions.companion.state",
    "sessions.branches.list", "progressCard.get", "talk.catalog", "environments.list", "skills.status", "users.list",
    "diagnostics.lanes", "diagnostics.stability", "plugins.list", "usage.status", "skills.library.list",
    "artifacts.list", "worktrees.list", "transcripts.list", "hooks.status", "sessions.usage", "skills.search",
    "themes.list",
)  # fmt: skip
"""They look, stop, note or answer; no agent hears of it."""

CREDENTIALS: dict[str, tuple[tuple[str, ...], bool]] = {
    "read": (("operator.read",), False),
    "write": (("operator.read", "operator.write"), False),
    "approvals": (("operator.approvals",), False),
    "pairing": (("operator.pairing",), False),
    "talk": (("operator.talk",), False),
    "all but admin": (
        ("operator.read", "operator.write", "operator.approvals", "operator.pairing", "operator.talk"),
        False,
    ),
    "admin": (("operator.admin",), True),
}
"""Scopes of an operator, and whether that is the owner."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), CONFIG) as gateway:
        yield gateway


@contextlib.contextmanager
def granted(server: World, **wanted: Any) -> Iterator[World]:
    """A program of a run: connected with the run's token."""
    token = server.ask("attach.grant", **wanted)["token"]
    with joined(server.served, token=token) as client:
        yield client


def came_of(server: World, run: str | None, session: str) -> str:
    """What the run said."""
    if run is not None:
        return server.answer(run)
    assert comes(lambda: any(server.texts(session)))  # a message that only calls a tool says nothing yet
    return [text for text in server.texts(session) if text][-1]


# ---- the table -------------------------------------------------------------------------------------------------------


def test_every_method_is_classified(tmp_path: Path) -> None:
    """A method added without a word about what it starts fails here."""

    async def offers() -> Sequence[RpcMethod]:
        async with assemble_gateway(GatewayOptions(folder=tmp_path, token="t" * 64), "ws://127.0.0.1:1") as whole:
            return whole.gateway.rpc_server.methods

    offered = asyncio.run(offers())
    tables = [*STARTS, *JOBS, *SENDS, *TOOLS, *STEERS, *ADMINS, *NO_RUN]
    assert len(tables) == len(set(tables))
    assert {method.name for method in offered} == set(tables)
    scopes = {method.name: method.scope for method in offered}
    assert {scopes[name] for name in (*ADMINS, *JOBS)} == {"operator.admin"}
    assert {method.name for method in offered if method.role != "operator"} <= set(NO_RUN)  # a node starts none


@pytest.mark.parametrize("credential", CREDENTIALS)
@pytest.mark.parametrize("method", STARTS)
def test_a_run_is_the_owners_when_the_credential_is(server: World, method: str, credential: str) -> None:
    scopes, owner = CREDENTIALS[credential]
    session = f"agent:main:row-{_unique()}"
    with joined(server.served, *scopes) as operator:
        try:
            run = STARTS[method](operator, session)
        except Refused as exc:
            assert "missing scope" in str(exc)
            assert "operator.write" not in scopes
            assert not owner
            return
    reply = came_of(server, run, session)
    assert (OWNED in reply) == (owner and method not in NEVER_OWNED), reply
    if not owner:
        assert reply == REFUSED


@pytest.mark.parametrize("owner", [False, True])
@pytest.mark.parametrize("method", STARTS)
def test_a_runs_own_program_starts_nothing_better_than_the_run(server: World, method: str, owner: bool) -> None:
    session = f"agent:main:granted-{_unique()}"
    server.say(session, "!say hello")
    with granted(server, sessionKey=session, senderIsOwner=owner) as program:
        try:
            run = STARTS[method](program, session)
        except Refused as exc:
            assert exc.kind == "FORBIDDEN"
            return
        reply = came_of(server, run, session)
    assert (OWNED in reply) == owner, reply


@pytest.mark.parametrize("credential", CREDENTIALS)
def test_a_tool_is_called_as_the_owner_when_the_credential_is(server: World, credential: str) -> None:
    scopes, owner = CREDENTIALS[credential]
    with joined(server.served, *scopes) as operator:
        try:
            result = operator.invoke("gateway", "agent:main:main", action="config.get", path="commands")
        except Refused as exc:
            assert "missing scope" in str(exc)
            return
    assert result["ok"] == owner


@pytest.mark.parametrize("tool", ["sessions_spawn", "sessions_send"])
def test_what_a_tool_starts_for_an_operator_with_fewer_rights_is_not_the_owners(server: World, tool: str) -> None:
    arguments = {
        "sessions_spawn": {"task": ORDER},
        "sessions_send": {"sessionKey": "agent:main:heard", "message": ORDER},
    }
    with joined(server.served, "operator.read", "operator.write") as operator:
        result = operator.invoke(tool, f"agent:main:tool-{_unique()}", **arguments[tool])
    assert server.answer(result["output"]["details"]["runId"]) == REFUSED


def test_over_http_the_gateways_token_is_the_owners(server: World) -> None:
    body = {"model": "openclaw", "messages": [{"role": "user", "content": ORDER}]}
    answer = web_client.send(f"{server.served.http}/v1/chat/completions", "POST", body, **server.bearer)
    assert OWNED in answer.json["choices"][0]["message"]["content"]
    for bearer in ({}, {"Authorization": "Bearer wrong"}):
        assert web_client.send(f"{server.served.http}/v1/chat/completions", "POST", body, **bearer).status == 401


# ---- local.send ------------------------------------------------------------------------------------------------------

CLAIMS: dict[str, Any] = {
    "absent": {},
    "null": {"sender": None},
    "owner": {"sender": {"id": "owner"}},
    "OWNER": {"sender": {"id": "OWNER"}},
    "with space": {"sender": {"id": " owner "}},
    "with a tab": {"sender": {"id": "owner\t"}},
    "fullwidth": {"sender": {"id": "\uff4f\uff57\uff4e\uff45\uff52"}},
    "with a joiner": {"sender": {"id": "own\u200der"}},
    "with a name": {"sender": {"id": "owner", "name": "owner", "username": "owner"}},
    "another account": {"sender": {"id": "owner"}, "accountId": "default"},
    "a thread": {"sender": {"id": "owner"}, "threadId": "t"},
}
"""Ways to say that one is the owner."""
NAMED: dict[str, Any] = {
    "named with the channel": {"sender": {"id": "alice"}},
    "named in another case": {"sender": {"id": " ALICE "}},
    "named as of any channel": {"sender": {"id": "777"}},
    "named by number": {"sender": {"id": "bob", "e164": "+49151"}},
    "named on another channel": {"sender": {"id": "telegram:888"}},
    "with the channel in the id": {"sender": {"id": "local:alice"}},
    "by user name": {"sender": {"id": "mallory", "username": "owner", "name": "owner"}},
    "an empty number": {"sender": {"id": "mallory", "e164": "owner"}},
    "keys that are not a sender's": {"sender": {"id": "mallory", "owner": True, "grant": {"owner": True}}},
}  # fmt: skip
"""Ways to pose as a sender whom a list names, or to add one beside it."""
NO_SENDER: dict[str, Any] = {
    "empty": {"sender": {"id": ""}},
    "a number": {"sender": {"id": 0}},
    "no id": {"sender": {}},
    "a text": {"sender": "owner"},
    "a list": {"sender": ["owner"]},
    "nested": {"sender": {"id": {"id": "owner"}}},
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_speaking_as_the_owner_needs_the_owners_credential(server: World, claim: str) -> None:
    with joined(server.served, "operator.read", "operator.write") as operator, pytest.raises(Refused) as refused:
        _local(operator, "", **CLAIMS[claim])
    assert str(refused.value) == (
        "speaking as the owner needs operator.admin; give `sender` the id of the person you speak for"
    )
    assert refused.value.kind == "FORBIDDEN"


@pytest.mark.parametrize("claim", NAMED)
def test_nobody_is_the_owner_by_the_word_of_a_client_that_is_not(server: World, claim: str) -> None:
    with joined(server.served, "operator.read", "operator.write") as operator:
        run = _local(operator, "", **NAMED[claim])
    assert server.answer(run) == REFUSED


@pytest.mark.parametrize("claim", NO_SENDER)
def test_a_sender_who_is_none_is_refused(server: World, claim: str) -> None:
    for scopes in (("operator.write",), ("operator.admin",)):
        with joined(server.served, *scopes) as operator, pytest.raises(Refused, match=r"at /sender"):
            _local(operator, "", **NO_SENDER[claim])


@pytest.mark.parametrize(
    "sender", [{}, {"sender": {"id": "owner"}}, {"sender": {"id": "alice"}}, {"sender": {"id": "777"}}]
)
def test_the_owners_client_speaks_as_the_owner_and_for_those_the_owner_named(server: World, sender: Any) -> None:
    assert OWNED in server.answer(_local(server, "", **sender))


def test_the_owners_client_may_speak_for_others_too(server: World) -> None:
    assert server.answer(_local(server, "", sender={"id": "guest"})) == REFUSED


def test_a_list_that_names_them_later_makes_nobody_the_owner_of_words_sent_before(server: World) -> None:
    conversation = f"talk-{_unique()}"
    with joined(server.served, "operator.read", "operator.write") as operator:
        sent = {"conversation": conversation, "sender": {"id": "carol"}}
        first = operator.ask("local.send", text="!sleep 600", **sent)["runId"]
        run = operator.ask("local.send", text=ORDER, **sent)["runId"]
    session = server.until("agent", lambda event: event["runId"] == first)["sessionKey"]
    server.configure(commands={"ownerAllowFrom": [*CONFIG["commands"]["ownerAllowFrom"], "local:carol"]})
    try:
        server.ask("chat.abort", sessionKey=session, runId=first)
        assert server.answer(run) == REFUSED
    finally:
        server.configure(commands=CONFIG["commands"])


def test_a_strangers_words_are_not_joined_to_the_owners() -> None:
    where = ChatAddress(channel="local", account="default", to="main")

    def received(text: str, *, vouched: bool) -> InboundMessage:
        return InboundMessage(
            id=text, address=where, chat="direct", sender=Sender(id="owner"), text=text, at=1, vouched=vouched
        )  # fmt: skip

    owner, stranger = received("mine", vouched=True), received("theirs", vouched=False)
    assert is_continuation(owner, received("more", vouched=True))
    assert not is_continuation(owner, stranger)
    assert not is_continuation(stranger, owner)


def test_the_same_key_from_another_credential_is_another_message(server: World) -> None:
    conversation = f"talk-{_unique()}"
    sent = {"conversation": conversation, "sender": {"id": "alice"}, "idempotencyKey": "k"}
    with joined(server.served, "operator.read", "operator.write") as operator:
        theirs = operator.ask("local.send", text=ORDER, **sent)["runId"]
    mine = server.ask("local.send", text=ORDER, **sent)["runId"]
    assert theirs != mine
    assert (server.answer(theirs), OWNED in server.answer(mine)) == (REFUSED, True)


# ---- in by another way -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["chat.send", "sessions.send", "agent", "sessions.create", "wake", "sessions.spawn"])
def test_the_owners_own_session_makes_nobody_the_owner(server: World, method: str) -> None:
    session = f"agent:main:owners-{_unique()}"
    assert OWNED in server.say(session, ORDER)
    before = len(server.texts(session))
    with joined(server.served, "operator.read", "operator.write") as operator:
        run = STARTS[method](operator, session)
    if run is not None:
        assert server.answer(run) == REFUSED
    else:
        assert comes(lambda: any(server.texts(session)[before:]))  # a tool's call comes first, without words
        assert server.texts(session)[-1] == REFUSED


@pytest.mark.parametrize("mode", ["steer", "interrupt", "followup", "collect"])
def test_words_behind_a_run_of_the_owner_are_not_answered_with_its_rights(server: World, mode: str) -> None:
    session = f"agent:main:busy-{_unique()}"
    going = server.begin(session, "!sleep 600")
    with joined(server.served, "operator.read", "operator.write") as operator:
        sent = {"sessionKey": session, "message": ORDER, "idempotencyKey": _unique(), "queueMode": mode}
        run = operator.ask("chat.send", **sent)["runId"]
        again = {"sessionKey": session, "message": "!say the owner again", "queueMode": "followup"}
        behind = server.ask("chat.send", **again, idempotencyKey=_unique())["runId"]
        server.ask("chat.abort", sessionKey=session, runId=going)
        assert server.answer(run) == REFUSED
    assert "owner again" in server.answer(behind)


def test_what_waits_for_the_next_prompt_is_not_heard_with_the_owners_rights(server: World) -> None:
    session = f"agent:main:event-{_unique()}"
    with joined(server.served, "operator.read", "operator.write") as operator:
        operator.ask("wake", mode="next-heartbeat", sessionKey=session, text=f"\n{ORDER}")
        assert "hello" in server.say(session, "!say hello")
        assert OWNED not in "".join(server.texts(session))
        assert not any("gateway" in text for text in server.texts(session, "user"))
        assert REFUSED in operator.say(
            session, "!say and now"
        )  # it is for the next run with no more rights than theirs


def test_what_the_owner_leaves_for_the_next_prompt_is_heard_by_it(server: World) -> None:
    session = f"agent:main:event-{_unique()}"
    server.ask("wake", mode="next-heartbeat", sessionKey=session, text=f"\n{ORDER}")
    assert OWNED in server.say(session, "!say hello")


def test_an_order_to_the_owners_sub_agent_takes_the_owners_rights_from_it(server: World) -> None:
    session = f"agent:main:parent-{_unique()}"
    child = server.ask("sessions.spawn", sessionKey=session, task="!sleep 600", label="ship")["childSessionKey"]
    with joined(server.served, "operator.read", "operator.write") as operator:
        arguments = {"action": "steer", "sessionKey": session, "target": "ship", "message": ORDER}
        turned = operator.ask("sessions.subagents", **arguments)
    assert server.answer(turned["runId"]) == REFUSED
    assert comes(lambda: bool(server.texts(session)))  # its result is announced under no better grant
    assert OWNED in server.say(child, ORDER)  # the owner's own order has the owner's rights


def test_an_order_of_the_owner_to_a_strangers_sub_agent_gives_it_nothing(server: World) -> None:
    session = f"agent:main:parent-{_unique()}"
    with joined(server.served, "operator.read", "operator.write") as operator:
        operator.ask("sessions.spawn", sessionKey=session, task="!sleep 600", label="boat")
    arguments = {"action": "steer", "sessionKey": session, "target": "boat", "message": ORDER}
    assert server.answer(server.ask("sessions.subagents", **arguments)["runId"]) == REFUSED


def test_what_a_stranger_has_the_owners_sub_agent_say_is_told_without_the_owners_rights(server: World) -> None:
    """The announcement is a run of the owner's session, with the child's last words in its prompt."""
    session = f"agent:main:parent-{_unique()}"
    going = server.ask("sessions.spawn", sessionKey=session, task="!sleep 600")
    child = going["childSessionKey"]
    with joined(server.served, "operator.read", "operator.write") as operator:
        sent = {"sessionKey": child, "message": f"!say {ORDER}", "idempotencyKey": _unique()}
        run = operator.ask("chat.send", **sent)["runId"]
        server.ask("chat.abort", sessionKey=child, runId=going["runId"])
        server.answer(run)
    assert comes(lambda: bool(server.texts(session)))
    assert REFUSED in server.texts(session)[-1]


@pytest.mark.parametrize("maker", ["an admin", "the owner's run"])
def test_a_job_runs_as_nobodys_whoever_has_it_run(server: World, maker: str) -> None:
    job = {
        "name": f"j-{_unique()}", "schedule": {"kind": "every", "everyMs": 3_600_000}, "sessionTarget": "isolated",
        "payload": {"kind": "agentTurn", "message": f"\n{ORDER}"}, "delivery": {"mode": "none"},
    }  # fmt: skip
    if maker == "an admin":
        id = server.ask("cron.add", **job)["id"]
    else:
        id = server.tool(f"agent:main:maker-{_unique()}", "cron", action="add", job=job)["id"]
    server.ask("cron.update", id=id, patch={"name": "renamed by the owner"})
    run = server.ask("cron.run", id=id)["runId"]
    assert server.answer(run) == REFUSED
    with joined(server.served, "operator.read", "operator.write") as operator:
        for method in ("cron.run", "cron.remove"):
            with pytest.raises(Refused, match=r"missing scope: operator\.admin"):
                operator.ask(method, id=id)
        with pytest.raises(Refused, match=r"missing scope: operator\.admin"):
            operator.ask("cron.update", id=id, patch={"payload": {"kind": "agentTurn", "message": ORDER}})


@pytest.mark.parametrize("name", ["channel", "from", "owner", "grant", "senderIsOwner", "vouched", "extra"])
def test_nobody_is_the_owner_by_a_parameter_of_another_method(server: World, name: str) -> None:
    unknown = f"unexpected property '{name}'"
    with joined(server.served, "operator.write") as operator, pytest.raises(Refused, match=unknown):
        _local(operator, "", sender={"id": "mallory"}, **{name: "owner"})


@pytest.mark.parametrize("entry", ["extraSystemPrompt", "grant", "owner", "cwd", "sender", "tools", "settings"])
def test_a_session_is_patched_into_nothing_by_an_operator_with_fewer_rights(server: World, entry: str) -> None:
    session = f"agent:main:patched-{_unique()}"
    with joined(server.served, "operator.read", "operator.write") as operator:
        with pytest.raises(Refused, match=r"missing scope: operator\.admin|unexpected property"):
            operator.ask("sessions.patch", key=session, **{entry: "/"})
        assert operator.say(session, ORDER) == REFUSED


def test_what_an_operator_sends_as_the_agent_is_nobodys_order(server: World) -> None:
    conversation = f"talk-{_unique()}"
    with joined(server.served, "operator.read", "operator.write") as operator:
        operator.ask("send", to=conversation, channel="local", message=ORDER, idempotencyKey=_unique())
        operator.ask(
            "message.action", action="send", channel="local", params={"to": conversation, "message": ORDER},
            idempotencyKey=_unique(),
        )  # fmt: skip
        messages = operator.ask("local.read", conversation=conversation)["messages"]
        assert [message["sender"]["id"] for message in messages] == ["agent", "agent"]
        run = _local(operator, "", sender={"id": "guest"})
    assert server.answer(run) == REFUSED
    assert len(server.ask("local.read", conversation=conversation)["messages"]) == 2  # no agent answered them


def test_a_connection_is_not_the_owners_by_a_scope_it_only_asked_for(server: World) -> None:
    """The word is `operator.admin`; no other scope gives these rights."""
    with joined(server.served, "operator.write", "owner", "operator.owner", "OPERATOR.ADMIN", " operator.admin ") as it:
        assert it.say(f"agent:main:odd-{_unique()}", ORDER) == REFUSED


# ---- the rule by itself ----------------------------------------------------------------------------------------------

OWNER, ANN, OPERATOR = Grant(owner=True), Grant(channel="telegram", sender=Sender(id="111")), Grant()


@pytest.mark.parametrize(
    ("held", "speaks", "left"),
    [
        (OWNER, OWNER, OWNER),
        (OWNER, OPERATOR, OPERATOR),
        (OPERATOR, OWNER, OPERATOR),
        (OWNER, ANN, ANN),
        (ANN, OWNER, ANN),
        (Grant(owner=True, channel="telegram", sender=Sender(id="888")), OPERATOR, OPERATOR),
        (Grant(owner=True, tools=frozenset("ab")), OWNER, Grant(owner=True, tools=frozenset("ab"))),
        (Grant(owner=True, tools=frozenset("ab")), Grant(tools=frozenset("bc")), Grant(tools=frozenset("b"))),
        (Grant(owner=True, depth=2), OPERATOR, Grant(depth=2)),
        (OWNER, Grant(owner=True, depth=1), Grant(owner=True, depth=1)),
    ],
)
def test_two_standings_leave_the_lesser(held: Grant, speaks: Grant, left: Grant) -> None:
    assert intersect_grants(held, speaks) == left


def test_the_config_has_what_the_table_reads(server: World) -> None:
    assert OWNED in json.dumps(server.ask("config.get")["config"]["commands"])
