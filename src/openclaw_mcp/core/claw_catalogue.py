"""The 29 tools of a CLI agent, each declared once: what agents see, who may use it, which gateway methods it needs.

Everything else about them is derived: MCP tool lists and the reference from `spec`, what a grant may call from
`methods`, the names policy rules use from `parent` and `group`, the effects that are recorded from `records`. The
handlers are in `claw`.
"""

from collections.abc import Mapping
from typing import Final

from .claw_tool import (
    ClawTool,
    Parameter,
    cron_tool,
    define_tool,
    flag,
    gateway_tool,
    integer,
    json_object,
    message_tool,
    text,
    text_list,
)
from .model import Json

DEFAULT_WAIT: Final = 30  # seconds sessions_send waits for the reply unless the caller names another time
MAX_WAIT: Final = 3600
WAIT_SLACK: Final = 15.0  # seconds beyond the wait that the gateway has to report how the run ended
MAX_TARGETS: Final = 100  # conversations of one broadcast

# A table: short facts share a line.
# fmt: off
_SESSION_TOOLS: Final = (
    define_tool("sessions_list", "List sessions",
        "List the gateway's sessions, the latest first, each with its key, label, channel, last message and whether a "
        "run is going. Use a key from here with sessions_history or sessions_send.",
        text("filter", "Only sessions whose key, label or title contains this text.", "search query"),
        integer("limit", "At most so many sessions.", most=1000),
        integer("activeMinutes", "Only sessions active within so many minutes.", "active_minutes"),
        text("agentId", "Only sessions of this agent.", "agent_id"),
        methods=(("sessions.list",),),
    ),
    define_tool("sessions_history", "Read a session",
        "Read the messages of one session, oldest first. Unknown sessions have none.",
        text("sessionKey", "The session, as sessions_list names it; `main` is the main one.", "session_key key"),
        integer("limit", "The newest so many messages; 200 unless given.", most=1000),
        flag("includeTools", "Whether tool calls and their results are shown; true unless given.", "include_tools"),
        required="sessionKey", methods=(("chat.history",),), extra_methods=("sessions.resolve",),
    ),
    define_tool("sessions_send", "Send to a session",
        "Send a message to another session's agent and wait for its reply. Name the session by `sessionKey` or by "
        "`label`. `timeout` 0 returns at once; status `timeout` means it still works on it: read its history later.",
        text("sessionKey", "The session's key. Give this or `label`.", "session_key key"),
        text("label", "The session's label. Give this or `sessionKey`."),
        text("message", "What to tell it.", "text prompt"),
        integer(
            "timeout", f"Seconds to wait for the reply; {DEFAULT_WAIT} unless given, 0 = do not wait.",
            "timeoutSeconds timeout_seconds", least=0, most=MAX_WAIT, kind="number",
        ),
        text("agentId", "Whose session the label names, when several agents have one of that label.", "agent_id"),
        required="message", methods=(("agent", "agent.wait"),), extra_methods=("sessions.resolve",),
        records="message_sent", effect="send", spec={"deadline": MAX_WAIT + 2 * WAIT_SLACK},
    ),
    define_tool("sessions_spawn", "Start a sub-agent",
        "Start a sub-agent on a task of its own. It works in the background; its result is announced to this session. "
        "Returns the child's session key and run id at once: do not wait for it in a loop.",
        text("prompt", "The whole task: the sub-agent knows nothing of this conversation.", "task message"),
        text("agentId", "Which agent does it; this one unless given. See agents_list.", "agent agent_id"),
        text("channel", "Leave it out: the result comes to this session's own conversation, and to no other channel."),
        text("label", "A short name for it.", "name"),
        text("model", "The model it uses, as provider/model."),
        text("thinking", "How hard it thinks."),
        integer("timeoutSeconds", "Stop it after so many seconds; 0 = never.", "runTimeoutSeconds timeout", least=0),
        text("cleanup", "Whether its session is kept afterwards.", enum=["keep", "delete"]),
        required="prompt", methods=(("sessions.spawn",), ("sessions.create",)), effect="run",
    ),
    define_tool("session_status", "Session status",
        "How this session is: its row (model, tokens, label, times) and whether a run is going. Another session's when "
        "`sessionKey` is given and it may be seen.",
        text("sessionKey", "The session; this one unless given.", "session_key key"),
        methods=(("sessions.describe",),),
    ),
    define_tool("agents_list", "List agents",
        "List the agents this gateway has, with their models. Their ids are what sessions_spawn takes.",
        methods=(("agents.list",),), group="group:agents",
    ),
    define_tool("subagents", "Sub-agents",
        "Look after the sub-agents this session started: `list` them, ask for the `status` of one, `cancel` one (it "
        "really stops), or `steer` one with a new message.",
        text("action", "What to do.", enum=["list", "status", "cancel", "kill", "steer"]),
        text("runId", "Which one, by run id.", "run_id"),
        text("childSessionKey", "Which one, by session key.", "child_session_key"),
        text("target", "Which one, by any name `list` shows; `all` with cancel means every one."),
        text("message", "With steer: what to tell it."),
        text("reason", "With cancel: why."),
        json_object("params", "The same parameters, as an object."),
        required="action", methods=(("sessions.subagents",), ("sessions.list", "sessions.abort")), effect="run",
        destructive=True,
    ),
)

