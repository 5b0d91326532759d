"""Tools of apps that are attached to a proxy in this process: each app's are for the conversation it names."""

from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Self

from ...core import session_keys
from ...core.agents import AgentRoster
from ...core.model import ToolCall, ToolResult, ToolSpec
from ...core.ports import AppDirectory, ConnectedApp
from ...core.rpc import RpcError
from ...tools.registry import ToolRegistry
from ...tools.tool_names import is_known_name

MAX_APP_TOOLS: Final = 1024  # tools of apps that one session may have

_App = tuple[ConnectedApp, str | None]
"""An app and the conversation it names: read once, when the app connects."""


class AppToolSources:
    """Sources of the registry while the block runs. Without a directory there are none."""

    def __init__(
        self, registry: ToolRegistry, directory: AppDirectory | None, roster: Callable[[], AgentRoster]
    ) -> None:
        self._registry = registry
        self._directory = directory
        self._roster = roster
        self._apps: dict[str, _App] = {}
        self._by_session: defaultdict[str | None, dict[str, ConnectedApp]] = defaultdict(dict)
        self._indexed_roster: AgentRoster | None = None
        self._disconnects: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        if self._directory is not None:
            self._disconnects = [
                self._directory.app_attached.connect(self._on_attach),
                self._directory.session_ended.connect(self._on_end),
            ]
            for app in self._directory.connected_apps():
                self._on_attach(app)
        return self

    def __exit__(self, *_: object) -> None:
        for disconnect in self._disconnects:
            disconnect()

    def sources_for_session(self, session: str, *, include_all: bool) -> list[str]:
        """The sources of this session: the apps that came first, up to MAX_APP_TOOLS tools."""
        names, tools = [], 0
        for name in self._apps if include_all else self._index_by_session().get(session, {}):
            tools += max(1, len(self._apps[name][0].specs()))
            if tools > MAX_APP_TOOLS:
                break
            names.append(name)
        return names

    def _on_attach(self, app: ConnectedApp) -> None:
        name = _source_name(app)
        before = self._apps.get(name)
        if before is not None:
            if before[0] is app:
                return
            self._on_end(app)
        self._apps[name] = app, app.chat_id
        self._index_by_session()[_session_for_chat(self._apps[name][1], self._roster())][name] = app
        self._registry.add(name, _AppToolSource(app))

    def _on_end(self, app: ConnectedApp) -> None:
        name = _source_name(app)
        known = self._apps.pop(name, None)
        if known is not None:
            index, session = self._index_by_session(), _session_for_chat(known[1], self._roster())
            index[session].pop(name, None)
            if not index[session]:
                del index[session]
            self._registry.remove(name)

    def _index_by_session(self) -> defaultdict[str | None, dict[str, ConnectedApp]]:
        """The apps by the session their conversation is; built again when the config gives sessions other names."""
        roster = self._roster()
        if self._indexed_roster is not roster:
            self._indexed_roster = roster
            self._by_session.clear()
            for name, (app, chat) in self._apps.items():
                self._by_session[_session_for_chat(chat, roster)][name] = app
        return self._by_session


def _session_for_chat(chat: str | None, roster: AgentRoster) -> str | None:
    """The session that an app's name for its conversation means; None: no session of ours."""
    if not chat:
        return None
    try:
        return session_keys.normalize_key(chat, roster)
    except RpcError:
        return None


def _source_name(app: ConnectedApp) -> str:
    """Not the session's id, which is a key to it: source names are written to the audit."""
    return f"app/{app.digest}"


class _AppToolSource:
    """An app's tools without those that have the name of one of our own."""

    def __init__(self, app: ConnectedApp) -> None:
        self._app = app
        self.changed = app.changed
        self.call: Callable[[ToolCall], Coroutine[Any, Any, ToolResult]] = app.call

    def specs(self) -> Sequence[ToolSpec]:
        return [spec for spec in self._app.specs() if not is_known_name(spec.name)]
