"""The login on a homeserver, and the position of its sync; both are kept on disk."""

import asyncio
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from ....core.channel import ChannelRefused
from ....core.lenient import decode_lenient
from ....net.files import StateBroken, make_private_folder, read_if_exists, write_atomic
from .api import Homeserver, LoggedOut, MatrixRefused, client_path
from .events import MatrixEvent
from .settings import MatrixSettings

T = TypeVar("T")


class MatrixIdentity(Struct, frozen=True, kw_only=True):
    user: str
    device: str
    token: str


class _LoginAnswer(Struct, frozen=True, kw_only=True):
    user_id: str
    device_id: str = ""
    access_token: str = ""


class UndecryptedEvent(Struct, frozen=True, kw_only=True):
    """An encrypted message whose key has not arrived yet."""

    room: str
    event: MatrixEvent
    until: float
    """Unix seconds at which we stop waiting for the key."""


class SyncPosition(Struct, frozen=True, kw_only=True):
    """Where the next sync continues. Written only when everything before it is on our disk."""

    user: str
    since: str
    waiting: tuple[UndecryptedEvent, ...] = ()


class PositionFile:
    """The sync position of one user."""

    def __init__(self, folder: Path, user: str) -> None:
        self._path = folder / "position.json"
        self._user = user

    async def load(self) -> SyncPosition | None:
        position = await _read_file(self._path, SyncPosition)
        return position if position is not None and position.user == self._user else None

    async def save(self, position: SyncPosition) -> None:
        """On disk when this returns."""
        await asyncio.to_thread(write_atomic, self._path, msgspec.json.encode(position))


class MatrixLogin:
    """Logs in. With a password it does so once: the token and device it got are used until the server forgets them."""

    def __init__(self, settings: MatrixSettings, server: Homeserver, folder: Path, name: str) -> None:
        self._settings = settings
        self._name = name
        self._server = server
        self._login_path = folder / "login.json"
        self._folder = folder

    async def log_in(self) -> MatrixIdentity:
        """Raises ChannelRefused when a person must provide another token or password."""
        await asyncio.to_thread(make_private_folder, self._folder)
        return await self._log_in_with_token() or await self._log_in_with_password()

    async def _log_in_with_token(self) -> MatrixIdentity | None:
        configured = self._settings.resolve_token(self._name)
        stored = None if configured else await _read_file(self._login_path, MatrixIdentity)
        token = configured or (stored.token if stored else None)
        if token is None:
            return None
        self._server.token = token
        try:
            answer = await self._server.get(client_path("account", "whoami"), _LoginAnswer)
        except LoggedOut as exc:
            if configured is None:
                return None
            raise ChannelRefused(str(exc)) from exc
        return self._check_user(MatrixIdentity(user=answer.user_id, device=answer.device_id, token=token))

    async def _log_in_with_password(self) -> MatrixIdentity:
        user, password = self._settings.user_id, self._settings.resolve_password(self._name)
        if not user or not password:
            raise ChannelRefused("channels.matrix needs an accessToken, or a userId and a password")
        stored = await _read_file(self._login_path, MatrixIdentity)
        self._server.token = None
        body = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": user},
            "password": password,
            "initial_device_display_name": self._settings.device_name,
        }
        if stored is not None:
            body["device_id"] = stored.device  # the same device, so that its keys and transactions stay valid
        try:
            answer = await self._server.post(client_path("login"), body, _LoginAnswer)
        except MatrixRefused as exc:
            raise ChannelRefused(
                f"the homeserver refused user and password of channels.matrix ({exc.errcode})"
            ) from exc
        identity = MatrixIdentity(user=answer.user_id, device=answer.device_id, token=answer.access_token)
        self._server.token = identity.token
        await asyncio.to_thread(write_atomic, self._login_path, msgspec.json.encode(identity))
        return self._check_user(identity)

    def _check_user(self, identity: MatrixIdentity) -> MatrixIdentity:
        user = self._settings.user_id
        if user and user.startswith("@") and user != identity.user:
            raise ChannelRefused(f"channels.matrix.userId is {user}, but the login belongs to {identity.user}")
        return identity


async def _read_file(path: Path, kind: type[T]) -> T | None:
    raw = await asyncio.to_thread(read_if_exists, path)
    try:
        return None if raw is None else decode_lenient(raw, kind)
    except msgspec.DecodeError as exc:
        raise StateBroken(f"{path} is damaged: restore it, or remove it to start listening from now") from exc
