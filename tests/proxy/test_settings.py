"""The settings and where they come from: a file in the current folder opens nothing."""

import asyncio
from pathlib import Path

import pytest

from openclaw_mcp.core.errors import BadRequest
from openclaw_mcp.protocol.bridge import DEFAULT_URL
from openclaw_mcp.proxy.audit_log import ProxyAuditLog
from openclaw_mcp.proxy.settings import ProxySettings, read_settings

HARMFUL = {
    "ORIGINS": "*",
    "HOSTS": "*",
    "REDIS_URL": "redis://127.0.0.1:1/0",
    "AUDIT": "audit.log",
    "PUBLIC_URL": "https://evil.example.com",
    "SOMETHING_NEW": "x",
}


def beside(folder: Path, **settings: str) -> Path:
    (folder / ".env").write_text("".join(f"OPENCLAW_PROXY_{name}={value}\n" for name, value in settings.items()))
    return folder


@pytest.mark.parametrize("name", HARMFUL)
def test_a_file_that_was_not_named_does_not_open_the_proxy(tmp_path: Path, name: str) -> None:
    folder = beside(tmp_path, **{name: HARMFUL[name]})
    with pytest.raises(BadRequest, match=rf"OPENCLAW_PROXY_{name} in \.env of this folder .* --env-file \.env"):
        read_settings({}, folder=folder)
    assert read_settings({f"OPENCLAW_PROXY_{name}": ""}, folder=folder) == ProxySettings(), (
        "the environment has the last word"
    )


def test_a_file_that_is_named_may_say_all(tmp_path: Path) -> None:
    folder = beside(tmp_path, **HARMFUL)
    settings = read_settings({}, file=folder / ".env")
    assert (settings.origins, settings.hosts, settings.audit) == (frozenset("*"), frozenset("*"), "audit.log")
    with pytest.raises(BadRequest, match="there is no file"):
        read_settings({}, file=tmp_path / "other")


def test_a_file_beside_may_say_what_keeps_others_out(tmp_path: Path) -> None:
    folder = beside(
        tmp_path, APP_TOKEN="a", OPENCLAW_TOKEN="b", SERVER_URL="http://127.0.0.1:9", SESSION_TTL_SECONDS="7",
        TOOL_TIMEOUT_SECONDS="8",
    )  # fmt: skip
    settings = read_settings({"UNRELATED": "x"}, folder=folder)
    assert (settings.app_token, settings.mcp_token, settings.server_url) == ("a", "b", "http://127.0.0.1:9")
    assert (settings.session_ttl, settings.tool_timeout) == (7.0, 8.0)
    assert read_settings({}).server_url == DEFAULT_URL, "no setting says where to look"


@pytest.mark.parametrize("token", ["APP_TOKEN", "OPENCLAW_TOKEN"])
def test_a_token_of_the_environment_goes_nowhere_a_file_beside_says(tmp_path: Path, token: str) -> None:
    folder = beside(tmp_path, SERVER_URL="http://127.0.0.1:9")
    with pytest.raises(BadRequest, match="OPENCLAW_PROXY_SERVER_URL"):
        read_settings({f"OPENCLAW_PROXY_{token}": "secret"}, folder=folder)


@pytest.mark.parametrize("kind", ["link", "second name"])
def test_the_audit_writes_into_no_other_file(tmp_path: Path, kind: str) -> None:
    precious, audit = tmp_path / "precious", tmp_path / "audit.jsonl"
    precious.write_text("mine")
    audit.symlink_to(precious) if kind == "link" else audit.hardlink_to(precious)

    async def main() -> None:
        async with ProxyAuditLog(str(audit)):
            pass

    if kind == "link":
        with pytest.raises(BadRequest, match="is a link"):
            asyncio.run(main())
    else:
        asyncio.run(main())
        assert audit.stat().st_ino != precious.stat().st_ino
    assert precious.read_text() == "mine"
