"""Runs chat commands in a session, for every way a message comes in."""

from collections.abc import Awaitable, Callable

from ...core.approvals import WHERE_TO_ANSWER
from ...core.chat_commands import (
    RESET_COMMANDS,
    ChatCommand,
    CommandReply,
    CommandSender,
    help_text,
    refusal_reason,
)
from ...core.errors import BadRequest
from ...core.model_name import check_model_name
from ...core.rpc import RpcError
from ...core.session_keys import new_session, split_key
from . import views
from .session_operations import SessionOperations

ModelCheck = Callable[[str, str], str | None]
"""Why an agent can't work with a model; None: it can."""
StopSubagents = Callable[[str], Awaitable[int]]
"""Stops those that a session has started; how many were running."""


class ChatCommandRunner(SessionOperations, frozen=True, kw_only=True):
    model_problem: ModelCheck
    stop_subagents: StopSubagents

    async def run(self, command: ChatCommand, key: str, sender: CommandSender) -> CommandReply:
        """Do what it says in the session of that key. A refusal is a reply too."""
        refusal = refusal_reason(command, sender)
        if refusal is not None:
            return CommandReply(refusal, done=False)
        if command.name in RESET_COMMANDS:
            await self.reset_session(key)
            await self.stop_subagents(key)
            return CommandReply("A new conversation begins.")
        match command.name:
            case "/stop":
                stopped = tuple(await self.runner.abort(key, reason="stop"))
                is_stopped = bool(stopped) | bool(await self.stop_subagents(key))
                return CommandReply("Stopped." if is_stopped else "Nothing was going on.", stopped_run_ids=stopped)
            case "/status":
                return CommandReply(await self._describe(key, sender))
            case "/approve":  # by this way in, it is not known with which credential the asker could answer
                return CommandReply(f"Answer questions in {WHERE_TO_ANSWER}, or in the conversation they come from.")
            case "/model":
                return CommandReply(await self._choose_model(key, command.argument))
            case "/whoami":
                account = f", account {sender.account}" if sender.account else ""
                return CommandReply(f"You are {sender.name} on {sender.channel}{account}.")
        return CommandReply(help_text())

    async def _describe(self, key: str, sender: CommandSender) -> str:
        session = await self.sessions.get(key)
        lines = [f"Session {key} on {sender.channel}.", f"Model: {await self._current_model(key)}"]
        if session is not None:
            used = f"{session.input_tokens} in, {session.output_tokens} out"
            lines.append(f"Messages: {session.message_count}; tokens: {used}")
            active = len((await self.sessions.active_runs([key])).get(key, ()))
            lines.append("Nothing is going on." if not active else f"Messages being answered or waiting: {active}")
        return "\n".join(lines)

    async def _current_model(self, key: str) -> str:
        session = await self.sessions.get(key)
        chosen = None if session is None else session.entry.get("model")
        default = views.model_selection(split_key(key)[0], self.roster())
        return str(chosen or f"{default['modelProvider']}/{default['model']}")

    async def _choose_model(self, key: str, name: str) -> str:
        if not name:
            return f"Model: {await self._current_model(key)}\nUse another: /model <provider/model>; /model default"
        chosen = None if name == "default" else name
        if chosen is not None and (problem := self._find_problem(key, chosen)) is not None:
            return problem
        session = await self.sessions.patch(key, {}, {"model": chosen})
        if session is None:
            await self.sessions.create(new_session(key, self.roster()))
            session = await self.sessions.patch(key, {}, {"model": chosen})
        if session is not None:
            self.events.publish_session(session, reason="patch")
        return f"Model: {await self._current_model(key)}"

    def _find_problem(self, key: str, model: str) -> str | None:
        try:
            check_model_name(model)
        except (BadRequest, RpcError) as exc:
            return str(exc)
        return self.model_problem(split_key(key)[0], model)
