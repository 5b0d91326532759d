"""What a page asks when it opens a chat: `chat.startup`, `chat.metadata`, `commands.list`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import asdict

from ...core.fields import NonEmptyStr
from ...core.model import Json
from ...core.rpc import READ, RpcCall, RpcError, RpcMethod, make_method
from ...core.session_keys import split_key
from .command_list import CommandRow, list_commands
from .params import HistoryParams, PositiveInt, RunId, SessionKey, SessionParams
from .session_operations import SessionOperations
from .short_ids import ShortId, find_by_short_id, resolution

ReadHistory = Callable[[RpcCall, HistoryParams], Awaitable[Json]]


class StartupParams(HistoryParams, frozen=True, kw_only=True):
    """Those of `chat.history`, or the short id in the address of a page in place of the session's key."""

    session_key: SessionKey | None = None  # type: ignore[assignment]  # not needed with a short id
    short_id: ShortId | None = None
    slug_hint: NonEmptyStr | None = None
    session_id: NonEmptyStr | None = None
    pending_before: PositiveInt | None = None
    input_run_ids: Annotated[list[RunId], Meta(min_length=1, max_length=50)] | None = None


class MetadataParams(SessionParams, frozen=True, kw_only=True):
    session_key: SessionKey | None = None
    auth_profile_id: NonEmptyStr | None = None


class CommandListParams(SessionParams, frozen=True, kw_only=True):
    session_key: SessionKey | None = None
    provider: NonEmptyStr | None = None
    scope: NonEmptyStr | None = None
    include_args: bool = True


class ChatMetadata(Struct, frozen=True):
    models: Sequence[Any]
    commands: Sequence[CommandRow]


class CommandList(Struct, frozen=True):
    commands: Sequence[CommandRow]


class StartupMethods(SessionOperations, frozen=True, kw_only=True):
    """An `RpcModule`. `history` answers as `chat.history` does; `list_models` are the models of an agent."""

    history: ReadHistory
    list_models: Callable[[str], Sequence[Any]]

    def methods(self) -> Sequence[RpcMethod]:
        return (
            make_method("chat.startup", READ, StartupParams, self._start_up),
            make_method("chat.metadata", READ, MetadataParams, self._describe_chat),
            make_method("commands.list", READ, CommandListParams, self._list_commands),
        )

    async def _start_up(self, call: RpcCall, asked: StartupParams) -> Json:
        if asked.short_id is None:
            if asked.session_key is None:
                raise RpcError("chat.startup needs sessionKey, or shortId with agentId")
            return await self.history(call, _history_params(asked, asked.session_key))
        found = await find_by_short_id(self.sessions, asked.short_id, agent_id=asked.agent_id, slug=asked.slug_hint)
        meant = {"resolution": resolution(found)}
        if len(found) != 1:
            return meant
        return {**await self.history(call, _history_params(asked, found[0].key)), **meant}

    async def _describe_chat(self, call: RpcCall, asked: MetadataParams) -> ChatMetadata:
        agent_id = asked.agent_id or self.roster().default_id
        if asked.session_key is not None:
            agent_id = split_key(self.canonical_key(asked.session_key, asked.agent_id))[0]
        return ChatMetadata(self.list_models(agent_id), list_commands())

    async def _list_commands(self, call: RpcCall, asked: CommandListParams) -> CommandList:
        return CommandList(list_commands())


def _history_params(asked: StartupParams, key: str) -> HistoryParams:
    names = HistoryParams.__struct_fields__
    return HistoryParams(
        **{**{name: value for name, value in asdict(asked).items() if name in names}, "session_key": key}
    )
