"""Speech to text by what the configuration names: an OpenAI-compatible endpoint, Deepgram, or a program here."""

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ....core.agent import Attachment
from ....core.errors import OpenClawError
from ....core.mime import suffix_of
from ....core.model import Json
from ....net.environment import minimal_environment
from ....net.process_streams import KeptOutput
from ....net.processes import ProcessStartError, start_process

WAIT: Final = 120.0  # seconds one recording may take
MAX_OUTPUT: Final = 1 << 20  # bytes a program may print
MAX_RESPONSE: Final = 4 << 20  # bytes a server may answer; hours of speech with its timings stay below
PROVIDERS: Final = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY", "gpt-4o-mini-transcribe"),
    "groq": ("https://api.groq.com/openai/v1", "GROQ_API_KEY", "whisper-large-v3-turbo"),
    "deepgram": ("https://api.deepgram.com/v1", "DEEPGRAM_API_KEY", "nova-3"),
}
"""Provider to base address, the variable that holds its key, and the default model."""


class TranscriptionFailed(OpenClawError):
    """The text is one clause: why."""

    code = "not_transcribed"


async def transcribe(
    recording: Attachment, data: bytes, models: Sequence[Json], environ: Mapping[str, str] | None = None
) -> str:
    """The text of a recording, by the first of `models` that succeeds. Raises TranscriptionFailed."""
    reasons = []
    for model in models:
        try:
            async with asyncio.timeout(_timeout_seconds(model)):
                return await _transcribe_with(model, recording, data, os.environ if environ is None else environ)
        except TimeoutError:
            reasons.append(f"{_model_label(model)} took longer than {_timeout_seconds(model):g} s")
        except TranscriptionFailed as exc:
            reasons.append(str(exc))
    raise TranscriptionFailed("; ".join(reasons) or "no transcription is configured (tools.media.audio.models)")


async def _transcribe_with(model: Json, recording: Attachment, data: bytes, environ: Mapping[str, str]) -> str:
    if model.get("type") == "cli" or "command" in model:
        return await _transcribe_program(model, recording, data, environ)
    provider = str(model.get("provider", "openai"))
    base, variable, default_model = PROVIDERS.get(provider, ("", f"{provider.upper().replace('-', '_')}_API_KEY", ""))
    base = str(model.get("baseUrl") or base).rstrip("/")
    if not base:
        raise TranscriptionFailed(f"{provider} needs a baseUrl")
    key = str(model.get("apiKey") or environ.get(variable) or "")
    name = str(model.get("model") or default_model)
    if provider == "deepgram":
        return await _transcribe_deepgram(base, key, name, recording, data)
    return await _transcribe_openai(base, key, name, recording, data)


async def _transcribe_openai(base: str, key: str, model: str, recording: Attachment, data: bytes) -> str:
    answer = await _post_json(
        f"{base}/audio/transcriptions",
        headers={"Authorization": f"Bearer {key}"} if key else {},
        data={"model": model, "response_format": "json"},
        files={"file": (recording.name or f"recording{suffix_of(recording.mime_type)}", data, recording.mime_type)},
    )
    text = answer.get("text")
    if not isinstance(text, str):
        raise TranscriptionFailed("the answer of the transcription server holds no text")
    return text


async def _transcribe_deepgram(base: str, key: str, model: str, recording: Attachment, data: bytes) -> str:
    answer = await _post_json(
        f"{base}/listen",
        params={"model": model, "smart_format": "true", "detect_language": "true"},
        headers={"Authorization": f"Token {key}", "Content-Type": recording.mime_type},
        content=data,
    )
    try:
        text = answer["results"]["channels"][0]["alternatives"][0]["transcript"]
    except (KeyError, IndexError, TypeError):
        raise TranscriptionFailed("the answer of the transcription server holds no text") from None
    return str(text)


async def _post_json(url: str, **request: Any) -> Json:
    # Here for start-up: most messages carry no speech.
    from ....net.httpx_client import ResponseTooLarge, create_client, httpx, read_body

    try:
        async with create_client(timeout=WAIT) as client, client.stream("POST", url, **request) as response:
            body = await read_body(response, MAX_RESPONSE)
    except ResponseTooLarge:
        raise TranscriptionFailed(f"the transcription server sent more than {MAX_RESPONSE} bytes") from None
    except httpx.HTTPError as exc:
        raise TranscriptionFailed(f"the transcription server can't be reached ({type(exc).__name__})") from exc
    if response.status_code != 200:
        raise TranscriptionFailed(f"the transcription server answered {response.status_code}")
    try:
        answer = msgspec.json.decode(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise TranscriptionFailed("the answer of the transcription server is not JSON")
    return answer


async def _transcribe_program(model: Json, recording: Attachment, data: bytes, environ: Mapping[str, str]) -> str:
    """Run it on a private copy of the recording, whose name has nothing of the sender's. It prints the text, or
    leaves it in a text file."""
    env = minimal_environment(environ) | {str(name): str(value) for name, value in (model.get("env") or {}).items()}
    with tempfile.TemporaryDirectory(prefix="openclaw-speech-") as folder:
        file = Path(folder) / f"recording{suffix_of(recording.mime_type)}"
        await asyncio.to_thread(file.write_bytes, data)
        replaced = {"{{MediaPath}}": str(file), "{{OutputDir}}": folder}
        args = [_replace_all(str(arg), replaced) for arg in model.get("args", ["{{MediaPath}}"])]
        out, command = KeptOutput(head=MAX_OUTPUT), str(model["command"])
        try:
            async with await start_process([command, *args], cwd=folder, env=env, stdout=out) as child:
                status = await child.wait_finished()
        except ProcessStartError as exc:
            raise TranscriptionFailed(f"{command} can't be started ({exc})") from exc
        if status != 0:
            raise TranscriptionFailed(f"{command} ended with status {status}")
        text = await asyncio.to_thread(_read_output_file, Path(folder)) or out.data
        return text[:MAX_OUTPUT].decode(errors="replace").strip()


def _replace_all(text: str, replaced: Mapping[str, str]) -> str:
    for name, value in replaced.items():
        text = text.replace(name, value)
    return text


def _read_output_file(folder: Path) -> bytes:
    """The text file a program left, as whisper does."""
    return next((file.read_bytes() for file in sorted(folder.glob("*.txt"))), b"")


def _timeout_seconds(model: Json) -> float:
    given = model.get("timeoutSeconds", WAIT)
    return min(float(given), 10 * WAIT) if isinstance(given, int | float) and given > 0 else WAIT


def _model_label(model: Json) -> str:
    return str(model.get("command") or model.get("provider") or "the transcription server")
