"""Voices: programs and services that turn text into sound."""

import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

from msgspec import Struct

from ...core.errors import ToolArguments, ToolError, ToolTimeout, ToolUnavailable
from ...net.peers import is_loopback
from ..exec.process import run_tool

SYNTHESIS_WAIT: Final = 60.0  # seconds a voice may take over the longest text
MAX_SOUND: Final = 64 << 20  # bytes; 5,000 characters read slowly are about 20 MB
SERVICE_WAIT: Final = 30.0  # seconds for the speech service
VOICE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+. /()-]{0,99}")
ELEVENLABS_URL: Final = "https://api.elevenlabs.io"
ELEVENLABS_MODEL: Final = "eleven_multilingual_v2"

WAV_HEADER: Final = 44  # bytes before the samples in espeak-ng's and every plain WAV
POWERSHELL: Final = (
    "Add-Type -AssemblyName System.Speech; $s = New-Object System.Speech.Synthesis.SpeechSynthesizer; "
    "$s.SetOutputToWaveFile($env:OPENCLAW_SPEECH); $s.Speak([Console]::In.ReadToEnd()); $s.Dispose()"
)


class Speech(Struct, frozen=True):
    data: bytes
    mime_type: str


class Voice(Protocol):
    async def synthesize(self, text: str, *, voice: str | None, model: str | None) -> Speech: ...


def find_system_voice(environ: Mapping[str, str], platform: str = sys.platform) -> str | None:
    """The program that speaks for this system."""
    names = {"darwin": ("say",), "win32": ("powershell", "pwsh")}.get(platform, ("espeak-ng", "espeak", "spd-say"))
    return next((name for name in names if shutil.which(name, path=environ.get("PATH"))), None)


class SystemVoice:
    """espeak-ng, macOS's `say` or Windows' System.Speech, as `program` names it. `spd-say` only plays."""

    def __init__(self, program: str, environ: Mapping[str, str]) -> None:
        self._program, self._environ = program, environ

    async def synthesize(self, text: str, *, voice: str | None, model: str | None) -> Speech:
        if voice is not None and not VOICE_NAME.fullmatch(voice):
            raise ToolArguments("voiceId is no name of a voice")
        with tempfile.TemporaryDirectory(prefix="openclaw-speech-") as folder:
            path = Path(folder) / "speech.wav"
            argv, environ = self._command_line(path, voice), {**self._environ, "OPENCLAW_SPEECH": str(path)}
            done = await run_tool(argv, seconds=SYNTHESIS_WAIT, max_bytes=MAX_SOUND, stdin=text.encode(), env=environ)
            data = path.read_bytes() if path.exists() else done.output
        if done.code or len(data) <= WAV_HEADER:
            raise ToolError(f"Speak failed: {done.error_line or f'{self._program} gave no sound'}")
        return Speech(fix_wav_lengths(data), "audio/wav")

    def _command_line(self, path: Path, voice: str | None) -> list[str]:
        chosen = ["-v", voice] if voice else []
        if self._program == "say":
            return ["say", *chosen, "--data-format=LEI16@22050", "-o", str(path)]
        if self._program in ("powershell", "pwsh"):
            return [self._program, "-NoProfile", "-NonInteractive", "-Command", POWERSHELL]
        return [self._program, *chosen, "--stdin", "--stdout"]


class ElevenLabsVoice:
    """The speech service of that name. The key is sent to its own address and nowhere else."""

    def __init__(self, *, key: str, url: str = ELEVENLABS_URL) -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
            raise ToolUnavailable("ElevenLabs is reached over https only; correct its address in the settings")
        self._key = key
        self._url = url.rstrip("/")

    async def synthesize(self, text: str, *, voice: str | None, model: str | None) -> Speech:
        # Here for start-up: only this voice speaks HTTP.
        from ...net.httpx_client import ResponseTooLarge, create_client, httpx, read_body

        url = f"{self._url}/v1/text-to-speech/{quote(voice or '', safe='')}"
        headers = {"xi-api-key": self._key, "Accept": "audio/mpeg"}
        body = {"text": text, "model_id": model or ELEVENLABS_MODEL}
        try:
            # Neither redirects nor a proxy of the environment: the key must reach no other host.
            async with (
                create_client(timeout=SERVICE_WAIT, trust_environment=False) as client,
                client.stream("POST", url, headers=headers, json=body) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise ToolError(_refusal_message(response.status_code))
                data = await read_body(response, MAX_SOUND)
        except ResponseTooLarge:
            raise ToolError("Speak failed: ElevenLabs sent too much") from None
        except httpx.TimeoutException:
            raise ToolTimeout("Speak failed: ElevenLabs did not answer in time") from None
        except httpx.HTTPError:
            raise ToolUnavailable("Speak failed: ElevenLabs can't be reached") from None
        if not data:
            raise ToolError("Speak failed: ElevenLabs sent no sound")
        return Speech(data, "audio/mpeg")


def fix_wav_lengths(wav: bytes) -> bytes:
    """The WAV with its true lengths; one written to a pipe claims to have none or all."""
    place = wav.find(b"data", 12, 4096)
    if wav[:4] != b"RIFF" or place < 0:
        return wav
    sound = len(wav) - place - 8
    riff = wav[:4] + struct.pack("<I", len(wav) - 8)
    return riff + wav[8 : place + 4] + struct.pack("<I", sound) + wav[place + 8 :]


def wav_seconds(speech: Speech) -> float | None:
    """How long a WAV plays; None for other kinds."""
    wav = speech.data
    if speech.mime_type != "audio/wav" or len(wav) <= WAV_HEADER or wav[:4] != b"RIFF":
        return None
    (rate,) = struct.unpack_from("<I", wav, 28)  # bytes a second
    return (len(wav) - WAV_HEADER) / rate if rate else None


def _refusal_message(status: int) -> str:
    reasons = {
        401: "it refused the API key; store a valid one",
        404: "it has no such voice",
        429: "its quota is used up",
    }
    return f"Speak failed: ElevenLabs answered {status}: {reasons.get(status, 'it could not speak the text')}"
