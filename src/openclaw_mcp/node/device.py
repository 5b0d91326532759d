"""The machine: its name, model and system, and its load, memory, disks and battery."""

import asyncio
import datetime
import locale
import os
import platform
import socket
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from .. import __version__
from ..core.errors import ToolArguments
from ..core.model import Json, ToolCall, ToolResult
from .arguments import command_spec
from .capability import Capability, NodeCommand, UnavailableReason, json_result

SECTIONS: Final = ("os", "cpu", "memory", "disk", "battery")
MAX_DRIVES: Final = 64

_INFO = command_spec(
    "device.info",
    "About this machine",
    "Names this machine, its model, its operating system and the version of the node.",
)
_STATUS = command_spec(
    "device.status",
    "How this machine is doing",
    "Load, memory, disks, battery, network and uptime of this machine; `sections` narrows it down.",
    {
        "sections": {
            "type": "array",
            "items": {"type": "string"},
            "description": f"Any of {', '.join(SECTIONS)}; all when absent or empty.",
        }
    },
)


class DeviceCapability(Capability):
    """`device.info` and `device.status`."""

    name = "device"

    def __init__(self, *, display_name: Callable[[], str | None] = lambda: None) -> None:
        self._display_name = display_name

    def commands(self) -> Sequence[NodeCommand]:
        return (NodeCommand(spec=_INFO, run=self._info), NodeCommand(spec=_STATUS, run=self._status))

    def unavailable_reason(self, command: str) -> UnavailableReason | None:
        return None

    async def _info(self, call: ToolCall) -> ToolResult:
        return _info_result(self._display_name())

    async def _status(self, call: ToolCall) -> ToolResult:
        wanted = [section.lower() for section in call.arguments.get("sections") or ()]
        unknown = sorted(set(wanted) - set(SECTIONS))
        if unknown:
            raise ToolArguments(f"Unknown sections: {', '.join(unknown)[:200]}; choose from {', '.join(SECTIONS)}")
        return json_result(await asyncio.to_thread(_collect, wanted or SECTIONS))


@lru_cache(maxsize=8)
def _info_result(display_name: str | None) -> ToolResult:
    """None of this changes while we run."""
    return json_result(
        {
            "deviceName": display_name or socket.gethostname(),
            "modelIdentifier": _model_name(),
            "systemName": platform.system(),
            "systemVersion": platform.release(),
            "appVersion": __version__,
            "appBuild": __version__,
            "locale": (locale.getlocale()[0] or "C").replace("_", "-"),
        }
    )


def _model_name() -> str:
    try:
        return Path("/sys/class/dmi/id/product_name").read_text(encoding="utf-8").strip() or platform.machine()
    except (OSError, UnicodeDecodeError):
        return platform.machine()


def _collect(sections: Sequence[str]) -> Json:
    import psutil  # here for start-up: only this command needs it

    collectors: dict[str, Callable[[Any], Any]] = {
        "os": _os,
        "cpu": _cpu,
        "memory": _memory,
        "disk": _disk,
        "battery": _battery,
        "storage": _storage,
        "network": _network,
    }
    status: Json = {"collectedAt": datetime.datetime.now(datetime.UTC).isoformat()}
    for section in (*sections, "battery", "storage", "network"):
        if section not in status:
            try:
                status[section] = collectors[section](psutil)
            except (psutil.Error, OSError, RuntimeError, NotImplementedError, ValueError):
                status[section] = {"error": "collection failed"}
    status["thermal"] = {"state": "nominal"}
    status["uptimeSeconds"] = _uptime(psutil)
    return status


def _uptime(psutil: Any) -> int:
    return max(0, int(time.time() - psutil.boot_time()))


def _os(psutil: Any) -> dict[str, str | int]:
    return {
        "version": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "machineName": socket.gethostname(),
        "uptimeSeconds": _uptime(psutil),
    }


def _cpu(psutil: Any) -> dict[str, str | float | None]:
    used = psutil.cpu_percent(interval=None)
    return {
        "name": _cpu_name(),
        "logicalProcessors": os.cpu_count() or 1,
        "usagePercent": used or None,  # 0 until there is a first sample to compare with
    }


@lru_cache(maxsize=1)
def _cpu_name() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory(psutil: Any) -> dict[str, float]:
    memory = psutil.virtual_memory()
    return {"totalBytes": memory.total, "availableBytes": memory.available, "usagePercent": memory.percent}


def _disk(psutil: Any) -> dict[str, list[dict[str, str | float]]]:
    drives = []
    for part in psutil.disk_partitions(all=False)[:MAX_DRIVES]:
        try:
            usage = psutil.disk_usage(part.mountpoint)
        except OSError:
            continue
        drives.append(
            {
                "name": part.mountpoint,
                "label": part.device,
                "totalBytes": usage.total,
                "freeBytes": usage.free,
                "usagePercent": usage.percent,
                "format": part.fstype,
            }
        )
    return {"drives": drives}


def _battery(psutil: Any) -> dict[str, bool | float | str | None]:
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    if battery is None:
        return {"present": False, "level": None, "state": "unknown", "lowPowerModeEnabled": False}
    left = battery.secsleft
    return {
        "present": True,
        "level": battery.percent / 100,
        "state": "charging" if battery.power_plugged else "unplugged",
        "lowPowerModeEnabled": False,
        "chargePercent": battery.percent,
        "isCharging": bool(battery.power_plugged),
        "estimatedMinutesRemaining": left // 60 if isinstance(left, int) and left > 0 else None,
    }


def _storage(psutil: Any) -> dict[str, int]:
    usage = psutil.disk_usage(str(Path.home().anchor or "/"))
    return {"totalBytes": usage.total, "freeBytes": usage.free, "usedBytes": usage.used}


def _network(psutil: Any) -> dict[str, str | bool | list[str]]:
    up = [name for name, stats in psutil.net_if_stats().items() if stats.isup and name != "lo"]
    kinds = sorted({_interface_kind(name) for name in up})
    return {
        "status": "satisfied" if up else "unsatisfied",
        "isExpensive": False,
        "isConstrained": False,
        "interfaces": kinds,
    }


def _interface_kind(interface: str) -> str:
    if interface.startswith(("wl", "wifi")):
        return "wifi"
    if interface.startswith(("en", "eth")):
        return "wired"
    return "cellular" if interface.startswith(("ww", "ppp", "rmnet")) else "other"
