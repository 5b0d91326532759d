"""Who may write, who answers, and what of an answer is sent: the pure rules."""

from typing import Any

import msgspec
import pytest

from openclaw_mcp.core import chat_commands as commands
from openclaw_mcp.core.agent import Attachment
from openclaw_mcp.core.agents import AgentProfile, AgentRoster
from openclaw_mcp.core.channel import ChatAddress, ChatKind, InboundMessage, OutboundMessage
from openclaw_mcp.core.config.channels import ChannelRules
from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.core.errors import BadRequest
from openclaw_mcp.core.model import Json, Sender
from openclaw_mcp.core.owner import is_owner
from openclaw_mcp.gateway.channels.inbound_rules import check_access, session_for
from openclaw_mcp.gateway.channels.replying import (
    NO_REMINDER_NOTE,
    ReplyEffects,
    ToolSentMessage,
    filter_reply,
)
from openclaw_mcp.gateway.channels.settings import default_account, read_accounts

HERE = ChatAddress(channel="telegram", account="default", to="123")
ROSTER = AgentRoster(agents=(AgentProfile(id="main"), AgentProfile(id="work"), AgentProfile(id="home")))


def inbound(text: str = "hi", *, chat: ChatKind = "direct", mentioned: bool = False, **more: Any) -> InboundMessage:
    values: dict[str, Any] = {"address": HERE, "sender": Sender(id="123", username="Ann", e164="+4912")} | more
    return InboundMessage(id="1", chat=chat, text=text, at=1, mentioned=mentioned, **values)


def rules(**settings: Any) -> ChannelRules:
    return msgspec.convert(settings, ChannelRules)


# ---- who may write ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "outcome"),
    [
        ({}, "pair"),
        ({"dmPolicy": "allowlist"}, "out"),
        ({"dmPolicy": "allowlist", "allowFrom": []}, "out"),
        ({"dmPolicy": "open"}, "out"),
        ({"dmPolicy": "open", "allowFrom": ["*"]}, "in"),
        ({"dmPolicy": "disabled", "allowFrom": ["*"]}, "out"),
        ({"dmPolicy": "allowlist", "allowFrom": ["123"]}, "in"),
        ({"dmPolicy": "allowlist", "allowFrom": [123]}, "in"),
        ({"dmPolicy": "allowlist", "allowFrom": ["telegram:123"]}, "in"),
        ({"dmPolicy": "allowlist", "allowFrom": ["matrix:123"]}, "out"),
        ({"dmPolicy": "allowlist", "allowFrom": ["@ann"]}, "in"),
        ({"dmPolicy": "allowlist", "allowFrom": ["+4912"]}, "in"),
        ({"dmPolicy": "allowlist", "allowFrom": ["12"]}, "out"),
        ({"allowFrom": ["456"]}, "pair"),
    ],
)
def test_direct_messages_need_a_name_on_the_list(settings: Any, outcome: str) -> None:
    assert check_access(inbound(), rules(**settings), owner=False, approved=()).outcome == outcome


def test_pairing_admits_and_only_under_the_pairing_policy() -> None:
    assert check_access(inbound(), rules(), owner=False, approved={"123"}).outcome == "in"
    assert check_access(inbound(), rules(dmPolicy="allowlist"), owner=False, approved={"123"}).outcome == "out"


@pytest.mark.parametrize(
    ("settings", "mentioned", "outcome"),
    [
        ({}, True, "out"),
        ({"allowFrom": ["123"]}, True, "in"),
        ({"allowFrom": ["123"]}, False, "listen"),
        ({"allowFrom": ["123"], "groupAllowFrom": []}, True, "out"),
        ({"groupAllowFrom": ["123"], "requireMention": False}, False, "in"),
        ({"groupPolicy": "open"}, True, "in"),
        ({"groupPolicy": "open", "groups": {"999": {}}}, True, "out"),
        ({"groupPolicy": "open", "groups": {"*": {"requireMention": False}}}, False, "in"),
        ({"groupPolicy": "open", "groups": {"123": {"enabled": False}, "*": {}}}, True, "out"),
        ({"groups": {"123": {"allowFrom": ["@ann"]}}}, True, "in"),
        ({"groups": {"123": {"allowFrom": []}}, "groupAllowFrom": ["*"]}, True, "out"),
        ({"groupPolicy": "disabled", "groupAllowFrom": ["*"]}, True, "out"),
    ],
)
def test_groups_need_a_place_a_person_and_a_mention(settings: Any, mentioned: bool, outcome: str) -> None:
    message = inbound(chat="group", mentioned=mentioned)
    assert check_access(message, rules(**settings), owner=False, approved={"123"}).outcome == outcome


