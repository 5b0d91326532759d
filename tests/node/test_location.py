"""Where the machine is: a place written down, a real GeoClue that finds nothing, and a twin of it that does."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from dbus_fast.aio import MessageBus
from dbus_fast.constants import PropertyAccess
from dbus_fast.service import ServiceInterface, dbus_method, dbus_property, dbus_signal

from openclaw_mcp.core.errors import ToolDenied, ToolTimeout, ToolUnavailable
from openclaw_mcp.node.location import LocationCapability
from openclaw_mcp.node.settings import FixedPosition, NodeSettings
from tests.node.calling import call, result_json, running
from tests.programs import need

CLIENT = "/org/freedesktop/GeoClue2/Client/1"
PLACE = "/org/freedesktop/GeoClue2/Client/1/Location/0"
CONFIGURATION = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={socket}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>
<allow own="*"/><allow user="*"/></policy>
</busconfig>"""


HERE = FixedPosition(latitude=52.52, longitude=13.405, accuracy=50.0)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[str]:
    """A message bus of its own; yields its address."""
    daemon = need("dbus-daemon", package="dbus-daemon")
    socket, configuration = tmp_path / "bus", tmp_path / "bus.conf"
    configuration.write_text(CONFIGURATION.format(socket=socket))
    reader, writer = os.pipe()
    words = (daemon, f"--config-file={configuration}", "--nofork", f"--print-address={writer}")
    with running(*words, pass_fds=(writer,)):
        os.close(writer)
        with os.fdopen(reader) as file:
            assert file.readline()
        yield f"unix:path={socket}"


class Manager(ServiceInterface):
    def __init__(self) -> None:
        super().__init__("org.freedesktop.GeoClue2.Manager")

    @dbus_method()
    def GetClient(self) -> "o":  # type: ignore[name-defined]  # noqa: F821, N802
        return CLIENT


class Client(ServiceInterface):
    """Notes what it is asked for; tells its place once it is started."""

    def __init__(self) -> None:
        super().__init__("org.freedesktop.GeoClue2.Client")
        self.wishes: dict[str, Any] = {}
        self.started = 0

    @dbus_property()
    def DesktopId(self) -> "s":  # type: ignore[name-defined]  # noqa: F821, N802
        return ""

    @DesktopId.setter  # type: ignore[no-redef]
    def DesktopId(self, value: "s") -> None:  # type: ignore[name-defined]  # noqa: F821, N802
        self.wishes["desktop"] = value

    @dbus_property()
    def RequestedAccuracyLevel(self) -> "u":  # type: ignore[name-defined]  # noqa: F821, N802
        return 0

    @RequestedAccuracyLevel.setter  # type: ignore[no-redef]
    def RequestedAccuracyLevel(self, value: "u") -> None:  # type: ignore[name-defined]  # noqa: F821, N802
        self.wishes["level"] = value

    @dbus_method()
    def Start(self) -> None:  # noqa: N802
        self.started += 1
        asyncio.get_running_loop().call_soon(self.LocationUpdated)

    @dbus_signal()
    def LocationUpdated(self) -> "oo":  # type: ignore[name-defined]  # noqa: F821, N802
        return ["/", PLACE]


class Place(ServiceInterface):
    def __init__(self) -> None:
        super().__init__("org.freedesktop.GeoClue2.Location")

    @dbus_property(access=PropertyAccess.READ)
    def Latitude(self) -> "d":  # type: ignore[name-defined]  # noqa: F821, N802
        return 48.2

    @dbus_property(access=PropertyAccess.READ)
    def Longitude(self) -> "d":  # type: ignore[name-defined]  # noqa: F821, N802
        return 16.37

    @dbus_property(access=PropertyAccess.READ)
    def Accuracy(self) -> "d":  # type: ignore[name-defined]  # noqa: F821, N802
        return 900.0

    @dbus_property(access=PropertyAccess.READ)
    def Altitude(self) -> "d":  # type: ignore[name-defined]  # noqa: F821, N802
        return -1.7976931348623157e308

    @dbus_property(access=PropertyAccess.READ)
    def Speed(self) -> "d":  # type: ignore[name-defined]  # noqa: F821, N802
        return 1.5


