"""Speech: the machine says a text aloud, with its own voice or ElevenLabs'."""

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from ...core.errors import ToolArguments, ToolBusy, ToolError, ToolTimeout, ToolUnavailable
from ...core.model import Json, ToolCall, ToolResult, ToolSpec
from .. import arguments
from ..api_keys import ELEVENLABS_KEY, BadKey, KeyStore
from ..capability import NodeCommand, UnavailableReason, json_result
from ..exec.child_process import child_process, read_last_line, run_program
from . import ffmpeg, sound, voices
from .results import audio_result
from .voices import ElevenLabsVoice, Speech, SystemVoice, Voice

MAX_TEXT_LENGTH: Final = 5000  # characters
MAX_SPEECH: Final = 900.0  # seconds the longest text may take to say
PLAY_GRACE: Final = 15.0  # seconds a player may take beyond the sound's own length
QUEUE_WAIT: Final = 900.0  # seconds behind other speech
KEY_WAIT: Final = 10.0  # seconds for the keyring
CONVERT_WAIT: Final = 30.0
STOP_WAIT: Final = 2.0  # seconds to make speech-dispatcher fall silent
PROGRESS_EVERY: Final = 1.0  # seconds between two words on how far it is

INTERRUPTED: Final = "Speak canceled: a newer call interrupted it"
SYSTEM_PROVIDER: Final = "system"
ELEVENLABS_PROVIDER: Final = "elevenlabs"
PROVIDER_NAMES: Final = {
    SYSTEM_PROVIDER: SYSTEM_PROVIDER,
    "windows": SYSTEM_PROVIDER,
    "macos": SYSTEM_PROVIDER,
    "espeak": SYSTEM_PROVIDER,
    "espeak-ng": SYSTEM_PROVIDER,
    ELEVENLABS_PROVIDER: ELEVENLABS_PROVIDER,
}

SPEAK = ToolSpec(
    name="tts.speak",
    title="Speak",
    description="Say a text aloud on this machine's speakers. Returns when it has been said.",
    input_schema=arguments.object_schema(
        {
            "text": {"type": "string", "description": "What to say, at most 5000 characters."},
            "provider": {"type": "string", "description": "system or elevenlabs; default the one in the settings."},
            "voiceId": {"type": "string", "description": "A voice of that provider."},
            "model": {"type": "string", "description": "ElevenLabs model."},
            "interrupt": {"type": "boolean", "description": "Stop what is being said and is waiting; default false."},
        },
        required=("text",),
    ),
    annotations={"readOnlyHint": False, "destructiveHint": False},
    effect="write",
    deadline=QUEUE_WAIT + MAX_SPEECH,
    task="offered",
)
STATUS = ToolSpec(
    name="tts.status",
    title="Speech status",
    description="Which voices are ready, and which one tts.speak would use.",
    input_schema=arguments.object_schema({}),
    annotations={"readOnlyHint": True, "openWorldHint": False},
)


class VoiceChoice(Struct, frozen=True):
    """Which provider was asked for, which one speaks."""

    requested: str
    effective: str
    voice: str | None
    model: str | None
    explicit: bool = False
    """The caller named the provider, so no other may stand in for it."""

    @property
    def is_fallback(self) -> bool:
        return self.requested != self.effective


