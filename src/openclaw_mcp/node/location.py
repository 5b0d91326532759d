"""The position of this machine: from the settings, or from GeoClue. No address is ever looked up on the net."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec import Struct

from ..core.clock import now_ms
from ..core.errors import ToolDenied, ToolTimeout, ToolUnavailable
from ..core.model import ToolCall, ToolResult
from . import arguments
from .capability import Capability, NodeCommand, UnavailableReason, json_result
from .settings import NodeSettings

DEADLINE: Final = 90.0  # seconds; the longest wait a caller may ask for, and some
MAX_WAIT: Final = 60_000  # milliseconds
SHORTEST_WAIT: Final = 1_000
OLDEST_FIX: Final = 24 * 3600 * 1000  # milliseconds; older than a day is no answer to "where"
PRECISE: Final = 100.0  # metres
LEVELS: Final = {"coarse": 4, "balanced": 6, "default": 6, "high": 8, "precise": 8}
"""A caller's word to GeoClue's accuracy level: city, street, exact."""
SYSTEM_BUS: Final = Path("/run/dbus/system_bus_socket")
GEOCLUE: Final = Path("/usr/share/dbus-1/system-services/org.freedesktop.GeoClue2.service")

GET = arguments.command_spec(
    "location.get",
    "Where is this machine?",
    "The position of this machine: latitude, longitude and accuracy in metres.",
    {
        "desiredAccuracy": {"type": "string", "description": "coarse, balanced (default) or precise."},
        "accuracy": {"type": "string", "description": "Another name: default, high or precise."},
        "maxAgeMs": {"type": "integer", "description": "A position this old is good enough; default 30000."},
        "maxAge": {"type": "integer", "description": "Another name for maxAgeMs."},
        "timeoutMs": {"type": "integer", "description": "How long to wait, 1000 to 60000 ms; default 10000."},
        "locationTimeout": {"type": "integer", "description": "Another name for timeoutMs."},
    },
    deadline=DEADLINE,
)


class LocationFix(Struct, frozen=True, kw_only=True):
    latitude: float
    longitude: float
    accuracy: float
    timestamp: int
    """Unix milliseconds."""
    source: str
    altitude: float | None = None
    speed: float | None = None
    heading: float | None = None


class LocationUnavailable(Exception):
    """GeoClue has no answer; `code` is LOCATION_PERMISSION_REQUIRED or LOCATION_UNAVAILABLE."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class LocationCapability(Capability):
    """`location.get`. The setting locationFixed, if given, is the answer; `bus_address`: not the system's bus."""

    name = "location"

    def __init__(
        self,
        *,
        settings: Callable[[], NodeSettings] = NodeSettings,
        bus_address: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings
        self._bus_address = bus_address or environ.get("DBUS_SYSTEM_BUS_ADDRESS")
        self._last_fix: tuple[int, LocationFix] | None = None

    def commands(self) -> Sequence[NodeCommand]:
        return (NodeCommand(spec=GET, run=self._get),)

    def unavailable_reason(self, command: str) -> UnavailableReason | None:
        if self._settings().location_fixed is not None:
            return None
        write = "write the place into the setting locationFixed"
        if sys.platform != "linux":
            return UnavailableReason("Finding the position is built for Linux only so far.", f"Please {write}.")
        if find_spec("dbus_fast") is None:
            return UnavailableReason(
                "The Python package dbus-fast is not installed.", "Run: pip install 'openclaw-mcp[node]'."
            )
        if self._bus_address is None and not (SYSTEM_BUS.exists() and GEOCLUE.exists()):
            return UnavailableReason(
                "GeoClue, which finds the position, is not installed or has no system bus.",
                f"Install geoclue-2.0, or {write}.",
            )
        return None

    async def _get(self, call: ToolCall) -> ToolResult:
        wait = arguments.integer(
            call, "timeoutMs", "locationTimeout", default=10_000, least=SHORTEST_WAIT, most=MAX_WAIT
        )
        age = arguments.integer(call, "maxAgeMs", "maxAge", default=30_000, least=0, most=OLDEST_FIX)
        wish = (arguments.text(call, "desiredAccuracy", "accuracy") or "default").lower()
        level = LEVELS.get(wish, LEVELS["default"])
        place, now = self._settings().location_fixed, now_ms()
        if place is not None:
            fix = LocationFix(
                latitude=place.latitude,
                longitude=place.longitude,
                accuracy=place.accuracy,
                timestamp=now,
                source="fixed",
            )
            return json_result(fix_to_json(fix))
        if self._last_fix is not None and self._last_fix[0] >= level and now - self._last_fix[1].timestamp < age:
            return json_result(fix_to_json(self._last_fix[1]))
        fix = await self._query_geoclue(level, wait / 1000)
        self._last_fix = (level, fix)
        return json_result(fix_to_json(fix))

    async def _query_geoclue(self, level: int, seconds: float) -> LocationFix:
        # Here for start-up: the bus is spoken to by few nodes, and then seldom.
        from . import geoclue

        try:
            async with asyncio.timeout(seconds):
                return await geoclue.get_fix(self._bus_address, level=level)
        except TimeoutError:
            raise ToolTimeout(f"LOCATION_TIMEOUT: no position was found within {seconds:g} s") from None
        except LocationUnavailable as exc:
            if exc.code == "LOCATION_PERMISSION_REQUIRED":
                raise ToolDenied(
                    f"{exc.code}: switch location services on, and allow openclaw-mcp to use them"
                ) from None
            raise ToolUnavailable(f"{exc.code}: GeoClue does not answer; is its service running?") from None


def fix_to_json(fix: LocationFix) -> dict[str, float | str | bool]:
    """The answer in both spellings in use: latitude/longitude/accuracy and lat/lon/accuracyMeters."""
    optional = {"altitudeMeters": fix.altitude, "speedMps": fix.speed, "headingDeg": fix.heading}
    return {
        "latitude": fix.latitude,
        "longitude": fix.longitude,
        "accuracy": fix.accuracy,
        "timestamp": fix.timestamp,
        "lat": fix.latitude,
        "lon": fix.longitude,
        "accuracyMeters": fix.accuracy,
        "isPrecise": fix.accuracy <= PRECISE,
        "source": fix.source,
        **{key: value for key, value in optional.items() if value is not None},
    }
