"""Rules that hold for every message action, each asked of all of them: dry runs, other conversations, targets."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from openclaw_mcp.core.channel import (
    Ability,
    ChannelRefused,
    ChatAddress,
    DeliveryReceipt,
    FileSummary,
    OutboundMessage,
    Poll,
    Reaction,
    StoredMessage,
)
from openclaw_mcp.core.errors import ToolError
from openclaw_mcp.core.message_request import parse_action
from openclaw_mcp.core.model import Caller, Grant, Json, Sender, ToolCall
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.core.sessions import SessionQuery
from openclaw_mcp.gateway.channels.action_context import ActionContext
from openclaw_mcp.gateway.channels.inbound_rules import check_access
from openclaw_mcp.gateway.channels.message_actions import message_view

from .gateways import ChannelHarness, Twin, open_channels, within
from .test_rules import inbound, rules

ABILITIES: tuple[Ability, ...] = (
    "send", "reply", "thread", "broadcast", "react", "delete", "attachment", "effect", "pin", "read", "edit", "poll",
)  # fmt: skip

ACTIONS: list[tuple[str, Json]] = [
    ("send", {"message": "x"}),
    ("reply", {"message": "x", "replyTo": "1"}),
    ("thread-reply", {"message": "x", "threadId": "t"}),
    ("sendAttachment", {"file": "data:text/plain,x"}),
    ("sendWithEffect", {"message": "x", "effectId": "1"}),
    ("broadcast", {"message": "x"}),
    ("poll", {"question": "?", "options": ["a", "b"]}),
    ("react", {"messageId": "1", "emoji": "x"}),
    ("delete", {"messageId": "1"}),
    ("edit", {"messageId": "1", "message": "x"}),
    ("pin", {"messageId": "1"}),
    ("unpin", {"messageId": "1"}),
    ("read", {}),
]
"""Every action, with the least it needs besides a target."""

TWO: Json = {"channels": {"twin": {"accounts": {"default": {}, "second": {}}, "allowFrom": ["*"], "dmPolicy": "open"}}}


class Recorder(Twin):
    """A channel that can do everything and writes down what it was asked to do, and where."""

    def __init__(self, account: str = "default") -> None:
        super().__init__(account, can=ABILITIES)
        self.abilities = self.abilities.__class__(
            can=frozenset(ABILITIES), text_limit=1000, markup="plain", media=("*/*",), media_limit=1000
        )
        self.done: list[tuple[Any, ...]] = []

    async def send(self, address: ChatAddress, message: OutboundMessage, *, key: str) -> DeliveryReceipt:
        self.done.append(("send", address.to, message.text))
        return await super().send(address, message, key=key)

    async def react(self, address: ChatAddress, id: str, emoji: str, *, remove: bool) -> None:
        self.done.append(("react", address.to, id, emoji, remove))

    async def delete(self, address: ChatAddress, id: str) -> None:
        self.done.append(("delete", address.to, id))

    async def edit(self, address: ChatAddress, id: str, text: str) -> None:
        self.done.append(("edit", address.to, id, text))

    async def pin(self, address: ChatAddress, id: str, *, remove: bool) -> None:
        self.done.append(("pin", address.to, id, remove))

    async def read(self, address: ChatAddress, *, limit: int, before: str | None) -> list[StoredMessage]:
        self.done.append(("read", address.to, limit, before))
        return [StoredMessage(id="7", sender=Sender(id="1", username="u", name="n", e164="+1"), text="hi", at=5)]

    async def send_poll(self, address: ChatAddress, poll: Poll, *, key: str) -> DeliveryReceipt:
        self.done.append(("poll", address.to, poll.question, poll.options, poll.many))
        return await super().send(address, OutboundMessage(text=poll.question), key=key)


def aimed(action: str, params: Json, target: str) -> Json:
    return {**params, **({"targets": [target]} if action == "broadcast" else {"target": target})}


async def use(here: ChannelHarness, caller: Caller, action: str, **arguments: Any) -> Any:
    tools = here.memory.runs._tools
    assert tools is not None
    call = ToolCall(caller=caller, name="message", arguments={"action": action, **arguments}, context=NULL_CONTEXT)
    return (await tools.call(call)).structured


def agent_at(address: ChatAddress, *, owner: bool = True, **more: Any) -> Caller:
    grant = Grant(
        agent="main", channel=address.channel, account=address.account, to=address.to, owner=owner, **more
    )  # fmt: skip
    return Caller(kind="agent", name="run", session="agent:main:main", grant=grant)


# ---- trying out ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "params"), [pair for pair in ACTIONS if pair[0] != "read"])
def test_trying_an_action_out_does_nothing(tmp_path: Path, action: str, params: Json) -> None:
    async def scenario() -> None:
        twin = Recorder()
        async with open_channels(tmp_path, twin=twin) as here:
            arguments = aimed(action, params, "ann")
            result = await here.call("message.action", channel="twin", action=action, params=arguments, dryRun=True)
            assert result["dryRun"] is True
            inside = await here.call(
                "message.action", channel="twin", action=action, params={**arguments, "dryRun": True}
            )
            assert inside["dryRun"] is True
            assert inside.get("payload", {}).get("dryRun", True) is True
            assert twin.done == []
            assert (await here.call("outbox.list"))["items"] == []
            for real in ({}, {"dryRun": False}):  # and what is not a trial is done
                before = len(twin.done)
                result = await here.call("message.action", channel="twin", action=action, params={**arguments, **real})
                assert result["dryRun"] is False
                assert len(twin.done) == before + 1
            unclear: object
            for unclear in ("true", "yes", 1, 0, "", []):
                with pytest.raises(RpcError, match="dryRun must be true or false"):
                    await here.call(
                        "message.action", channel="twin", action=action, params=arguments | {"dryRun": unclear}
                    )

    within(scenario())


# ---- from one conversation into another -----------------------------------------------------------------------------

ELSEWHERE: list[tuple[str, Json, Json, bool]] = [
    # what it is, the rules, where to, whether it may
    ("the same conversation", {}, {"channel": "twin"}, True),
    ("another conversation", {}, {"channel": "twin", "to": "bob"}, True),
    ("another, where that is forbidden", {"allowWithinProvider": False}, {"channel": "twin", "to": "bob"}, False),
    ("the same name in another account", {"allowWithinProvider": False}, {"accountId": "second"}, False),
    ("another channel", {}, {"channel": "local", "to": "room"}, False),
    ("another channel, named in the target", {}, {"to": "local:room"}, False),
    ("another channel, where it may", {"allowAcrossProviders": True}, {"channel": "local", "to": "room"}, True),
    ("another channel, where only here it may", {"allowWithinProvider": True}, {"channel": "local", "to": "r"}, False),
    ("a rule that is not quite true", {"allowAcrossProviders": "yes"}, {"channel": "local", "to": "room"}, False),
]


@pytest.mark.parametrize(("action", "params"), ACTIONS)
def test_an_agent_crosses_over_only_where_the_rules_say(tmp_path: Path, action: str, params: Json) -> None:
    async def scenario() -> None:
        twins = {"default": Recorder(), "second": Recorder("second")}
        async with open_channels(tmp_path, twin=twins["default"], config=TWO) as here:
            here.twins["second"] = twins["second"]
            await here.service.runner.apply_config()
            caller = agent_at(here.at("ann"))
            for what, cross, where, may in ELSEWHERE:
                here.config = {**TWO, "tools": {"message": {"crossContext": cross}}}
                to = where.get("to", "ann")
                arguments = aimed(action, params, to) | {n: v for n, v in where.items() if n != "to"}
                result, refusal = None, ""
                try:
                    result = await use(here, caller, action, **arguments)
                except ToolError as exc:
                    refusal = str(exc)
                if action == "broadcast" and result is not None:
                    refusal = result["results"][0].get("error") or ""
                crossed = "Cross-context messaging denied" in refusal
                assert crossed is not may, (what, refusal)
                if crossed:
                    assert not any("room" in map(str, deed) or "bob" in map(str, deed) for deed in twins["second"].done)
            assert (await here.reads("room") == []) or action in (
                "send", "reply", "thread-reply", "sendAttachment", "sendWithEffect", "broadcast", "poll",
            )  # fmt: skip

    within(scenario())


def test_one_switch_opens_every_conversation(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            for switch, may in ((True, True), ("true", False), (1, False), (False, False)):
                here.config = {**here.config, "tools": {"message": {"allowCrossContextSend": switch}}}
                params = {"channel": "local", "target": "room", "message": "x"}
                if may:
                    assert (await use(here, agent_at(here.at("ann")), "send", **params))["ok"]
                else:
                    with pytest.raises(ToolError, match="Cross-context"):
                        await use(here, agent_at(here.at("ann")), "send", **params)

    within(scenario())


def test_an_operator_may_write_anywhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            closed = {"crossContext": {"allowWithinProvider": False}}
            here.config = {**here.config, "tools": {"message": closed}}
            await here.call("message.action", channel="twin", action="send", params={"to": "ann", "message": "x"})
            assert here.twin.taken == [("ann", "x")]

    within(scenario())


@pytest.mark.parametrize(
    ("to", "text"),
    [("ann", "hi"), ("bob", "<twin>hi</twin>")],
)
def test_only_what_comes_from_elsewhere_is_marked(tmp_path: Path, to: str, text: str) -> None:
    async def scenario() -> None:
        marker = {"enabled": True, "prefix": "<{channel}>", "suffix": "</{channel}>"}
        async with open_channels(tmp_path) as here:
            here.config = {**here.config, "tools": {"message": {"crossContext": {"marker": marker}}}}
            await use(here, agent_at(here.at("ann")), "send", target=to, message="hi")
            assert here.twin.taken == [(to, text)]
            here.config = {**here.config, "tools": {"message": {"crossContext": {"marker": {"enabled": "on"}}}}}
            await use(here, agent_at(here.at("ann")), "send", target=to, message="plain")
            assert here.twin.taken[1:] == [(to, "plain")]

    within(scenario())


@pytest.mark.parametrize(
    ("marker", "to", "text"),
    [
        ({"enabled": True}, "bob", "[from twin] hi"),
        ({"enabled": True, "prefix": ""}, "bob", "hi"),
        ({"enabled": True, "suffix": " ({channel})"}, "bob", "[from twin] hi (twin)"),
        ({"enabled": True}, "ann", "hi"),
        ({"prefix": "x"}, "bob", "hi"),
        ({"enabled": False}, "bob", "hi"),
    ],
)
def test_what_an_operator_writes_for_a_session_is_marked_too(tmp_path: Path, marker: Json, to: str, text: str) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            assert here.twin.hear is not None
            await here.twin.hear(here.twin.build_message("hello", id="1", to="ann"))
            await here.twin.has(1)
            (key,) = [session.key for session in (await here.memory.sessions.page(SessionQuery())).sessions]
            here.config = {**here.config, "tools": {"message": {"crossContext": {"marker": marker}}}}
            params = {"channel": "twin", "target": to, "message": "hi"}
            await here.call("message.action", action="send", sessionKey=key, params=params)
            assert here.twin.taken[1:] == [(to, text)]
            await here.call("message.action", action="send", params=params)  # without an agent and a session
            assert here.twin.taken[2:] == [(to, "hi")]

    within(scenario())


# ---- targets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "account", "to", "thread"),
    [
        ({}, "second", "ann", "7"),
        ({"target": "ann"}, "second", "ann", "7"),
        ({"target": "twin:ann"}, "second", "ann", "7"),
        ({"target": "no:channel"}, "second", "no:channel", None),
        ({"threadId": "8"}, "second", "ann", "8"),
        ({"target": "bob"}, "second", "bob", None),
        ({"accountId": "default", "target": "ann"}, "default", "ann", None),
        ({"channel": "TWIN ", "target": "ann"}, "second", "ann", "7"),
    ],
)
def test_an_agent_answers_where_it_is_unless_a_target_is_named(
    tmp_path: Path, params: Json, account: str, to: str, thread: str | None
) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=TWO) as here:
            for name in ("default", "second"):
                here.twins[name] = Recorder(name)
            await here.service.runner.apply_config()
            place = ChatAddress(channel="twin", account="second", to="ann", thread="7")
            context = ActionContext(session="agent:main:main", address=place, agent="main")
            found = here.actions.resolve_address(parse_action("send", {"message": "x", **params}), context)
            assert found == ChatAddress(channel="twin", account=account, to=to, thread=thread)
            elsewhere = here.actions.resolve_address(
                parse_action("send", {"message": "x", "target": "local:room"}), context
            )
            assert (elsewhere.channel, elsewhere.account, elsewhere.thread) == ("local", "default", None)
            with pytest.raises(ChannelRefused, match="target required"):
                here.actions.resolve_address(parse_action("send", {"message": "x", "channel": "local"}), context)

    within(scenario())


def test_of_several_channels_one_has_to_be_named_and_of_one_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        only = {"twin": TWO["channels"]["twin"], "local": {"enabled": False}}
        async with open_channels(tmp_path, config={"channels": only}) as here:
            result = await here.call("message.action", action="send", params={"message": "x", "to": "ann"})
            assert result["channel"] == "twin"
            assert here.twin.taken == [("ann", "x")]

    within(scenario())


def test_a_conversation_is_found_or_what_is_missing_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:

            async def refusal(**params: Any) -> str:
                with pytest.raises(RpcError) as refused:
                    await here.call("message.action", action="send", params={"message": "x", **params})
                return str(refused.value)

            assert await refusal() == "target required: name the conversation to send to"
            assert await refusal(channel="pigeon", to="x") == "Unknown channel: pigeon; configured are local, twin"
            assert await refusal(channel="local") == "target required: name the conversation to send to"
            result = await here.call("message.action", action="send", params={"message": "x", "to": "ann"})
            assert result["channel"] == "twin"  # the only one besides the terminal
            result = await here.call("message.action", action="send", params={"message": "x", "to": " LOCAL : room"})
            assert result["channel"] == "local"
            result = await here.call(
                "message.action", action="send", channel=" Twin ", params={"message": "x", "to": "bob"}
            )
            assert result["channel"] == "twin"

    within(scenario())


@pytest.mark.parametrize("local", [True, False])
def test_without_a_channel_and_without_a_configured_one_nothing_is_sent(tmp_path: Path, local: bool) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config={"channels": {"local": {"enabled": local}}}) as here:
            for method, params in (
                ("message.action", {"action": "send", "params": {"message": "x", "to": "room"}}),
                ("send", {"to": "room", "message": "x", "idempotencyKey": "s1"}),
                ("poll", {"to": "room", "question": "?", "options": ["a", "b"], "idempotencyKey": "p1"}),
            ):
                with pytest.raises(
                    RpcError, match=r"^Channel is required \(no configured channels detected\)"
                ) as refused:
                    await here.call(method, **params)
                assert refused.value.kind == "INVALID_REQUEST"
                assert not local or not (await here.call("local.read", conversation="room"))["messages"]

    within(scenario())


BINDINGS: list[tuple[str, Json, str]] = [
    ("its own", {"agentId": "main", "match": {"channel": "twin", "accountId": "second"}}, "second"),
    ("another agent's", {"agentId": "work", "match": {"channel": "twin", "accountId": "second"}}, "default"),
    ("another channel's", {"agentId": "main", "match": {"channel": "local", "accountId": "second"}}, "default"),
    ("any account", {"agentId": "main", "match": {"channel": "twin", "accountId": "*"}}, "default"),
    ("no account", {"agentId": "main", "match": {"channel": "twin"}}, "default"),
]


@pytest.mark.parametrize(("what", "binding", "account"), BINDINGS, ids=[row[0] for row in BINDINGS])
def test_a_binding_names_the_account_an_agent_speaks_from(
    tmp_path: Path, what: str, binding: Json, account: str
) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config={**TWO, "bindings": [binding]}) as here:
            await here.call("message.action", action="send", agentId="main", params={"to": "twin:x", "message": what})
            assert here.twins[account].taken == [("x", what)]

    within(scenario())


def test_a_channel_that_can_not_broadcast_is_refused_for_each_target(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, twin=Twin(can=("send",))) as here:
            outcome = await here.call(
                "message.action", channel="twin", action="broadcast", params={"targets": ["a"], "message": "x"}
            )
            (result,) = outcome["payload"]["results"]
            words = "this channel can't send to several conversations"
            assert result == {"channel": "twin", "to": "a", "ok": False, "error": words}
            outcome = await here.call(
                "message.action", channel="pigeon", action="broadcast", params={"targets": ["a"], "message": "x"}
            )
            assert outcome["payload"]["results"][0]["channel"] == "pigeon"

    within(scenario())


# ---- results ----------------------------------------------------------------------------------------------------


def test_results_have_the_fields_that_clients_know(tmp_path: Path) -> None:
    async def scenario() -> None:
        twin = Recorder()
        async with open_channels(tmp_path, twin=twin) as here:

            async def payload(action: str, **params: Any) -> Json:
                result = await here.call("message.action", channel="twin", action=action, params={"to": "a", **params})
                assert (result["action"], result["handledBy"], result["to"]) == (action, "core", "a")
                found: Json = result["payload"]
                return found

            assert await payload("react", messageId="1", emoji="x") == {"ok": True, "messageId": "1", "added": "x"}
            gone = {"ok": True, "messageId": "1", "removed": "x"}
            assert await payload("react", messageId="1", emoji="x", remove=True) == gone
            assert await payload("delete", messageId="1") == {"ok": True, "messageId": "1", "deleted": True}
            assert await payload("edit", messageId="1", message="y") == {"ok": True, "messageId": "1"}
            assert await payload("pin", messageId="1") == {"ok": True, "messageId": "1", "pinned": True}
            assert await payload("unpin", messageId="1") == {"ok": True, "messageId": "1", "pinned": False}
            sender = {"id": "1", "username": "u", "name": "n", "e164": "+1"}
            message = {"id": "7", "messageId": "7", "text": "hi", "timestamp": 5, "fromMe": False, "sender": sender}
            assert await payload("read", limit=3, before="9") == {"ok": True, "messages": [message]}
            assert twin.done == [
                ("react", "a", "1", "x", False), ("react", "a", "1", "x", True), ("delete", "a", "1"),
                ("edit", "a", "1", "y"), ("pin", "a", "1", False), ("pin", "a", "1", True), ("read", "a", 3, "9"),
            ]  # fmt: skip
            sent = await payload("send", message="m", media="data:text/plain,x")
            assert (sent["messageId"], sent["messageIds"], sent["timestamp"], sent["status"]) == ("1", ["1"], 1, "sent")
            assert "note" not in sent
            assert (sent["channel"], sent["to"], sent["chatId"], "threadId" in sent) == ("twin", "a", "a", False)
            assert (await payload("send", message="m", threadId="t"))["threadId"] == "t"

    within(scenario())


@pytest.mark.parametrize("trial", [True, False])
@pytest.mark.parametrize("media", [[], ["data:,x"], ["data:,x", "data:,y"]])
def test_the_files_of_a_message_are_in_its_result(tmp_path: Path, media: list[str], trial: bool) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, twin=Recorder()) as here:
            params = {"to": "a", "message": "m", "mediaUrls": media, "dryRun": trial}
            result = await here.call("message.action", channel="twin", action="send", params=params)
            sent = result["sendResult"]
            assert (sent["mediaUrl"], sent["mediaUrls"]) == (media[0] if media else None, media or None)
            assert (sent["channel"], sent["to"], sent["via"], sent["dryRun"]) == ("twin", "a", "direct", trial)
            payload = result["payload"]
            assert (payload["ok"], payload.get("message")) == (True, "m" if trial else None)
            assert ("dryRun" in payload) is trial

    within(scenario())


MESSAGE = StoredMessage(id="7", sender=Sender(id="1"), text="hi", at=5)


@pytest.mark.parametrize(
    ("message", "view"),
    [
        (MESSAGE, {}),
        (structs.replace(MESSAGE, mine=True, sender=Sender()), {"fromMe": True, "sender": {}}),
        (structs.replace(MESSAGE, thread="t", reply_to="6"), {"threadId": "t", "replyToId": "6"}),
        (structs.replace(MESSAGE, pinned=True, edited=True), {"pinned": True, "edited": True}),
        (
            structs.replace(MESSAGE, attachments=(FileSummary(name="a", mime_type="b", size=1, url="c"),)),
            {"attachments": [{"name": "a", "mimeType": "b", "size": 1, "url": "c"}]},
        ),
        (
            structs.replace(MESSAGE, reactions=(Reaction(emoji="x", sender="y"),), extra={"n": 1}),
            {"reactions": [{"emoji": "x", "sender": "y"}], "extra": {"n": 1}},
        ),
    ],
)
def test_a_message_that_was_read_has_every_field_that_is_set(message: StoredMessage, view: Json) -> None:
    plain = {"id": "7", "messageId": "7", "text": "hi", "timestamp": 5, "fromMe": False, "sender": {"id": "1"}}
    assert message_view(message) == plain | view


def test_a_broadcast_goes_to_each_of_its_conversations_or_says_why_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        twin = Recorder()
        async with open_channels(tmp_path, twin=twin) as here:

            async def broadcast(**arguments: Any) -> Json:
                params = {"message": "x", "targets": ["room", ""], **arguments}
                outcome: Json = await here.call("message.action", action="broadcast", params=params)
                return outcome

            result = await broadcast(channel="all", targets=["room", "hall"])
            assert (result["kind"], result["channel"], result["action"]) == ("broadcast", "all", "broadcast")
            assert [(one["channel"], one["to"], one["ok"]) for one in result["payload"]["results"]] == [
                ("local", "room", True), ("local", "hall", True), ("twin", "room", True), ("twin", "hall", True),
            ]  # fmt: skip
            assert twin.taken == [("room", "x"), ("hall", "x")]
            assert len(set(twin.keys)) == 2
            here.config = {**here.config, "tools": {"message": {"broadcast": {"enabled": False}}}}
            with pytest.raises(RpcError, match=r"switched off \(tools.message.broadcast.enabled\)"):
                await broadcast(channel="twin", targets=["a"])
            here.config = {**here.config, "tools": {"message": {"broadcast": {}}}}
            assert (await broadcast(targets=["a"]))["payload"]["results"][0]["channel"] == "twin"

    within(scenario())


# ---- who may write ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "owner", "mentioned", "outcome"),
    [
        ({}, True, True, "in"),  # groupPolicy allowlist, and the list is empty: the owner needs no name on it
        ({}, True, False, "listen"),
        ({"groupPolicy": "disabled"}, True, True, "out"),
        ({"groups": {"123": {"enabled": False}}}, True, True, "out"),
        ({"groups": {"999": {}}}, True, True, "out"),
        ({"groups": {"123": {}}, "groupAllowFrom": ["123"]}, False, True, "in"),
        ({"groups": {"123": {}}, "groupAllowFrom": ["999"]}, False, True, "out"),
        ({"groups": {"123": {}}, "allowFrom": ["123"], "requireMention": False}, False, False, "in"),
        ({"groups": {"123": {}}, "allowFrom": ["123"]}, False, False, "listen"),
        ({"groups": {"123": {"requireMention": False}}, "allowFrom": ["123"]}, False, False, "in"),
        ({"groups": {"123": {"requireMention": True}}, "allowFrom": ["*"], "requireMention": False}, False, False,
         "listen"),
    ],
)  # fmt: skip
def test_groups_ask_the_owner_only_for_a_place_and_a_mention(
    settings: Any, owner: bool, mentioned: bool, outcome: str
) -> None:
    message = inbound(chat="group", mentioned=mentioned)
    assert check_access(message, rules(**settings), owner=owner, approved=()).outcome == outcome


@pytest.mark.parametrize("policy", ["disabled", "allowlist", "pairing", "open"])
def test_the_owner_may_always_write_directly(policy: str) -> None:
    assert check_access(inbound(), rules(dmPolicy=policy), owner=True, approved=()).outcome == "in"


@pytest.mark.parametrize(
    ("listed", "sender", "outcome"),
    [
        (["ann"], Sender(id="9", username="Ann"), "in"),
        (["@ANN"], Sender(id="9", username="@ann"), "in"),
        (["ann"], Sender(id="9", username="@Ann"), "in"),
        (["ann"], Sender(id="9", name="ann"), "out"),
        ([""], Sender(), "out"),
        (["None"], Sender(), "out"),
        (["telegram:ann"], Sender(id="9", username="ann"), "in"),
    ],
)
def test_a_name_on_the_list_is_an_id_a_user_name_or_a_number(listed: list[str], sender: Sender, outcome: str) -> None:
    channel_rules = rules(dmPolicy="allowlist", allowFrom=listed)
    assert check_access(inbound(sender=sender), channel_rules, owner=False, approved=()).outcome == outcome


def test_a_sender_without_an_id_is_never_admitted_by_pairing() -> None:
    nameless: Any = {"", None}
    assert check_access(inbound(sender=Sender()), rules(), owner=False, approved=nameless).outcome == "pair"


def test_a_message_or_poll_a_channel_will_not_take_is_a_refusal(tmp_path: Path) -> None:
    async def scenario() -> None:
        twin = Recorder()
        async with open_channels(tmp_path, twin=twin) as here:
            for action, params in [*ACTIONS[:5], ("poll", {"question": "?", "options": ["a", "b"]})]:
                twin.script = [ChannelRefused("you were blocked")]
                with pytest.raises(RpcError, match="you were blocked") as lost:
                    await here.call("message.action", channel="twin", action=action, params={"to": "a", **params})
                assert lost.value.details["code"] == "OUTBOUND_DELIVERY_FAILED"
            twin.script = [ChannelRefused("you were blocked")]
            result = await here.call(
                "message.action", channel="twin", action="broadcast", params={"targets": ["a"], "message": "x"}
            )
            assert result["payload"]["results"][0]["error"] == "you were blocked"
            for action, params, words in (
                ("send", {"message": "x"}, "the message could not be delivered"),
                ("poll", {"question": "?", "options": ["a", "b"]}, "the poll could not be delivered"),
            ):
                twin.script = [ChannelRefused("")]
                with pytest.raises(RpcError, match=words):
                    await here.call("message.action", channel="twin", action=action, params={"to": "a", **params})
            assert twin.taken == []

    within(scenario())