_TARGET: Final = text(
    "target",
    "The conversation, as its channel writes it: a chat id, @name, room or channel id; this one unless given.",
    "to recipient chat_id chatId",
)
_MESSAGE: Final = text("message", "The text.", "text content body")
_MESSAGE_ID: Final = text(
    "messageId", "The message, by the id message_read or an earlier send gave it.", "message_id id"
)
_CHANNEL: Final = (
    text("channel", "The channel (telegram, matrix, local …); this conversation's unless given.", "provider"),
    text("accountId", "The account of that channel; this conversation's unless given.", "account_id"),
)
_CONVERSATION: Final = (
    text("target", "The conversation the message is in; this one unless given.", _TARGET.aliases),
    *_CHANNEL,
)
_THREAD: Final = text(
    "threadId", "The thread or topic; in this conversation the current one unless given.", "thread_id"
)
_REPLY_TO: Final = text("replyToId", "The id of the message this answers.", "replyTo reply_to reply_to_id")

_MESSAGE_TOOLS: Final = (
    message_tool("message_send", "send", "Send a message",
        "Send a message to this or any other conversation, with a picture or file if `media` is given; a file alone "
        "needs no text.",
        _TARGET, _MESSAGE,
        text(
            "media", "A file to go with it: a path in your workspace or an http(s) address.",
            "mediaUrl media_url file path",
        ),
        _REPLY_TO, _THREAD, *_CHANNEL, extra_methods=("send", "message:send"),
    ),
    message_tool("message_reply", "reply", "Reply here",
        "Answer in the conversation this run came from, in its thread; `replyToId` quotes one message.",
        _MESSAGE,
        Parameter(_REPLY_TO.name, _REPLY_TO.schema, f"{_REPLY_TO.aliases} messageId"),
        required="message",
    ),
    message_tool("message_thread_reply", "thread-reply", "Reply in a thread",
        "Answer in a certain thread of the conversation this run came from.",
        _MESSAGE,
        text("threadId", "The thread or topic.", _THREAD.aliases),
        _REPLY_TO, required="message threadId",
    ),
    message_tool("message_broadcast", "broadcast", "Broadcast",
        "Send one text to several conversations of a channel. The answer says for each whether it went out.",
        text_list(
            "targets", "The conversations, as their channel writes them.", "to recipients", minItems=1,
            maxItems=MAX_TARGETS,
        ),
        _MESSAGE, *_CHANNEL, required="targets message",
    ),
    message_tool("message_react", "react", "React",
        "Put an emoji on a message of this conversation, or take it away with `remove`.",
        text("emoji", "The emoji."),
        _MESSAGE_ID,
        flag("remove", "Take the reaction away."),
        *_CONVERSATION, required="emoji messageId", effect="write", idempotent=True,
    ),
    message_tool("message_delete", "delete", "Delete a message",
        "Delete a message of this conversation for everybody. It can't be brought back.",
        _MESSAGE_ID, *_CONVERSATION, required="messageId", effect="write", destructive=True, idempotent=True,
    ),
    message_tool("message_send_attachment", "sendAttachment", "Send a file",
        "Send a file to a conversation, with a caption if you like.",
        _TARGET,
        text("file", "A path in your workspace or an http(s) address.", "path filePath file_path media mediaUrl url"),
        text("caption", "Words to go with it.", "message text"),
        _THREAD, *_CHANNEL, required="file",
    ),
    message_tool("message_send_with_effect", "sendWithEffect", "Send with an effect",
        "Send a message with a visual effect (confetti, fireworks …) where the channel has such.",
        _TARGET, _MESSAGE,
        text("effectId", "The effect, as the channel names it.", "effect effect_id"),
        _THREAD, *_CHANNEL, required="message effectId",
    ),
    message_tool("message_pin", "pin", "Pin a message",
        "Pin a message of this conversation, or unpin it with `remove`.",
        _MESSAGE_ID,
        flag("remove", "Unpin it."),
        *_CONVERSATION, required="messageId", effect="write", idempotent=True,
    ),
    message_tool("message_read", "read", "Read messages",
        "Read the newest messages of a conversation, with their ids; this conversation's unless `channelId` is given.",
        text(
            "channelId", "The conversation, as its channel writes it; this one unless given.",
            "target to channel_id chat_id",
        ),
        integer("limit", "At most so many messages.", most=200),
        text("before", "Only messages older than the one of this id."),
        _THREAD, *_CHANNEL, effect="read", extra_methods=("message:readMessages",),
    ),
)

