"""Our agent passes its turns on to a real OpenClaw, behind which stands the scripted model."""

import asyncio
import json
from pathlib import Path

from ..gateway.agents.models.fake import FakeModel, say
from ..gateway.agents.models.test_gateway import gateway as our_gateway
from ..gateway.agents.models.test_gateway import talking, text_of
from ..gateway.wiring.test_gateway import Served
from . import real

COST = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
CARD = {"id": "m-1", "name": "M", "reasoning": False, "input": ["text"], "cost": COST}
PATIENCE = 120.0  # seconds; the first turn of a real gateway is slow


def test_a_real_openclaws_agent_answers_in_place_of_ours(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        async with asyncio.timeout(PATIENCE * 2), talking(served) as talker:
            for number, message in enumerate(("My name is Ada.", "What is my name?")):
                end = await talker.say(message, within=PATIENCE)
                assert end["state"] == "final", end
                assert text_of(end) == "Hello from afar.", number
            history = await talker.client.call("chat.history", {"sessionKey": "main"})
            assert history["messages"][-1]["model"] == "m-1"

    with FakeModel(say("Hello from afar.")) as model:
        card = {**CARD, "contextWindow": 128000, "maxTokens": 8192}
        entry = {"baseUrl": f"{model.url}/v1", "apiKey": "k", "api": "openai-completions", "models": [card]}
        models = {"mode": "merge", "providers": {"fake": entry}}
        agents = {"defaults": {"model": {"primary": "fake/m-1"}}}
        with real.gateway(tmp_path / "real", models=models, agents=agents) as url:
            home = {"api": "openclaw", "baseUrl": url, "apiKey": real.TOKEN}
            ours = {"models": {"providers": {"home": home}}, "agents": {"defaults": {"model": "home/main"}}}
            with our_gateway(tmp_path / "ours", ours) as served:
                asyncio.run(talk(served))
        prompts = [json.dumps(request.body["messages"]) for request in model.requests if "messages" in request.body]
        assert any("My name is Ada." in one and "What is my name?" in one for one in prompts)
