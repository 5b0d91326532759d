"""Videos and still pictures made by the ffmpeg program: how it is called, watched and stopped."""

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ...core.errors import ToolError
from ...core.model import ToolCall
from ...core.numbers import parse_whole_number
from ...net.process_streams import KeptOutput, LineOutput
from ..capability import UnavailableReason
from ..exec.process import MAX_STDERR, run_tool, start_tool
from .results import MAX_MEDIA

START_GRACE: Final = 20.0  # seconds beyond the film's length for opening a device and writing the file
STILL_WAIT: Final = 20.0  # seconds for one picture, beyond the warm-up asked for
SIZE_SHARE: Final = 0.8  # of the room an answer has; the encoder's rate limit is not exact
MAX_RATE: Final = 8_000_000  # bits a second; a sharper film of a screen is not seen
AUDIO_RATE: Final = 128_000
MAX_PROGRESS_LINE: Final = 4096  # bytes; ffmpeg's are short
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
    """Record an MP4, reporting progress to the caller. `video` and `audio` are ffmpeg's input options."""
    with tempfile.TemporaryDirectory(prefix="openclaw-film-") as folder:
        path = Path(folder) / "film.mp4"
        argv = [find_ffmpeg() or "ffmpeg", *COMMON_OPTIONS, "-progress", "pipe:1", "-stats_period", "0.5"]
        argv += [*video, *(audio or ()), "-t", f"{seconds:.3f}", *(() if fps is None else ("-r", f"{fps:g}"))]
        argv += [*_encoder_options(seconds)]
        argv += ["-c:a", "aac", "-b:a", str(AUDIO_RATE), "-shortest"] if audio else ["-an"]
        lines, errors = LineOutput(max_length=MAX_PROGRESS_LINE), KeptOutput(tail=MAX_STDERR)
        async with await start_tool([*argv, str(path)], stdout=lines, stderr=errors, env=environ) as process:
            try:
                async with asyncio.timeout(seconds + START_GRACE):
                    await _report_progress(call, lines, seconds)
                    code = await process.wait_finished()
            except TimeoutError:
                raise ToolError("ffmpeg did not finish in time: the source gives no pictures") from None
        data = await asyncio.to_thread(_read_if_exists, path)
        if code or not data:
            raise ToolError(f"Recording failed: {errors.last_line() or 'ffmpeg gave no film'}")
        return data


async def capture_still(*, video: Sequence[str], warm_up: float, width: int, quality: int, png: bool) -> bytes:
    """One picture, not wider than `width`. `quality` counts for JPEG only."""
    codec = (
        ["-c:v", "png"] if png else ["-c:v", "mjpeg", "-q:v", str(round(31 - quality * 0.29)), "-pix_fmt", "yuvj420p"]
    )
    argv = [find_ffmpeg() or "ffmpeg", *COMMON_OPTIONS, *video, *(("-ss", f"{warm_up:.3f}") if warm_up else ())]
    argv += ["-frames:v", "1", "-vf", rf"scale=min(iw\,{width}):-2", *codec, "-f", "image2pipe", "pipe:1"]
    finished = await run_tool(argv, seconds=warm_up + STILL_WAIT, max_bytes=MAX_MEDIA)
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


async def _report_progress(call: ToolCall, lines: LineOutput, seconds: float) -> None:
    reported = 0.0
    async for line in lines:
        key, _, value = (line or b"").decode(errors="replace").strip().partition("=")
        if key == "out_time_us" and (microseconds := parse_whole_number(value)) is not None:
            done = min(microseconds / 1e6, seconds)
            if done > reported:
                reported = done
                await call.context.progress(done, total=seconds, message=f"recorded {done:.1f} of {seconds:g} s")
