"""Session keys, under the name this room always had for them; several rooms need them, so they live in core."""

from ...core.session_keys import MAX_KEY_LENGTH, SESSION_KINDS, classify_key, new_session, normalize_key, split_key

__all__ = ["SESSION_KINDS", "MAX_KEY_LENGTH", "normalize_key", "classify_key", "new_session", "split_key"]
