"""Where this machine is: the place in the settings, or what GeoClue finds. No address is ever looked up on the net."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from ..core.errors import ToolDenied, ToolTimeout, ToolUnavailable
from ..core.model import Json, ToolCall, ToolResult, ToolSpec
from . import arguments
from .capability import Command, Missing, answer

DEADLINE: Final = 90.0  # seconds; the longest wait a caller may ask for, and some
LONGEST_WAIT: Final = 60_000  # milliseconds
SHORTEST_WAIT: Final = 1_000
OLDEST_FIX: Final = 24 * 3600 * 1000  # milliseconds; older than a day is no answer to "where"
PRECISE: Final = 100.0  # metres
LEVELS: Final = {"coarse": 4, "balanced": 6, "default": 6, "high": 8, "precise": 8}
"""A caller's word to GeoClue's accuracy level: city, street, exact."""
SYSTEM_BUS: Final = Path("/run/dbus/system_bus_socket")
GEOCLUE: Final = Path("/usr/share/dbus-1/system-services/org.freedesktop.GeoClue2.service")

GET = ToolSpec(
    name="location.get",
    title="Where is this machine?",
    description="The position of this machine: latitude, longitude and accuracy in metres.",
    input_schema=arguments.schema(
        {
            "desiredAccuracy": {"type": "string", "description": "coarse, balanced (default) or precise."},
            "accuracy": {"type": "string", "description": "Another name: default, high or precise."},
            "maxAgeMs": {"type": "integer", "description": "A position this old is good enough; default 30000."},
            "maxAge": {"type": "integer", "description": "Another name for maxAgeMs."},
            "timeoutMs": {"type": "integer", "description": "How long to wait, 1000 to 60000 ms; default 10000."},
            "locationTimeout": {"type": "integer", "description": "Another name for timeoutMs."},
        }
    ),
    annotations={"readOnlyHint": True, "openWorldHint": False},
    deadline=DEADLINE,
)


class Position(Protocol):
    """A place somebody wrote down."""

    @property
    def latitude(self) -> float: ...
    @property
    def longitude(self) -> float: ...
    @property
    def accuracy(self) -> float: ...


class Fix(Struct, frozen=True, kw_only=True):
    latitude: float
    longitude: float
    accuracy: float
    timestamp: int
    """Unix milliseconds."""
    source: str
    altitude: float | None = None
    speed: float | None = None
    heading: float | None = None


class NoFix(Exception):
    """GeoClue has no answer; `code` is LOCATION_PERMISSION_REQUIRED or LOCATION_UNAVAILABLE."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Location:
    """`location.get`. `fixed`, if given, is the answer; `bus` names another bus than the system's."""

    name = "location"

    def __init__(
        self,
        *,
        fixed: Position | None = None,
        bus: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._fixed = fixed
        self._bus = bus or environ.get("DBUS_SYSTEM_BUS_ADDRESS")
        self._last: tuple[int, Fix] | None = None

    def commands(self) -> Sequence[Command]:
        return (Command(spec=GET, run=self._get),)

    def missing(self, command: str) -> Missing | None:
        if self._fixed is not None:
            return None
        write = "write the place into the setting locationFixed"
        if sys.platform != "linux":
            return Missing("Finding the position is built for Linux only so far.", f"Please {write}.")
        if find_spec("dbus_fast") is None:
            return Missing("The Python package dbus-fast is not installed.", "Run: pip install 'openclaw-mcp[node]'.")
        if self._bus is None and not (SYSTEM_BUS.exists() and GEOCLUE.exists()):
            return Missing(
                "GeoClue, which finds the position, is not installed or has no system bus.",
                f"Install geoclue-2.0, or {write}.",
            )
        return None

    async def aclose(self) -> None:
        return

    async def _get(self, call: ToolCall) -> ToolResult:
        given = call.arguments
        wait = arguments.whole(
            given, "timeoutMs", "locationTimeout", default=10_000, least=SHORTEST_WAIT, most=LONGEST_WAIT
        )
        age = arguments.whole(given, "maxAgeMs", "maxAge", default=30_000, least=0, most=OLDEST_FIX)
        wish = (arguments.text(given, "desiredAccuracy", "accuracy") or "default").lower()
        level = LEVELS.get(wish, LEVELS["default"])
        if self._fixed is not None:
            place = self._fixed
            return answer(
                shape(
                    Fix(
                        latitude=place.latitude,
                        longitude=place.longitude,
                        accuracy=place.accuracy,
                        timestamp=_now(),
                        source="fixed",
                    )
                )
            )
        missing = self.missing(GET.name)
        if missing is not None:
            raise ToolUnavailable(f"LOCATION_UNAVAILABLE: {missing.reason} {missing.remedy}")
        if self._last is not None and self._last[0] >= level and _now() - self._last[1].timestamp < age:
            return answer(shape(self._last[1]))
        fix = await self._ask(level, wait / 1000)
        self._last = (level, fix)
        return answer(shape(fix))

    async def _ask(self, level: int, seconds: float) -> Fix:
        # Here for start-up: the bus is spoken to by few nodes, and then seldom.
        from . import geoclue

        try:
            async with asyncio.timeout(seconds):
                return await geoclue.fix(self._bus, level=level)
        except TimeoutError:
            raise ToolTimeout(f"LOCATION_TIMEOUT: no position was found within {seconds:g} s") from None
        except NoFix as exc:
            if exc.code == "LOCATION_PERMISSION_REQUIRED":
                raise ToolDenied(
                    f"{exc.code}: switch location services on, and allow openclaw-mcp to use them"
                ) from None
            raise ToolUnavailable(f"{exc.code}: GeoClue does not answer; is its service running?") from None


def shape(fix: Fix) -> Json:
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


def _now() -> int:
    return time.time_ns() // 1_000_000
