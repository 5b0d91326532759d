"""Parameters of `cron.*` and `wake`."""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from ...core.fields import NonEmptyStr
from ...core.jobs import DeliveryStatus, FiringStatus, JobLogQuery, JobQuery, WakeMode
from ...core.model import Json
from ...core.rpc import SAFE_INTEGER, RpcError

MAX_PER_PAGE: Final = 200
Page = Annotated[int, Meta(ge=1, le=MAX_PER_PAGE)]
Count = Annotated[int, Meta(ge=0, le=SAFE_INTEGER)]
Direction = Literal["asc", "desc"]
LogId = Annotated[str, Meta(min_length=1, pattern=r"^[^/\\]+$")]


class _Params(Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: NonEmptyStr | None = None


class CronListParams(_Params, frozen=True, kw_only=True):
    include_disabled: bool = False
    limit: Page | None = None
    offset: Count = 0
    query: str | None = None
    filter: Any = None
    """An older name of `query`."""
    enabled: Literal["all", "enabled", "disabled"] | None = None
    schedule_kind: Literal["all", "at", "every", "cron", "on-exit", "stream"] = "all"
    last_run_status: Literal["all", "ok", "error", "skipped", "unknown"] = "all"
    sort_by: Literal["nextRunAtMs", "updatedAtMs", "name"] = "nextRunAtMs"
    sort_dir: Direction = "asc"
    session_key: NonEmptyStr | None = None
    compact: bool = False
    include_delivery_previews: bool = True

    def job_query(self, default_agent: str) -> JobQuery:
        enabled = self.enabled or ("all" if self.include_disabled else "enabled")
        return JobQuery(
            limit=self.limit or MAX_PER_PAGE,
            offset=self.offset,
            search=self.query or (self.filter if isinstance(self.filter, str) else None),
            enabled={"all": None, "enabled": True, "disabled": False}[enabled],
            kind=None if self.schedule_kind == "all" else self.schedule_kind,
            last_status=None if self.last_run_status == "all" else self.last_run_status,
            agent_id=self.agent_id,
            or_no_agent=self.agent_id == default_agent,
            session_key=self.session_key,
            sort={"nextRunAtMs": "next_at", "updatedAtMs": "updated_at", "name": "name"}[self.sort_by],  # type: ignore[arg-type]  # one of the three
            descending=self.sort_dir == "desc",
        )


class IdParams(_Params, frozen=True, kw_only=True):
    id: NonEmptyStr | None = None
    job_id: NonEmptyStr | None = None

    def require_id(self, method: str) -> str:
        found = self.job_id or self.id
        if found is None:
            raise RpcError(f"invalid {method} params: must have required property 'id'")
        return found


class UpdateParams(IdParams, frozen=True, kw_only=True):
    patch: Json
    expected_config_revision: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class RunParams(IdParams, frozen=True, kw_only=True):
    mode: Literal["due", "force", "if-enabled"] = "force"


class RunsParams(_Params, frozen=True, kw_only=True):
    scope: Literal["job", "all"] | None = None
    id: LogId | None = None
    job_id: LogId | None = None
    run_id: NonEmptyStr | None = None
    limit: Page = 50
    offset: Count = 0
    statuses: list[FiringStatus] = []
    status: Literal["all", "ok", "error", "skipped"] = "all"
    delivery_statuses: list[DeliveryStatus] = []
    delivery_status: DeliveryStatus | None = None
    query: str | None = None
    sort_dir: Direction = "desc"

    def log_query(self, default_agent: str) -> JobLogQuery:
        job_id = None if self.scope == "all" else self.id or self.job_id
        if self.scope == "job" and job_id is None:
            raise RpcError("invalid cron.runs params: scope job needs the job's id")
        return JobLogQuery(
            limit=self.limit,
            offset=self.offset,
            job_id=job_id,
            run_id=self.run_id,
            agent_id=self.agent_id,
            or_no_agent=self.agent_id == default_agent,
            statuses=tuple(self.statuses) or (() if self.status == "all" else (self.status,)),
            deliveries=tuple(self.delivery_statuses) or ((self.delivery_status,) if self.delivery_status else ()),
            search=self.query,
            descending=self.sort_dir == "desc",
        )


class WakeParams(_Params, frozen=True, kw_only=True):
    mode: WakeMode
    text: NonEmptyStr
    session_key: NonEmptyStr | None = None
