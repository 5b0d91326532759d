"""Challenge, connect, hello: the words both sides exchange first. Pure; who may come in is `admission`'s affair."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Protocol

from msgspec import Meta, Struct, field

from ...core.fields import NonEmptyStr
from ...core.model import Json
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
"""Clients that act for a person at a screen: a shared token alone does not let them in."""
EPHEMERAL_MODES: Final = frozenset({"cli", "backend", "probe"})
"""Modes of clients that come for one errand and are not listed as present."""


class ClientInfo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The program that connects, in its own words. It describes; it grants nothing but what `admission` says."""

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


class DeviceProof(Struct, frozen=True, kw_only=True, rename="camel"):
    id: NonEmptyStr
    public_key: NonEmptyStr
    signature: NonEmptyStr
    signed_at: Annotated[int, Meta(ge=0)]
    nonce: NonEmptyStr


class Credentials(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    token: str | None = None
    password: str | None = None
    device_token: str | None = None
    bootstrap_token: str | None = None

    @property
    def signature_secret(self) -> str:
        """The secret a device's signature covers; a password is not among them."""
        return self.token or self.device_token or self.bootstrap_token or ""

    def __repr__(self) -> str:
        return "Credentials(…)"  # they must not slip into a log


class ConnectParams(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Parameters of `connect`. As a server we ignore keys we do not know; as a client we send only these."""

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
    """A device key. `rpc.identity` has the real one; clients without a device never load its cryptography."""

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

    def build_connect(self, challenge: Json, credentials: Credentials, signer: Signer | None) -> ConnectParams:
        """The answer to `connect.challenge`."""
        proof = None
        if signer is not None:
            nonce, signed_at = str(challenge.get("nonce", "")), int(challenge.get("ts", 0))
            words = signature_payload(
                signer.id, self.client, role=self.role, scopes=self.scopes, signed_at=signed_at,
                token=credentials.signature_secret, nonce=nonce,
            )  # fmt: skip
            proof = DeviceProof(
                id=signer.id,
                public_key=signer.public_key,
                signature=signer.sign(words),
                signed_at=signed_at,
                nonce=nonce,
            )
        return ConnectParams(
            min_protocol=PROTOCOL,
            max_protocol=PROTOCOL,
            client=self.client,
            role=self.role,
            scopes=self.scopes,
            caps=self.caps,
            commands=self.commands,
            permissions=self.permissions,
            path_env=self.path_env,
            device=proof,
            auth=credentials,
        )


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
    """What a device signs. v3 pins the platform too; v2 is what older clients send."""
    words: list[Any] = [version, device, client.id, client.mode, role, ",".join(scopes), signed_at, token, nonce]
    if version == "v3":
        words += [_normalize_ascii(client.platform), _normalize_ascii(client.device_family)]
    return "|".join(map(str, words))


def _normalize_ascii(text: str | None) -> str:
    """Trimmed, ASCII letters lowered, nothing else touched."""
    stripped = (text or "").strip()
    return "".join(char.lower() if char.isascii() else char for char in stripped)