class TtsCapability:
    """`tts.*`. Speech is said one at a time; the ElevenLabs key comes from `keys` and goes to that service only."""

    name = "tts"

    def __init__(
        self,
        *,
        state_dir: Path,
        provider: str | None = None,
        voice: str | None = None,
        elevenlabs_voice: str | None = None,
        elevenlabs_model: str | None = None,
        elevenlabs_url: str = voices.ELEVENLABS_URL,
        keyring: bool = True,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.keys = KeyStore(state_dir, keyring=keyring)
        self._provider = provider or SYSTEM_PROVIDER
        self._voice = voice
        self._elevenlabs_voice = elevenlabs_voice
        self._elevenlabs_model = elevenlabs_model
        self._elevenlabs_url = elevenlabs_url
        self._environ = environ
        self._lock = asyncio.Lock()
        self._interrupt_events: set[asyncio.Event] = set()

    def commands(self) -> Sequence[NodeCommand]:
        return (NodeCommand(spec=SPEAK, run=self._speak), NodeCommand(spec=STATUS, run=self._status))

    def unavailable_reason(self, command: str) -> UnavailableReason | None:
        if command == STATUS.name:
            return None
        system = voices.find_system_voice(self._environ)
        if system is None and self._readiness(ELEVENLABS_PROVIDER, None) != "ready":
            return UnavailableReason(
                "There is no voice: no speech program is installed and ElevenLabs is not set up.",
                "Install espeak-ng (Debian: apt install espeak-ng), or store an ElevenLabs key and voice.",
            )
        if system != "spd-say" and sound.find_player(self._environ) is None:
            return UnavailableReason(
                "Nothing here can play sound: no sound server or card is in reach, or no player is installed.",
                "Start the node in the desktop session; install pipewire-bin, pulseaudio-utils or alsa-utils.",
            )
        return None

    async def aclose(self) -> None:
        self._interrupt_all()

    async def _status(self, call: ToolCall) -> ToolResult:
        effective = self._provider if self._readiness(self._provider, None) == "ready" else SYSTEM_PROVIDER
        providers = []
        for name in (SYSTEM_PROVIDER, ELEVENLABS_PROVIDER):
            readiness = self._readiness(name, None)
            providers.append({"provider": name, "readiness": readiness, "isReady": readiness == "ready"})
        return json_result(
            {
                "configuredProvider": self._provider,
                "effectiveProvider": effective,
                "willFallBack": effective != self._provider,
                "providers": providers,
            }
        )

    async def _speak(self, call: ToolCall) -> ToolResult:
        begun = time.monotonic()
        text = arguments.text(call.arguments, "text")
        if text is None:
            raise ToolArguments("Missing required text")
        if len(text) > MAX_TEXT_LENGTH:
            raise ToolArguments(f"TTS text exceeds {MAX_TEXT_LENGTH} characters.")
        choice = self._choose_voice(call.arguments)
        missing = self.unavailable_reason(SPEAK.name)
        if missing is not None:
            raise ToolUnavailable(f"TTS speak not available: {missing.reason} {missing.remedy}")
        if arguments.flag(call.arguments, "interrupt", default=False):
            self._interrupt_all()
        async with self._hold_lock() as hushed:
            speech, choice = await self._synthesize(text, choice)
            if hushed.is_set():
                raise ToolError(INTERRUPTED)
            if speech is None:
                await self._play_with_dispatcher(call, text, hushed)
            else:
                await self._play_speech(call, speech, hushed)
        kind = speech.mime_type if speech else "audio/wav"
        value: Json = {
            "spoken": True,
            "provider": choice.effective,
            "requestedProvider": choice.requested,
            "fellBack": choice.is_fallback,
            "contentType": kind,
            "durationMs": round((time.monotonic() - begun) * 1000),
        }
        return audio_result(value, speech.data if speech else None, kind)

    # ---- which voice ----------------------------------------------------------------------------------------------

    def _choose_voice(self, call_arguments: Json) -> VoiceChoice:
        """A provider the caller names is taken at its word; the one of the settings may be stood in for."""
        named, voice, model = (arguments.text(call_arguments, name) for name in ("provider", "voiceId", "model"))
        if named is not None:
            provider = PROVIDER_NAMES.get(named.lower())
            if provider is None:
                raise ToolArguments("There is no such TTS provider here; use system or elevenlabs")
            readiness = self._readiness(provider, voice)
            if readiness != "ready":
                raise ToolUnavailable(f"TTS speak not available: {provider} is not ready ({readiness})")
            return VoiceChoice(provider, provider, voice, model, explicit=True)
        if self._readiness(self._provider, voice) == "ready":
            return VoiceChoice(self._provider, self._provider, voice, model)
        return VoiceChoice(self._provider, SYSTEM_PROVIDER, None, None)

    def _readiness(self, provider: str, voice: str | None) -> str:
        if provider == SYSTEM_PROVIDER:
            return "ready" if voices.find_system_voice(self._environ) else "unavailable"
        if self.keys.location(ELEVENLABS_KEY) is None:
            return "needs-api-key"
        return "ready" if voice or self._elevenlabs_voice else "needs-voice"

    async def _synthesize(self, text: str, choice: VoiceChoice) -> tuple[Speech | None, VoiceChoice]:
        """The speech, or None when the system's program only plays; and the choice as it turned out."""
        if choice.effective == ELEVENLABS_PROVIDER:
            voice, model = choice.voice or self._elevenlabs_voice, choice.model or self._elevenlabs_model
            try:
                return await (await self._open_elevenlabs()).synthesize(text, voice=voice, model=model), choice
            except ToolError:
                if choice.explicit or self._readiness(SYSTEM_PROVIDER, None) != "ready":
                    raise
            choice = VoiceChoice(choice.requested, SYSTEM_PROVIDER, None, None)
        program = voices.find_system_voice(self._environ)
        if program is None:
            raise ToolUnavailable("TTS speak not available: no speech program is installed")
        if program == "spd-say":
            return None, choice
        speech = await SystemVoice(program, self._environ).synthesize(
            text, voice=choice.voice or self._voice, model=None
        )
        return speech, choice

    async def _open_elevenlabs(self) -> Voice:
        try:
            async with asyncio.timeout(KEY_WAIT):
                key = await asyncio.to_thread(self.keys.read, ELEVENLABS_KEY)
        except TimeoutError:
            raise ToolTimeout("the desktop's keyring did not answer; unlock it or store the key in a file") from None
        except BadKey as exc:
            raise ToolUnavailable(str(exc)) from None
        if key is None:
            raise ToolUnavailable("TTS speak not available: elevenlabs is not ready (needs-api-key)")
        return ElevenLabsVoice(key=key, url=self._elevenlabs_url)

    # ---- saying it --------------------------------------------------------------------------------------------------

    def _interrupt_all(self) -> None:
        for event in self._interrupt_events:
            event.set()

    @asynccontextmanager
    async def _hold_lock(self) -> AsyncIterator[asyncio.Event]:
        """One speaks at a time; the event is set when a newer call wants silence."""
        hushed = asyncio.Event()
        self._interrupt_events.add(hushed)
        try:
            try:
                async with asyncio.timeout(QUEUE_WAIT):
                    await self._lock.acquire()
            except TimeoutError:
                raise ToolBusy("too much is waiting to be said; try again, or interrupt") from None
            try:
                yield hushed
            finally:
                self._lock.release()
        finally:
            self._interrupt_events.discard(hushed)

    async def _play_with_dispatcher(self, call: ToolCall, text: str, interrupt: asyncio.Event) -> None:
        """Have speech-dispatcher say it. It goes on by itself, so it is told when to stop."""
        spoken = False
        try:
            await self._play(call, (self._program_path("spd-say"), "--wait", "--", text), None, interrupt)
            spoken = True
        finally:
            if not spoken:
                stop = run_program(
                    (self._program_path("spd-say"), "--cancel"), seconds=STOP_WAIT, most=1024, env=self._environ
                )
                with contextlib.suppress(ToolError):
                    await asyncio.shield(stop)

    def _program_path(self, name: str) -> str:
        return shutil.which(name, path=self._environ.get("PATH")) or name

    async def _play_speech(self, call: ToolCall, speech: Speech, interrupt: asyncio.Event) -> None:
        player = sound.find_player(self._environ)
        if player is None:
            raise ToolUnavailable("TTS speak not available: the sound server is gone")
        if speech.mime_type != "audio/wav" and player[0] != "ffplay":
            speech = await self._convert_to_wav(speech)
        ending = "wav" if speech.mime_type == "audio/wav" else "mp3"
        with tempfile.TemporaryDirectory(prefix="openclaw-speech-") as folder:
            path = Path(folder) / f"speech.{ending}"
            await asyncio.to_thread(path.write_bytes, speech.data)
            await self._play(call, (*player, str(path)), voices.wav_seconds(speech), interrupt)

    async def _convert_to_wav(self, speech: Speech) -> Speech:
        """Most players know WAV only. Without ffmpeg the sound goes to them as it came."""
        program = ffmpeg.find_ffmpeg()
        if program is None:
            return speech
        argv = [program, "-hide_banner", "-loglevel", "error", "-i", "pipe:0", "-f", "wav", "-bitexact", "pipe:1"]
        done = await run_program(argv, seconds=CONVERT_WAIT, most=voices.MAX_SOUND, stdin=speech.data)
        if done.code or not done.output:
            raise ToolError("Speak failed: what ElevenLabs sent is no sound")
        return Speech(voices.fix_wav_lengths(done.output), "audio/wav")

    async def _play(
        self, call: ToolCall, argv: Sequence[str], duration: float | None, interrupt: asyncio.Event
    ) -> None:
        limit = MAX_SPEECH if duration is None else duration + PLAY_GRACE
        async with child_process(argv, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env=self._environ) as process:
            assert process.stderr is not None
            ended = asyncio.create_task(read_last_line(process.stderr))
            silenced = asyncio.create_task(interrupt.wait())
            try:
                async with asyncio.timeout(limit):
                    await _wait_for_player(ended, silenced, call, duration)
                    if silenced.done():
                        raise ToolError(INTERRUPTED)
                    code = await process.wait()
            except TimeoutError:
                raise ToolTimeout("Speak failed: the player did not come to an end") from None
            finally:
                for task in (ended, silenced):
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.gather(ended, silenced, return_exceptions=True)
            if code:
                raise ToolError(f"Speak failed: {ended.result() or f'{argv[0]} could not play'}")


async def _wait_for_player(
    player_exit: "asyncio.Task[str]", interrupt: "asyncio.Task[Literal[True]]", call: ToolCall, duration: float | None
) -> None:
    """Wait until the player ends or silence is wanted, telling the caller how far it is."""
    begun = time.monotonic()
    while not player_exit.done() and not interrupt.done():
        await asyncio.wait((player_exit, interrupt), timeout=PROGRESS_EVERY, return_when=asyncio.FIRST_COMPLETED)
        spoken = time.monotonic() - begun
        if duration is None or spoken < duration:
            await call.context.progress(spoken, total=duration, message="speaking")
