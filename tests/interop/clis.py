"""The four real CLI agents, offline: where they are, and a home in which each speaks to the scripted model alone.

`make interop` fetches them into `.tools/interop`, without install scripts, so the programs are found where their
packages put them.
"""

import json
import platform
import shlex
from pathlib import Path
from typing import Any

from ..programs import need_node, need_npm

CLIS = ("claude", "gemini", "codex", "opencode")
KEY = "sk-scripted-model-key"
MODEL = {"gemini": "gemini-2.5-flash", "opencode": "fake/fake-model"}


def program(cli: str, folder: Path) -> str:
    """One file that runs it."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
    match cli:
        case "claude":
            return str(need_npm(f"@anthropic-ai/claude-code-linux-{machine}") / "claude")
        case "codex":
            return str(next(need_npm(f"@openai/codex-linux-{machine}").glob("vendor/*/bin/codex")))
        case "opencode":
            return str(need_npm(f"opencode-linux-{machine}") / "bin" / "opencode")
        case _:
            words = (need_node(), str(need_npm("@google/gemini-cli") / "bundle" / "gemini.js"))
            path = folder / "gemini"
            path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            path.chmod(0o755)
            return str(path)


def environment(cli: str, home: Path, model_url: str, *, key: str = KEY) -> dict[str, str]:
    """A home with the user's own configuration of this CLI, and the variables that go with it."""
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    env = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "LANG": "C.UTF-8", "TERM": "dumb"}
    match cli:
        case "claude":
            env |= {"ANTHROPIC_BASE_URL": model_url, "ANTHROPIC_API_KEY": key, "CLAUDE_CODE_MAX_RETRIES": "0"}
            env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        case "gemini":
            write(home / ".gemini" / "settings.json", GEMINI)
            env |= {"GOOGLE_GEMINI_BASE_URL": model_url, "GEMINI_API_KEY": key}
        case "codex":
            path = home / ".codex" / "config.toml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(CODEX % model_url)
            env |= {"FAKE_KEY": key}
        case "opencode":
            write(home / ".config" / "opencode" / "opencode.json", opencode(model_url, key))
            env |= {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
            env |= {"OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1"}
            env |= {"npm_config_offline": "true"}
    return env


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


GEMINI = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "general": {"maxAttempts": 1, "enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}
CODEX = """
model = "fake-model"
model_provider = "fake"
check_for_update_on_startup = false
[model_providers.fake]
name = "fake"
base_url = "%s/v1"
env_key = "FAKE_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[features]
plugins = false
unbounded_connection_retries = false
[analytics]
enabled = false
"""


def opencode(model_url: str, key: str) -> Any:
    model = {"name": "Fake", "tool_call": True, "attachment": True, "limit": {"context": 200000, "output": 8000}}
    model["modalities"] = {"input": ["text", "image"], "output": ["text"]}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "Fake", "models": {"fake-model": model}}
    provider["options"] = {"baseURL": f"{model_url}/v1", "apiKey": key}
    chosen = {"model": "fake/fake-model", "small_model": "fake/fake-model"}
    chosen["$schema"] = "https://opencode.ai/config.json"  # it writes that into a file that lacks it
    return {**chosen, "autoupdate": False, "share": "disabled", "provider": {"fake": provider}}
