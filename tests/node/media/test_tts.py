"""Sound: speech played on a real sound server, requested from a fake ElevenLabs, and recorded in a film."""

import asyncio
import contextlib
import json
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.errors import ToolArguments, ToolError, ToolUnavailable
from openclaw_mcp.node.api_keys import ELEVENLABS_KEY, BadKey, KeyStore
from openclaw_mcp.node.media.camera import CameraCapability
from openclaw_mcp.node.media.tts import TtsCapability
from openclaw_mcp.node.media.voices import ELEVENLABS_URL, Speech, wav_seconds
from openclaw_mcp.node.settings import NodeSettings
from tests.node.calling import (
    END_WAIT,
    ProgressRecorder,
    agree,
    audio_data,
    call,
    call_if_available,
    children,
    result_json,
    running,
    video_data,
)
from tests.node.running import WITHOUT_DESKTOP
from tests.programs import need
from tests.running import ANSWER_WAIT, OPENCLAW

LOUD = 1000  # of 32767; speech reaches ten times as much, silence none
Environ = dict[str, str]


def loudest(samples: bytes) -> int:
    return max(map(abs, array("h", samples[: len(samples) // 2 * 2])), default=0)


def wait_for(condition: Any, what: str) -> None:
    end = time.monotonic() + END_WAIT
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environ]:
    """A sound server whose only speaker is a null sink called `ear`; yields the environment that leads to it."""
    pulseaudio = need("pulseaudio", package="pulseaudio")
    need("paplay", package="pulseaudio-utils")
    need("espeak-ng", package="espeak-ng")
    folder = tmp_path_factory.mktemp("pulse")
    socket = folder / "native"
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "PULSE_SERVER": f"unix:{socket}"}
    modules = ("module-null-sink sink_name=ear", f"module-native-protocol-unix auth-anonymous=1 socket={socket}")
    words = (pulseaudio, "-n", "--daemonize=no", "--exit-idle-time=-1", "--use-pid-file=no", "--disable-shm=yes")
    server_environ = {**environ, "XDG_RUNTIME_DIR": str(folder)}
    server_environ.pop("PULSE_SERVER")
    with running(*words, *(f"--load={module}" for module in modules), env=server_environ):
        wait_for(socket.exists, "pulseaudio does not listen")
        yield environ


@contextlib.contextmanager
def listening(environ: Environ, path: Path) -> Iterator[None]:
    """Record what the null sink plays: 16 bit, one channel, 22050 a second."""
    with (
        path.open("wb") as file,
        running("parec", "-d", "ear.monitor", "--format=s16le", "--rate=22050", "--channels=1", "--latency-msec=50",
                env=environ, stdout=file),
    ):  # fmt: skip
        wait_for(lambda: path.stat().st_size, "nothing is recorded")
        yield
        grown = path.stat().st_size
        wait_for(lambda: path.stat().st_size > grown + 22050, "the recording stopped")


class FakeElevenLabs:
    """What stands in for ElevenLabs: the requests it got, and what it answers with."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.status = 200
        self.body = b""
        self.url = ""


@pytest.fixture
def stand() -> Iterator[FakeElevenLabs]:
    fake = FakeElevenLabs()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(fake.status)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()
            self.wfile.write(fake.body)

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join(10)


@pytest.fixture(scope="module")
def mp3() -> bytes:
    words = [need("ffmpeg", package="ffmpeg"), "-v", "error", "-f", "lavfi", "-i", "sine=frequency=440:duration=0.6"]
    return subprocess.run([*words, "-f", "mp3", "pipe:1"], capture_output=True, check=True, timeout=30).stdout


def tts(tmp_path: Path, environ: Environ, **options: Any) -> TtsCapability:
    """`options` are settings, but for the address of ElevenLabs."""
    url = options.pop("elevenlabs_url", ELEVENLABS_URL)
    settings = NodeSettings(**options)
    return TtsCapability(
        state_dir=tmp_path, environ=environ, keyring=False, elevenlabs_url=url, settings=lambda: settings
    )


def test_the_text_is_played_on_the_sound_server(sound: Environ, tmp_path: Path) -> None:
    recording = tmp_path / "heard.raw"
    with listening(sound, recording):
        result = asyncio.run(call(tts(tmp_path, sound), "tts.speak", text="The quick brown fox jumps over the dog."))

    value = result_json(result)
    assert {key: value[key] for key in value if key != "durationMs"} == {
        "spoken": True,
        "provider": "system",
        "requestedProvider": "system",
        "fellBack": False,
        "contentType": "audio/wav",
    }
    reply = audio_data(result)
    lasting = wav_seconds(Speech(reply, "audio/wav"))
    assert lasting is not None
    assert 1 < lasting < 10
    assert value["durationMs"] > lasting * 900
    assert struct.unpack_from("<I", reply, 4) == (len(reply) - 8,)
    assert loudest(reply[44:]) > LOUD
    received = array("h", recording.read_bytes()[: recording.stat().st_size // 2 * 2])
    loud = [place for place, sample in enumerate(received) if abs(sample) > LOUD]
    assert loud
    assert abs((loud[-1] - loud[0]) / 22050 - lasting) < 1.0


def test_the_duration_is_what_another_program_measures(sound: Environ, tmp_path: Path) -> None:
    soxi = need("soxi", package="sox")
    result = asyncio.run(call(tts(tmp_path, sound), "tts.speak", text="One two three."))
    path = tmp_path / "said.wav"
    path.write_bytes(audio_data(result))

    measured = float(subprocess.run([soxi, "-D", path], capture_output=True, check=True, timeout=30).stdout)

    assert abs(measured - (wav_seconds(Speech(audio_data(result), "audio/wav")) or 0)) < 0.01


def test_a_film_hears_what_the_sound_server_plays(sound: Environ, tmp_path: Path) -> None:
    ffmpeg = need("ffmpeg", package="ffmpeg")

    async def scenario() -> bytes:
        settings = NodeSettings(camera_source="lavfi:testsrc2=size=320x240:rate=10")
        camera = CameraCapability(consent=agree, settings=lambda: settings, environ=sound)
        filming = asyncio.ensure_future(call(camera, "camera.clip", durationMs=4000))
        await call(tts(tmp_path, sound), "tts.speak", text="This is heard in the film. This is heard in the film.")
        result = await filming
        assert result_json(result)["hasAudio"] is True
        return video_data(result)

    path = tmp_path / "film.mp4"
    path.write_bytes(asyncio.run(scenario()))
    words = [ffmpeg, "-v", "error", "-i", str(path), "-f", "s16le", "-ac", "1", "pipe:1"]
    assert loudest(subprocess.run(words, capture_output=True, check=True, timeout=30).stdout) > LOUD


def test_a_newer_call_that_interrupts_makes_the_older_ones_fail(sound: Environ, tmp_path: Path) -> None:
    async def scenario() -> None:
        capability, line = tts(tmp_path, sound), ProgressRecorder()
        long = "This sentence is said again and again. " * 20
        playing = asyncio.ensure_future(call(capability, "tts.speak", line=line, text=long))
        waiting = asyncio.ensure_future(call(capability, "tts.speak", text=long))
        await asyncio.wait_for(line.begun.wait(), 30)
        result = await call(capability, "tts.speak", text="Stop.", interrupt=True)
        assert result_json(result)["spoken"] is True
        for earlier in (playing, waiting):
            with pytest.raises(ToolError, match="Speak canceled"):
                await earlier
        assert line.progressed == sorted(set(line.progressed))

    asyncio.run(scenario())


def test_a_cancelled_call_stops_speaking_at_once(sound: Environ, tmp_path: Path) -> None:
    async def scenario() -> None:
        capability, line, before = tts(tmp_path, sound), ProgressRecorder(), children()
        task = asyncio.ensure_future(call(capability, "tts.speak", line=line, text="Again and again. " * 100))
        await asyncio.wait_for(line.begun.wait(), 30)
        assert children() - before
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not children() - before

    asyncio.run(scenario())


@pytest.fixture
def dispatcher(sound: Environ, tmp_path: Path) -> Iterator[Environ]:
    """A machine whose only voice is speech-dispatcher, which plays by itself."""
    server = need("speech-dispatcher", package="speech-dispatcher")
    programs, socket = tmp_path / "bin", tmp_path / "speechd"
    programs.mkdir()
    (programs / "spd-say").symlink_to(need("spd-say", package="speech-dispatcher"))
    environ = {**sound, "SPEECHD_ADDRESS": f"unix_socket:{socket}", "XDG_RUNTIME_DIR": str(tmp_path)}
    words = (server, "-s", "-S", str(socket), "-P", str(tmp_path / "pid"), "-L", str(tmp_path))
    with running(*words, env=environ):
        wait_for(socket.exists, "speech-dispatcher does not listen")
        yield {**environ, "PATH": str(programs)}


def test_speech_dispatcher_speaks_when_it_is_the_only_voice_and_falls_silent_when_cancelled(
    sound: Environ, dispatcher: Environ, tmp_path: Path
) -> None:
    capability, recording = tts(tmp_path, dispatcher), tmp_path / "heard.raw"
    assert capability.unavailable_reason("tts.speak") is None

    with listening(sound, recording):
        result = asyncio.run(call(capability, "tts.speak", text="Hello from the dispatcher."))
    assert result_json(result)["spoken"] is True
    assert len(result.content) == 1
    assert loudest(recording.read_bytes()) > LOUD

    async def scenario() -> None:
        line = ProgressRecorder()
        task = asyncio.ensure_future(call(capability, "tts.speak", line=line, text="Again and again. " * 100))
        await asyncio.wait_for(line.begun.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    time.sleep(0.5)  # what is in the sound server's buffers is still played
    with listening(sound, recording):
        time.sleep(0.5)
    assert loudest(recording.read_bytes()) < LOUD


def test_text_is_never_taken_for_an_option_and_is_bounded(sound: Environ, tmp_path: Path) -> None:
    capability = tts(tmp_path, sound)

    assert result_json(asyncio.run(call(capability, "tts.speak", text="--version -w /dev/null")))["spoken"] is True
    with pytest.raises(ToolArguments, match="Missing required text"):
        asyncio.run(call(capability, "tts.speak", text="  "))
    with pytest.raises(ToolArguments, match="exceeds 5000 characters"):
        asyncio.run(call(capability, "tts.speak", text="x" * 5001))
    with pytest.raises(ToolArguments, match="no name of a voice"):
        asyncio.run(call(capability, "tts.speak", text="x", voiceId="-w/tmp/x"))
    with pytest.raises(ToolArguments, match="no such TTS provider"):
        asyncio.run(call(capability, "tts.speak", text="x", provider="piper"))


def test_elevenlabs_gets_the_text_the_key_and_the_voice_and_its_sound_is_played(
    sound: Environ, tmp_path: Path, stand: FakeElevenLabs, mp3: bytes
) -> None:
    stand.body = mp3
    capability = tts(tmp_path, sound, tts_provider="elevenlabs", elevenlabs_voice="vo/ice", elevenlabs_url=stand.url)
    capability.keys.store(ELEVENLABS_KEY, "sk-test")
    recording = tmp_path / "heard.raw"

    with listening(sound, recording):
        result = asyncio.run(call(capability, "tts.speak", text="Hello", model="m1"))

    ((path, headers, body),) = stand.requests
    assert path == "/v1/text-to-speech/vo%2Fice"
    assert (headers["xi-api-key"], headers["accept"]) == ("sk-test", "audio/mpeg")
    assert body == {"text": "Hello", "model_id": "m1"}
    assert (result_json(result)["provider"], result_json(result)["contentType"]) == ("elevenlabs", "audio/mpeg")
    assert audio_data(result) == mp3
    assert loudest(recording.read_bytes()) > LOUD


def test_a_service_that_fails_is_stood_in_for_only_when_it_was_not_named(
    sound: Environ, tmp_path: Path, stand: FakeElevenLabs
) -> None:
    stand.status, stand.body = 401, b"secret details of the service"
    capability = tts(tmp_path, sound, tts_provider="elevenlabs", elevenlabs_voice="v", elevenlabs_url=stand.url)
    capability.keys.store(ELEVENLABS_KEY, "sk-test")

    value = result_json(asyncio.run(call(capability, "tts.speak", text="Hello")))
    assert (value["provider"], value["requestedProvider"], value["fellBack"]) == ("system", "elevenlabs", True)

    with pytest.raises(ToolError, match="refused the API key") as raised:
        asyncio.run(call(capability, "tts.speak", text="Hello", provider="ElevenLabs"))
    assert "secret" not in str(raised.value)
    assert "sk-test" not in str(raised.value)

    stand.status = 307  # the key does not follow a redirect
    with pytest.raises(ToolError, match="answered 307"):
        asyncio.run(call(capability, "tts.speak", text="Hello", provider="elevenlabs"))


def test_the_key_is_never_sent_over_plain_http_to_another_machine(sound: Environ, tmp_path: Path) -> None:
    capability = tts(tmp_path, sound, elevenlabs_voice="v", elevenlabs_url="http://speech.example")
    capability.keys.store(ELEVENLABS_KEY, "sk-test")

    with pytest.raises(ToolUnavailable, match="https only"):
        asyncio.run(call(capability, "tts.speak", text="Hello", provider="elevenlabs"))


def test_the_status_names_each_voices_readiness(sound: Environ, tmp_path: Path) -> None:
    def readiness(speech: TtsCapability) -> tuple[object, list[object]]:
        value = result_json(asyncio.run(call(speech, "tts.status")))
        assert [one["isReady"] for one in value["providers"]] == [
            one["readiness"] == "ready" for one in value["providers"]
        ]
        return (value["effectiveProvider"], value["willFallBack"]), [one["readiness"] for one in value["providers"]]

    capability = tts(tmp_path, sound, tts_provider="elevenlabs")
    assert readiness(capability) == (("system", True), ["ready", "needs-api-key"])
    capability.keys.store(ELEVENLABS_KEY, "sk-test")
    assert readiness(capability) == (("system", True), ["ready", "needs-voice"])
    complete = tts(tmp_path, {**sound, "PATH": "/nowhere"}, tts_provider="elevenlabs", elevenlabs_voice="v")
    assert readiness(complete) == (("elevenlabs", False), ["unavailable", "ready"])
    mute = tts(
        tmp_path,
        {"PATH": os.environ["PATH"], "PULSE_SERVER": f"unix:{tmp_path}/none"},
        tts_provider="elevenlabs",
        elevenlabs_voice="v",
    )
    if mute.unavailable_reason("tts.speak") is not None:  # it has no sound card either
        assert readiness(mute)[1] == ["unavailable", "unavailable"]


def test_without_voice_or_speaker_speech_is_missing_with_a_remedy(sound: Environ, tmp_path: Path) -> None:
    voiceless = tts(tmp_path, {**sound, "PATH": str(tmp_path)}).unavailable_reason("tts.speak")
    assert voiceless is not None
    assert "espeak-ng" in voiceless.remedy

    if "no soundcards" in Path("/proc/asound/cards").read_text() if Path("/proc/asound/cards").exists() else True:
        mute = tts(tmp_path, {"PATH": os.environ["PATH"], "PULSE_SERVER": f"unix:{tmp_path}/none"})
        missing = mute.unavailable_reason("tts.speak")
        assert missing is not None
        assert "pulseaudio-utils" in missing.remedy
        with pytest.raises(ToolUnavailable, match="Nothing here can play sound"):
            asyncio.run(call_if_available(mute, "tts.speak", text="Hello"))


def test_a_key_in_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path, keyring=False)

    assert keys.read(ELEVENLABS_KEY) is None
    assert keys.store(ELEVENLABS_KEY, " sk-1\n") == keys.location(ELEVENLABS_KEY) == "file"
    path = tmp_path / "keys" / ELEVENLABS_KEY
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert keys.read(ELEVENLABS_KEY) == "sk-1"

    path.chmod(0o644)
    with pytest.raises(BadKey, match="can be read by others"):
        keys.read(ELEVENLABS_KEY)
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(BadKey):
        keys.read(ELEVENLABS_KEY)
    keys.delete(ELEVENLABS_KEY)
    assert keys.location(ELEVENLABS_KEY) is None
    for bad in ("", "two\nlines", "x" * 5000):
        with pytest.raises(BadKey, match="one line"):
            keys.store(ELEVENLABS_KEY, bad)


def test_with_a_keyring_on_the_desktop_the_key_is_not_on_disk(tmp_path: Path) -> None:
    session = need("dbus-run-session", package="dbus")
    daemon = need("gnome-keyring-daemon", package="gnome-keyring")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom openclaw_mcp.node.api_keys import KeyStore\n"
        "keys = KeyStore(Path(sys.argv[1]))\n"
        "print(keys.store('k', 'sk-9'), keys.read('k'), keys.location('k'))\n"
        "keys.delete('k')\nprint(keys.location('k'), keys.read('k'))\n"
    )
    state = tmp_path / "state"
    unlock = f"printf pw | {daemon} --unlock --components=secrets >/dev/null 2>&1; {sys.executable} {script} {state}"
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    # The keyring's daemon ends with its bus, and the bus with the script.
    result = subprocess.run(
        [session, "--", "sh", "-c", unlock], env=environ, capture_output=True, text=True, timeout=60, check=False
    )

    assert result.stdout.splitlines() == ["keyring sk-9 keyring", "None None"], result.stderr[-500:]
    assert b"sk-9" not in b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())


def test_the_key_is_kept_where_only_its_owner_reads_it_and_forgotten_again(tmp_path: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if name not in WITHOUT_DESKTOP}

    def key(*words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        command = [OPENCLAW, "node", "key", "--state-dir", str(tmp_path), *words]
        return subprocess.run(
            command, input=typed, env=bare, capture_output=True, text=True, timeout=ANSWER_WAIT, check=False
        )

    result = key(typed="sk-secret\n")
    path = tmp_path / "keys" / "elevenlabs-api-key"
    assert (result.returncode, result.stdout) == (0, f"The ElevenLabs key is kept in {path}.\n")
    assert path.stat().st_mode & 0o777 == 0o600
    assert KeyStore(tmp_path, keyring=False).read(ELEVENLABS_KEY) == "sk-secret"
    empty = key(typed="\n")
    assert (empty.returncode, "secret" in empty.stderr) == (1, False)
    assert path.exists()
    assert key("--forget").returncode == 0
    assert not path.exists()
