"""The camera capability with ffmpeg's test picture in a camera's place, and the kernel's list of cameras."""

import asyncio
import io
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from openclaw_mcp.core.errors import ToolArguments, ToolDenied, ToolError, ToolUnavailable
from openclaw_mcp.core.model import ToolCall
from openclaw_mcp.node.media.camera import CameraCapability
from openclaw_mcp.node.settings import NodeSettings
from tests.node.calling import ProgressRecorder, agree, call, children, image_data, probe_media, result_json, video_data
from tests.programs import need

BARS = "lavfi:color=c=0x20c040:size=640x480:rate=15"
SINE = ("-f", "lavfi", "-i", "sine=frequency=440")


def camera(**options: Any) -> CameraCapability:
    need("ffmpeg", package="ffmpeg")
    settings = NodeSettings(camera_source=options.pop("source", BARS), camera_device=options.pop("device", None))
    return CameraCapability(**{"consent": agree, "settings": lambda: settings, "environ": {}, **options})


def test_a_photo_shows_what_the_camera_sees() -> None:
    result = asyncio.run(call(camera(), "camera.snap", maxWidth=320))

    assert result_json(result) == {"format": "jpeg", "width": 320, "height": 240}
    assert isinstance(result.structured, dict)
    assert b64decode(result.structured["base64"]) == image_data(result)
    shot = Image.open(io.BytesIO(image_data(result))).convert("RGB")
    assert shot.size == (320, 240)
    found = shot.getpixel((10, 10))
    assert isinstance(found, tuple)
    assert all(abs(one - other) < 16 for one, other in zip(found, (0x20, 0xC0, 0x40), strict=True))


@pytest.mark.parametrize(("form", "kind"), [("jpg", "JPEG"), ("png", "PNG")])
def test_the_format_asked_for_is_the_format_given(form: str, kind: str) -> None:
    result = asyncio.run(call(camera(), "camera.snap", format=form))

    assert result_json(result)["format"] == form
    assert Image.open(io.BytesIO(image_data(result))).format == kind


def test_a_clip_has_picture_and_sound_and_the_length_asked_for(tmp_path: Path) -> None:
    async def scenario() -> Any:
        line = ProgressRecorder()
        result = await call(camera(microphone=SINE), "camera.clip", line=line, durationMs=1200)
        return result, line.progressed

    result, progressed = asyncio.run(scenario())
    found = probe_media(video_data(result), kind="mp4", tmp_path=tmp_path)
    assert result_json(result) == {"format": "mp4", "durationMs": 1200, "hasAudio": True}
    assert [stream["codec_name"] for stream in found["streams"]] == ["h264", "aac"]
    assert abs(float(found["format"]["duration"]) - 1.2) < 0.2
    assert progressed == sorted(set(progressed))
    assert progressed


def test_a_clip_without_a_microphone_is_silent_and_says_so(tmp_path: Path) -> None:
    result = asyncio.run(call(camera(), "camera.clip", durationMs=500))

    found = probe_media(video_data(result), kind="mp4", tmp_path=tmp_path)
    assert result_json(result)["hasAudio"] is False
    assert [stream["codec_name"] for stream in found["streams"]] == ["h264"]


def test_the_camera_is_not_touched_without_consent() -> None:
    questions: list[str] = []

    async def refuse(call: ToolCall, what: str) -> None:
        questions.append(what)
        raise ToolDenied("no person agreed")

    for command in ("camera.snap", "camera.clip"):
        with pytest.raises(ToolDenied):
            asyncio.run(call(camera(consent=refuse), command, durationMs=900))

    assert [what.partition(" with the camera ")[0] for what in questions] == ["take a photo", "film"]
    assert questions[1].endswith("for 0.9 s")


def test_a_cancelled_clip_stops_its_program_and_frees_the_camera_at_once() -> None:
    async def scenario() -> None:
        capability, line, before = camera(), ProgressRecorder(), children()
        task = asyncio.ensure_future(call(capability, "camera.clip", line=line, durationMs=60_000))
        await asyncio.wait_for(line.begun.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not children() - before
        await call(capability, "camera.snap", maxWidth=16)

    asyncio.run(scenario())


def test_only_one_call_holds_the_camera_at_a_time() -> None:
    async def scenario() -> list[tuple[str, int]]:
        before, held = children(), []

        async def note(call: ToolCall, what: str) -> None:
            held.append((call.name, len(children() - before)))

        capability, line = camera(consent=note), ProgressRecorder()
        clip = asyncio.ensure_future(call(capability, "camera.clip", line=line, durationMs=700))
        await asyncio.sleep(0)
        await asyncio.gather(clip, call(capability, "camera.snap", maxWidth=16))
        return held

    # When the second has its turn, the program of the first is gone.
    assert asyncio.run(scenario()) == [("camera.clip", 0), ("camera.snap", 0)]


def test_a_camera_that_gives_nothing_fails_with_ffmpegs_own_reason() -> None:
    with pytest.raises(ToolError, match="Snap failed: "):
        asyncio.run(call(camera(source="v4l2:/dev/nowhere"), "camera.snap", delayMs=0))
    with pytest.raises(ToolError, match="Recording failed: "):
        asyncio.run(call(camera(source="v4l2:/dev/nowhere"), "camera.clip"))


def test_cameras_are_listed_in_both_spellings_with_the_kernels_names(tmp_path: Path) -> None:
    sysfs, devices = tmp_path / "sys", tmp_path / "dev"
    devices.mkdir()
    for number, (name, index) in enumerate([("Front Cam", "0"), ("Front Cam metadata", "1"), ("Desk Cam", "0")]):
        entry = sysfs / f"video{number}"
        entry.mkdir(parents=True)
        (entry / "name").write_text(name + "\n")
        (entry / "index").write_text(index + "\n")
        (devices / f"video{number}").touch()
    capability = camera(source=None, sysfs=sysfs, devices=devices, device=str(devices / "video2"))

    result = result_json(asyncio.run(call(capability, "camera.list")))

    assert result["cameras"] == [
        {"deviceId": str(devices / "video0"), "name": "Front Cam", "isDefault": False},
        {"deviceId": str(devices / "video2"), "name": "Desk Cam", "isDefault": True},
    ]
    assert result["devices"][0] == {
        "id": str(devices / "video0"),
        "name": "Front Cam",
        "position": "unknown",
        "deviceType": "v4l2",
    }
    with pytest.raises(ToolArguments, match=r"camera\.list names them"):
        asyncio.run(call(capability, "camera.snap", deviceId="/dev/video9"))


def test_without_a_camera_the_list_is_empty_and_the_rest_missing_with_a_remedy(tmp_path: Path) -> None:
    capability = camera(source=None, sysfs=tmp_path / "none", devices=tmp_path)

    assert capability.unavailable_reason("camera.list") is None
    assert result_json(asyncio.run(call(capability, "camera.list"))) == {"cameras": [], "devices": []}
    for command in ("camera.snap", "camera.clip"):
        missing = capability.unavailable_reason(command)
        assert missing is not None
        assert "Plug one in" in missing.remedy
        with pytest.raises(ToolUnavailable, match="CAMERA_UNAVAILABLE"):
            asyncio.run(call(capability, command))


def test_other_formats_are_refused() -> None:
    with pytest.raises(ToolArguments, match="use jpeg or png"):
        asyncio.run(call(camera(), "camera.snap", format="gif"))
    with pytest.raises(ToolArguments, match="Only mp4"):
        asyncio.run(call(camera(), "camera.clip", format="webm"))
