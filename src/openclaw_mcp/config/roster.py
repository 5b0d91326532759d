"""The agents the config names."""

from ..core.agents import AgentProfile, AgentRoster
from ..core.config.agents import AgentSettings
from ..core.config.config import Config
from ..core.config.models import ModelsConfig
from ..core.providers import model_choices, provider_apis, runtime_for


def roster_from_config(config: Config) -> AgentRoster:
    """The agents the config names; one called `main`, with the defaults, when it names none."""
    apis = provider_apis({name: entry.api for name, entry in config.models.providers.items()})

    def profile(id: str, name: str | None, settings: AgentSettings) -> AgentProfile:
        return AgentProfile(
            id=id,
            name=name,
            runtime=settings.runtime or runtime_for(settings.model, apis),
            model=model_choices(settings.model)[0],
            context_tokens=_context_tokens(model_choices(settings.model)[0], config.models),
            workspace=settings.workspace,
            settings=settings,
        )

    entries = config.agents.list
    agents = tuple(profile(entry.id, entry.name, entry) for entry in entries)
    agents = agents or (profile("main", None, config.agents.defaults),)
    chosen = next((entry.id for entry in entries if entry.default), agents[0].id)
    return AgentRoster(agents=agents, default_id=chosen, main_key=config.session.main_key, providers=frozenset(apis))


def _context_tokens(model: str | None, models: ModelsConfig) -> int | None:
    provider, _, name = (model or "").partition("/")
    entry = models.providers.get(provider)
    found = () if entry is None else entry.models
    return next((each.context_window for each in found if each.id == name), None)
