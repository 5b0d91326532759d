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
from ..api_keys import ELEVENLABS, BadKey, Keys
from ..capability import Command, Missing, answer
from ..exec.child_process import child, last_words, run
from . import ffmpeg, sound, voices
from .results import voiced
from .voices import ElevenLabs, Speech, SystemVoice, Voice

LONGEST_TEXT: Final = 5000  # characters
LONGEST_SPEECH: Final = 900.0  # seconds the longest text may take to say
PLAY_GRACE: Final = 15.0  # seconds a player may take beyond the sound's own length
QUEUE_WAIT: Final = 900.0  # seconds behind other speech
KEY_WAIT: Final = 10.0  # seconds for the keyring
CONVERT_WAIT: Final = 30.0
STOP_WAIT: Final = 2.0  # seconds to make speech-dispatcher fall silent
PROGRESS_EVERY: Final = 1.0  # seconds between two words on how far it is

INTERRUPTED: Final = "Speak canceled: a newer call interrupted it"
SYSTEM: Final = "system"
ELEVEN: Final = "elevenlabs"
NAMES: Final = {
    SYSTEM: SYSTEM,
    "windows": SYSTEM,
    "macos": SYSTEM,
    "espeak": SYSTEM,
    "espeak-ng": SYSTEM,
    ELEVEN: ELEVEN,
}

