"""`tools.media` of openclaw.json. The other keys of `tools` are read by `tools/policy_rules.py` and by single tools."""

from ..model import Json
from .keys import Section


class AudioSettings(Section, frozen=True):
    """How speech in messages becomes text: by the first of `models` that can."""

    enabled: bool = True
    models: list[Json] = []


class MediaSettings(Section, frozen=True):
    """How files that come with a message are read."""

    audio: AudioSettings = AudioSettings()
