"""Which agent a job is for, and which sessions its firings use. Pure."""

import uuid

from msgspec import Struct

from ...core.agents import AgentRoster
from ...core.jobs import CronJob, JobFiring


class SessionTargets(Struct, frozen=True):
    roster: AgentRoster

    def agent_id(self, job: CronJob) -> str:
        return job.spec.agent_id or self.roster.default_id

    def main_session(self, job: CronJob) -> str:
        """The session of main jobs; results without an address are reported there."""
        if job.spec.session_target == "main" and job.spec.session_key:
            return self._full_key(job, job.spec.session_key)
        return f"agent:{self.agent_id(job)}:{self.roster.main_key}"

    def run_session(self, firing: JobFiring) -> str:
        """The session an agent works in for this firing."""
        job, target = firing.job, firing.job.spec.session_target
        if target == "current" and job.spec.session_key:
            return self._full_key(job, job.spec.session_key)
        if target.startswith("session:"):
            return self._full_key(job, target.removeprefix("session:"))
        own = uuid.uuid5(uuid.NAMESPACE_URL, firing.run_id)  # the same when the firing is repeated after a crash
        return f"agent:{self.agent_id(job)}:cron:{job.id}:run:{own}"

    def explicit_sessions(self, job: CronJob) -> list[str]:
        """Every session the job names: to work in, to write to, or to find an address by."""
        spec, target = job.spec, job.spec.session_target
        named = (spec.session_key, target.removeprefix("session:") if target.startswith("session:") else None)
        keys = [self._full_key(job, key) for key in named if key]
        return list(dict.fromkeys([*keys, self.main_session(job)] if target == "main" else keys))

    def _full_key(self, job: CronJob, key: str) -> str:
        key = key.strip().lower()
        if key.startswith("agent:"):
            return key
        main = self.roster.main_key
        return f"agent:{self.agent_id(job)}:{main if key in ('main', main) else key}"
