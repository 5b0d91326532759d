"""Films and stills made by the ffmpeg program: how it is called, watched and stopped."""

import asyncio
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ...core.errors import ToolError
from ...core.model import ToolCall
from ...core.numbers import parse_whole_number
from ..capability import UnavailableReason
from ..exec.child_process import child_process, read_last_line, run_program
from .results import MAX_MEDIA

START_GRACE: Final = 20.0  # seconds beyond the film's length for opening a device and writing the file
STILL_WAIT: Final = 20.0  # seconds for one picture, beyond the warm-up asked for
SIZE_SHARE: Final = 0.8  # of the room an answer has; the encoder's rate limit is not exact
MAX_RATE: Final = 8_000_000  # bits a second; a sharper film of a screen is not seen
AUDIO_RATE: Final = 128_000
COMMON_OPTIONS: Final = ("-hide_banner", "-loglevel", "error", "-nostdin", "-y")

FFMPEG_UNAVAILABLE: Final = UnavailableReason(
    "The program ffmpeg is not installed.", "Install ffmpeg (Debian and Ubuntu: apt install ffmpeg)."
)


def find_ffmpeg() -> str | None:
    return shutil.which("ffmpeg")


async def record_video(
    call: ToolCall,
    *,
    video: Sequence[str],
    audio: Sequence[str] | None,
    seconds: float,
    fps: float | None = None,
    environ: Mapping[str, str] | None = None,
) -> bytes:
    """Record an MP4, telling the caller how far it is. `video` and `audio` are ffmpeg's input options."""
    with tempfile.TemporaryDirectory(prefix="openclaw-film-") as folder:
        path = Path(folder) / "film.mp4"
        argv = [
            find_ffmpeg() or "ffmpeg",
            *COMMON_OPTIONS,
            "-progress",
            "pipe:1",
            "-stats_period",
            "0.5",
            *video,
            *(audio or ()),
        ]
        argv += ["-t", f"{seconds:.3f}", *(() if fps is None else ("-r", f"{fps:g}")), *_encoder_options(seconds)]
        argv += ["-c:a", "aac", "-b:a", str(AUDIO_RATE), "-shortest"] if audio else ["-an"]
        async with child_process([*argv, str(path)], stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                async with asyncio.timeout(seconds + START_GRACE), asyncio.TaskGroup() as tasks:
                    complaint = tasks.create_task(read_last_line(process.stderr))
                    tasks.create_task(_report_progress(call, process.stdout, seconds))
                    code = tasks.create_task(process.wait())
            except TimeoutError:
                raise ToolError("ffmpeg did not finish in time: the source gives no pictures") from None
        data = await asyncio.to_thread(_read_if_exists, path)
        if code.result() or not data:
            raise ToolError(f"Recording failed: {complaint.result() or 'ffmpeg gave no film'}")
        return data


async def capture_still(*, video: Sequence[str], warm_up: float, width: int, quality: int, png: bool) -> bytes:
    """One picture, not wider than `width`. `quality` counts for JPEG only."""
    codec = (
        ["-c:v", "png"] if png else ["-c:v", "mjpeg", "-q:v", str(round(31 - quality * 0.29)), "-pix_fmt", "yuvj420p"]
    )
    argv = [find_ffmpeg() or "ffmpeg", *COMMON_OPTIONS, *video, *(("-ss", f"{warm_up:.3f}") if warm_up else ())]
    argv += ["-frames:v", "1", "-vf", rf"scale=min(iw\,{width}):-2", *codec, "-f", "image2pipe", "pipe:1"]
    finished = await run_program(argv, seconds=warm_up + STILL_WAIT, most=MAX_MEDIA)
    if finished.code or not finished.output:
        raise ToolError(f"Snap failed: {finished.error_line or 'ffmpeg gave no picture'}")
    return finished.output


def _encoder_options(seconds: float) -> list[str]:
    """H.264 at a rate that lets a film of this length fit into one answer."""
    rate = min(MAX_RATE, int(MAX_MEDIA * 8 * SIZE_SHARE / seconds) - AUDIO_RATE)
    quality = ["-c:v", "libx264", "-preset", "veryfast", "-crf", "23", "-maxrate", str(rate), "-bufsize", str(rate)]
    # Even sides and 4:2:0, or half of all players show nothing.
    return [*quality, "-vf", "crop=trunc(iw/2)*2:trunc(ih/2)*2", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]


def _read_if_exists(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


async def _report_progress(call: ToolCall, stream: asyncio.StreamReader, seconds: float) -> None:
    told = 0.0
    async for line in stream:
        key, _, value = line.decode(errors="replace").strip().partition("=")
        if key == "out_time_us" and (microseconds := parse_whole_number(value)) is not None:
            done = microseconds / 1e6
            if min(done, seconds) > told:
                told = min(done, seconds)
                await call.context.progress(told, total=seconds, message=f"recorded {told:.1f} of {seconds:g} s")
