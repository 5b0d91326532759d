"""Connected nodes as tools: on the menu while they are here and approved, under names models accept."""

import asyncio
import base64
import re
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.errors import ToolDenied, ToolNotFound, ToolUnavailable
from openclaw_mcp.core.model import (
    LOCAL_CALLER,
    Audio,
    Caller,
    Embedded,
    Grant,
    Image,
    Sender,
    Text,
    ToolCall,
    ToolSpec,
)
from openclaw_mcp.core.ports import NULL_CONTEXT, NullCallContext
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.gateway.nodes.tool_names import alias_for, tool_names
from openclaw_mcp.gateway.nodes.tools import to_tool_result
from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientProfile, Credentials
from openclaw_mcp.tools.config_policy import ConfigPolicy
from openclaw_mcp.tools.policy_rules import from_config

from ..rpc.gateways import BACKEND, EVERY, within
from .gateways import Failed, NodeHarness, collect_events, machines, next_of

PNG = base64.b64encode(b"\x89PNG").decode()


async def menu(harness: NodeHarness) -> dict[str, ToolSpec]:
    return {spec.name: spec for spec in await harness.gateway.gateway.dispatcher.list(LOCAL_CALLER)}


async def call_tool(harness: NodeHarness, name: str, arguments: Any, line: Any = NULL_CONTEXT) -> Any:
    return await harness.gateway.gateway.dispatcher.call(
        ToolCall(caller=LOCAL_CALLER, name=name, arguments=arguments, context=line)
    )


def test_an_approved_nodes_commands_are_tools_while_it_is_here(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as operator:
            async with harness.node() as node:
                assert await menu(harness) == {}
                (request,) = (await operator.call("node.pair.list"))["pending"]
                await operator.call("node.pair.approve", {"requestId": request["requestId"]})
                tools = await menu(harness)
                assert list(tools) == ["laptop__system_which", "laptop__system_run", "laptop__device_info"]
                assert tools["laptop__system_run"].effect == "run"
                assert "laptop" in tools["laptop__system_run"].description
                result = await call_tool(harness, "laptop__system_which", {"bins": ["ls"]})
                assert result.structured == {"command": "system.which", "params": {"bins": ["ls"]}}
                await operator.call("node.rename", {"nodeId": node.id, "displayName": "My PC"})
                assert next(iter(await menu(harness))) == "my-pc__system_which"
                left = collect_events(operator, "presence")
            await next_of(left)
            assert await menu(harness) == {}
            with pytest.raises(ToolNotFound):
                await call_tool(harness, "my-pc__system_which", {"bins": []})

    within(test())


@pytest.mark.parametrize("scopes", [("operator.pairing",), ("operator.pairing", "operator.read", "operator.write")])
def test_who_is_no_admin_gives_a_node_another_name_and_its_tools_none(tmp_path: Path, scopes: tuple[str, ...]) -> None:
    """Rules name a node's tools: a new name would bring them under other rules."""

    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator) as node,
        ):
            async with harness.gateway.client(scopes=scopes) as client_without_admin:
                await client_without_admin.call("node.rename", {"nodeId": node.id, "displayName": "Kiosk"})
            assert next(iter(await menu(harness))) == "laptop__system_which"
            assert (await operator.call("node.describe", {"nodeId": node.id}))["displayName"] == "Kiosk"

    within(test())


def test_a_node_describes_its_tools_and_only_the_approved_ones_count(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator) as node,
        ):
            schema = {"type": "object", "properties": {"verbose": {"type": "boolean"}}}
            reported = {"pluginId": "p", "name": "device_info", "description": "All about it.", "parameters": schema}
            wild = {"pluginId": "p", "name": "wild", "description": "Anything.", "command": "not.approved"}
            update = {"tools": [reported | {"command": "device.info"}, wild]}
            accepted = await node.client.call("node.pluginTools.update", update)
            assert [tool["name"] for tool in accepted["tools"]] == ["device_info"]
            spec = (await menu(harness))["laptop__device_info"]
            assert spec.input_schema == schema
            assert spec.description == "On the machine 'laptop': All about it."
            assert (await operator.call("node.describe", {"nodeId": node.id}))["nodePluginTools"] == accepted["tools"]

    within(test())


