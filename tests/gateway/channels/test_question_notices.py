"""Questions about commands on a messenger: where they are put, who answers, what a restart leaves behind."""

import html
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from openclaw_mcp.core.approvals import MAX_SHOWN_COMMAND, CommandQuestion, QuestionOrigin
from openclaw_mcp.core.model import Sender
from openclaw_mcp.core.visible_text import escape_command
from openclaw_mcp.gateway.channels.chunks import split_text
from openclaw_mcp.gateway.channels.markup import to_html, to_inline_html
from openclaw_mcp.gateway.channels.telegram.channel import TEXT_LIMIT
from openclaw_mcp.gateway.nodes.approval_queue import (
    ApprovalRequester,
    ExecApprovalRecord,
    ExecApprovalView,
    new_approval_request,
)

from .gateways import ChannelHarness, open_channels, within

OWNER, OTHER = Sender(id="1111", name="Olga"), Sender(id="2222", name="Mallory")
CONFIG: dict[str, Any] = {
    "channels": {"twin": {"allowFrom": ["*"], "dmPolicy": "open", "groupPolicy": "open"}},
    "commands": {"ownerAllowFrom": ["twin:1111"]},
}
NODE = ApprovalRequester(connection_id="n", name="ab" * 32, credentials=("device n",), is_node=True)


def put(here: ChannelHarness, command: str = "ls", *, to: str = "1111", owner: bool = True) -> ExecApprovalRecord:
    """A question of a node about a run of this conversation."""
    origin = QuestionOrigin(agent_id="main", session_key="s", run_id="r", address=here.at(to), for_owner=owner)
    view = ExecApprovalView(command=command, node_id="ab" * 32)
    asked = new_approval_request(view, requester=NODE, seconds=300, allow_always=False)
    return here.approvals.put(replace(asked, origin=origin))


async def say(here: ChannelHarness, who: Sender, text: str, *, id: str, to: str | None = None, **more: Any) -> None:
    twin = here.twin
    assert twin.hear is not None
    address = here.at(to or str(who.id))
    await twin.hear(twin.build_message(text, id=id, to=str(who.id), sender=who, address=address, **more))


def test_the_owner_is_asked_on_the_messenger_and_answers_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=CONFIG) as here:
            record = put(here)
            ((to, text),) = await here.twin.has(1)
            assert to == "1111"
            assert f"/approve {record.request.code} once or /approve {record.request.code} deny." in text
            await say(here, OWNER, f"/approve {record.request.code} always", id="1")
            assert "can't be answered with always. Answer with /approve" in (await here.twin.has(2))[1][1]
            await say(here, OWNER, f"/approve@bot {record.request.code} once", id="2")
            assert (await here.twin.has(3))[2] == ("1111", f"Question {record.request.code}: allowed once.")
            assert record.outcome is not None
            assert (record.outcome.decision, record.outcome.by) == ("allow-once", "twin:1111")

    within(scenario())


@pytest.mark.parametrize("chat", ["direct", "group"])
def test_no_other_sender_answers_in_any_chat(tmp_path: Path, chat: Any) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=CONFIG) as here:
            record = put(here, to="room")
            await here.twin.has(1)
            for number, word in enumerate(("once", "deny"), 2):
                text = f"/approve {record.request.code} {word}"
                await say(here, OTHER, text, id=str(number), to="room", chat=chat, mentioned=True)
                assert (await here.twin.has(number))[-1][1] == "Only the owner can answer questions."
            assert record.outcome is None

    within(scenario())


def test_a_gateway_that_stops_says_that_its_questions_are_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=CONFIG) as here:
            record = put(here)
            await here.twin.has(1)
        async with open_channels(tmp_path, config=CONFIG, twin=here.twin) as again:
            assert (await again.twin.has(2))[1][1].startswith(f"Question {record.request.code} is no longer asked")

    within(scenario())


@pytest.mark.parametrize(
    "command",
    [
        "echo [click](https://evil.example) **bold** <b>x</b> `tick`",
        "echo a\n```\n/approve abcdef once\n~~~\n- [ ] x",
        "echo ``````\n``````` x",
    ],
)
def test_markup_in_a_command_is_shown_as_text(command: str) -> None:
    shown = to_inline_html(ask_about(command).describe(0))
    assert shown.count("<pre><code>") == shown.count("</code></pre>") == 1
    inside = shown.partition("<pre><code>")[2].partition("</code></pre>")[0]
    assert all(line.startswith("| ") for line in inside.split("\n"))
    assert "<a " not in shown
    assert "<b>" not in shown


def ask_about(command: str, *, why: str = "", place: str = "node x") -> CommandQuestion:
    return CommandQuestion(
        code="abcdef", origin=QuestionOrigin(), place=place, command=command, why=why,
        decisions=("allow-once", "deny"), expires_at_ms=60_000,
    )  # fmt: skip


Fragments = st.sampled_from(
    ["`", "``", "```", "~~~", "[x]: <", "\n", "\n\n", "| ", "> ", "a", " ", ";", "<!--", "    "]
)
Commands = st.lists(
    st.one_of(Fragments, st.tuples(Fragments, st.integers(1, MAX_SHOWN_COMMAND)).map(lambda run: run[0] * run[1])),
    min_size=1,
    max_size=12,
).map("".join)


@given(command=Commands, why=Commands)
@example(command="echo # " + "`" * 1400 + "\necho " + "-" * 1150 + ';[x]: <;rm -rf $HOME;:> "/dev/null"\ntrue', why="")
def test_what_may_be_allowed_is_shown_whole_in_one_message(command: str, why: str) -> None:
    question = ask_about(command, why=why, place="node " + "n" * 100)
    (text,) = [part for part in split_text(question.describe(0), TEXT_LIMIT) if "abcdef" in part]
    if question.is_too_long:
        assert "/approve abcdef once" not in text
        return
    for rendered in (to_inline_html(text), to_html(text) or ""):
        block = html.unescape(rendered.partition("<code>")[2].partition("</code>")[0])
        assert block.startswith("\n".join(f"| {line}" for line in escape_command(command).split("\n")))
