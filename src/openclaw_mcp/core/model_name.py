"""Names of models. They come from people, agents and jobs, and become arguments of programs."""

import re
from typing import Any, Final

from .errors import BadRequest

MODEL_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+\[\]-]{0,199}")


def is_model_name(name: Any) -> bool:
    """Whether it names a model, as `provider/model` or `model`; nothing that looks like an option does."""
    return isinstance(name, str) and MODEL_NAME_PATTERN.fullmatch(name) is not None


def check_model_name(name: Any) -> None:
    """None names no model, which is fine. Raises BadRequest."""
    if name is not None and not is_model_name(name):
        raise BadRequest(f"{str(name)[:60]!r} is no model's name; write it as provider/model, for example openai/gpt-5")
