"""Message actions over RPC and as a tool: every action, its target, who may use it, and how it is refused."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, update

from openclaw_mcp.core.agent import Attachment
from openclaw_mcp.core.channel import ChannelBusy, ChannelRefused, ChatAddress, OutboundMessage
from openclaw_mcp.core.errors import ToolError
from openclaw_mcp.core.model import Caller, Grant, ToolCall
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.store.tables import local_files, local_messages

from .gateways import WAIT, ChannelHarness, Twin, open_channels, within

OPEN: dict[str, Any] = {"channels": {"twin": {"allowFrom": ["*"], "dmPolicy": "open"}}}


async def act(here: ChannelHarness, action: str, **params: Any) -> Any:
    params.setdefault("target", "room")
    return await here.call("message.action", channel="local", action=action, params=params, idempotencyKey="k" + action)


def test_every_action_on_a_channel_that_can(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            sent = await act(here, "send", message="one\\ntwo")
            assert (sent["kind"], sent["channel"], sent["action"], sent["to"]) == ("send", "local", "send", "room")
            assert sent["sendResult"]["result"]["messageId"] == sent["payload"]["messageId"]
            id = sent["payload"]["messageId"]
            await act(here, "reply", message="an answer", replyToId=id)
            await act(here, "thread-reply", message="in a thread", threadId="t")
            await act(here, "sendWithEffect", message="wow", effectId="confetti")
            data = "data:text/plain;base64," + base64.b64encode(b"file").decode()
            await act(here, "sendAttachment", file=data, caption="see this")
            await act(here, "react", messageId=id, emoji="👍")
            await act(here, "pin", messageId=id)
            await act(here, "edit", messageId=id, message="edited")
            await act(here, "poll", question="Lunch?", options=["soup", "salad"])
            read = await act(here, "read", limit=50)
            first, reply, thread, effect, file, poll = read["payload"]["messages"]
            assert (first["text"], first["pinned"], first["edited"]) == ("edited", True, True)
            assert first["reactions"] == [{"emoji": "👍", "sender": "agent"}]
            assert reply["replyToId"] == id
            assert thread["threadId"] == "t"
            assert effect["extra"] == {"effect": "confetti"}
            assert (file["text"], file["attachments"][0]["size"]) == ("see this", 4)
            assert poll["extra"]["poll"]["options"] == ["soup", "salad"]
            await act(here, "unpin", messageId=id)
            await act(here, "delete", messageId=id)
            left = (await act(here, "read"))["payload"]["messages"]
            assert [message["id"] for message in left].count(id) == 0

    within(scenario())


def test_the_older_names_do_the_same(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            base: dict[str, Any] = {"channel": "local", "accountId": ""}
            sent = await here.call("message:send", target="room", message="hi", **base)
            id = sent["payload"]["messageId"]
            await here.call("message:reply", to="room", message="a", replyToId=id, **base)
            await here.call("message:thread-reply", to="room", message="b", threadId="t", **base)
            await here.call("message:sendWithEffect", target="room", message="c", effectId="x", **base)
            await here.call("message:sendAttachment", target="room", file="data:text/plain,x", caption="d", **base)
            await here.call("message:react", to="room", messageId=id, emoji="👍", **base)
            await here.call("message:pin", to="room", messageId=id, **base)
            await here.call("message:edit", to="room", messageId=id, message="e", **base)
            outcome = await here.call("message:broadcast", targets=["room", "hall"], message="all", **base)
            assert [result["ok"] for result in outcome["payload"]["results"]] == [True, True]
            read = await here.call("message:readMessages", channelId="room", limit=99, **base)
            assert len(read["payload"]["messages"]) == 6
            await here.call("message:delete", to="room", messageId=id, **base)

    within(scenario())


def test_what_a_channel_can_not_do_is_a_sentence(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            for action, params, words in (
                ("pin", {"messageId": "1"}, "this channel can't pin messages"),
                ("react", {"messageId": "1", "emoji": "x"}, "this channel can't react to messages"),
                ("delete", {"messageId": "1"}, "this channel can't delete messages"),
                ("edit", {"messageId": "1", "message": "x"}, "this channel can't edit messages"),
                ("read", {}, "this channel can't read messages"),
                ("reply", {"message": "x", "replyTo": "1"}, "this channel can't reply to messages"),
                ("thread-reply", {"message": "x", "threadId": "1"}, "this channel can't write in threads"),
                ("sendAttachment", {"file": "data:,x"}, "this channel can't send attachments"),
                (
                    "sendWithEffect",
                    {"message": "x", "effectId": "1"},
                    "this channel can't send messages with an effect",
                ),
                ("poll", {"question": "?", "options": ["a", "b"]}, "this channel can't make polls"),
            ):
                for trial in (False, True):
                    arguments = {"target": "a", "dryRun": trial, **params}
                    with pytest.raises(RpcError) as refused:
                        await here.call("message.action", channel="twin", action=action, params=arguments)
                    assert (str(refused.value), refused.value.kind) == (words, "INVALID_REQUEST")
            assert here.twin.taken == []

    within(scenario())


def test_an_ability_may_be_switched_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config={"channels": {"local": {"actions": {"pin": False}}}}) as here:
            with pytest.raises(
                RpcError, match=r"the config does not allow to pin messages \(channels.local.actions.pin\)"
            ):
                await act(here, "pin", messageId="1")

    within(scenario())


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("send", {}, "message required"),
    ("dance", {}, "unknown message action 'dance'; there are broadcast, "),
    ("react", {"messageId": "1"}, "emoji required for react"),
    ("pin", {}, "messageId required for pin"),
    ("thread-reply", {"message": "x"}, "threadId required"),
    ("broadcast", {"message": "x"}, "targets required"),
    ("poll", {"question": "x", "options": ["a"]}, "a poll has 2 to 12 options"),
    ("send", {"message": {"a": 1}}, "message must be a text"),
    ("read", {"limit": -1}, "limit must be a number from 1 to 200"),
    ("send", {"message": "x", "buttons": "{"}, "buttons is not valid JSON"),
    ("send", {"message": "x", "accountId": "second"}, "channel local has no account second; there are default"),
    ("send", {"message": "x", "media": "ftp://x/y"}, "can't be fetched over ftp"),
    ("send", {"message": "x", "target": "a\nb"}, "a local conversation's name"),
    ("send", {"message": "x" * 500_001}, "longer than 500000 characters"),
]


def test_bad_input_gets_a_sentence(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            for action, params, words in BAD:
                with pytest.raises(RpcError) as refused:
                    await act(here, action, **params)
                assert words in str(refused.value)

    within(scenario())


def test_send_and_poll_as_clients_call_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            result = await here.call("send", to="room", message="hi", channel="local", idempotencyKey="one")
            again = await here.call("send", to="room", message="hi", channel="local", idempotencyKey="one")
            assert result == again
            assert (result["runId"], result["channel"], result["chatId"]) == ("one", "local", "room")
            polled = await here.call(
                "poll", to="room", question="?", options=["a", "b"], channel="local", idempotencyKey="two"
            )
            assert polled["messageId"]
            with pytest.raises(RpcError, match="must have required property 'idempotencyKey'"):
                await here.call("send", to="room", message="hi")
            with pytest.raises(RpcError, match="Unknown channel: pigeon; configured are local, twin"):
                await here.call("send", to="room", message="hi", channel="pigeon", idempotencyKey="x")
            with pytest.raises(RpcError, match=r"webchat is no channel"):
                await here.call("send", to="room", message="hi", channel="webchat", idempotencyKey="x")

    within(scenario())


def test_a_message_that_waits_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.gateway.channels.message_actions.DELIVERY_WAIT", 0.2)

    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            here.twin.script = [ChannelBusy("slow", 60.0)]
            with pytest.raises(RpcError) as waits:
                await here.call("send", to="ann", message="hi", channel="twin", idempotencyKey="one")
            assert waits.value.kind == "UNAVAILABLE"
            assert waits.value.details["code"] == "OUTBOUND_DELIVERY_QUEUED"
            result = await here.call(
                "message.action", channel="twin", action="send", params={"to": "b", "message": "x"}
            )
            assert result["payload"]["status"] == "queued"

    within(scenario())


def test_a_message_that_will_never_arrive_is_not_to_be_sent_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            for method, params in (
                ("send", {"to": "ann", "message": "hi", "idempotencyKey": "one"}),
                ("message.action", {"action": "send", "params": {"target": "ann", "message": "hi"}}),
            ):
                here.twin.script = [ChannelRefused("you were blocked")]
                with pytest.raises(RpcError, match="you were blocked") as lost:
                    await here.call(method, channel="twin", **params)
                assert (lost.value.kind, lost.value.retryable) == ("UNAVAILABLE", False)
                failed = (await here.call("outbox.list", status="failed"))["items"]
                assert lost.value.details["deliveryId"] in [row["id"] for row in failed]

    within(scenario())


def test_a_broadcast_tells_of_each_target(tmp_path: Path) -> None:
    async def scenario() -> None:
        twin = Twin(can=("send", "broadcast"))
        async with open_channels(tmp_path, twin=twin) as here:
            twin.script = [None, ChannelRefused("bob has left")]
            result = await here.call(
                "message.action", channel="twin", action="broadcast",
                params={"targets": ["ann", "bob", "  "], "message": "hear"}, idempotencyKey="b",
            )  # fmt: skip
            results = result["payload"]["results"]
            assert [(r["to"], r["ok"], r.get("error")) for r in results] == [
                ("ann", True, None), ("bob", False, "bob has left"), ("  ", False, "a conversation has a name"),
            ]  # fmt: skip
            everywhere = await here.call(
                "message.action", channel="all", action="broadcast", params={"targets": ["x"], "message": "y"}
            )
            assert [r["channel"] for r in everywhere["payload"]["results"]] == ["local", "twin"]
            here.config = {**OPEN, "tools": {"message": {"broadcast": {"enabled": False}}}}
            with pytest.raises(RpcError, match="broadcasts are switched off"):
                await here.call("message.action", action="broadcast", params={"targets": ["x"], "message": "y"})

    within(scenario())


def test_trying_out_sends_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            result = await here.call(
                "message.action", channel="twin", action="send", params={"to": "twin:ann ", "message": "x"}, dryRun=True
            )  # fmt: skip
            assert (result["dryRun"], result["to"], result["payload"]["message"]) == (True, "ann", "x")
            assert here.twin.taken == []
            assert (await here.call("outbox.list"))["items"] == []

    within(scenario())


# ---- an agent's own ----------------------------------------------------------------------------------------------


def agent(address: ChatAddress, session: str = "agent:main:main") -> Caller:
    grant = Grant(agent="main", channel=address.channel, account=address.account, to=address.to, thread=address.thread)
    return Caller(kind="agent", name="run", session=session, grant=grant)


async def use(here: ChannelHarness, caller: Caller, **arguments: Any) -> Any:
    tools = here.memory.runs._tools  # the dispatcher of the harness
    assert tools is not None
    result = await tools.call(ToolCall(caller=caller, name="message", arguments=arguments, context=NULL_CONTEXT))
    return result.structured


def test_an_agent_is_where_it_is_and_may_not_reach_across(tmp_path: Path) -> None:
    async def scenario() -> None:
        twin = Twin(can=("send", "thread"))
        async with open_channels(tmp_path, twin=twin) as here:
            caller = agent(here.at("ann", "t7"))
            result = await use(here, caller, action="send", message="here")
            assert (result["to"], result["threadId"]) == ("ann", "t7")
            explicit = await use(here, caller, action="send", message="here", threadId="t8")
            assert explicit["threadId"] == "t8"
            other = await use(here, caller, action="send", target="bob", message="there")
            assert "threadId" not in other
            with pytest.raises(ToolError, match="Cross-context messaging denied"):
                await use(here, caller, action="send", channel="local", target="room", message="x")
            with pytest.raises(ToolError, match="Cross-context messaging denied"):
                await use(here, caller, action="read", target="local:room")
            with pytest.raises(ToolError, match="elsewhere it is for the owner"):
                await use(here, caller, action="read", target="bob")
            here.config = {**OPEN, "tools": {"message": {"crossContext": {"allowWithinProvider": False}}}}
            with pytest.raises(ToolError, match="Cross-context messaging denied"):
                await use(here, caller, action="send", target="bob", message="x")
            marker = {"enabled": True, "prefix": "[via {channel}] "}
            rules = {"allowAcrossProviders": True, "marker": marker}
            here.config = {**OPEN, "tools": {"message": {"crossContext": rules}}}
            await use(here, caller, action="send", channel="local", target="room", message="over here")
            (message,) = await here.reads("room")
            assert message["text"] == "[via twin] over here"
            here.config = {**OPEN, "tools": {"message": {"allowCrossContextSend": True}}}
            await use(here, caller, action="send", channel="local", target="room", message="x")

    within(scenario())


def test_an_agent_over_rpc_can_not_name_another_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            caller = agent(here.at("ann"))
            result = await here.call("message:send", caller, message="mine", sessionKey="agent:main:other")
            assert result["to"] == "ann"
            (mail,) = await here.books.outbox.list_direct_sends("agent:main:main", since=0)
            assert mail.origin == "tool"

    within(scenario())


def test_the_account_an_agent_is_bound_to_speaks_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        binding = {"agentId": "main", "match": {"channel": "twin", "accountId": "second"}}
        config = {"channels": {"twin": {"accounts": {"default": {}, "second": {}}}}, "bindings": [binding]}
        async with open_channels(tmp_path, config=config) as here:
            await here.call("message.action", action="send", agentId="main", params={"to": "twin:x", "message": "y"})
            assert here.twins["second"].taken == [("x", "y")]
            await here.call("message.action", action="send", params={"to": "twin:x", "message": "z"})
            assert here.twins["default"].taken == [("x", "z")]

    within(scenario())


def test_an_attachment_too_large_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config={"channels": {"local": {"mediaMaxMb": 0.0001}}}) as here:
            file = Attachment(mime_type="text/plain", data=b"x" * 200)
            where = ChatAddress(channel="local", account="default", to="room")
            with pytest.raises(ChannelRefused, match="larger than 104 bytes"):
                await here.service.post(where, OutboundMessage(attachments=(file,)), key="k")

    within(scenario())


# ---- accounts that come and go ---------------------------------------------------------------------------------------


def test_a_change_of_config_touches_only_what_it_names(tmp_path: Path) -> None:
    async def scenario() -> None:
        both: dict[str, Any] = {"channels": {"twin": {"accounts": {"default": {}, "second": {}}}}}
        async with open_channels(tmp_path, config=both) as here:
            first = here.service.accounts.get("twin", "default")
            here.config = {"channels": {"twin": {"accounts": {"default": {}, "second": {"allowFrom": ["x"]}}}}}
            await here.service.runner.apply_config()
            assert here.service.accounts.get("twin", "default") is first
            here.config = {"channels": {"twin": {"accounts": {"default": {}}}, "pigeon": {}}}
            await here.service.runner.apply_config()
            status = await here.call("channels.status")
            assert status["channelOrder"] == ["local", "twin"]
            assert [row["accountId"] for row in status["channelAccounts"]["twin"]] == ["default"]
            assert status["statusIssues"][0]["message"] == "there is no channel pigeon; there are local, twin"
            here.config = {"channels": {"twin": {"dmPolicy": "everybody"}}}
            await here.service.runner.apply_config()
            status = await here.call("channels.status")
            assert "dmPolicy" in status["statusIssues"][-1]["message"]
            assert (
                here.service.accounts.get("twin", "default") is first
            )  # a config that can't be followed changes nothing

    within(scenario())


def test_a_channel_that_is_refused_waits_for_a_person(tmp_path: Path) -> None:
    async def scenario() -> None:
        twin = Twin()
        twin.runs = [ChannelRefused("the token is wrong; set channels.twin.token")]
        async with open_channels(tmp_path, twin=twin) as here:
            await asyncio.sleep(0)
            row = (await here.call("channels.status"))["channelAccounts"]["twin"][0]
            assert (row["state"], row["lastError"]) == ("refused", "the token is wrong; set channels.twin.token")
            assert twin.run_count == 1
            await here.call("channels.restart", channel="twin")
            await here.service.post(here.at("ann"), OutboundMessage(text="x"), key="k", wait=WAIT)
            assert twin.taken == [("ann", "x")]

    within(scenario())


def test_the_path_of_a_sent_file_is_not_named_in_the_conversation(tmp_path: Path) -> None:
    """Neither of a message sent now, nor of one whose row still names the place; the file itself is there."""

    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            folder = tmp_path / "media"
            folder.mkdir(exist_ok=True)
            (folder / "plan.txt").write_text("the plan")
            for n, place in enumerate((folder / "plan.txt", (folder / "plan.txt").as_uri())):
                params = {"to": "room", "file": str(place)}
                await here.call("message.action", channel="local", action="sendAttachment", params=params)
                message = (await here.reads("room"))[n]
                assert message["attachments"] == [{"name": "plan.txt", "mimeType": "text/plain", "size": 8}]
            body = func.replace(local_messages.c.body, '"size"', '"url":"/h/p","size"')
            older = update(local_messages).values(body=body)
            await here.memory.store.write(lambda connection: connection.execute(older))
            await here.memory.store.write(lambda connection: connection.execute(update(local_files).values(url="/h/p")))
            file = await here.call("local.file", conversation="room", messageId=message["id"])
            outputs = [*await here.reads("room"), file]
            assert "/h/p" not in json.dumps(outputs)
            assert str(tmp_path) not in json.dumps([outputs, [event.payload for event in here.events]], default=str)
            assert base64.b64decode(file["files"][0]["content"]) == b"the plan"

    within(scenario())