@contextlib.asynccontextmanager
async def fake_geoclue(address: str) -> AsyncIterator[Client]:
    """GeoClue's three objects, with a place to tell."""
    connection = await MessageBus(bus_address=address).connect()
    client = Client()
    connection.export("/org/freedesktop/GeoClue2/Manager", Manager())
    connection.export(CLIENT, client)
    connection.export(PLACE, Place())
    await connection.request_name("org.freedesktop.GeoClue2")
    try:
        yield client
    finally:
        connection.disconnect()


def test_a_place_written_down_is_the_answer_in_both_spellings() -> None:
    location = LocationCapability(settings=lambda: NodeSettings(location_fixed=HERE))

    value = result_json(asyncio.run(call(location, "location.get")))

    assert location.unavailable_reason("location.get") is None
    assert (value["latitude"], value["longitude"], value["accuracy"]) == (52.52, 13.405, 50.0)
    assert (value["lat"], value["lon"], value["accuracyMeters"]) == (52.52, 13.405, 50.0)
    assert (value["source"], value["isPrecise"]) == ("fixed", True)
    assert isinstance(value["timestamp"], int)


def test_geoclue_is_asked_with_the_wished_accuracy_and_its_position_returned(bus: str) -> None:
    async def scenario() -> None:
        async with fake_geoclue(bus) as client:
            location = LocationCapability(bus_address=bus)
            value = result_json(await call(location, "location.get", desiredAccuracy="precise"))
            assert client.wishes == {"desktop": "openclaw-mcp", "level": 8}
            assert (value["latitude"], value["lon"], value["accuracyMeters"]) == (48.2, 16.37, 900.0)
            assert (value["source"], value["isPrecise"], value["speedMps"]) == ("geoclue", False, 1.5)
            assert "altitudeMeters" not in value

            await call(location, "location.get")
            assert client.started == 1, "a fresh position is not asked for again"
            await call(location, "location.get", maxAge=0, accuracy="default")
            assert (client.started, client.wishes["level"]) == (2, 6)

    asyncio.run(scenario())


def test_a_real_geoclue_without_permission_or_position_gives_the_right_code(bus: str, tmp_path: Path) -> None:
    geoclue = need("/usr/libexec/geoclue", package="geoclue-2.0")
    environ = {"PATH": os.environ["PATH"], "DBUS_SYSTEM_BUS_ADDRESS": bus, "HOME": str(tmp_path)}

    async def named() -> None:
        connection = await MessageBus(bus_address=bus).connect()
        try:
            introspected = connection.introspect("org.freedesktop.DBus", "/org/freedesktop/DBus")
            proxy = connection.get_proxy_object("org.freedesktop.DBus", "/org/freedesktop/DBus", await introspected)
            names: Any = proxy.get_interface("org.freedesktop.DBus")
            async with asyncio.timeout(20):
                while not await names.call_name_has_owner("org.freedesktop.GeoClue2"):  # noqa: ASYNC110  no event for it
                    await asyncio.sleep(0.05)
        finally:
            connection.disconnect()

    with running(geoclue, env=environ):
        asyncio.run(named())
        with pytest.raises((ToolDenied, ToolTimeout), match=r"LOCATION_(PERMISSION_REQUIRED|TIMEOUT)"):
            asyncio.run(call(LocationCapability(bus_address=bus), "location.get", timeoutMs=1500))


def test_a_bus_without_geoclue_or_no_bus_at_all_says_so(bus: str, tmp_path: Path) -> None:
    for address in (bus, f"unix:path={tmp_path}/nowhere"):
        with pytest.raises(ToolUnavailable, match="LOCATION_UNAVAILABLE"):
            asyncio.run(call(LocationCapability(bus_address=address), "location.get"))


def test_without_geoclue_the_remedy_names_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("openclaw_mcp.node.location.GEOCLUE", tmp_path / "nowhere")

    missing = LocationCapability(environ={}).unavailable_reason("location.get")

    assert missing is not None
    assert "locationFixed" in missing.remedy
    with pytest.raises(ToolUnavailable, match="LOCATION_UNAVAILABLE"):
        asyncio.run(call(LocationCapability(environ={}), "location.get"))
