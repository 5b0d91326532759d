"""Results reach their recipients, once, and no one else."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from openclaw_mcp.core.channel import ChannelRefused, ChatAddress, OutboundMessage, PostResult
from openclaw_mcp.core.errors import StoreError
from openclaw_mcp.core.model import Caller, Grant, Json
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.gateway.cron.rpc_methods import CronCall

from .gateways import TURN, CronHarness, MemoryDelivery, open_cron, until

EVERY = {"kind": "every", "everyMs": 86_400_000}
HOME = ChatAddress(channel="telegram", account="default", to="7", thread="3")


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., None]:
    def tell(what: Callable[[CronHarness], Awaitable[None]], **more: Any) -> None:
        async def run_story() -> None:
            async with open_cron(str(tmp_path / "openclaw.sqlite"), **more) as cron:
                await what(cron)

        asyncio.run(run_story())

    return tell


async def ran(cron: CronHarness, payload: Json = TURN, schedule: Json = EVERY, **more: Any) -> Json:
    job = await cron.add(schedule, payload, **more)
    return await again(cron, job["id"])


async def again(cron: CronHarness, job_id: str) -> Json:
    run = await cron.call("cron.run", {"id": job_id})
    return await cron.until("cron", action="finished", runId=run["runId"])


@pytest.mark.parametrize(
    ("delivery", "there"),
    [
        ({"mode": "announce"}, ("telegram", "7", "3")),
        ({"mode": "announce", "channel": "last"}, ("telegram", "7", "3")),
        ({"mode": "announce", "to": "8"}, ("telegram", "8", None)),
        ({"mode": "announce", "channel": "telegram"}, ("telegram", "7", "3")),
        ({"mode": "announce", "channel": "matrix", "to": "!room:host", "threadId": 5}, ("matrix", "!room:host", "5")),
        ({"mode": "announce", "to": "matrix:!room:host"}, ("matrix", "!room:host", None)),
        ({"mode": "announce", "channel": "telegram", "to": "telegram:9"}, ("telegram", "9", None)),
    ],
)
def test_an_announced_answer_is_sent_where_it_was_meant(
    scenario: Callable[..., None], delivery: Json, there: tuple[str, str, str | None]
) -> None:
    post = MemoryDelivery(route=HOME)

    async def what(cron: CronHarness) -> None:
        ended = await ran(cron, delivery=delivery)
        ((address, message),) = post.posted.values()
        assert (address.channel, address.to, address.thread) == there
        assert message.text == "done"
        assert (ended["delivered"], ended["deliveryStatus"], ended["completionStatus"]) == (
            True, "delivered", "succeeded",
        )  # fmt: skip
        assert ended["delivery"]["resolved"]["to"] == there[1]

    scenario(what, channels=post)


@pytest.mark.parametrize(("reply", "why"), [("NO_REPLY", "silent"), ("no_reply", "silent"), ("", "empty")])
def test_an_agent_that_says_nothing_is_not_quoted(scenario: Callable[..., None], reply: str, why: str) -> None:
    post = MemoryDelivery(route=HOME)

    async def what(cron: CronHarness) -> None:
        message = f"!say {reply}" if reply else "!think"
        ended = await ran(cron, {"kind": "agentTurn", "message": message}, delivery={"mode": "announce"})
        assert post.posted == {}
        assert (ended["status"], ended["completionStatus"]) == ("ok", "succeeded")
        assert (ended["deliveryStatus"], ended["deliverySuppressionReason"]) == ("not-delivered", why)

    scenario(what, channels=post)


@pytest.mark.parametrize(
    ("post", "delivery", "words"),
    [
        (None, {"mode": "announce"}, "no channel is set up here"),
        (MemoryDelivery(), {"mode": "announce"}, "no message has come in yet"),
        (MemoryDelivery(route=HOME), {"mode": "announce", "channel": "matrix"}, "no message has come in on matrix yet"),
        (MemoryDelivery(route=HOME, refuse="the bot was blocked"), {"mode": "announce"}, "the bot was blocked"),
    ],
)
def test_an_answer_that_finds_no_way_is_reported_and_kept_for_the_main_session(
    scenario: Callable[..., None], post: MemoryDelivery | None, delivery: Json, words: str
) -> None:
    async def what(cron: CronHarness) -> None:
        ended = await ran(cron, delivery=delivery)
        assert (ended["status"], ended["completionStatus"], ended["deliveryStatus"]) == (
            "error", "failed", "not-delivered",
        )  # fmt: skip
        assert words in ended["deliveryError"]
        assert (ended["error"], ended["summary"]) == (ended["deliveryError"], "done")
        assert [entry["source"] for entry in ended["diagnostics"]["entries"]] == ["delivery"]
        state = (await cron.call("cron.get", {"id": ended["jobId"]}))["state"]
        assert (state["consecutiveErrors"], state["lastDeliveryStatus"]) == (1, "not-delivered")
        await cron.say("hello", run="r")
        history = await cron.call("chat.history", {"sessionKey": "main"})
        event = history["messages"][0]["content"]
        assert f"could not deliver its result. The tool cron shows it: action runs, jobId {ended['jobId']}." in event
        assert "done" not in event, "a run's answer has no sender: the owner's next prompt has none of it"
        lenient = await ran(cron, delivery={**delivery, "bestEffort": True})
        assert (lenient["status"], lenient["completionStatus"]) == ("ok", "succeeded")

    scenario(what, channels=post)


def test_a_job_whose_answers_do_not_arrive_is_slowed_and_reported_once(scenario: Callable[..., None]) -> None:
    class Half(MemoryDelivery):
        """One conversation is out of reach."""

        async def post(self, address: ChatAddress, message: OutboundMessage, **more: Any) -> PostResult:
            tried.append(address.to)
            if address.to == "7":
                raise ChannelRefused("the bot was blocked")
            return await super().post(address, message, **more)

    tried: list[str] = []
    post = Half(route=HOME)

    async def what(cron: CronHarness) -> None:
        alert = {"channel": "ops", "to": "1"}
        often = {"kind": "every", "everyMs": 10_000}
        job = await cron.add(often, delivery={"mode": "announce"}, failureAlert=alert)
        await cron.pass_time(200)
        starts = [entry["runAtMs"] for entry in await cron.runs(id=job["id"])]
        assert [later - sooner for sooner, later in pairwise(starts)] == [30_000, 60_000]
        assert [text for _, _, text in post.texts] == ["The job 'a job' failed 2 times in a row: the bot was blocked"]
        tried.clear()
        await cron.call("cron.update", {"id": job["id"], "patch": {"enabled": False}})
        same = await cron.add(EVERY, delivery={"mode": "announce"})
        for _ in range(3):
            await again(cron, same["id"])
        assert tried == ["7"] * 4  # three answers and one alert, which is not tried for ever
        state = (await cron.call("cron.get", {"id": same["id"]}))["state"]
        assert state["consecutiveErrors"] == 3

    scenario(what, channels=post)


def test_a_job_whose_alert_can_not_be_stored_still_ends_and_runs_again(scenario: Callable[..., None]) -> None:
    class FullDisk(MemoryDelivery):
        async def post(self, address: ChatAddress, message: OutboundMessage, **more: Any) -> PostResult:
            raise StoreError("the disk is full")

    async def what(cron: CronHarness) -> None:
        job = await cron.add(EVERY, {**TURN, "message": "!fail broken"}, failureAlert={"to": "1", "after": 1})
        for _ in range(2):
            assert (await again(cron, job["id"]))["status"] == "error"

    scenario(what, channels=FullDisk(route=HOME))


def test_a_result_in_its_own_conversation_needs_no_other(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        ended = await ran(cron, sessionTarget="current", sessionKey="agent:main:desk", delivery={"mode": "announce"})
        assert (ended["deliveryStatus"], ended["sessionKey"]) == ("delivered", "agent:main:desk")
        named = await ran(cron, sessionTarget="session:ideas")
        assert named["sessionKey"] == "agent:main:ideas"

    scenario(what)


def test_a_job_that_keeps_failing_is_reported_but_not_each_time(scenario: Callable[..., None]) -> None:
    post = MemoryDelivery(route=HOME)

    async def what(cron: CronHarness) -> None:
        job = await cron.add(EVERY, {"kind": "agentTurn", "message": "!fail no luck"}, delivery={"mode": "announce"})
        for _ in range(4):
            await again(cron, job["id"])
        assert [text for _, _, text in post.texts] == ["The job 'a job' failed 2 times in a row: no luck"]
        state = (await cron.call("cron.get", {"id": job["id"]}))["state"]
        assert state["lastFailureNotificationDeliveryStatus"] == "not-requested"  # of the last failure
        cron.time.after(3600)
        await cron.call("cron.update", {"id": job["id"], "patch": {"failureAlert": {"channel": "ops", "to": "1"}}})
        await again(cron, job["id"])
        assert post.texts[-1][:2] == ("ops", "1")
        quiet = await cron.add(EVERY, {"kind": "agentTurn", "message": "!fail x"}, failureAlert=False)
        for _ in range(3):
            await again(cron, quiet["id"])
        assert len(post.texts) == 2

    scenario(what, channels=post)


# ---- webhooks --------------------------------------------------------------------------------------------------------


@contextmanager
def receiver(status: int = 200) -> Iterator[tuple[str, list[tuple[dict[str, str], Json]]]]:
    received: list[tuple[dict[str, str], Json]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(({name.lower(): value for name, value in self.headers.items()}, json.loads(body)))
            self.send_response(status)
            self.send_header("location", "http://127.0.0.1:1/")
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?a=1", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


OPEN = {"webhookSsrfPolicy": {"allowedHostnames": ["127.0.0.1"]}}


def test_a_webhook_gets_the_result_with_our_token_and_a_key(scenario: Callable[..., None]) -> None:
    with receiver() as (url, received):

        async def what(cron: CronHarness) -> None:
            ended = await ran(cron, delivery={"mode": "webhook", "to": url})
            assert (ended["deliveryStatus"], ended["completionStatus"]) == ("delivered", "succeeded")
            ((headers, body),) = received
            assert headers["authorization"] == "Bearer s3cret"
            assert headers["idempotency-key"] == body["runId"] == ended["runId"]
            assert (body["action"], body["status"], body["summary"]) == ("finished", "ok", "done")
            both = {"mode": "announce", "completionDestination": {"mode": "webhook", "to": url}}
            await ran(cron, delivery={**both, "bestEffort": True})
            assert len(received) == 2

        scenario(what, webhookToken="s3cret", **OPEN)


def test_the_token_of_webhooks_does_not_go_where_an_agent_says(scenario: Callable[..., None]) -> None:
    agent = Caller(kind="agent", name="main", session="agent:main:main", grant=Grant(agent="main", owner=True))
    with receiver() as (url, received):

        async def what(cron: CronHarness) -> None:
            hook = {"mode": "webhook", "to": url}
            job = {"schedule": EVERY, "payload": TURN}
            own = await cron.service.add(
                CronCall(params={**job, "name": "own", "delivery": hook}, caller=agent, policy_caller=agent)
            )
            assert (await again(cron, own["id"]))["deliveryStatus"] == "delivered"
            ((headers, _),) = received
            assert "authorization" not in headers

            theirs = await cron.call("cron.add", {**job, "name": "theirs", "declarationKey": "d", "delivery": hook})
            id = theirs["job"]["id"]
            for changed in (
                {"delivery": {"mode": "webhook", "to": "https://evil.example"}},
                {"delivery": {**hook, "completionDestination": {"mode": "webhook", "to": "https://evil.example"}}},
                {"delivery": {**hook, "failureDestination": {"mode": "webhook", "to": "https://evil.example"}}},
                {"failureAlert": {"mode": "webhook", "to": "https://evil.example"}},
            ):
                with pytest.raises(RpcError, match="only operators change"):
                    await cron.service.update(
                        CronCall(params={"id": id, "patch": changed}, caller=agent, policy_caller=agent)
                    )
                with pytest.raises(RpcError, match="only operators change"):
                    await cron.service.add(
                        CronCall(
                            params={**job, "name": "theirs", "declarationKey": "d", **changed},
                            caller=agent,
                            policy_caller=agent,
                        )
                    )
            await cron.service.update(
                CronCall(params={"id": id, "patch": {"name": "renamed"}}, caller=agent, policy_caller=agent)
            )

        scenario(what, webhookToken="s3cret", **OPEN)


@pytest.mark.parametrize("status", [500, 302])
def test_a_webhook_that_refuses_or_redirects_has_not_got_it(scenario: Callable[..., None], status: int) -> None:
    with receiver(status) as (url, received):

        async def what(cron: CronHarness) -> None:
            ended = await ran(cron, delivery={"mode": "webhook", "to": url})
            assert (ended["deliveryStatus"], ended["completionStatus"]) == ("not-delivered", "failed")
            assert f"status {status}" in ended["deliveryError"]
            assert len(received) == 1

        scenario(what, **OPEN)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "169.254.169.254", "[::1]", "10.0.0.1", "0.0.0.0", "127.1", "0x7f.1", "2130706433",
        "224.0.0.1", "[ff0e::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::808:808]", "[2002:7f00:1::]",
        "[2002:a9fe:a9fe::1]", "[2001:0:7f00:1::]", "[2606:4700::5efe:127.0.0.1]",
    ],
)  # fmt: skip
def test_a_webhook_to_this_machine_or_its_network_is_refused_unless_named(
    scenario: Callable[..., None], host: str
) -> None:
    async def what(cron: CronHarness) -> None:
        ended = await ran(cron, delivery={"mode": "webhook", "to": f"http://{host}:9/x"})
        assert "allowedHostnames" in ended["deliveryError"]

    scenario(what)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "127.0.0.1.", "0x7f000001"])
def test_a_webhook_to_a_blocked_host_is_refused_though_it_is_named(scenario: Callable[..., None], host: str) -> None:
    async def what(cron: CronHarness) -> None:
        ended = await ran(cron, delivery={"mode": "webhook", "to": f"http://{host}:9/x"})
        assert "blockedHostnames" in ended["deliveryError"]

    scenario(what, webhookSsrfPolicy={"dangerouslyAllowPrivateNetwork": True, "blockedHostnames": ["127.0.0.1"]})


# ---- programs --------------------------------------------------------------------------------------------------------


def test_a_commands_output_is_its_result(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        command = {"kind": "command", "argv": ["sh", "-c", "read x; echo $x $Y; echo oops >&2"], "input": "in"}
        ended = await ran(cron, {**command, "env": {"Y": "why"}})
        assert (ended["status"], ended["summary"]) == ("ok", "stdout:\nin why\n\nstderr:\noops")
        ended = await ran(cron, {"kind": "command", "argv": ["sh", "-c", "yes | head -c 9999"], "outputMaxBytes": 10})
        assert len(ended["summary"]) <= 10
        for argv, words in (
            (["sh", "-c", "exit 3"], "sh ended with exit status 3"),
            (["sh", "-c", "kill -9 $$"], "sh was ended by signal 9"),
            (["no-such-program"], "no-such-program can't be started"),
        ):
            ended = await ran(cron, {"kind": "command", "argv": argv})
            assert (ended["status"], ended["error"].partition(":")[0]) == ("error", words)
        assert "OPENCLAW_GATEWAY_TOKEN" not in (await ran(cron, {"kind": "command", "argv": ["env"]}))["summary"]

    os.environ["OPENCLAW_GATEWAY_TOKEN"] = "t"
    try:
        scenario(what)
    finally:
        del os.environ["OPENCLAW_GATEWAY_TOKEN"]


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"timeoutSeconds": 0.3}, "longer than 0.3 s"), ({"noOutputTimeoutSeconds": 0.3}, "printed nothing for 0.3 s")],
)
def test_a_program_that_runs_too_long_is_ended_with_all_it_started(
    scenario: Callable[..., None], tmp_path: Path, limits: Json, words: str
) -> None:
    file = tmp_path / "child"

    async def what(cron: CronHarness) -> None:
        script = f"sleep 60 & echo $! > {file}; wait"
        ended = await ran(cron, {"kind": "command", "argv": ["sh", "-c", script], **limits})
        assert words in ended["error"]

        async def gone() -> bool:
            child = psutil.Process(int(file.read_text())) if psutil.pid_exists(int(file.read_text())) else None
            return child is None or child.status() == psutil.STATUS_ZOMBIE

        await until(gone)

    scenario(what)


def test_a_job_can_wait_for_a_command_to_end(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        watched = {"kind": "on-exit", "command": "echo built; exit 2"}
        job = await cron.add(watched, {"kind": "agentTurn", "message": "what now?"})
        assert "nextRunAtMs" not in job
        ended = await cron.until("cron", action="finished", jobId=job["id"])
        assert "The command `echo built; exit 2` ended with exit status 2.\nbuilt" in ended["summary"]
        assert (await cron.call("cron.get", {"id": job["id"]}))["enabled"] is False
        await cron.call("cron.update", {"id": job["id"], "patch": {"enabled": True}})

        async def twice() -> bool:
            return len(await cron.runs(id=job["id"])) == 2

        await until(twice)

    scenario(what)


def stream(file: Path, script: str) -> dict[str, Any]:
    return {"kind": "stream", "command": ["sh", "-c", f"echo $$ >> {file}; {script}"], "batchMs": 300}


async def ended(file: Path) -> None:
    """Until the programs that wrote their ids there are gone."""

    async def gone() -> bool:
        return not any(psutil.pid_exists(int(pid)) for pid in pids)

    pids = file.read_text().split()  # noqa: ASYNC240  (a line)
    await until(gone)


def test_the_output_of_a_program_comes_in_batches_as_long_as_it_is_wanted(
    scenario: Callable[..., None], tmp_path: Path
) -> None:
    file, more = tmp_path / "pids", tmp_path / "more"
    os.mkfifo(more)

    async def what(cron: CronHarness) -> None:
        schedule = stream(file, f"echo one; echo two >&2; cat < {more}; exec sleep 600")
        job = await cron.add(schedule, {"kind": "agentTurn", "message": "look:"})
        assert "nextRunAtMs" not in job
        first = await cron.until("cron", action="finished", jobId=job["id"])
        assert sorted(first["summary"].split("look:\n\n")[1].split("\n\n")[0].split()) == ["one", "two"]
        await asyncio.to_thread(more.write_text, "three\n")  # between two firings: it waits
        cron.time.after(31)
        second = await cron.until("cron", action="finished", jobId=job["id"], runAtMs=first["runAtMs"] + 31_000)
        assert "look:\n\nthree\n\n" in second["summary"]
        assert len(file.read_text().split()) == 1  # the same program all the while
        cron.time.after(31)
        await cron.until("cron", action="started", jobId=job["id"], runAtMs=first["runAtMs"] + 62_000)
        await cron.call("cron.update", {"id": job["id"], "patch": {"enabled": False}})
        await ended(file)
        await cron.until("cron", action="finished", jobId=job["id"], runAtMs=first["runAtMs"] + 62_000)
        assert [entry["status"] for entry in await cron.runs(id=job["id"])] == ["ok", "ok", "skipped"]

    scenario(what)


def test_a_stream_that_ends_is_reported_and_restarted_and_ends_with_the_gateway(
    scenario: Callable[..., None], tmp_path: Path
) -> None:
    file = tmp_path / "pids"

    async def what(cron: CronHarness) -> None:
        job = await cron.add(stream(file, "exit 3"), {"kind": "agentTurn", "message": "look:"})
        first = await cron.until("cron", action="finished", jobId=job["id"])
        assert "exit status 3" in first["error"]
        assert (await cron.call("cron.get", {"id": job["id"]}))["enabled"] is True
        cron.time.after(31)
        await cron.until("cron", action="finished", jobId=job["id"], runAtMs=first["runAtMs"] + 31_000)
        assert len(file.read_text().split()) == 2
        await cron.call("cron.remove", {"id": job["id"]})
        last = await cron.add(stream(file, "exec sleep 600"), {"kind": "agentTurn", "message": "look:"})
        await cron.until("cron", action="started", jobId=last["id"])

        async def has_started() -> bool:
            return len(file.read_text().split()) == 3

        await until(has_started)

    scenario(what)
    asyncio.run(ended(file))


def test_closing_the_gateway_ends_the_programs_it_started(scenario: Callable[..., None], tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def what(cron: CronHarness) -> None:
        await cron.add(
            {"kind": "at", "at": "2027-01-01T00:00:01Z"},
            {"kind": "command", "argv": ["sh", "-c", f"trap '' TERM; echo $$ > {file}; sleep 60"]},
        )
        cron.time.after(1)

        async def has_started() -> bool:
            return file.exists() and bool(file.read_text())

        await until(has_started)

    scenario(what)
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), signal.SIG_DFL)
