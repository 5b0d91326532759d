"""Session keys, under the name this room always had for them; several rooms need them, so they live in core."""

from ...core.session_keys import FAMILIES, LONGEST, canonical, classification, new_session, parts

__all__ = ["FAMILIES", "LONGEST", "canonical", "classification", "new_session", "parts"]
