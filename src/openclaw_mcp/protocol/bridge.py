"""The bridge between an app and the proxy: addresses, close codes and frame types, for both of its ends."""

import hashlib
import hmac
from typing import Final

DEFAULT_URL: Final = "http://127.0.0.1:8000"
SESSIONS_PATH: Final = "/v1/chat/sessions"
MCP_PATH: Final = "/v1/mcp"
BRIDGE_SUFFIX: Final = "/bridge"
"""After a session's path: where its app opens the bridge."""
SUBPROTOCOL: Final = "openclaw-bridge"
SECRET_HEADER: Final = "OpenClaw-Session-Secret"
"""An app may register a session with a secret of its own: the same secret is the same session, with the same id."""
MIN_SECRET_LENGTH: Final = 32  # characters: the id is a digest of it, so that one that can be guessed is no secret
MAX_SECRET_LENGTH: Final = 256

# Close codes.
TOO_LARGE: Final = 1009
SERVER_FAILED: Final = 1011
SERVICE_RESTART: Final = 1012
BAD_TOKEN: Final = 4401
FORBIDDEN: Final = 4403
NO_SESSION: Final = 4404
NO_SIGN_OF_LIFE: Final = 4408
ALREADY_ATTACHED: Final = 4409
SESSION_DELETED: Final = 4410
TOO_SLOW: Final = 4413

# Frame types: from the proxy, from the app, from both.
INVOKE_TOOL: Final = "invoke_tool"
CANCEL_TOOL: Final = "cancel_tool"
TOOLS_UPDATED: Final = "tools_updated"
ERROR: Final = "error"
INVOKE_RESULT: Final = "invoke_result"
PROGRESS: Final = "progress"
UPDATE_TOOLS: Final = "update_tools"
PING: Final = "ping"
PONG: Final = "pong"

NOT_CONNECTED: Final = "Bridge is not connected"
"""The beginning of every failure for want of the app: callers recognise it by this text."""
APP_DISCONNECTED: Final = f"{NOT_CONNECTED}: the app is not running, or it is reconnecting; start it, then call again"
"""The app never got the call."""
UNREGISTERED: Final = "The session was unregistered: the tools of this app are no longer offered here"
"""The failure of a call whose session is deleted while the app works on it."""


def derive_session_id(secret: str) -> str:
    """The id of the session that is registered with this secret. It does not reveal the secret."""
    return hashlib.sha256(b"openclaw-proxy session\0" + secret.encode()).hexdigest()[:32]


def is_secret_of(secret: str, session_id: str) -> bool:
    return hmac.compare_digest(derive_session_id(secret), session_id)


def session_path(id: str) -> str:
    return f"{SESSIONS_PATH}/{id}"


def bridge_url(base_url: str, id: str) -> str:
    """Where the app opens its bridge, at a proxy with this http(s) address."""
    return f"ws{base_url[4:]}{SESSIONS_PATH}/{id}{BRIDGE_SUFFIX}"


def mcp_url(base_url: str, id: str) -> str:
    """Where MCP clients find the session's tools."""
    return f"{base_url}{MCP_PATH}/{id}"
