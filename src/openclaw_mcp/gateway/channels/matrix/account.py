"""Who we are on a homeserver, and how far we have listened: logged in once, kept on disk."""

import asyncio
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from ....core.channel import ChannelRefused
from ....core.model import Json
from ....net.files import StateBroken, make_private_folder, read_if_exists, write_atomic
from .api import CLIENT, Homeserver, LoggedOut, MatrixRefused
from .settings import MatrixSettings

T = TypeVar("T")


class MatrixIdentity(Struct, frozen=True, kw_only=True):
    user: str
    device: str
    token: str


class SyncPosition(Struct, frozen=True, kw_only=True):
    """Where to listen on. Written only when everything before it is on our disk."""

    user: str
    since: str
    waiting: tuple[Json, ...] = ()
    """Encrypted messages whose key has not come yet: `{room, event, until}`."""


class MatrixLogin:
    """`me` after `enter`. A password logs in once: its token and device serve until the server forgets them."""

    def __init__(self, settings: MatrixSettings, server: Homeserver, folder: Path, name: str) -> None:
        self._settings = settings
        self._name = name
        self._server = server
        self._login_path = folder / "login.json"
        self._position_path = folder / "position.json"
        self._folder = folder
        self._identity: MatrixIdentity | None = None
        self._login_lock = asyncio.Lock()

    @property
    def identity(self) -> MatrixIdentity:
        assert self._identity is not None, "enter first"
        return self._identity

    @property
    def is_logged_in(self) -> bool:
        return self._identity is not None

    async def log_in(self) -> MatrixIdentity:
        """Be logged in. Raises ChannelRefused when a person must give another token or password."""
        async with self._login_lock:
            if self._identity is None:
                await asyncio.to_thread(make_private_folder, self._folder)
                self._identity = await self._log_in_with_token() or await self._log_in_with_password()
            return self._identity

    def invalidate(self) -> None:
        """The server does not know us any more: the next `enter` asks it."""
        self._identity = None

    async def _log_in_with_token(self) -> MatrixIdentity | None:
        given = self._settings.resolve_token(self._name)
        kept = None if given else await self._load_identity()
        token = given or (kept.token if kept else None)
        if token is None:
            return None
        self._server.token = token
        try:
            answer = await self._server.get(f"{CLIENT}/account/whoami")
        except LoggedOut as exc:
            if given is None:
                return None
            raise ChannelRefused(str(exc)) from exc
        return self._check_user(
            MatrixIdentity(user=str(answer["user_id"]), device=str(answer.get("device_id", "")), token=token)
        )

    async def _log_in_with_password(self) -> MatrixIdentity:
        user, password = self._settings.user_id, self._settings.resolve_password(self._name)
        if not user or not password:
            raise ChannelRefused("channels.matrix needs an accessToken, or a userId and a password")
        kept = await self._load_identity()
        self._server.token = None
        body: Json = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": user},
            "password": password,
            "initial_device_display_name": self._settings.device_name,
        }
        if kept is not None:
            body["device_id"] = kept.device  # the same device, so that its keys and transactions go on
        try:
            answer = await self._server.post(f"{CLIENT}/login", body)
        except MatrixRefused as exc:
            raise ChannelRefused(
                f"the homeserver refused user and password of channels.matrix ({exc.errcode})"
            ) from exc
        me = MatrixIdentity(
            user=str(answer["user_id"]), device=str(answer["device_id"]), token=str(answer["access_token"])
        )
        self._server.token = me.token
        await asyncio.to_thread(write_atomic, self._login_path, msgspec.json.encode(me))
        return self._check_user(me)

    def _check_user(self, identity: MatrixIdentity) -> MatrixIdentity:
        wanted = self._settings.user_id
        if wanted and wanted.startswith("@") and wanted != identity.user:
            raise ChannelRefused(f"channels.matrix.userId is {wanted}, but the login belongs to {identity.user}")
        return identity

    async def _load_identity(self) -> MatrixIdentity | None:
        raw = await asyncio.to_thread(read_if_exists, self._login_path)
        return None if raw is None else _decode_file(raw, MatrixIdentity, self._login_path)

    async def load_position(self) -> SyncPosition | None:
        raw = await asyncio.to_thread(read_if_exists, self._position_path)
        found = None if raw is None else _decode_file(raw, SyncPosition, self._position_path)
        return found if found is not None and found.user == self.identity.user else None

    async def save_position(self, position: SyncPosition) -> None:
        """On disk when this returns."""
        await asyncio.to_thread(write_atomic, self._position_path, msgspec.json.encode(position))


def _decode_file(raw: bytes, kind: type[T], path: Path) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as exc:
        raise StateBroken(f"{path} is damaged: restore it, or remove it to start listening from now") from exc
