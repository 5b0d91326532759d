"""The books of sub-agents and of tool calls, on each database."""

import asyncio
from typing import Any

from sqlalchemy import insert

from openclaw_mcp.core.model import CallRecord, Grant
from openclaw_mcp.core.sessions import AuditQuery, Subagent, SubagentQuery, now_ms
from openclaw_mcp.store import small_repositories, tables
from openclaw_mcp.store.small_repositories import SqlAuditTrail
from openclaw_mcp.store.store import open_store
from openclaw_mcp.store.subagents import SqlSubagentRepository


def child(name: str, requester: str = "agent:main:main", **more: Any) -> Subagent:
    return Subagent(
        child_key=f"agent:main:subagent:{name}", run_id=name, requester_key=requester, grant=Grant(owner=True),
        task="do it", created_at=1, started_at=1, **more,
    )  # fmt: skip


def called(tool: str, **more: Any) -> CallRecord:
    fields: dict[str, Any] = {
        "at": now_ms() / 1000, "caller": "agent main", "entry_point": "agent", "session": "agent:main:main",
        "tool": tool,
        "source": "gateway", "digest": "d", "step": "default", "rule": "r", "outcome": "ok", "milliseconds": 1.5,
    }  # fmt: skip
    return CallRecord(**fields | more)


def test_sub_agents_are_found_by_who_sent_them_and_by_what_is_still_to_do(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlSubagentRepository(store)
            await repository.put(child("a", label="first"))
            await repository.put(child("b"))
            await repository.put(child("c", requester="agent:main:subagent:a"))

            assert await repository.get("agent:main:subagent:a") == child("a", label="first")
            assert [each.run_id for each in await repository.children("agent:main:main")] == ["a", "b"]
            end: dict[str, Any] = {"ended_at": 5, "outcome": "ok", "delivery": "delivered"}
            result = await repository.change("agent:main:subagent:a", **end)
            assert result == child("a", label="first", **end)
            assert [each.run_id for each in await repository.list_awaiting_delivery()] == ["b", "c"]
            assert [each.run_id for each in await repository.list_announced_since(5)] == ["a"]
            assert await repository.list_announced_since(6) == []
            assert [each.run_id for each in await repository.list_idle(6)] == ["a"]
            await repository.change("agent:main:subagent:a", archived=True)
            assert await repository.list_idle(6) == []
            await repository.drop("agent:main:subagent:b")
            await repository.prune(6)
            assert [each.run_id for each in await repository.list_awaiting_delivery()] == ["c"]
            assert await repository.get("agent:main:subagent:a") is None
            assert await repository.change("agent:main:subagent:a", tries=1) is None

    asyncio.run(scenario())


def test_tasks_come_in_pages_those_active_last_first(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlSubagentRepository(store)
            rows: dict[str, dict[str, Any]] = {
                "a": {"ended_at": 9, "outcome": "ok"}, "b": {}, "c": {"ended_at": 9, "outcome": "killed"},
                "d_e": {"ended_at": 5, "outcome": "error"}, "dxe": {"ended_at": 4, "outcome": "ok"},
            }  # fmt: skip
            for name, more in rows.items():
                await repository.put(child(name, **more))

            async def page(**query: Any) -> list[str]:
                return [each.run_id for _, each in await repository.page(SubagentQuery(**query))]

            everything = ["c", "a", "d_e", "dxe", "b"]
            assert await page() == everything
            first = await repository.page(SubagentQuery(limit=2))
            last, position = first[-1][1].ended_at or 0, first[-1][0]
            assert await page(after=(last, position)) == everything[2:]
            assert await page(outcomes=(None, "error")) == ["d_e", "b"]
            assert await page(outcomes=()) == []
            assert await page(agent_id="other") == []
            assert await page(agent_id="main", session_key="agent:main:main") == everything
            assert await page(session_key="agent:main:subagent:a") == ["a"]
            named = [await repository.find(name) for name in ("d_e", "agent:main:subagent:a", "e", "%")]
            assert [each and each.run_id for each in named] == ["d_e", "a", None, None]

    asyncio.run(scenario())


def test_records_are_found_by_every_question_and_old_ones_go(where: str, monkeypatch: Any) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            audit = SqlAuditTrail(store)
            other: dict[str, Any] = {"at": now_ms(), "actor": "me", "action": "config", "target": "x", "outcome": "ok"}
            await store.execute(insert(tables.audit).values(other))
            denied, elsewhere = called("two", outcome="tool_denied"), called("one", session="agent:main:b")
            await audit.add([called("one"), denied, elsewhere])
            await audit.add([called("x" * 900, rule="y" * 9000, session=None, source=None)])

            async def tools(**query: Any) -> list[str]:
                return [record["tool"] for record in await audit.find(AuditQuery(**query))]

            assert (await tools())[1:] == ["one", "two", "one"]  # the newest first, and no other kind of record
            assert await tools(tool="two") == ["two"]
            assert await tools(session="agent:main:b") == ["one"]
            assert await tools(outcome="tool_denied", session="agent:main:main") == ["two"]
            assert await tools(since=now_ms() + 60_000) == []
            (newest,) = await audit.find(AuditQuery(limit=1))
            assert (len(newest["tool"]), len(newest["rule"])) == (256, 1000)
            assert await tools(before=newest["id"], limit=1) == ["one"]
            await audit.add([called("old", at=1.0)])
            assert await tools(tool="old") == []
            monkeypatch.setattr(small_repositories, "AUDIT_MOST", 2)
            await audit.add([called("last")])
            assert len(await tools()) <= 2

    asyncio.run(scenario())
