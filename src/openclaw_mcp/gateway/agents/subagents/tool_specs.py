"""Names, descriptions and schemas of the gateway's own tools."""

from typing import Any, Final

from ....core.claw_methods import TOOLS_BY_ACTION
from ....core.model import Json, ToolSpec

SEND_DEADLINE: Final = 24 * 3600.0  # seconds: the tool bounds its waiting itself, by what the caller asks for


def _object(required: tuple[str, ...] = (), **properties: Json) -> Json:
    schema: Json = {"type": "object", "properties": properties}
    return schema | ({"required": list(required)} if required else {})


def _text(description: str, **more: Any) -> Json:
    return {"type": "string", "description": description, **more}


def _number(description: str, *, minimum: int = 0, **more: Any) -> Json:
    return {"type": "number", "description": description, "minimum": minimum, **more}


SESSION_KINDS: Final = ("main", "group", "cron", "hook", "node", "other")

SPECS: Final[tuple[ToolSpec, ...]] = (
    ToolSpec(
        name="sessions_list",
        title="List sessions",
        description="List the sessions you may see, the latest first.",
        parameter_tools={"messageLimit": "sessions_history"},
        input_schema=_object(
            filter=_text("part of a key, label or title"),
            kinds={"type": "array", "items": {"enum": list(SESSION_KINDS)}, "description": "only these kinds"},
            limit={"type": "integer", "minimum": 1, "maximum": 1000, "description": "rows at most"},
            activeMinutes={"type": "integer", "minimum": 1, "description": "only those active so recently"},
            messageLimit={"type": "integer", "minimum": 0, "maximum": 20, "description": "last messages of each"},
        ),
    ),
    ToolSpec(
        name="sessions_history",
        title="Read a session",
        description="Read what was said in a session, oldest first. Long texts are cut, secrets hidden.",
        input_schema=_object(
            ("sessionKey",),
            sessionKey=_text("the session's key or id"),
            limit={"type": "integer", "minimum": 1, "maximum": 1000, "description": "messages at most"},
            includeTools={"type": "boolean", "description": "with what tools answered (default false)"},
        ),
    ),
    ToolSpec(
        name="sessions_send",
        title="Write to a session",
        description="Send a message into another session and wait for its agent's reply. Name it by key or by label.",
        effect="send",
        deadline=SEND_DEADLINE,
        input_schema=_object(
            ("message",),
            sessionKey=_text("the session's key or id"),
            label=_text("the session's label, instead of its key"),
            agentId=_text("whose session the label names"),
            message=_text("what to say", minLength=1),
            timeoutSeconds=_number("seconds to wait for the reply; 0 = do not wait (default 30)"),
            timeout=_number("the same as timeoutSeconds"),
        ),
    ),
    ToolSpec(
        name="sessions_spawn",
        title="Start a sub-agent",
        description="Send a sub-agent off with a task. It works by itself; its result comes to this session later.",
        effect="run",
        input_schema=_object(
            task=_text("what is to be done, with all that is needed to do it"),
            prompt=_text("the same as task"),
            agentId=_text("which agent does it (default: your own kind; agents_list tells)"),
            label=_text("a name to call it by"),
            model=_text("provider/model to use"),
            thinking=_text("thinking level"),
            runTimeoutSeconds=_number("seconds it may take; 0 = no limit of its own"),
            timeoutSeconds=_number("the same as runTimeoutSeconds"),
            thread={"type": "boolean", "description": "tie it to a thread of the channel"},
            mode={"enum": ["run", "session"], "description": "run: one task (default)"},
            cleanup={"enum": ["keep", "delete"], "description": "what becomes of its session (default keep)"},
        ),
    ),
    ToolSpec(
        name="session_status",
        title="Session status",
        description="What a session is doing: its run, model, tokens. Without a key, your own.",
        input_schema=_object(
            sessionKey=_text("the session's key or id"),
            model=_text("set the session's model; `default` goes back to the agent's own"),
        ),
    ),
    ToolSpec(
        name="agents_list",
        title="List agents",
        description="The agents you may start as sub-agents.",
        input_schema=_object(),
    ),
    ToolSpec(
        name="subagents",
        title="Look after sub-agents",
        description="List the sub-agents you started, see the status of one, stop it (kill) or redirect it (steer).",
        effect="run",
        input_schema=_object(
            action={"enum": ["list", "status", "kill", "cancel", "steer"], "description": "default list"},
            target={"type": ["string", "integer"], "description": "place on the list, label, key or run id; or all"},
            runId=_text("the run's id, instead of target"),
            childSessionKey=_text("its session, instead of target"),
            message=_text("for steer: what to do instead", maxLength=4000),
            reason=_text("for kill: why"),
            recentMinutes={"type": "integer", "minimum": 1, "maximum": 1440, "description": "how long ended ones show"},
            params={"type": "object", "description": "any of these in an object of their own"},
        ),
    ),
    ToolSpec(
        name="gateway",
        title="The gateway itself",
        description="Read and change the gateway's config, or restart it. For the owner.",
        effect="run",
        owner_only=True,
        actions=TOOLS_BY_ACTION["gateway"],
        input_schema=_object(
            ("action",),
            action={"enum": ["config.get", "config.schema", "config.patch", "config.apply", "restart"]},
            raw=_text("for config.patch and config.apply: the config, or a part of it, as JSON"),
            baseHash=_text("the config's hash when you read it (default: as it is now)"),
            path=_text("for config.get and config.schema: only this part, as a.b.c"),
            note=_text("why"),
            reason=_text("for restart: why"),
        ),
    ),
)
