"""Addresses that callers may name lead to the public internet and nowhere else, however they are spelt."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.channel import ChannelRefused
from openclaw_mcp.core.errors import ToolArguments
from openclaw_mcp.gateway.channels.attachments import MediaLoader
from openclaw_mcp.net.file_access import FileAccess
from openclaw_mcp.net.internet import NoSuchHost, NotPublic, is_public, normalize_host, parse_ip_literal, resolve_host
from openclaw_mcp.node.canvas import urls

INSIDE = (
    # IPv4 with a meaning of its own
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.170", "192.0.2.1", "192.88.99.1",
    "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250",
    "240.0.0.1", "255.255.255.255",
    # IPv6 of its own
    "::", "::1", "::2", "fc00::1", "fd12:3456::1", "fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "feff::1",
    "ff02::1", "ff0e::1", "100::1", "2001:db8::1", "3fff::1", "2001:2::1", "2001:10::1", "2001:20::1", "5f00::1",
    "4000::1", "2606:4700::1111%eth0",
    # IPv4 inside of IPv6: mapped, translated, compatible, NAT64 of both kinds, 6to4, Teredo, ISATAP
    "::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:224.0.0.1",
    "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8", "::127.0.0.1", "::8.8.8.8", "64:ff9b::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b::192.168.0.1", "64:ff9b::224.0.0.1", "64:ff9b:1::1", "64:ff9b:1::8.8.8.8",
    "64:ff9b:1:ffff::8.8.8.8", "2002:7f00:1::", "2002:7f00:1::1", "2002:a00:1::", "2002:a9fe:a9fe::1",
    "2002:c0a8:101:1::1", "2002:e000:1::1", "2001::1", "2001:0:7f00:1::", "2001:0:808:808::f7f7:f7f7",
    "2001:0:4136:e378:8000:63bf:80ff:fffe", "2606:4700::5efe:127.0.0.1", "2606:4700::200:5efe:10.0.0.1",
    "fe80::5efe:8.8.8.8",
    # no addresses at all
    "", "example.com", "1.2.3", "1.2.3.4.5", "::1::",
)  # fmt: skip
OUTSIDE = (
    "1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.0.1.1",
    "198.17.0.1", "198.20.0.1", "223.255.255.255", "2606:4700:4700::1111", "2a00:1450:4001::200e", "2001:200::1",
    "2400::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1", "2606:4700::5efe:8.8.8.8",
)  # fmt: skip


@pytest.mark.parametrize("address", INSIDE)
def test_what_is_not_of_the_internet_is_known(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", OUTSIDE)
def test_what_is_of_the_internet_is_known(address: str) -> None:
    assert is_public(address)


SPELLINGS = (
    "127.0.0.1", "127.1", "127.0.1", "0177.1", "0177.0.0.01", "0x7f.1", "0x7f.0x0.0x0.0x1", "0x7F000001", "2130706433",
    "017700000001", "127.0.0.1.", "127.0.0.1..", "127%2e0%2E0.1", "%31%32%37.1", "\uff11\uff12\uff17.0.0.1",
    "127\u30020.0.1", "127\uff0e0.0.1", "①②⑦.0.0.1", "[127.0.0.1]",
)  # fmt: skip


@pytest.mark.parametrize("host", SPELLINGS)
def test_an_address_is_read_however_it_is_spelt(host: str) -> None:
    assert str(parse_ip_literal(host)) == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("Example.COM.", "example.com"),
        ("LOCALHOST.", "localhost"),
        ("%6cocalhost", "localhost"),
        ("\uff4c\uff4f\uff43\uff41\uff4chost", "localhost"),
        ("[::1]", "::1"),
        ("bücher.example", "xn--bcher-kva.example"),
    ],
)
def test_a_host_is_compared_as_others_may_mean_it(host: str, plain: str) -> None:
    assert normalize_host(host) == plain


def in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


LITERALS = [
    address for address in INSIDE if address and "%" not in address and (":" in address or address.count(".") == 3)
]
NAMES = ("localhost", "LocalHost.", "127.1", "2130706433", "0x7f.1", "0177.1", "127.0.0.1.")


@pytest.mark.parametrize("host", [*map(in_url, LITERALS[:-1]), *NAMES])
def test_no_file_is_fetched_from_inside(host: str) -> None:
    async def fetch() -> None:
        with pytest.raises(ChannelRefused, match=r"private network|can't be found"):
            await MediaLoader().load(f"http://{host}:9/x", FileAccess(), max_bytes=100)

    asyncio.run(fetch())


@pytest.mark.parametrize("url", ["http://a:999999/x", "http://[::1/x", "http://@127.0.0.1/x", "http://:@8.8.8.8/"])
def test_a_file_at_an_unknown_address_is_refused(url: str) -> None:
    async def fetch() -> None:
        with pytest.raises(ChannelRefused):
            await MediaLoader().load(url, FileAccess(), max_bytes=100)

    asyncio.run(fetch())


@pytest.mark.parametrize("host", [*map(in_url, LITERALS[:-1]), *NAMES, *SPELLINGS[:-1]])
def test_the_canvas_shows_nothing_from_inside(host: str) -> None:
    async def show() -> None:
        with pytest.raises(ToolArguments, match="Invalid url"):
            await urls.resolve_page_url(f"http://{host}/", trusted=frozenset())

    asyncio.run(show())


class Loop(asyncio.SelectorEventLoop):
    """One whose name server is an attacker's: each question is answered by the next of these."""

    def __init__(self, *answers: list[str]) -> None:
        super().__init__()
        self._answers = list(answers)
        self.asked = 0

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        self.asked += 1
        found = self._answers.pop(0) if self._answers else []
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]


@pytest.mark.parametrize(
    "answer", [["8.8.8.8", "127.0.0.1"], ["127.0.0.1"], ["64:ff9b::7f00:1"], ["8.8.8.8", "fe80::1%2"]]
)
def test_a_name_counts_by_the_worst_of_its_addresses(answer: list[str]) -> None:
    with asyncio.Runner(loop_factory=lambda: Loop(answer)) as runner, pytest.raises(NotPublic):
        runner.run(resolve_host("rebinding.example", 80))


def test_a_name_is_asked_once_and_the_answer_is_what_is_used() -> None:
    loop = Loop(["8.8.8.8"], ["127.0.0.1"])
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(resolve_host("rebinding.example", 80)) == ["8.8.8.8"]
        assert loop.asked == 1
        with pytest.raises(NotPublic):
            runner.run(resolve_host("rebinding.example", 80))
        with pytest.raises(NoSuchHost):
            runner.run(resolve_host("rebinding.example", 80))


def test_one_function_judges_every_address_that_is_fetched() -> None:
    source = Path(urls.__file__).parents[2]
    judging = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in (".is_global", ".is_private", ".is_reserved"))
    }
    assert judging <= {"net/internet.py"}
