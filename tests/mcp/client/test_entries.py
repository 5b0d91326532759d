"""Entries of `mcp.servers`: what they may hold, and the errors of those that are wrong."""

from typing import Any

import pytest

from openclaw_mcp.mcp.client.entry import BadServerEntry, ServerAddress, ServerProgram, read_entry
from openclaw_mcp.mcp.client.names import server_names, tool_names


def test_a_program_with_its_environment() -> None:
    value = {"command": "npx", "args": ["-y", "${PACKAGE}"], "env": {"KEY": "${KEY}", "N": 5}, "cwd": "/srv"}

    entry = read_entry("files", value, {"PATH": "/bin", "PACKAGE": "it", "KEY": "k-e-y", "OURS": "x", "LC_ALL": "C"})

    assert entry.target == ServerProgram(
        command="npx", args=("-y", "it"), env={"PATH": "/bin", "LC_ALL": "C", "KEY": "k-e-y", "N": "5"}, cwd="/srv"
    )


def test_an_address_with_its_headers_and_limits() -> None:
    value = {
        "url": "https://mcp.example/mcp",
        "transport": "streamable-http",
        "headers": {"Authorization": "Bearer ${TOKEN}"},
        "requestTimeoutMs": 1500,
        "connectionTimeoutMs": 250,
        "supportsParallelToolCalls": True,
    }

    entry = read_entry("web", value, {"TOKEN": "t-o-k-e-n"})

    assert entry.target == ServerAddress(url="https://mcp.example/mcp", headers={"Authorization": "Bearer t-o-k-e-n"})
    assert (entry.request_wait, entry.connect_wait) == (1.5, 0.25)
    assert entry.redact_secrets("got t-o-k-e-n from Bearer t-o-k-e-n") == "got *** from ***"


def test_a_tool_filter_takes_names_and_patterns() -> None:
    entry = read_entry(
        "x", {"command": "x", "toolFilter": {"include": ["read_*", "list"], "exclude": ["read_secret"]}}, {}
    )

    assert [tool for tool in ("read_a", "list", "read_secret", "write") if entry.allows_tool(tool)] == [
        "read_a",
        "list",
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "must be an object"),
        ({}, "either `command` or `url`"),
        ({"command": "x", "url": "http://x"}, "either `command` or `url`"),
        ({"command": ""}, "`command` must be"),
        ({"command": "x", "args": "y"}, "`args` must be a list of strings"),
        ({"command": "x", "env": {"A": None}}, "`env.A` must be a string"),
        ({"command": "x", "env": {"A": "${NOT_THERE}"}}, r"names \$\{NOT_THERE\}, which the environment does not have"),
        ({"command": "x", "cwd": 5}, "`cwd` must be a folder"),
        ({"command": "x", "enabled": "yes"}, "`enabled` must be true or false"),
        ({"command": "x", "agents": "ada"}, "`agents` must be a list of strings"),
        ({"command": "x", "protocol": "2024"}, "`protocol` must be"),
        ({"command": "x", "requestTimeoutMs": 0}, "`requestTimeoutMs` must be milliseconds"),
        ({"command": "x", "toolFilter": [1]}, "must be an object"),
        ({"url": "ftp://x"}, "`url` must be an http"),
        ({"url": "http://x", "transport": "sse"}, "was retired by MCP"),
        ({"url": "http://x", "transport": "carrier pigeon"}, "`transport` must be"),
        ({"url": "http://x", "transport": ["http"]}, "`transport` must be"),
        ({"url": "http://x", "auth": "oauth"}, "`auth` is not supported yet"),
        ({"url": "http://x", "headers": {"X": "a\nb"}}, "is no HTTP header"),
        ({"url": "http://x", "headers": {"X Y": "a"}}, "is no HTTP header"),
    ],
)
def test_an_error_names_the_place(value: Any, reason: str) -> None:
    with pytest.raises(BadServerEntry, match=rf"mcp\.servers\.it.*{reason}"):
        read_entry("it", value, {})


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "x" * 65])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(BadServerEntry, match="is no name for a server"):
        read_entry(name, {"command": "x"}, {})


def test_tool_names_are_safe_short_and_each_its_own() -> None:
    assert server_names(["git", "my.files", "my-files", "9p", "x" * 40]) == {
        "git": "git",
        "my.files": "my-files",
        "my-files": "my-files-2",
        "9p": "mcp-9p",
        "x" * 40: "x" * 30,
    }
    assert tool_names("git", ["log", "Log", "a b", "2nd"]) == {
        "git__log": "log",
        "git__Log-2": "Log",
        "git__a_b": "a b",
        "git__tool-2nd": "2nd",
    }
    assert all(len(name) == 64 for name in tool_names("git", ["t" * 80, "t" * 81]))
