"""The gateway's own methods: status, presence, the machine, logs, devices, tools."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from openclaw_mcp.cli.echo import EchoTools
from openclaw_mcp.core.model import Json
from openclaw_mcp.core.rpc import ADMIN, PAIRING, READ, WRITE, RpcError, RpcMethod
from openclaw_mcp.net import asgi
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity

from ... import web_client
from .gateways import TUI, Echo, running, within


def test_status_health_and_the_machine(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as gateway, gateway.client(scopes=[READ]) as client:
            health = await client.call("health", {"probe": False})
            assert {"ok", "ts", "durationMs", "channels", "sessions", "agents", "eventLoop"} <= set(health)
            status = await client.call("status")
            assert {"runtimeVersion", "sessions", "tasks", "eventLoop", "processMemory", "pid"} <= set(status)
            info = await client.call("system.info")
            assert info["port"] == gateway.port
            assert info["memoryTotalBytes"] > info["processMemory"]["rssBytes"] > 1 << 20
            [own] = await client.call("system-presence")
            assert (own["mode"], own["reason"]) == ("gateway", "self")
            assert await client.call("last-heartbeat") is None
            own = await client.call("gateway.identity.get")
            assert own == await client.call("gateway.identity.get")
            assert set(own) == {"deviceId", "publicKey"}

    within(test())


def test_logs_are_read_from_the_end_and_then_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as gateway, gateway.client(scopes=[READ]) as client:
            empty = await client.call("logs.tail")
            assert (empty["lines"], empty["cursor"]) == ([], 0)
            log = tmp_path / "gateway.log"
            log.write_text("".join(f"line {n}\n" for n in range(10)) + "half")
            tail = await client.call("logs.tail", {"limit": 3})
            assert tail["lines"] == ["line 7", "line 8", "line 9"]
            assert (tail["truncated"], tail["reset"]) == (True, False)
            with log.open("a") as file:
                file.write(" a line\nmore\n")
            more = await client.call("logs.tail", {"cursor": tail["cursor"]})
            assert more["lines"] == ["half a line", "more"]
            assert (await client.call("logs.tail", {"cursor": more["cursor"]}))["lines"] == []
            few = await client.call("logs.tail", {"maxBytes": 12})
            assert few["lines"] == ["more"]
            log.write_text("anew\n")
            again = await client.call("logs.tail", {"cursor": more["cursor"]})
            assert (again["lines"], again["reset"]) == (["anew"], True)
            with pytest.raises(RpcError, match="at /limit: must be >= 1"):
                await client.call("logs.tail", {"limit": 0})
            log.rename(tmp_path / "elsewhere")
            log.symlink_to(tmp_path / "elsewhere")
            with pytest.raises(RpcError, match="is a link"):
                await client.call("logs.tail")

    within(test())


def test_devices_are_listed_renamed_rotated_and_removed(tmp_path: Path) -> None:
    async def test() -> None:
        device = DeviceIdentity(b"\5" * 32)
        async with running(tmp_path) as gateway, gateway.client(scopes=[ADMIN, PAIRING]) as owner:
            async with gateway.client(who=TUI, scopes=[READ], signer=device):
                listed = await owner.call("device.pair.list")
                [entry] = listed["paired"]
                assert (entry["deviceId"], entry["connected"], entry["approvedVia"]) == (device.id, True, "silent")
                assert (entry["roles"], entry["scopes"]) == (["operator"], [READ])
                assert set(entry["tokens"][0]) == {"role", "scopes", "createdAtMs"}
                await owner.call("device.pair.rename", {"deviceId": device.id, "label": "mine"})
                rotated = await owner.call("device.token.rotate", {"deviceId": device.id, "role": "operator"})
                assert rotated["tokenDelivery"] == "withheld-cross-device"
            [entry] = (await owner.call("device.pair.list"))["paired"]
            assert (entry["label"], entry["connected"]) == ("mine", False)
            revoked = await owner.call("device.token.revoke", {"deviceId": device.id, "role": "operator"})
            assert revoked["revokedAtMs"] > 0
            assert await owner.call("device.pair.remove", {"deviceId": device.id}) == {"deviceId": device.id}
            with pytest.raises(RpcError, match="unknown requestId"):
                await owner.call("device.pair.approve", {"requestId": "x"})

    within(test())


def test_tools_are_listed_and_called_over_the_wire(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            running(tmp_path, sources={"echo": EchoTools()}) as gateway,
            gateway.client(scopes=[WRITE]) as client,
        ):
            catalog = await client.call("tools.catalog")
            assert [tool["id"] for group in catalog["groups"] for tool in group["tools"]] == ["echo"]
            result = await client.call("tools.invoke", {"name": "echo", "args": {"text": "hi"}})
            assert result["ok"] is True
            assert result["output"]["content"] == [{"type": "text", "text": "hi"}]
            wrong = await client.call("tools.invoke", {"name": "echo", "args": {}})
            assert (wrong["ok"], wrong["error"]["code"]) == (False, "invalid_request")
            absent = await client.call("tools.invoke", {"name": "exec"})
            assert absent["error"] == {"code": "not_found", "message": "Tool not available: exec"}

    within(test())


class Library:
    """A room with reports and HTTP paths of its own."""

    def methods(self) -> Sequence[RpcMethod]:
        return ()

    def health(self) -> Json:
        return {"sessions": {"path": "here", "count": 3, "recent": []}}

    def status(self) -> Json:
        return {"shelves": 4}

    def routes(self) -> Mapping[str, asgi.App]:
        return {"/v1/books": self._answer, "/v1/shelf/": self._answer}

    async def _answer(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await asgi.send_text(send, scope["path"])


def test_a_room_brings_its_reports_and_its_routes(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Library()]) as gateway, gateway.client(scopes=[READ]) as client:
            assert (await client.call("health"))["sessions"]["count"] == 3
            assert (await client.call("status"))["shelves"] == 4
            for path, status in (("/v1/books", 200), ("/v1/shelf/a", 200), ("/v1/other", 404)):
                answer = await asyncio.to_thread(web_client.send, gateway.http + path, "GET")
                assert answer.status == status

    within(test())


def test_two_rooms_may_not_offer_one_method(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(ValueError, match="two modules offer the method echo"):
            async with running(tmp_path, modules=[Echo(), Echo()]):
                pass

    within(test())