SPEAK = ToolSpec(
    name="tts.speak",
    title="Speak",
    description="Say a text aloud on this machine's speakers. Returns when it has been said.",
    input_schema=arguments.schema(
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
    deadline=QUEUE_WAIT + LONGEST_SPEECH,
    task="offered",
)
STATUS = ToolSpec(
    name="tts.status",
    title="Speech status",
    description="Which voices are ready, and which one tts.speak would use.",
    input_schema=arguments.schema({}),
    annotations={"readOnlyHint": True, "openWorldHint": False},
)


class Choice(Struct, frozen=True):
    """Which provider was asked for, which one speaks."""

    requested: str
    effective: str
    voice: str | None
    model: str | None
    named: bool = False
    """The caller named the provider, so no other may stand in for it."""

    @property
    def fell_back(self) -> bool:
        return self.requested != self.effective


class Tts:
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
        self.keys = Keys(state_dir, keyring=keyring)
        self._provider = provider or SYSTEM
        self._voice = voice
        self._eleven_voice = elevenlabs_voice
        self._eleven_model = elevenlabs_model
        self._eleven_url = elevenlabs_url
        self._environ = environ
        self._turn = asyncio.Lock()
        self._speaking: set[asyncio.Event] = set()

    def commands(self) -> Sequence[Command]:
        return (Command(spec=SPEAK, run=self._speak), Command(spec=STATUS, run=self._status))

    def missing(self, command: str) -> Missing | None:
        if command == STATUS.name:
            return None
        system = voices.system_voice(self._environ)
        if system is None and self._readiness(ELEVEN, None) != "ready":
            return Missing(
                "There is no voice: no speech program is installed and ElevenLabs is not set up.",
                "Install espeak-ng (Debian: apt install espeak-ng), or store an ElevenLabs key and voice.",
            )
        if system != "spd-say" and sound.player(self._environ) is None:
            return Missing(
                "Nothing here can play sound: no sound server or card is in reach, or no player is installed.",
                "Start the node in the desktop session; install pipewire-bin, pulseaudio-utils or alsa-utils.",
            )
        return None

    async def aclose(self) -> None:
        self._hush()

    async def _status(self, call: ToolCall) -> ToolResult:
        effective = self._provider if self._readiness(self._provider, None) == "ready" else SYSTEM
        providers = []
        for name in (SYSTEM, ELEVEN):
            readiness = self._readiness(name, None)
            providers.append({"provider": name, "readiness": readiness, "isReady": readiness == "ready"})
        return answer(
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
        if len(text) > LONGEST_TEXT:
            raise ToolArguments(f"TTS text exceeds {LONGEST_TEXT} characters.")
        choice = self._chosen(call.arguments)
        missing = self.missing(SPEAK.name)
        if missing is not None:
            raise ToolUnavailable(f"TTS speak not available: {missing.reason} {missing.remedy}")
        if arguments.flag(call.arguments, "interrupt", default=False):
            self._hush()
        async with self._alone() as hushed:
            speech, choice = await self._voiced(text, choice)
            if hushed.is_set():
                raise ToolError(INTERRUPTED)
            if speech is None:
                await self._dispatch(call, text, hushed)
            else:
                await self._play_speech(call, speech, hushed)
        kind = speech.mime_type if speech else "audio/wav"
        value: Json = {
            "spoken": True,
            "provider": choice.effective,
            "requestedProvider": choice.requested,
            "fellBack": choice.fell_back,
            "contentType": kind,
            "durationMs": round((time.monotonic() - begun) * 1000),
        }
        return voiced(value, speech.data if speech else None, kind)

    # ---- which voice ----------------------------------------------------------------------------------------------

    def _chosen(self, given: Json) -> Choice:
        """A provider the caller names is taken at its word; the one of the settings may be stood in for."""
        named, voice, model = (arguments.text(given, name) for name in ("provider", "voiceId", "model"))
        if named is not None:
            provider = NAMES.get(named.lower())
            if provider is None:
                raise ToolArguments("There is no such TTS provider here; use system or elevenlabs")
            readiness = self._readiness(provider, voice)
            if readiness != "ready":
                raise ToolUnavailable(f"TTS speak not available: {provider} is not ready ({readiness})")
            return Choice(provider, provider, voice, model, named=True)
        if self._readiness(self._provider, voice) == "ready":
            return Choice(self._provider, self._provider, voice, model)
        return Choice(self._provider, SYSTEM, None, None)

    def _readiness(self, provider: str, voice: str | None) -> str:
        if provider == SYSTEM:
            return "ready" if voices.system_voice(self._environ) else "unavailable"
        if self.keys.where(ELEVENLABS) is None:
            return "needs-api-key"
        return "ready" if voice or self._eleven_voice else "needs-voice"

    async def _voiced(self, text: str, choice: Choice) -> tuple[Speech | None, Choice]:
        """The speech, or None when the system's program only plays; and the choice as it turned out."""
        if choice.effective == ELEVEN:
            voice, model = choice.voice or self._eleven_voice, choice.model or self._eleven_model
            try:
                return await (await self._eleven()).speech(text, voice=voice, model=model), choice
            except ToolError:
                if choice.named or self._readiness(SYSTEM, None) != "ready":
                    raise
            choice = Choice(choice.requested, SYSTEM, None, None)
        program = voices.system_voice(self._environ)
        if program is None:
            raise ToolUnavailable("TTS speak not available: no speech program is installed")
        if program == "spd-say":
            return None, choice
        speech = await SystemVoice(program, self._environ).speech(text, voice=choice.voice or self._voice, model=None)
        return speech, choice

    async def _eleven(self) -> Voice:
        try:
            async with asyncio.timeout(KEY_WAIT):
                key = await asyncio.to_thread(self.keys.read, ELEVENLABS)
        except TimeoutError:
            raise ToolTimeout("the desktop's keyring did not answer; unlock it or store the key in a file") from None
        except BadKey as exc:
            raise ToolUnavailable(str(exc)) from None
        if key is None:
            raise ToolUnavailable("TTS speak not available: elevenlabs is not ready (needs-api-key)")
        return ElevenLabs(key=key, url=self._eleven_url)

    # ---- saying it --------------------------------------------------------------------------------------------------

    def _hush(self) -> None:
        for event in self._speaking:
            event.set()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[asyncio.Event]:
        """One speaks at a time; the event is set when a newer call wants silence."""
        hushed = asyncio.Event()
        self._speaking.add(hushed)
        try:
            try:
                async with asyncio.timeout(QUEUE_WAIT):
                    await self._turn.acquire()
            except TimeoutError:
                raise ToolBusy("too much is waiting to be said; try again, or interrupt") from None
            try:
                yield hushed
            finally:
                self._turn.release()
        finally:
            self._speaking.discard(hushed)

    async def _dispatch(self, call: ToolCall, text: str, hushed: asyncio.Event) -> None:
        """Have speech-dispatcher say it. It goes on by itself, so it is told when to stop."""
        spoken = False
        try:
            await self._play(call, (self._program("spd-say"), "--wait", "--", text), None, hushed)
            spoken = True
        finally:
            if not spoken:
                stop = run((self._program("spd-say"), "--cancel"), seconds=STOP_WAIT, most=1024, env=self._environ)
                with contextlib.suppress(ToolError):
                    await asyncio.shield(stop)

    def _program(self, name: str) -> str:
        return shutil.which(name, path=self._environ.get("PATH")) or name

    async def _play_speech(self, call: ToolCall, speech: Speech, hushed: asyncio.Event) -> None:
        player = sound.player(self._environ)
        if player is None:
            raise ToolUnavailable("TTS speak not available: the sound server is gone")
        if speech.mime_type != "audio/wav" and player[0] != "ffplay":
            speech = await self._as_wav(speech)
        ending = "wav" if speech.mime_type == "audio/wav" else "mp3"
        with tempfile.TemporaryDirectory(prefix="openclaw-speech-") as folder:
            path = Path(folder) / f"speech.{ending}"
            await asyncio.to_thread(path.write_bytes, speech.data)
            await self._play(call, (*player, str(path)), voices.seconds(speech), hushed)

    async def _as_wav(self, speech: Speech) -> Speech:
        """Most players know WAV only. Without ffmpeg the sound goes to them as it came."""
        program = ffmpeg.found()
        if program is None:
            return speech
        argv = [program, "-hide_banner", "-loglevel", "error", "-i", "pipe:0", "-f", "wav", "-bitexact", "pipe:1"]
        done = await run(argv, seconds=CONVERT_WAIT, most=voices.MOST_SOUND, stdin=speech.data)
        if done.code or not done.output:
            raise ToolError("Speak failed: what ElevenLabs sent is no sound")
        return Speech(voices.sized(done.output), "audio/wav")

    async def _play(self, call: ToolCall, argv: Sequence[str], lasting: float | None, hushed: asyncio.Event) -> None:
        limit = LONGEST_SPEECH if lasting is None else lasting + PLAY_GRACE
        async with child(argv, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env=self._environ) as process:
            assert process.stderr is not None
            ended = asyncio.create_task(last_words(process.stderr))
            silenced = asyncio.create_task(hushed.wait())
            try:
                async with asyncio.timeout(limit):
                    await _until(ended, silenced, call, lasting)
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


async def _until(
    ended: "asyncio.Task[str]", silenced: "asyncio.Task[Literal[True]]", call: ToolCall, lasting: float | None
) -> None:
    """Wait until the player ends or silence is wanted, telling the caller how far it is."""
    begun = time.monotonic()
    while not ended.done() and not silenced.done():
        await asyncio.wait((ended, silenced), timeout=PROGRESS_EVERY, return_when=asyncio.FIRST_COMPLETED)
        spoken = time.monotonic() - begun
        if lasting is None or spoken < lasting:
            await call.line.progress(spoken, total=lasting, message="speaking")