def test_the_owner_is_the_user_at_the_terminal_and_whom_the_config_names() -> None:
    assert is_owner(Sender(id="owner"), None, channel="local", vouched=True)
    assert is_owner(Sender(id="bob"), ["local:bob"], channel="local", vouched=True)
    assert not is_owner(Sender(id="owner"), None, channel="local")
    assert not is_owner(Sender(id="bob"), ["bob", "local:bob"], channel="local")
    assert not is_owner(Sender(id="bob"), None, channel="local", vouched=True)
    assert not is_owner(Sender(id="owner"), None, channel="telegram", vouched=True)
    assert not is_owner(Sender(id="bob"), ["*"], channel="local", vouched=True)
    assert not is_owner(Sender(id="owner"), None, channel="telegram")
    assert is_owner(Sender(id="123"), ["telegram:123"], channel="telegram")
    assert not is_owner(Sender(id="123"), ["telegram:123"], channel="matrix")
    assert not is_owner(Sender(id="123"), ["*"], channel="telegram")
    assert not is_owner(Sender(id="123", username="ann"), ["ann", "@ann"], channel="telegram")


# ---- accounts --------------------------------------------------------------------------------------------------------


def test_accounts_inherit_from_their_channel_and_local_is_always_there() -> None:
    config: dict[str, Json] = {
        "telegram": {
            "dmPolicy": "allowlist",
            "accounts": {"a": {"botToken": "1"}, "b": {"allowFrom": ["x"]}, "c": {"enabled": False}},
        },
        "matrix": {"enabled": False},
    }
    found = {(account.channel, account.id): account for account in read_accounts(config)}
    assert list(found) == [("local", "default"), ("telegram", "a"), ("telegram", "b")]
    assert found["telegram", "b"].rules.dm_policy == "allowlist"
    assert found["telegram", "a"].settings["botToken"] == "1"
    assert default_account(config, "telegram") == "a"
    assert read_accounts({"local": {"enabled": False}}) == []


def test_a_setting_that_makes_no_sense_is_named() -> None:
    with pytest.raises(BadRequest, match=r"channels.telegram, account default: Invalid enum value.*dmPolicy"):
        read_accounts({"telegram": {"dmPolicy": "everybody"}})


# ---- sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "config", "key"),
    [
        (inbound(), {}, "agent:main:main"),
        (inbound(), {"session": {"dmScope": "per-peer"}}, "agent:main:direct:123"),
        (inbound(), {"session": {"dmScope": "per-channel-peer"}}, "agent:main:telegram:direct:123"),
        (
            inbound(),
            {"session": {"dmScope": "per-account-channel-peer"}},
            "agent:main:telegram:default:direct:123",
        ),
        (
            inbound(),
            {"session": {"dmScope": "per-peer", "identityLinks": {"ann": ["telegram:123", "matrix:@ann"]}}},
            "agent:main:direct:ann",
        ),
        (inbound(chat="group"), {}, "agent:main:telegram:group:123"),
        (inbound(chat="channel"), {}, "agent:main:telegram:channel:123"),
        (
            inbound(chat="group", address=ChatAddress(channel="telegram", account="default", to="-5", thread="7")),
            {},
            "agent:main:telegram:group:-5:thread:7",
        ),
        (inbound(address=ChatAddress(channel="local", account="default", to="main")), {}, "agent:main:main"),
        (
            inbound(address=ChatAddress(channel="local", account="default", to="Work")),
            {},
            "agent:main:local:direct:work",
        ),
    ],
)
def test_a_message_finds_its_session(message: InboundMessage, config: Any, key: str) -> None:
    assert session_for(message, read_config(config), ROSTER, owner=True).key == key


@pytest.mark.parametrize(
    ("message", "config", "key"),
    [
        (inbound(), {}, "agent:main:telegram:direct:123"),
        (inbound(), {"session": {}}, "agent:main:telegram:direct:123"),
        (inbound(), {"session": {"mainKey": "home"}}, "agent:main:telegram:direct:123"),
        (inbound(), {"session": {"dmScope": "per-peer"}}, "agent:main:direct:123"),
        (inbound(), {"session": {"identityLinks": {"ann": ["telegram:123"]}}}, "agent:main:telegram:direct:ann"),
        (inbound(), {"session": {"dmScope": "main"}}, "agent:main:main"),
        (inbound(address=ChatAddress(channel="telegram", account="default", to="5", thread="7")), {},
         "agent:main:telegram:direct:123:thread:7"),
        (inbound(address=ChatAddress(channel="local", account="default", to="main")), {},
         "agent:main:local:direct:main"),
        (inbound(chat="group"), {}, "agent:main:telegram:group:123"),
    ],
)  # fmt: skip
def test_who_is_not_the_owner_gets_the_main_session_only_where_the_config_says_so(
    message: InboundMessage, config: Any, key: str
) -> None:
    assert session_for(message, read_config(config), ROSTER, owner=False).key == key


