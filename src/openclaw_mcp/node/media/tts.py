"""Speech: the machine says a text aloud, with its own voice or one of ElevenLabs."""

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...core.errors import ToolArguments, ToolError, ToolTimeout, ToolUnavailable
from ...core.model import Audio, ToolCall, ToolResult
from ...net.process_streams import KeptOutput
from ...net.tasks import finish
from .. import arguments
from ..api_keys import ELEVENLABS_KEY, BadKey, KeyStore
from ..capability import NodeCommand, UnavailableReason, hold_lock, json_result
from ..exec.process import MAX_STDERR, run_tool, start_tool
from ..settings import NodeSettings
from . import ffmpeg, sound, voices
from .results import MAX_SOUND
from .voices import ElevenLabsVoice, Speech, SystemVoice, Voice

MAX_TEXT_LENGTH: Final = 5000  # characters
MAX_SPEECH: Final = 900.0  # seconds the longest text may take to say
PLAY_GRACE: Final = 15.0  # seconds a player may take beyond the sound's own length
QUEUE_WAIT: Final = 900.0  # seconds behind other speech
KEY_WAIT: Final = 10.0  # seconds for the keyring
CONVERT_WAIT: Final = 30.0
STOP_WAIT: Final = 2.0  # seconds to make speech-dispatcher fall silent
PROGRESS_EVERY: Final = 1.0  # seconds between progress reports

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

SPEAK = arguments.command_spec(
    "tts.speak",
    "Speak",
    "Say a text aloud on this machine's speakers. Returns when it has been said.",
    {
        "text": {"type": "string", "description": "What to say, at most 5000 characters."},
        "provider": {"type": "string", "description": "system or elevenlabs; default the one in the settings."},
        "voiceId": {"type": "string", "description": "A voice of that provider."},
        "model": {"type": "string", "description": "ElevenLabs model."},
        "interrupt": {"type": "boolean", "description": "Stop what is being said and is waiting; default false."},
    },
    required=("text",),
    annotations={"readOnlyHint": False, "destructiveHint": False},
    effect="write",
    deadline=QUEUE_WAIT + MAX_SPEECH,
    task="offered",
)
STATUS = arguments.command_spec(
    "tts.status", "Speech status", "Which voices are ready, and which one tts.speak would use."
)


class VoiceChoice(Struct, frozen=True):
    """Which provider was asked for, which one speaks."""

    requested: str
    effective: str
    voice: str | None
    model: str | None
    explicit: bool = False
    """The caller named the provider, so no other may replace it."""

    @property
    def is_fallback(self) -> bool:
        return self.requested != self.effective


