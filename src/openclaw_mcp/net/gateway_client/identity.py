"""A device's Ed25519 key: made once, stored in one private file, used to sign `connect`; and the check of signatures.

The cryptography library (7 MiB) is loaded by the first signature that is made or checked: most gateways see none."""

import base64
import binascii
import hashlib
import importlib
import secrets
import sys
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ..files import StateBroken, create_if_absent, read_if_exists, write_atomic

KEY_BYTES: Final = 32
SIGNATURE_MODULE: Final = "cryptography.hazmat.primitives.asymmetric.ed25519"


class _IdentityFile(Struct, frozen=True, kw_only=True, rename="camel"):
    version: int
    seed: str
    """The private key, base64url."""


class DeviceIdentity:
    """This machine as a device. A `Signer`."""

    __slots__ = ("_key", "id", "public_key")

    def __init__(self, seed: bytes) -> None:
        # Here for start-up and memory, see above.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        public = self._key.public_key().public_bytes_raw()
        self.public_key = encode_base64url(public)
        self.id = device_id(public)

    @classmethod
    def load(cls, path: Path) -> "DeviceIdentity":
        """The identity stored at `path`, made at first use. Raises StateBroken for a file that holds none."""
        fresh = _IdentityFile(version=1, seed=encode_base64url(secrets.token_bytes(KEY_BYTES)))
        stored = create_if_absent(path, msgspec.json.encode(fresh))
        try:
            return cls(decode_base64(msgspec.json.decode(stored, type=_IdentityFile).seed))
        except ValueError as exc:
            raise StateBroken(
                f"{path} holds no device identity; restore it, or remove it to become a new device"
            ) from exc

    def sign(self, text: str) -> str:
        return encode_base64url(self._key.sign(text.encode()))


class DeviceTokens:
    """Tokens gateways gave this device, in one private file: gateway and role to token."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def find(self, gateway: str, role: str) -> str | None:
        return self._read().get(f"{role} {gateway}")

    def save(self, gateway: str, role: str, token: str) -> None:
        tokens = self._read()
        if tokens.get(f"{role} {gateway}") != token:
            tokens[f"{role} {gateway}"] = token
            write_atomic(self._path, msgspec.json.encode(tokens))

    def _read(self) -> dict[str, str]:
        data = read_if_exists(self._path)
        if data is None:
            return {}
        try:
            return msgspec.json.decode(data, type=dict[str, str])
        except ValueError as exc:
            raise StateBroken(f"{self._path} holds no device tokens; remove it to pair again") from exc


def is_library_loaded() -> bool:
    """Whether checking a signature takes microseconds from now on."""
    return SIGNATURE_MODULE in sys.modules


def load_library() -> None:
    """What the first check would load."""
    importlib.import_module(SIGNATURE_MODULE)


def device_id(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()


def read_public_key(text: str) -> bytes:
    """The raw key out of base64url, base64 or PEM. Raises ValueError."""
    if "BEGIN" in text:
        # Here for start-up and memory, see above.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        key = load_pem_public_key(text.encode())
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("not an Ed25519 key")
        return key.public_bytes_raw()
    raw = decode_base64(text)
    if len(raw) != KEY_BYTES:
        raise ValueError("not an Ed25519 key")
    return raw


def is_valid_signature(public_key: bytes, text: str, signature: str) -> bool:
    """Whether `signature` over `text` is by that key."""
    # Here for start-up and memory, see above.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(decode_base64(signature), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def encode_base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_base64(text: str) -> bytes:
    """Bytes out of base64 in either alphabet, padded or not. Raises ValueError."""
    plain = text.strip().replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error as exc:
        raise ValueError("not base64") from exc
