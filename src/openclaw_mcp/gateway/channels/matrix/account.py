"""Who we are on a homeserver, and how far we have listened: logged in once, kept on disk."""

import asyncio
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from ....core.channel import ChannelRefused
from ....core.model import Json
from ....net.files import StateBroken, private_folder, read_whole, write_whole
from .api import CLIENT, Homeserver, LoggedOut, MatrixRefused
from .settings import MatrixSettings

T = TypeVar("T")


class Me(Struct, frozen=True, kw_only=True):
    user: str
    device: str
    token: str


class Position(Struct, frozen=True, kw_only=True):
    """Where to listen on. Written only when everything before it is on our disk."""

    user: str
    since: str
    waiting: tuple[Json, ...] = ()
    """Encrypted messages whose key has not come yet: `{room, event, until}`."""


class Account:
    """`me` after `enter`. A password logs in once: its token and device serve until the server forgets them."""

    def __init__(self, settings: MatrixSettings, server: Homeserver, folder: Path, name: str) -> None:
        self._settings = settings
        self._name = name
        self._server = server
        self._login = folder / "login.json"
        self._position = folder / "position.json"
        self._folder = folder
        self._me: Me | None = None
        self._entering = asyncio.Lock()

    @property
    def me(self) -> Me:
        assert self._me is not None, "enter first"
        return self._me

    @property
    def entered(self) -> bool:
        return self._me is not None

    async def enter(self) -> Me:
        """Be logged in. Raises ChannelRefused when a person must give another token or password."""
        async with self._entering:
            if self._me is None:
                await asyncio.to_thread(private_folder, self._folder)
                self._me = await self._with_token() or await self._with_password()
            return self._me

    def leave(self) -> None:
        """The server does not know us any more: the next `enter` asks it."""
        self._me = None

    async def _with_token(self) -> Me | None:
        given = self._settings.token(self._name)
        kept = None if given else await self._kept()
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
        return self._checked(Me(user=str(answer["user_id"]), device=str(answer.get("device_id", "")), token=token))

    async def _with_password(self) -> Me:
        user, password = self._settings.user_id, self._settings.secret_word(self._name)
        if not user or not password:
            raise ChannelRefused("channels.matrix needs an accessToken, or a userId and a password")
        kept = await self._kept()
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
        me = Me(user=str(answer["user_id"]), device=str(answer["device_id"]), token=str(answer["access_token"]))
        self._server.token = me.token
        await asyncio.to_thread(write_whole, self._login, msgspec.json.encode(me))
        return self._checked(me)

    def _checked(self, me: Me) -> Me:
        wanted = self._settings.user_id
        if wanted and wanted.startswith("@") and wanted != me.user:
            raise ChannelRefused(f"channels.matrix.userId is {wanted}, but the login belongs to {me.user}")
        return me

    async def _kept(self) -> Me | None:
        raw = await asyncio.to_thread(read_whole, self._login)
        return None if raw is None else _decoded(raw, Me, self._login)

    async def position(self) -> Position | None:
        raw = await asyncio.to_thread(read_whole, self._position)
        found = None if raw is None else _decoded(raw, Position, self._position)
        return found if found is not None and found.user == self.me.user else None

    async def listened(self, position: Position) -> None:
        """On disk when this returns."""
        await asyncio.to_thread(write_whole, self._position, msgspec.json.encode(position))


def _decoded(raw: bytes, kind: type[T], path: Path) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as exc:
        raise StateBroken(f"{path} is damaged: restore it, or remove it to start listening from now") from exc
