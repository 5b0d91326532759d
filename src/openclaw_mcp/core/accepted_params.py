"""Parameters of gateway methods that are accepted although nothing here reads them.

A parameter that no struct declares is refused, as OpenClaw refuses it: a misspelt limit must not become a call without
it. OpenClaw's own clients send more than this gateway reads, so what its methods declare is accepted.
"""

from collections.abc import Mapping
from typing import Final

METHODS_WITHOUT_PARAMS: Final = frozenset(
    {
        "agents.list", "channels.pairing.list", "channels.status", "config.get", "config.schema", "cron.status",
        "device.pair.list", "exec.approval.grants.list", "exec.approvals.get",
        "node.list", "node.pair.list", "node.pending.pull", "secrets.reload", "sessions.unsubscribe",
        "skills.bins", "system.info", "tools.catalog",
    }
)  # fmt: skip
"""Methods whose handler reads no parameters."""

METHODS_WITH_ANY_PARAMS: Final = frozenset(
    {"wake", "sessions.get", "exec.approval.waitDecision", "attach.revoke", "exec.approvals.node.set"}
)
"""Methods that refuse no unknown parameter, as in OpenClaw; of the last one the node is the judge."""

_SESSION_LIST: Final = """boardFace configuredAgentsOnly creatorId group hasBoard includeActivitySummary includeGlobal
    includePeople includeUnknown involvingMe involvingProfileId ownerFirst ownerId profileRelation projectId
    workspaceDir"""
_CONFIG_WRITE: Final = "deliveryContext note replacePaths restartDelayMs sessionKey"

_ACCEPTED: Final = {
    "connect": "computerUse modelCatalog workerRuns",
    "agent": """accountId acpTurnSource bestEffortDeliver bootstrapContextMode bootstrapContextRunKind channel
        cleanupBundleMcpOnRunEnd deliver disableMessageTool execApprovalFollowupExpectedSessionId
        expectedExistingSessionId forceCodeModeTools forceRestartSafeTools groupChannel groupId groupSpace
        internalEvents internalExecutionIdentityRecoveryAttempt internalExecutionIdentityRetry
        internalRuntimeHandoffId modelRun promptMode replyAccountId replyChannel replyTo sessionEffects
        sourceReplyDeliveryMode suppressPromptPersistence swarmCollector swarmOutputSchema threadId to
        voiceWakeTrigger""",
    "agent.identity.get": "sessionKey",
    "approval.history": "cursor kind",
    "approval.resolve": "grantExpiresInDays kind reviewer",
    "audit.list": "after agentId cursor kind runId status",
    "channels.pairing.approve": "accountId bootstrapCommandOwner notify requestId",
    "channels.pairing.list": "accountId channel",
    "channels.status": "channel probe timeoutMs",
    "chat.abort": "preserveSideRuns",
    "chat.history": "inputRunIds pendingBefore sessionId",
    "chat.send": """deliver expectedLeafEntryId expectedPermissionMode expectedSessionRoutingContract
        expectedToolOverrides fastAutoOnSeconds fastMode intent mentions originatingAccountId originatingChannel
        originatingThreadId originatingTo replyToId sessionId suppressCommandInterpretation systemProvenanceReceipt
        toolBindings workContext""",
    "config.apply": _CONFIG_WRITE,
    "config.patch": _CONFIG_WRITE,
    "cron.list": "sessionAgentId trigger",
    "cron.run": "expectedProcessInstanceId",
    "exec.approval.request": """commandSpans deliverToApprovalClientsOnly scope sessionId suppressDelivery
        turnSourceAccountId turnSourceChannel turnSourceThreadId turnSourceTo""",
    "exec.approval.resolve": "grantExpiresInDays reviewer",
    "message.action": """conversationReadOrigin inboundTurnKind reply requesterAccountId requesterSenderId
        senderIsOwner sessionId toolContext""",
    "node.invoke": "sessionKey turnSourceAccountId turnSourceChannel turnSourceThreadId turnSourceTo",
    "node.invoke.progress": "nodeId",
    "node.pending.enqueue": "wake",
    "poll": "durationHours durationSeconds isAnonymous silent",
    "send": "asVoice buffer contentType filename forceDocument gifPlayback parseMode",
    "sessions.create": """agentRuntime catalogId category contextWindow cwd emitCommandHooks execNode fastMode fork
        forkFrom incognito mentions permissionMode projectGitUrl projectId repository succeedsParent titleSource
        toolOverrides visibility worktree worktreeBaseRef worktreeName worktreeSource""",
    "sessions.delete": "emitLifecycleHooks expectedSessionUpdatedAt",
    "sessions.list": _SESSION_LIST,
    "sessions.messages.subscribe": "includeApprovals",
    "sessions.resolve": "includeGlobal includeUnknown reference shortId slugHint spawnedBy",
    "sessions.search": "scope",
    "sessions.send": "mentions",
    "sessions.steer": "mentions",
    "sessions.subscribe": _SESSION_LIST,
    "tools.catalog": "agentId includePlugins",
    "tools.invoke": "confirm conversationReadOrigin idempotencyKey",
}

ACCEPTED_PARAMS: Final[Mapping[str, frozenset[str]]] = {
    method: frozenset(names.split()) for method, names in _ACCEPTED.items()
}
"""By method: what OpenClaw's method of this name takes and nothing here reads."""