def test_the_most_particular_binding_chooses_the_agent() -> None:
    channel = {"agentId": "work", "match": {"channel": "telegram", "accountId": "*"}}
    peer = {"agentId": "home", "match": {"channel": "telegram", "peer": {"kind": "direct", "id": "123"}}}
    space = {"agentId": "home", "match": {"channel": "telegram", "guildId": "g"}}
    both = {"agentId": "home", "match": {"channel": "telegram", "guildId": "g", "peer": {"kind": "group", "id": "123"}}}
    unknown = {"agentId": "nobody", "match": {"channel": "telegram"}}
    other = inbound(address=ChatAddress(channel="telegram", account="second", to="123"))

    def agent(message: InboundMessage, *bindings: Any) -> str:
        return session_for(message, read_config({"bindings": list(bindings)}), ROSTER, owner=True).agent_id

    assert agent(inbound(), channel, peer) == "home"
    assert agent(inbound(), peer, channel) == "home"
    assert agent(other, peer, channel) == "work"  # no account named: the default one alone
    assert agent(inbound(chat="group", space="g"), channel, space) == "home"
    assert agent(inbound(chat="group", space="h"), channel, space) == "work"
    assert agent(inbound(chat="group", space="h"), both) == "main"
    assert agent(inbound(), unknown) == "main"


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "rest"),
    [("/stop", "/stop", ""), (" /NEW@our_bot ", "/new", ""), ("/new tell me more", "/new", "tell me more")],
)
def test_commands_are_read(text: str, name: str, rest: str) -> None:
    assert commands.parse_command(text) == commands.ChatCommand(name, rest)


@pytest.mark.parametrize("text", ["/newer", "stop", "/stop it please", "/unknown", "", "I said /stop"])
def test_everything_else_is_for_the_agent(text: str) -> None:
    assert commands.parse_command(text) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [("/hlep", "/hlep"), ("/think gpt-5", "/think"), (" /Start@our_bot", "/start"), ("/think\nhard", "/think")],
)
def test_an_unknown_command_is_answered_with_the_commands_there_are(text: str, name: str) -> None:
    answer = commands.refuse_unknown(text)
    assert answer is not None
    assert answer.startswith(f"There is no command {name}: there are /new, ")
    assert answer.endswith(" and /help; begin with // to send this to the agent as it is.")
    assert not commands.is_for_agent(text)


def test_a_command_with_words_it_does_not_take_is_not_sent_to_the_agent() -> None:
    assert commands.refuse_unknown("/stop it please") == (
        "/stop takes no words after it: send /stop alone, or begin with // to send this to the agent as it is."
    )


@pytest.mark.parametrize(
    "text",
    ["/etc/hosts is wrong", "/tmp is full", "/Users", "/ or not", "// a comment", "//server/share", "/1 of them", "/",
     "", "see /hlep", "/a.b", "/usr"],
)  # fmt: skip
def test_paths_and_other_texts_are_for_the_agent_as_they_are(text: str) -> None:
    assert commands.is_for_agent(text)
    assert commands.literal_text(text) == text


@pytest.mark.parametrize("text", ["/stop", "/stop it", "/hlep me", "/new story"])
def test_a_second_slash_sends_a_text_that_looks_like_a_command(text: str) -> None:
    assert commands.is_for_agent(f"/{text}")
    assert commands.literal_text(f"/{text}") == text


# ---- answers ---------------------------------------------------------------------------------------------------------


def answer(text: str, *sent: ToolSentMessage, cron: int = 1, keep: bool = False, **more: Any) -> OutboundMessage | None:
    effects = ReplyEffects(sent=sent, cron_adds=cron)
    return filter_reply(OutboundMessage(text=text, **more), HERE, effects, drop_after_send=not keep)


ELSEWHERE = ChatAddress(channel="telegram", account="default", to="999")


def test_a_tool_that_sent_here_has_answered() -> None:
    assert answer("Done, I told you.", ToolSentMessage(text="the news", address=HERE)) is None


def test_a_send_elsewhere_takes_nothing_away() -> None:
    reply = answer("the news of today", ToolSentMessage(text="the news of today", address=ELSEWHERE))
    assert reply is not None
    assert reply.text == "the news of today"
    in_thread = msgspec.structs.replace(HERE, thread="7")
    assert answer("hello", ToolSentMessage(text="x", address=in_thread)) is not None