def test_tools_that_share_a_command_are_each_on_the_menu(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator) as node,
        ):
            reported: dict[str, Any] = {"pluginId": "p", "description": "Looks.", "command": "device.info"}
            first = {"type": "object", "properties": {"a": {"type": "string"}}}
            second = {"type": "object", "properties": {"b": {"type": "string"}}}
            update = [
                reported | {"name": "look_a", "parameters": first},
                reported | {"name": "look_b", "parameters": second},
            ]
            update += [reported | {"name": "system_run"}, reported | {"name": "look_a", "pluginId": "other"}]
            await node.client.call("node.pluginTools.update", {"tools": update})
            tools = await menu(harness)
            assert list(tools) == [
                "laptop__system_which", "laptop__system_run",  # commands keep their names
                "laptop__look_a", "laptop__look_b", "laptop__system_run-2", "laptop__look_a-2",
            ]  # fmt: skip
            assert [tools[f"laptop__look_{letter}"].input_schema for letter in "ab"] == [first, second]
            assert tools["laptop__look_b"].title == "look_b on laptop"
            result = await call_tool(harness, "laptop__look_b", {"b": "x"})
            assert result.structured == {"command": "device.info", "params": {"b": "x"}}
            await node.client.call("node.pluginTools.update", {"tools": update[:1]})
            assert (await menu(harness))[
                "laptop__device_info"
            ].input_schema == first  # alone, it is called as its command

    within(test())


def test_a_tool_of_an_mcp_server_on_a_node_is_asked_through_the_node(tmp_path: Path) -> None:
    async def answer(command: str, params: Any) -> Any:
        assert command == "mcp.tools.call.v1"
        text = {"type": "text", "text": f"{params['server']}.{params['tool']} of {params['arguments']}"}
        return {"content": [text], "isError": params["arguments"] == {}}

    async def test() -> None:
        commands = ("mcp.tools.call.v1",)
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator, commands=commands, answer=answer) as node,
        ):
            assert await menu(harness) == {}  # by itself the command is nothing for a model
            behind = {"server": "files", "tool": "read"}
            reported = {"pluginId": "node-mcp", "name": "files_read", "description": "Reads.", "mcp": behind}
            update = [reported | {"command": "mcp.tools.call.v1"}, reported | {"name": "unnamed"}]
            accepted = await node.client.call("node.pluginTools.update", {"tools": update})
            assert [(tool["command"], tool["mcp"]) for tool in accepted["tools"]] == [(commands[0], behind)] * 2
            assert list(await menu(harness)) == ["laptop__files_read", "laptop__unnamed"]
            result = await call_tool(harness, "laptop__files_read", {"path": "a"})
            assert (result.content, result.failed) == ((Text("files.read of {'path': 'a'}"),), False)
            assert (await call_tool(harness, "laptop__unnamed", {})).failed is True

    within(test())


def test_two_nodes_of_one_name_are_distinguished(tmp_path: Path) -> None:
    async def test() -> None:
        one = ("device.info",)
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator, "pi", commands=one) as first,
            harness.approved(operator, "PI!", commands=one) as second,
        ):
            assert list(await menu(harness)) == ["pi__device_info", "pi-2__device_info"]
            await call_tool(harness, "pi-2__device_info", {})
            assert (first.invoked.qsize(), second.invoked.qsize()) == (0, 1)

    within(test())


def test_a_tool_of_a_node_fails_in_words(tmp_path: Path) -> None:
    async def test() -> None:
        started = asyncio.Event()

        async def answer(command: str, params: Any) -> Any:
            if command == "system.run":
                raise Failed("TOOL_DENIED", "no person is there to ask")
            started.set()
            await asyncio.Event().wait()

        async with machines(tmp_path) as harness, harness.gateway.client() as operator:
            async with harness.approved(operator, answer=answer) as node:
                with pytest.raises(ToolDenied, match="no person is there to ask"):
                    await call_tool(harness, "laptop__system_run", {"command": ["rm"]})
                abandoned = asyncio.ensure_future(call_tool(harness, "laptop__device_info", {}))
                await started.wait()
                abandoned.cancel()
                assert (await next_of(node.cancelled))["nodeId"] == node.id
                started.clear()
                lost = asyncio.ensure_future(call_tool(harness, "laptop__device_info", {}))
                await started.wait()
            with pytest.raises(ToolUnavailable, match="left before it answered"):
                await lost

    within(test())


