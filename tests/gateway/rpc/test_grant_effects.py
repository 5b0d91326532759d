"""What the gateway keeps of a grant's calls: done, failed, under way; and how that completes what a program noted."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_mcp.core.effects import CronAdded, RunEffects, SentMessage, merge_effects
from openclaw_mcp.core.model import Json
from openclaw_mcp.core.rpc import WRITE, RpcCall, RpcError, RpcMethod
from openclaw_mcp.gateway.rpc import grant_effects
from openclaw_mcp.net.gateway_client.client import ConnectionGone, GatewayClient

from .gateways import Running, running, within
from .test_grants import RUN, allow_all, under


class Post:
    """Sends when it is let; a text of `no` it refuses; an agent gets a message at once and never answers."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.go = asyncio.Event()
        self.sent: list[str] = []

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("message.action", WRITE, self._act),
            RpcMethod("agent", WRITE, self._agent),
            RpcMethod("cron.add", WRITE, self._add),
        )

    async def _act(self, call: RpcCall) -> Any:
        inner = call.params["params"]
        self.came.set()
        await self.go.wait()
        if inner["message"] == "no":
            raise RpcError("the channel refused")
        self.sent.append(inner["message"])
        return {"channel": "local", "to": str(inner["to"]).lower(), "dryRun": call.params.get("dryRun", False)}

    async def _agent(self, call: RpcCall) -> Any:
        await call.peer.acknowledge({"status": "accepted", "runId": "r"})
        await asyncio.Event().wait()

    async def _add(self, call: RpcCall) -> Any:
        return {"id": "job-1"}


def act(message: str, to: str = "Room", **more: Any) -> Json:
    return {"action": "send", "channel": "local", "params": {"to": to, "message": message}, **more}


async def lost(client: GatewayClient, message: str, post: Post) -> "asyncio.Task[None]":
    """A message under way whose sender will not hear of it."""

    async def send() -> None:
        with pytest.raises(ConnectionGone):
            await client.call("message.action", act(message))

    task = asyncio.create_task(send())
    await post.came.wait()
    return task


def issuer(server: Running) -> str:
    server.gateway.grants.decide = allow_all
    return server.gateway.grants.issue(RUN, seconds=60)


def test_what_was_done_is_kept_as_the_gateway_names_it_and_what_failed_is_not(tmp_path: Path) -> None:
    async def work() -> None:
        post = Post()
        post.go.set()
        async with running(tmp_path, modules=[post]) as server:
            token = issuer(server)
            async with under(server, token) as client:
                await client.call("message.action", act("hello"))
                await client.call("message.action", act("only tried", dryRun=True))
                with pytest.raises(RpcError, match="the channel refused"):
                    await client.call("message.action", act("no"))
                assert (await client.call("agent", {"sessionKey": "other", "message": "psst"}))["runId"] == "r"
                await client.call("cron.add", {"schedule": {}})
                did = await server.gateway.grants.settle(token)
                with pytest.raises(ConnectionGone):
                    await client.call("message.action", act("too late"))
        assert [(one.tool, one.provider, one.to, one.text) for one in did.sent] == [
            ("message", "local", "room", "hello"),
            ("sessions_send", "", "other", "psst"),
        ]
        assert [one.job_id for one in did.cron_added] == ["job-1"]
        assert did.unsure == ()
        assert "too late" not in post.sent

    within(work())


def test_what_is_under_way_is_waited_for(tmp_path: Path) -> None:
    async def work() -> None:
        post = Post()
        async with running(tmp_path, modules=[post]) as server:
            token = issuer(server)
            async with under(server, token) as client:
                sending = await lost(client, "slow", post)
                settling = asyncio.create_task(server.gateway.grants.settle(token))
                await sending
                assert not settling.done()
                post.go.set()
                assert [one.text for one in (await settling).sent] == ["slow"]
            assert await server.gateway.grants.settle(token) == RunEffects()

    within(work())


def test_what_takes_too_long_is_unsure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grant_effects, "SETTLE_TIMEOUT", 0.05)

    async def work() -> None:
        post = Post()
        async with running(tmp_path, modules=[post]) as server:
            token = issuer(server)
            async with under(server, token) as client:
                sending = await lost(client, "stuck", post)
                did = await server.gateway.grants.settle(token)
                await sending
            post.go.set()
        assert (did.sent, [(one.to, one.text) for one in did.unsure]) == ((), [("Room", "stuck")])

    within(work())


def test_only_the_latest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grant_effects, "MAX_EFFECTS", 3)

    async def work() -> None:
        post = Post()
        post.go.set()
        async with running(tmp_path, modules=[post]) as server:
            token = issuer(server)
            async with under(server, token) as client:
                for number in range(5):
                    await client.call("message.action", act(str(number)))
                assert (await server.gateway.grants.settle(token)).texts == ("2", "3", "4")

    within(work())


# ---- completing what a program noted ---------------------------------------------------------------------------------

sends = st.lists(
    st.builds(
        lambda tool, to, text: SentMessage(tool=tool, to=to, text=text), *map(st.sampled_from, ("mb", "ab", "xyz"))
    ),
    max_size=8,
)
jobs = st.lists(st.builds(lambda name: CronAdded(job_id=name), st.sampled_from("12")), max_size=4)


@given(sends, jobs, st.data())
def test_whichever_part_was_noted_the_whole_is_reported_once(
    sent: list[SentMessage], added: list[CronAdded], data: st.DataObject
) -> None:
    noted = RunEffects(
        sent=tuple(one for one in sent if data.draw(st.booleans())),
        cron_added=tuple(one for one in added if data.draw(st.booleans())),
    )
    merged = merge_effects(noted, RunEffects(sent=tuple(sent), cron_added=tuple(added)))
    assert sorted(merged.sent, key=repr) == sorted(sent, key=repr)
    assert sorted(merged.cron_added, key=repr) == sorted(added, key=repr)


def test_a_message_the_program_was_unsure_of_is_sure_when_it_is_known() -> None:
    unsure = SentMessage(tool="message_send", to="@Ann", text="hello")
    known = SentMessage(tool="message_send", to="ann", text="hello")
    other = SentMessage(tool="message_send", to="@Bob", text="hello?")
    merged = merge_effects(RunEffects(unsure=(unsure, other)), RunEffects(sent=(known,)))
    assert (merged.sent, merged.unsure) == ((known,), (other,))


def test_what_neither_knows_the_end_of_is_reported_once() -> None:
    unsure = SentMessage(tool="message_send", to="@Ann", text="hello")
    assert merge_effects(RunEffects(unsure=(unsure,)), RunEffects(unsure=(unsure,))).unsure == (unsure,)
    assert merge_effects(RunEffects(), RunEffects(unsure=(unsure,))).unsure == (unsure,)
