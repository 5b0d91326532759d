"""What holds for every media command: its schema, its place in the documentation, and that the dispatcher takes it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from openclaw_mcp.core.errors import ToolArguments
from openclaw_mcp.node.canvas.canvas import CanvasCapability
from openclaw_mcp.node.capability import Capability, NodeCommand
from openclaw_mcp.node.location import LocationCapability
from openclaw_mcp.node.media.camera import CameraCapability
from openclaw_mcp.node.media.screen import ScreenCapability
from openclaw_mcp.node.media.tts import TtsCapability
from openclaw_mcp.tools.schema import validator_for
from tests.node.calling import agree

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "node-media.md"


@pytest.fixture
def commands(tmp_path: Path) -> Sequence[NodeCommand]:
    capabilities: list[Capability] = [
        ScreenCapability(consent=agree),
        CanvasCapability(state_dir=tmp_path),
        CameraCapability(consent=agree),
        LocationCapability(),
        TtsCapability(state_dir=tmp_path),
    ]
    for capability in capabilities:
        assert all(command.spec.name.startswith(f"{capability.name}.") for command in capability.commands())
    return [command for capability in capabilities for command in capability.commands()]


def test_every_command_and_each_of_its_parameters_is_in_the_reference(commands: Sequence[NodeCommand]) -> None:
    text = REFERENCE.read_text(encoding="utf-8")

    for command in commands:
        assert f"`{command.spec.name}`" in text, command.spec.name
        for parameter in command.spec.input_schema["properties"]:
            assert f"`{parameter}`" in text, (command.spec.name, parameter)


def test_schemas_take_unknown_properties_and_refuse_wrong_kinds(commands: Sequence[NodeCommand]) -> None:
    for command in commands:
        schema = command.spec.input_schema
        form = validator_for(schema)
        filled = dict.fromkeys(schema.get("required", ()), "x")
        form.check({**filled, "somethingElse": [1]})
        for name, shape in schema["properties"].items():
            assert shape["description"]
            with pytest.raises(ToolArguments):
                form.check({**filled, name: [1]})


def test_only_what_looks_at_the_room_or_films_the_screen_needs_consent(commands: Sequence[NodeCommand]) -> None:
    private = {command.spec.name for command in commands if command.danger == "private"}

    assert private == {"screen.record", "camera.snap", "camera.clip"}