_JOB_ID: Final = text("jobId", "The job, as cron_list shows its id.", "id job_id job")
_OVERWRITES: Final[Json] = {"effect": "write", "destructive": True, "idempotent": True}

_CRON_TOOLS: Final = (
    cron_tool("cron_status", "Scheduler status",
        "Whether the scheduler runs, how many jobs there are and when the next is due.",
    ),
    cron_tool("cron_list", "List jobs",
        "List scheduled jobs, disabled ones too, with their schedules and next run times.",
        text("filter", "Only jobs whose name, description or text contains this.", "query search"),
        text("enabled", "Which jobs.", enum=["all", "enabled", "disabled"]),
        integer("limit", "At most so many jobs.", most=200),
        integer("offset", "Skip so many.", least=0),
    ),
    cron_tool("cron_add", "Add a job",
        "Schedule a job. `job` is {name, schedule, payload, …}. schedule: {kind:'at', at:'2030-01-01T09:00:00Z'}, "
        "{kind:'every', everyMs:3600000} or {kind:'cron', expr:'0 9 * * 1', tz:'Europe/Berlin'}. payload: "
        "{kind:'systemEvent', text} reminds the main session, {kind:'agentTurn', message} lets an agent work on it and "
        "announces the answer in this conversation. Only a job added here makes a promised reminder come true.",
        json_object(
            "job", "The job: name, schedule, payload; optional sessionTarget, wakeMode, delivery …", "spec task"
        ),
        required="job", effect="write", records="cron_added",
    ),
    cron_tool("cron_update", "Change a job",
        "Change a job: `updates` holds the fields that change, for instance {enabled:false} or a new schedule.",
        _JOB_ID,
        json_object("updates", "The fields that change.", "patch changes"),
        required="jobId updates", **_OVERWRITES,
    ),
    cron_tool("cron_remove", "Remove a job", "Delete a job.", _JOB_ID, required="jobId", **_OVERWRITES),
    cron_tool("cron_run", "Run a job now",
        "Run a job now. It is queued and this returns at once; cron_runs shows what came of it.",
        _JOB_ID,
        text(
            "mode", "`force` runs it now, `due` only if its time has come; force unless given.", enum=["force", "due"]
        ),
        required="jobId", effect="run",
    ),
    cron_tool("cron_runs", "Past runs",
        "What came of past runs of a job, or of all jobs when no `jobId` is given; the latest first.",
        text("jobId", "Only runs of this job.", _JOB_ID.aliases),
        integer("limit", "At most so many runs.", most=200),
    ),
)

_NOTE: Final = text("note", "Why, for the history.")
_BASE_HASH: Final = text("baseHash", "Write only if the config still has this hash (from gateway_config_get).")

_GATEWAY_TOOLS: Final = (
    gateway_tool("gateway_restart", "restart", "Restart the gateway",
        "Restart the gateway once running work has ended. Connections drop for a moment and come back by themselves.",
        text("reason", "Why, for the log."),
        methods=("gateway.restart.request",), extra_methods=("gateway.restart.preflight",), effect="run",
        destructive=True,
    ),
    gateway_tool("gateway_config_get", "config.get", "Read the config",
        "Read the gateway's config, or the part at `key`. Secrets are hidden; written back unchanged they stay.",
        text("key", "A dotted path, for instance `agents.defaults.model` or `agents.list.0`.", "path"),
        methods=("config.get",),
    ),
    gateway_tool("gateway_config_apply", "config.apply", "Replace the config",
        "Replace the whole config. What you leave out is gone: prefer gateway_config_patch. Checked before it is "
        "written; keys that need a restart cause one.",
        json_object("config", "The whole config.", "raw"),
        _BASE_HASH, _NOTE, required="config", methods=("config.get", "config.apply"), **_OVERWRITES,
    ),
    gateway_tool("gateway_config_patch", "config.patch", "Change the config",
        "Change parts of the config: objects are merged, null deletes a key, lists are replaced. Checked before it is "
        "written; keys that need a restart cause one.",
        json_object("patches", "What changes, as an object laid over the config.", "patch raw config updates"),
        text_list("replacePaths", "Dotted paths of lists that may lose entries."),
        _BASE_HASH, _NOTE, required="patches", methods=("config.get", "config.patch"), **_OVERWRITES,
    ),
    gateway_tool("gateway_config_schema", "config.schema", "Config schema",
        "The JSON Schema of the config, or of the part at `key` with its children. The whole is large: prefer a key.",
        text("key", "A dotted path, for instance `agents.defaults`.", "path"),
        methods=("config.schema",), extra_methods=("config.schema.lookup",),
    ),
)

# fmt: on
CLAW_TOOLS: Final[Mapping[str, ClawTool]] = {
    tool.name: tool for tool in (*_SESSION_TOOLS, *_MESSAGE_TOOLS, *_CRON_TOOLS, *_GATEWAY_TOOLS)
}
