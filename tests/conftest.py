"""Under CI nothing is skipped: a test that could not run has not passed. And what takes long begins first."""

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.effort import often

LONGEST = (
    "tests/fuzz/",
    "tests/faults/",
    "tests/gateway/channels/test_kill.py",
    "tests/test_docs.py",
    "tests/cli/test_up.py",
    "tests/cli/test_reports.py",
    "tests/cli/test_locations.py",
    "tests/connect/test_connect.py",
    "tests/tools/schemas/test_bombs.py",
    "tests/gateway/nodes/test_approvers.py",
    "tests/node/canvas/",
    "tests/cli/",
    "tests/mcp/client/test_command.py",
    "tests/net/",
    "tests/proxy/",
    "tests/store/",
    "tests/gateway/cron/",
    "tests/node/",
    "tests/gateway/wiring/",
    "tests/gateway/agents/",
    "tests/mcp/client/",
    "tests/order/",
    "tests/connect/",
    "tests/gateway/channels/",
)
"""Files are handed to the processors whole and in this order, so that at the end none waits long for another."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # run in the background: what we start would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline and no complaint about slow drawing: a busy machine is no finding.
settings.register_profile(
    "ours", max_examples=often(50, 1000), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ours")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((n for n, name in enumerate(LONGEST) if item.nodeid.startswith(name)), 99))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of tests, which live until the end: no collection need look at them


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return  # one of several processes: the one that reports decides
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    skipped = reporter.stats.get("skipped", [])
    if skipped and os.environ.get("CI"):
        names = ", ".join(sorted({report.nodeid for report in skipped})[:10])
        reporter.write_line(f"skipped under CI, which counts as failed: {names}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
