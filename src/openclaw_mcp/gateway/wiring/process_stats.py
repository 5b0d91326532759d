"""Figures of this process and machine: memory, processor time, the event loop's delay."""

import asyncio
import contextlib
import os
import platform
import shutil
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

from ...core.model import Json

SAMPLE_INTERVAL: Final = 5.0  # seconds between samples of the loop; an idle gateway should stay idle
MAX_SAMPLES: Final = 24
DEGRADED_DELAY: Final = 1.0  # seconds of delay that make the loop count as degraded


class EventLoopMonitor:
    """`sample` is to be called again and again while the gateway runs."""

    def __init__(self) -> None:
        self._delays: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._load = 0.0
        self._interval = SAMPLE_INTERVAL

    async def sample(self) -> None:
        """Wait for one interval and measure by how much it was exceeded."""
        began, used = time.monotonic(), time.process_time()
        await asyncio.sleep(SAMPLE_INTERVAL)
        self._interval = time.monotonic() - began
        self._delays.append(max(0.0, self._interval - SAMPLE_INTERVAL))
        self._load = (time.process_time() - used) / self._interval

    def stats(self) -> Json:
        worst = max(self._delays, default=0.0)
        return {
            "degraded": worst > DEGRADED_DELAY, "degradedSinceMs": None,
            "reasons": ["event_loop_delay"] if worst > DEGRADED_DELAY else [],
            "intervalMs": round(self._interval * 1000, 1), "delayP99Ms": round(worst * 1000, 1),
            "delayMaxMs": round(worst * 1000, 1), "utilization": round(min(1.0, self._load), 3),
            "cpuCoreRatio": round(self._load, 3),
        }  # fmt: skip


def resident_memory() -> int:
    """Bytes of memory this process uses."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, IndexError, ValueError):
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import psutil  # here for start-up and idle memory: on Linux it is not needed

    return int(psutil.Process().memory_info().rss)


def machine_info(folder: Path) -> Json:
    """The part of `system.info` on the machine."""
    system, release = platform.system(), platform.release()
    disk = shutil.disk_usage(folder)
    import psutil  # here for start-up and idle memory: only this method needs it

    memory = psutil.virtual_memory()
    return {
        "machineName": socket.gethostname(), "hostname": socket.gethostname(), "pid": os.getpid(),
        "platform": sys.platform, "release": release, "osLabel": f"{system} {release}",
        "arch": {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "nodeVersion": f"python {platform.python_version()}",
        "cpuCount": os.cpu_count() or 1, "loadAverage": list(psutil.getloadavg()),
        "memoryTotalBytes": memory.total, "memoryFreeBytes": memory.free,
        "disks": [{"path": str(folder), "totalBytes": disk.total, "availableBytes": disk.free}],
        "diskTotalBytes": disk.total, "diskAvailableBytes": disk.free, "diskPath": str(folder),
    }  # fmt: skip


def host_names() -> frozenset[str]:
    """Names by which other machines reach this one, as far as it knows them."""
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    return frozenset({name, short, f"{short}.local"})
