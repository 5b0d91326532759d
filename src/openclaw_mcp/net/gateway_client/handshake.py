"""Challenge and `connect`: the first messages of both sides. Pure; the gateway's `authenticator` decides on them."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Protocol

from msgspec import Meta, Struct, field, structs

from ...core.fields import NonEmptyStr
from ...protocol.gateway_frames import PROTOCOL

ClientId = Literal[
    "webchat-ui", "openclaw-control-ui", "openclaw-browser-copilot", "openclaw-tui", "webchat", "cli",
    "gateway-client", "openclaw-macos", "openclaw-linux", "openclaw-ios", "openclaw-watchos", "openclaw-android",
    "node-host", "openclaw-worker", "test", "fingerprint", "openclaw-probe",
]  # fmt: skip
ClientMode = Literal["webchat", "cli", "ui", "backend", "node", "worker", "probe", "test"]

BROWSER_CLIENTS: Final = frozenset({"webchat-ui", "openclaw-control-ui", "openclaw-browser-copilot", "webchat"})
"""Clients that are pages: they must come from an allowed origin."""
UI_CLIENTS: Final = frozenset({"openclaw-control-ui", "openclaw-browser-copilot", "openclaw-tui"})
"""Clients that act for a person at a screen: a shared token alone is not enough for them."""
EPHEMERAL_MODES: Final = frozenset({"cli", "backend", "probe"})
"""Modes of clients that connect for one task and are not listed as present."""


class ClientInfo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The program that connects, as it describes itself. It grants nothing by itself."""

    id: ClientId = field()
    version: NonEmptyStr = field()
    platform: NonEmptyStr = field()
    mode: ClientMode = field()
    display_name: NonEmptyStr | None = None
    build_id: Annotated[str, Meta(min_length=1, max_length=96)] | None = None
    device_family: NonEmptyStr | None = None
    model_identifier: NonEmptyStr | None = None
    time_zone: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    instance_id: NonEmptyStr | None = None


class Challenge(Struct, frozen=True):
    """The payload of `connect.challenge`."""

    nonce: str = ""
    ts: int = 0


class DeviceProof(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    id: NonEmptyStr
    public_key: NonEmptyStr
    signature: NonEmptyStr
    signed_at: Annotated[int, Meta(ge=0)]
    nonce: NonEmptyStr


class Credentials(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    token: str | None = None
    password: str | None = None
    device_token: str | None = None
    bootstrap_token: str | None = None
    approval_runtime_token: str | None = None  # this and the next: of OpenClaw's own processes, checked only
    agent_runtime_identity_token: str | None = None

    @property
    def signature_secret(self) -> str:
        """The secret that a device's signature covers; never a password."""
        return self.token or self.device_token or self.bootstrap_token or ""

    def __repr__(self) -> str:
        return "Credentials(…)"  # they must not slip into a log


class ConnectParams(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Parameters of `connect`. As a server we refuse what OpenClaw does not know; as a client we send only these."""

    min_protocol: Annotated[int, Meta(ge=1)] = field()
    max_protocol: Annotated[int, Meta(ge=1)] = field()
    client: ClientInfo = field()
    role: NonEmptyStr = "operator"
    scopes: tuple[NonEmptyStr, ...] = ()
    caps: tuple[NonEmptyStr, ...] = ()
    commands: tuple[NonEmptyStr, ...] = ()
    permissions: dict[str, bool] | None = None
    path_env: str | None = None
    device: DeviceProof | None = None
    auth: Credentials | None = None
    locale: str | None = None
    user_agent: str | None = None


class Signer(Protocol):
    """A device key, see `identity.DeviceIdentity`."""

    @property
    def id(self) -> str: ...

    @property
    def public_key(self) -> str: ...

    def sign(self, text: str) -> str:
        """Ed25519 over the UTF-8 text, base64url without padding."""


class ClientProfile(Struct, frozen=True, kw_only=True):
    """How a client presents itself: everything about `connect` but the challenge."""

    client: ClientInfo
    role: Literal["operator", "node"] = "operator"
    scopes: tuple[str, ...] = ()
    caps: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    permissions: dict[str, bool] | None = None
    path_env: str | None = None

    def build_connect(self, challenge: Challenge, credentials: Credentials, signer: Signer | None) -> ConnectParams:
        """The answer to `connect.challenge`."""
        proof = None
        if signer is not None:
            payload = signature_payload(
                signer.id, self.client, role=self.role, scopes=self.scopes, signed_at=challenge.ts,
                token=credentials.signature_secret, nonce=challenge.nonce,
            )  # fmt: skip
            proof = DeviceProof(
                id=signer.id,
                public_key=signer.public_key,
                signature=signer.sign(payload),
                signed_at=challenge.ts,
                nonce=challenge.nonce,
            )
        own: dict[str, Any] = structs.asdict(self)  # the profile's fields are fields of `connect` too
        return ConnectParams(min_protocol=PROTOCOL, max_protocol=PROTOCOL, device=proof, auth=credentials, **own)


def signature_payload(
    device: str,
    client: ClientInfo,
    *,
    role: str,
    scopes: Sequence[str],
    signed_at: int,
    token: str,
    nonce: str,
    version: Literal["v2", "v3"] = "v3",
) -> str:
    """The text a device signs. v3 includes the platform too; v2 is what older clients send."""
    parts: list[Any] = [version, device, client.id, client.mode, role, ",".join(scopes), signed_at, token, nonce]
    if version == "v3":
        parts += [_normalize_ascii(client.platform), _normalize_ascii(client.device_family)]
    return "|".join(map(str, parts))


def _normalize_ascii(text: str | None) -> str:
    """Trimmed, ASCII letters lowered, nothing else touched."""
    stripped = (text or "").strip()
    return "".join(char.lower() if char.isascii() else char for char in stripped)