def test_progress_reaches_the_caller_in_order(tmp_path: Path) -> None:
    async def test() -> None:
        received: list[tuple[float, str | None]] = []

        class Listening(NullCallContext):
            async def progress(self, value: float, *, total: float | None = None, message: str | None = None) -> None:
                received.append((value, message))

        async with machines(tmp_path) as harness, harness.gateway.client() as operator:
            go = asyncio.Event()

            async def answer(command: str, params: Any) -> Any:
                await go.wait()
                return "done"

            async with harness.approved(operator, answer=answer) as node:
                call = asyncio.ensure_future(call_tool(harness, "laptop__device_info", {}, line=Listening()))
                request = await next_of(node.invoked)
                chunk = {"invokeId": request["id"], "nodeId": node.id}
                for number, text in ((0, "a"), (1, "b"), (1, "again"), (0, "late")):
                    await node.client.call("node.invoke.progress", chunk | {"seq": number, "chunk": text})
                async with harness.node("stranger") as stranger:
                    forged = chunk | {"seq": 9, "chunk": "forged"}
                    assert (await stranger.client.call("node.invoke.progress", forged))["ignored"]
                go.set()
                assert (await call).content == (Text("done"),)
                assert received == [(1, "a"), (2, "b")]
                assert (await node.client.call("node.invoke.progress", chunk | {"seq": 5, "chunk": "x"}))["ignored"]

    within(test())


def test_a_change_of_the_config_takes_tools_off_the_menu(tmp_path: Path) -> None:
    async def test() -> None:
        config: dict[str, Any] = {}
        async with (
            machines(tmp_path, config=config) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator),
        ):
            config["gateway"] = {"nodes": {"commands": {"deny": ["system.*"]}}}
            harness.stalls.refresh_all()
            assert list(await menu(harness)) == ["laptop__device_info"]

    within(test())


def test_commands_between_programs_are_no_tools(tmp_path: Path) -> None:
    commands = ("system.run.prepare", "system.execApprovals.set", "browser.proxy", "desktop.stream", "camera.list")

    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator, commands=commands),
        ):
            assert list(await menu(harness)) == ["laptop__camera_list"]

    within(test())


@pytest.mark.parametrize(
    ("payload", "blocks"),
    [
        (
            {"format": "png", "base64": PNG, "image": "data:…"},
            (Text('{"format":"png"}'), Image(b"\x89PNG", "image/png")),
        ),
        ({"format": "wav", "base64": PNG}, (Text('{"format":"wav"}'), Audio(b"\x89PNG", "audio/wav"))),
        ({"format": "png", "base64": "not base64"}, (Text('{"format":"png","base64":"not base64"}'),)),
        ("plain", (Text("plain"),)),
        (None, (Text("null"),)),
        ([1], (Text("[1]"),)),
    ],
)
def test_a_payload_is_shown_as_what_it_is(payload: Any, blocks: tuple[Any, ...]) -> None:
    assert to_tool_result(payload, uri="openclaw://node/x/y").content == blocks


@pytest.mark.parametrize(
    ("rules", "entry", "allowed"),
    [
        ({}, "mcp", True),
        ({"tools": {"deny": ["nodes"]}}, "mcp", False),
        ({"tools": {"deny": ["group:nodes"]}}, "mcp", False),
        ({"tools": {"deny": ["node/laptop"]}}, "mcp", False),
        ({"tools": {"deny": ["node/other"]}}, "mcp", True),
        ({"tools": {"allow": ["node/laptop"]}}, "mcp", True),
        ({"tools": {"allow": ["group:nodes"]}}, "mcp", True),
        ({"tools": {"allow": ["read"]}}, "mcp", False),
        ({}, "http", False),
        ({"gateway": {"tools": {"allow": ["laptop__system_run"]}}}, "http", True),
    ],
)
def test_rules_reach_a_nodes_tools_by_their_node_and_as_nodes(rules: Any, entry: Any, allowed: bool) -> None:
    caller = Caller(kind="operator", name="o", scopes=frozenset({"*"}), entry_point=entry)
    decision = ConfigPolicy(from_config(rules))(caller, "node/laptop", ToolSpec(name="laptop__system_run"))
    assert decision.allowed is allowed, decision