def test_where_the_rest_is_wanted_only_repetitions_go() -> None:
    here = ToolSentMessage(text="The news of TODAY 🎉", address=HERE)
    assert answer("the  news of today", here, keep=True) is None
    assert answer("the news", here, keep=True) is not None  # too short to tell
    reply = answer("Also, remember the milk.", here, keep=True)
    assert reply is not None


def test_what_was_sent_to_an_unknown_place_is_not_repeated() -> None:
    assert answer("the news of today", ToolSentMessage(text="the news of today")) is None
    file = Attachment(mime_type="image/png", url="file:///tmp/a%20b.png")
    assert answer("", ToolSentMessage(media=("/tmp/a b.png",)), attachments=(file,)) is None


@pytest.mark.parametrize(("text", "left"), [("NO_REPLY", None), (" NO_REPLY \n", None), ("Bye.\nNO_REPLY", "Bye.")])
def test_silence_is_kept(text: str, left: str | None) -> None:
    reply = answer(text)
    assert (reply and reply.text) == left


def test_saying_the_word_is_not_silence() -> None:
    reply = answer("The token is NO_REPLY, as you know")
    assert reply is not None


@pytest.mark.parametrize(
    ("text", "reply_to"),
    [
        ("[[reply_to_current]] hi", ""),
        ("[[rc:reply]]hi", ""),
        (" [[ rc:reply : 42 ]] hi", "42"),
        ("[[reply_to:abc]]\nhi", "abc"),
        ("hi", None),
    ],
)
def test_a_tag_at_the_beginning_says_what_is_answered(text: str, reply_to: str | None) -> None:
    reply = answer(text)
    assert reply is not None
    assert (reply.text, reply.reply_to) == ("hi", reply_to)


def test_a_promise_without_a_job_is_not_left_standing() -> None:
    for promise in ("Sure, I'll remind you at five.", "I\u2019ll ping you tomorrow.", "Your reminder is set!"):
        reply = answer(promise, cron=0)
        assert reply is not None
        assert reply.text.endswith(NO_REMINDER_NOTE)
        reply = answer(promise, cron=1)
        assert reply is not None
        assert reply.text == promise
    reply = answer("You asked me to remind you of things.", cron=0)
    assert reply is not None
    assert NO_REMINDER_NOTE not in reply.text


GROUP = inbound(chat="group", address=ChatAddress(channel="telegram", account="default", to="-100"))
PERSON = inbound(address=ChatAddress(channel="telegram", account="default", to="-7"))


@pytest.mark.parametrize(
    ("message", "match", "matches"),
    [
        (PERSON, {"channel": "telegram", "peer": {"kind": "dm", "id": "123"}}, True),
        (PERSON, {"channel": "telegram", "peer": {"kind": "direct", "id": "-7"}}, True),
        (GROUP, {"channel": "telegram", "peer": {"id": "-100"}}, True),
        (GROUP, {"channel": "telegram", "peer": {"kind": "group", "id": "-100"}}, True),
        (GROUP, {"channel": "telegram", "peer": {"id": "123"}}, False),  # a person does not choose a group's agent
        (GROUP, {"channel": "telegram", "peer": {"kind": "direct", "id": "-100"}}, False),
        (GROUP, {"channel": "telegram", "peer": "-100"}, False),
        (GROUP, {"channel": "matrix"}, False),
        (GROUP, {}, False),
        (GROUP, "telegram", False),
        (GROUP, {"channel": "telegram", "accountId": "second"}, False),
        (GROUP, {"channel": "telegram", "guildId": "g"}, False),
    ],
)
def test_a_binding_matches_what_it_names_and_no_other_message(
    message: InboundMessage, match: Any, matches: bool
) -> None:
    config = read_config({"bindings": [{"agentId": "work", "match": match}]})

    assert session_for(message, config, ROSTER, owner=True).agent_id == ("work" if matches else "main")


@pytest.mark.parametrize("wide", [{"channel": "telegram"}, {"channel": "telegram", "accountId": "*"}])
@pytest.mark.parametrize("turned", [False, True], ids=["wide first", "narrow first"])
def test_a_binding_of_the_account_goes_before_one_of_the_channel(wide: Json, turned: bool) -> None:
    narrow = {"channel": "telegram", "accountId": "default"}
    bindings = [{"agentId": "home", "match": wide}, {"agentId": "work", "match": narrow}]
    config = read_config({"bindings": bindings[::-1] if turned else bindings})

    assert session_for(GROUP, config, ROSTER, owner=True).agent_id == "work"
