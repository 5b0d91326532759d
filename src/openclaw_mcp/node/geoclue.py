"""GeoClue over D-Bus: one connection for one position. Imported at the first question."""

import asyncio
import time
from typing import Any, Final

from dbus_fast import BusType, DBusError, Message, MessageType, Variant
from dbus_fast.aio import MessageBus

from .location import LocationFix, LocationUnavailable

SERVICE: Final = "org.freedesktop.GeoClue2"
MANAGER: Final = "/org/freedesktop/GeoClue2/Manager"
PROPERTIES: Final = "org.freedesktop.DBus.Properties"
DESKTOP_ID: Final = "openclaw-mcp"
LOWEST_ALTITUDE: Final = -100_000.0  # metres; below it GeoClue means "unknown"
DENIED: Final = ("org.freedesktop.DBus.Error.AccessDenied", "org.freedesktop.DBus.Error.AuthFailed")


async def get_fix(address: str | None, *, level: int) -> LocationFix:
    """The first position GeoClue reports. The caller bounds the wait. Raises LocationUnavailable."""
    bus = MessageBus(bus_address=address) if address else MessageBus(bus_type=BusType.SYSTEM)
    try:
        await bus.connect()
    except (OSError, DBusError, EOFError) as exc:
        raise LocationUnavailable("LOCATION_UNAVAILABLE") from exc
    try:
        return await _get_fix(bus, level)
    finally:
        # Closing the connection also ends our client at GeoClue's side.
        bus.disconnect()


async def _get_fix(bus: MessageBus, level: int) -> LocationFix:
    (client,) = await _call(bus, MANAGER, f"{SERVICE}.Manager", "GetClient")
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_message(message: Message) -> None:
        if (message.member, message.path) == ("LocationUpdated", client) and not found.done():
            found.set_result(message.body[1])

    bus.add_message_handler(on_message)
    rule = f"type='signal',interface='{SERVICE}.Client',path='{client}'"
    await _call(bus, "/org/freedesktop/DBus", "org.freedesktop.DBus", "AddMatch", "s", [rule])
    wishes = (("DesktopId", Variant("s", DESKTOP_ID)), ("RequestedAccuracyLevel", Variant("u", level)))
    for name, value in wishes:
        await _call(bus, client, PROPERTIES, "Set", "ssv", [f"{SERVICE}.Client", name, value])
    await _call(bus, client, f"{SERVICE}.Client", "Start")
    place = await found
    (properties,) = await _call(bus, place, PROPERTIES, "GetAll", "s", [f"{SERVICE}.Location"])
    return _parse_properties({name: value.value for name, value in properties.items()})


def _parse_properties(properties: dict[str, Any]) -> LocationFix:
    altitude, speed, heading = (properties.get(name) for name in ("Altitude", "Speed", "Heading"))
    try:
        seconds, microseconds = properties.get("Timestamp") or (0, 0)
        at = seconds * 1000 + microseconds // 1000 if seconds else time.time_ns() // 1_000_000
        return LocationFix(
            latitude=float(properties["Latitude"]),
            longitude=float(properties["Longitude"]),
            accuracy=float(properties.get("Accuracy", 0.0)),
            timestamp=at,
            source="geoclue",
            altitude=altitude if altitude is not None and altitude > LOWEST_ALTITUDE else None,
            speed=speed if speed is not None and speed >= 0 else None,
            heading=heading if heading is not None and heading >= 0 else None,
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise LocationUnavailable("LOCATION_UNAVAILABLE") from exc


async def _call(
    bus: MessageBus, path: str, interface: str, member: str, signature: str = "", body: list[Any] | None = None
) -> list[Any]:
    destination = "org.freedesktop.DBus" if interface == "org.freedesktop.DBus" else SERVICE
    message = Message(destination, path, interface, member, signature=signature, body=body or [])
    try:
        reply = await bus.call(message)
    except (DBusError, EOFError, OSError) as exc:
        raise LocationUnavailable("LOCATION_UNAVAILABLE") from exc
    if reply is None or reply.message_type is MessageType.ERROR:
        denied = reply is not None and reply.error_name in DENIED
        raise LocationUnavailable("LOCATION_PERMISSION_REQUIRED" if denied else "LOCATION_UNAVAILABLE")
    return reply.body