def test_a_film_is_a_resource() -> None:
    film = to_tool_result({"format": "mp4", "base64": PNG}, uri="openclaw://node/x/screen.record").content[1]
    assert isinstance(film, Embedded)
    assert (film.resource.mime_type, film.resource.blob) == ("video/mp4", b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "taken", "alias"),
    [
        ("Laptop", set(), "laptop"),
        ("Ada's Mac mini (2)", set(), "ada-s-mac-mini-2"),
        ("laptop", {"laptop"}, "laptop-2"),
        ("laptop", {"laptop", "laptop-2"}, "laptop-3"),
        ("日本", set(), "node"),
        ("9lives", set(), "node-9lives"),
        ("x" * 80, set(), "x" * 24),
        ("x" * 80, {"x" * 24}, "x" * 22 + "-2"),
        ("a__b", set(), "a-b"),
    ],
)
def test_a_name_becomes_a_word_models_accept(name: str, taken: set[str], alias: str) -> None:
    assert alias_for(name, taken) == alias


def test_every_tool_name_fits_models_and_leads_back_to_one_command() -> None:
    names = tool_names("x" * 24, ["a.b", "a_b", "system.run", "y" * 100])
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", name) for name in names)
    assert list(names.values()) == ["a.b", "system.run", "y" * 100]


POWERS = (
    "system.run", "system.which", "screen.snapshot", "screen.record", "camera.snap", "camera.clip", "camera.list",
    "canvas.eval", "canvas.navigate", "location.get", "fs.read", "system.notify", "tts.speak", "device.info",
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, set()),
        ({"tools": {"allow": ["*"]}}, set()),
        ({"tools": {"profile": "full"}}, set()),
        ({"tools": {"alsoAllow": ["laptop__system_run"]}}, {"laptop__system_run"}),
        (
            {"tools": {"alsoAllow": ["laptop__camera_*"]}},
            {f"laptop__camera_{word}" for word in ("snap", "clip", "list")},
        ),
        ({"tools": {"alsoAllow": ["node/laptop"]}}, {f"laptop__{name.replace('.', '_')}" for name in POWERS}),
    ],
)
def test_a_run_for_another_sender_has_of_a_node_what_the_rules_name(
    tmp_path: Path, config: dict[str, Any], expected: set[str]
) -> None:
    """In the list and in the call, and by no method of the gateway either."""
    sender = Sender(id="7")
    strangers = [Grant(), Grant(channel="telegram", sender=sender), Grant(depth=1)]

    def run(grant: Grant) -> Caller:
        return Caller(
            kind="agent", name="main", scopes=frozenset({"*"}), session="main", entry_point="agent", grant=grant
        )

    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator, commands=POWERS) as node,
        ):
            gateway = harness.gateway.gateway
            gateway.apply_rules(from_config(config))
            everything = {spec.name for spec in await gateway.dispatcher.list(run(Grant(owner=True)))}
            assert len(everything) == len(POWERS)
            arguments = {"command": ["true"], "bins": [], "text": "x"}
            for caller in map(run, strangers):
                assert {spec.name for spec in await gateway.dispatcher.list(caller)} == expected
                for name in sorted(everything):
                    call = ToolCall(caller=caller, name=name, arguments=arguments, context=NULL_CONTEXT)
                    if name in expected:
                        await gateway.dispatcher.call(call)
                        continue
                    with pytest.raises(ToolDenied, match="it is for the owner, unless an allow list names it or node/"):
                        await gateway.dispatcher.call(call)
                token = gateway.grants.issue(caller, seconds=60)
                reported = ClientProfile(client=BACKEND, scopes=EVERY)
                own = GatewayClient(harness.gateway.url, reported, credentials=Credentials(token=token), redial=False)
                async with own:
                    further = await own.call("tools.list")  # as a CLI agent's server asks
                    assert {tool["name"] for tool in further["tools"]} == expected
                    params = {"nodeId": node.id, "command": "system.run", "idempotencyKey": "k", "params": {}}
                    with pytest.raises(RpcError, match="behind no tool"):
                        await own.call("node.invoke", params)
            assert node.invoked.qsize() == len(expected) * len(strangers)

    within(test())