class TtsCapability:
    """`tts.*`. One text is said at a time; the ElevenLabs key comes from `keys` and is sent to that service only."""

    name = "tts"

    def __init__(
        self,
        *,
        state_dir: Path,
        settings: Callable[[], NodeSettings] = NodeSettings,
        elevenlabs_url: str = voices.ELEVENLABS_URL,
        keyring: bool = True,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.keys = KeyStore(state_dir, keyring=keyring)
        self._settings, self._elevenlabs_url, self._environ = settings, elevenlabs_url, environ
        self._lock = asyncio.Lock()
        self._utterances: set[_Utterance] = set()

    @property
    def _provider(self) -> str:
        return self._settings().tts_provider or SYSTEM_PROVIDER

    def commands(self) -> Sequence[NodeCommand]:
        return (NodeCommand(spec=SPEAK, run=self._speak), NodeCommand(spec=STATUS, run=self._status))

    def unavailable_reason(self, command: str) -> UnavailableReason | None:
        if command == STATUS.name:
            return None
        system = voices.find_system_voice(self._environ)
        if system is None and self._elevenlabs_lacks(None) is not None:
            return UnavailableReason(
                "There is no voice: no speech program is installed and ElevenLabs is not set up.",
                "Install espeak-ng (Debian: apt install espeak-ng), or store an ElevenLabs key and voice.",
            )
        if not self._can_play(system):
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
        began = time.monotonic()
        text = arguments.text(call, "text")
        if text is None:
            raise ToolArguments("Missing required text")
        if len(text) > MAX_TEXT_LENGTH:
            raise ToolArguments(f"TTS text exceeds {MAX_TEXT_LENGTH} characters.")
        choice = self._choose_voice(call)
        if arguments.flag(call, "interrupt", default=False):
            self._interrupt_all()
        async with self._hold_lock() as utterance:
            speech, choice = await self._synthesize(text, choice)
            if utterance.is_interrupted:
                raise ToolError(INTERRUPTED)
            if speech is None:
                await self._play_with_dispatcher(call, text, utterance)
            else:
                await self._play_speech(call, speech, utterance)
        kind = speech.mime_type if speech else "audio/wav"
        value = {
            "spoken": True,
            "provider": choice.effective,
            "requestedProvider": choice.requested,
            "fellBack": choice.is_fallback,
            "contentType": kind,
            "durationMs": round((time.monotonic() - began) * 1000),
        }
        # Unless it is too long to be sent.
        sound = (Audio(speech.data, kind),) if speech and len(speech.data) <= MAX_SOUND else ()
        return json_result(value, *sound)

    # ---- which voice ----------------------------------------------------------------------------------------------

    def _choose_voice(self, call: ToolCall) -> VoiceChoice:
        """A provider the caller names is used or refused; the one of the settings may be replaced by the system's."""
        named, voice, model = (arguments.text(call, name) for name in ("provider", "voiceId", "model"))
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

    def _can_play(self, system_voice: str | None) -> bool:
        return system_voice == "spd-say" or sound.find_player(self._environ) is not None

    def _readiness(self, provider: str, voice: str | None) -> str:
        """`ready` when `tts.speak` would speak with it, else what is missing."""
        if provider == SYSTEM_PROVIDER:
            system = voices.find_system_voice(self._environ)
            return "ready" if system is not None and self._can_play(system) else "unavailable"
        lacks = self._elevenlabs_lacks(voice)
        if lacks is not None:
            return lacks
        return "ready" if sound.find_player(self._environ) is not None else "unavailable"

    def _elevenlabs_lacks(self, voice: str | None) -> str | None:
        """What is missing before ElevenLabs can be asked to speak."""
        if self.keys.location(ELEVENLABS_KEY) is None:
            return "needs-api-key"
        return None if voice or self._settings().elevenlabs_voice else "needs-voice"

    async def _synthesize(self, text: str, choice: VoiceChoice) -> tuple[Speech | None, VoiceChoice]:
        """The speech, or None when the system's program only plays; and the choice as it turned out."""
        if choice.effective == ELEVENLABS_PROVIDER:
            settings = self._settings()
            voice, model = choice.voice or settings.elevenlabs_voice, choice.model or settings.elevenlabs_model
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
            text, voice=choice.voice or self._settings().tts_voice, model=None
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
        for utterance in self._utterances:
            utterance.interrupt()

    @asynccontextmanager
    async def _hold_lock(self) -> AsyncIterator["_Utterance"]:
        """One text is said at a time; a newer call may interrupt those before it."""
        utterance = _Utterance()
        self._utterances.add(utterance)
        try:
            async with hold_lock(self._lock, QUEUE_WAIT, "too much is waiting to be said; try again, or interrupt"):
                yield utterance
        finally:
            self._utterances.discard(utterance)

    async def _play_with_dispatcher(self, call: ToolCall, text: str, utterance: "_Utterance") -> None:
        """Have speech-dispatcher say it. It continues by itself, so it must be stopped too."""
        try:
            await self._play(call, (self._program_path("spd-say"), "--wait", "--", text), None, utterance)
        except BaseException:
            argv = (self._program_path("spd-say"), "--cancel")
            with contextlib.suppress(ToolError):
                await finish(run_tool(argv, seconds=STOP_WAIT, max_bytes=1024, env=self._environ))
            raise

    def _program_path(self, name: str) -> str:
        return shutil.which(name, path=self._environ.get("PATH")) or name

    async def _play_speech(self, call: ToolCall, speech: Speech, utterance: "_Utterance") -> None:
        player = sound.find_player(self._environ)
        if player is None:
            raise ToolUnavailable("TTS speak not available: the sound server is gone")
        if speech.mime_type != "audio/wav" and player[0] != "ffplay":
            speech = await self._convert_to_wav(speech)
        ending = "wav" if speech.mime_type == "audio/wav" else "mp3"
        with tempfile.TemporaryDirectory(prefix="openclaw-speech-") as folder:
            path = Path(folder) / f"speech.{ending}"
            await asyncio.to_thread(path.write_bytes, speech.data)
            await self._play(call, (*player, str(path)), voices.wav_seconds(speech), utterance)

    async def _convert_to_wav(self, speech: Speech) -> Speech:
        """Most players know WAV only. Without ffmpeg they get the sound unchanged."""
        program = ffmpeg.find_ffmpeg()
        if program is None:
            return speech
        argv = [program, "-hide_banner", "-loglevel", "error", "-i", "pipe:0", "-f", "wav", "-bitexact", "pipe:1"]
        done = await run_tool(argv, seconds=CONVERT_WAIT, max_bytes=voices.MAX_SOUND, stdin=speech.data)
        if done.code or not done.output:
            raise ToolError("Speak failed: what ElevenLabs sent is no sound")
        return Speech(voices.fix_wav_lengths(done.output), "audio/wav")

    async def _play(self, call: ToolCall, argv: Sequence[str], duration: float | None, utterance: "_Utterance") -> None:
        limit = MAX_SPEECH if duration is None else duration + PLAY_GRACE
        errors, began = KeptOutput(tail=MAX_STDERR), time.monotonic()
        async with await start_tool(argv, stderr=errors, env=self._environ) as process:
            utterance.stop = process.kill
            try:
                async with asyncio.timeout(limit):
                    while not utterance.is_interrupted and not await process.exits_within(PROGRESS_EVERY):
                        spoken = time.monotonic() - began
                        if duration is None or spoken < duration:
                            await call.context.progress(spoken, total=duration, message="speaking")
                    code = await process.wait_finished()
            except TimeoutError:
                raise ToolTimeout("Speak failed: the player did not come to an end") from None
        if utterance.is_interrupted:
            raise ToolError(INTERRUPTED)
        if code:
            raise ToolError(f"Speak failed: {errors.last_line() or f'{argv[0]} could not play'}")


class _Utterance:
    """A text that is being said, or is to be said after others."""

    def __init__(self) -> None:
        self.is_interrupted = False
        self.stop: Callable[[], None] = lambda: None
        """Ends the program that says it."""

    def interrupt(self) -> None:
        self.is_interrupted = True
        self.stop()
