"""Session keys, under the name this room always had for them; several rooms need them, so they live in core."""

from ...core.session_keys import MAX_KEY_LENGTH, SESSION_KINDS, classify_key, new_session, normalize_key, split_key

__all__ = ["MAX_KEY_LENGTH", "SESSION_KINDS", "classify_key", "new_session", "normalize_key", "split_key"]
