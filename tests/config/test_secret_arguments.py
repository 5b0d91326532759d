"""Arguments of programs: a secret is hidden however it is given, and what is none stays to be seen."""

import json
import subprocess
from pathlib import Path

import pytest

from openclaw_mcp.config import redaction
from openclaw_mcp.core.errors import BadRequest
from tests.running import OPENCLAW

WAIT = 60.0
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.hushhushhush"

SECRET: dict[str, list[str]] = {
    "glued to -k": ["-kHUSH"],
    "glued to -k in small letters": ["-khush"],
    "glued to -k with an equals sign": ["-k=HUSH1234"],
    "glued to -p": ["-pHUSH"],
    "glued to -p with signs": ["-phush!word"],
    "glued to -P": ["-Phush4711"],
    "glued to -a": ["-aHUSH4711"],
    "glued to -w": ["-wHUSHhush"],
    "glued to -t": ["-tHUSH-4711"],
    "glued to -s": ["-sHUSH4711"],
    "a user and password glued": ["-ume:hush"],
    "a user and password of Samba": ["-Ume%hushhush"],
    "a user and password behind -u": ["-u", "me:hush"],
    "behind -k": ["-k", "HUSH"],
    "behind -p": ["-p", "Hush4711!"],
    "behind -a": ["-a", "hush4711HUSH"],
    "behind -t": ["-t", "hush_4711"],
    "behind --token": ["--token", "hush"],
    "behind --pass": ["--pass", "hush"],
    "behind --db-pass": ["--db-pass", "hush"],
    "behind --pwd": ["--pwd", "hush"],
    "behind --pat": ["--pat", "hush"],
    "behind --auth": ["--auth", "hush"],
    "behind --github-pat": ["--github-pat", "hush"],
    "behind --api-key": ["--api-key", "hush"],
    "an equals sign": ["--api-key=hush"],
    "a short name and an equals sign": ["--pass=hush"],
    "an assignment": ["API_KEY=hush"],
    "an assignment behind -e": ["-e", "GITHUB_TOKEN=hush"],
    "an assignment glued to -e": ["-eGITHUB_TOKEN=hush"],
    "a short assignment": ["PGPASS=x", "pass=hush"],
    "a header": ["-H", "Authorization: Bearer hush"],
    "a header with a key": ["-H", "X-Api-Key: hush"],
    "a cookie": ["-H", "Cookie: hush=1"],
    "a header glued": ["-HAuthorization: hush"],
    "a header glued, a key": ["-HX-Api-Key:hush"],
    "a header behind an equals sign": ["--header=Authorization:hush"],
    "a header in quotes": ["--header='X-Auth: hush'"],
    "a bearer": ["Bearer hush"],
    "an address with a password": ["https://me:hush@h/"],
    "an address with a user": ["https://hush@h/"],
    "an address with a key": ["https://h/?a=1&api_key=hush"],
    "an address with a signature": ["https://h/?sig=hush"],
    "an OpenAI key": ["sk-proj-hush4711hush"],
    "an Anthropic key": ["sk-ant-hush4711hush"],
    "a GitHub token": ["ghp_hush4711hushhushhushhushhushhushhush"],
    "a fine GitHub token": ["github_pat_hush4711hush"],
    "a GitLab token": ["glpat-hush4711hushhush"],
    "a Slack token": ["xoxb-4711-hush-hush"],
    "an AWS key": ["AKIAHUSH4711HUSH4711"],
    "a Google key": ["AIzahush4711hush4711hush4711hush4711hush"],
    "a Hugging Face token": ["hf_hush4711hush4711hush"],
    "a Stripe key": ["sk_live_hush4711hush"],
    "a Telegram token": ["123456789:HUSHhushHUSHhushHUSHhushHUSHhush"],
    "a signed token": [JWT],
    "a token in a word": ["--config={tok:ghp_hush4711hush}"],
    "a private key": ["-----BEGIN PRIVATE KEY-----hush"],
    "any header": ["--header", "X-Api-Auth: hush"],
    "any header behind -H": ["-H", "X-Team: hush"],
    "a header that says little": ["-H", "hush"],
    "any header glued": ["-HX-Team: hush"],
    "any header behind an equals sign": ["--header=Accept: hush/plain"],
    "a header of another name": ["--http-header", "X-Team: hush"],
    "headers": ["--headers", "X-Team: hush"],
    "a header with a reference and more": ["-H", "X-Team: ${TEAM}hush"],
    "a variable of docker": ["-e", "SLACK=hush"],
    "a variable of docker, glued": ["-eSLACK=hush"],
    "a variable behind --env": ["--env", "SLACK=hush"],
    "a variable behind --env=": ["--env=SLACK=hush"],
    "a variable of env": ["env", "SLACK=hush", "other"],
    "a later variable of env": ["/usr/bin/env", "-i", "-u", "HOME", "A=${A}", "SLACK=hush", "other"],
    "JSON": ["--config", '{"apiKey": "hush"}'],
    "JSON below": ["--config", '{"a": [{"b": {"github_token": "hush"}}]}'],
    "JSON behind an equals sign": ['--config={"apiKey": "hush"}'],
    "JSON of an environment": ["--settings", '{"env": {"X": "hush"}}'],
    "JSON with headers": ["--mcp", '{"mcpServers": {"a": {"url": "https://h", "headers": {"x": "hush"}}}}'],
    "JSON with arguments": ["--mcp", '{"mcpServers": {"a": {"command": "b", "args": ["--token", "hush"]}}}'],
    "JSON in JSON": ["--a", '{"args": ["{\\"token\\": \\"hush\\"}"]}'],
    "JSON with a long number": ["--a", '{"pin": 1, "token": "hush", "n": 4711}'],
    "JSON nearly": ["--config", "{apiKey: 'hush'}"],
    "JSON broken off": ["--config", '{"apiKey": "hush'],
    "JSON in base64": ["--config", "eyJhcGlLZXkiOiAihushhushhush"],
    "TOML": ["-c", 'model_providers.x.http_headers={a="hush"}'],
    "TOML of an environment": ["-c", 'mcp_servers.x.env={A="hush"}'],
    "TOML of variables": ["-c", 'shell_environment_policy.set={A="hush"}'],
    "TOML of a key": ["-c", 'model_providers.x.experimental_bearer_token="hush"'],
    "a secret path": ["https://mcp.zapier.com/api/mcp/s/hush7Xw9LmT4vB2kN8/mcp"],
    "a secret path behind an equals sign": ["--url=https://h/hush7Xw9LmT4vB2kN8/mcp"],
    "a secret path in a word": ["remote:https://h/hush7Xw9LmT4vB2kN8"],
    "a generated parameter": ["https://h/v1?k=hush7Xw9LmT4vB2kN8"],
    "a webhook": ["--webhook-url", "https://h/hush"],
    "an address whose password has a slash": ["https://me:12/hush@h/x"],
}
PLAIN = [
    ["-y", "@scope/monkey", "-v"],
    ["-p", "8080"],
    ["-p8080"],
    ["-p8080:80"],
    ["-p", "main"],
    ["-stdio"],
    ["-transport", "stdio"],
    ["-port=80"],
    ["-t", "30"],
    ["-tt"],
    ["-u"],
    ["-uc", "print"],
    ["-k./key.pem"],
    ["-k", "/etc/key.pem"],
    ["-p@scope/pkg"],
    ["-k${KEY}"],
    ["-k", "${KEY}"],
    ["-ume:${PW}"],
    ["-p3.12"],
    ["-server"],
    ["-a", "all"],
    ["-s", "main"],
    ["-wwindow"],
    ["--no-auth", "server.js"],
    ["--compat", "yes"],
    ["--bypass", "x"],
    ["-m", "package.module"],
    ["-u", "1000:1000"],
    ["run", "--rm", "-i", "image:latest"],
    ["-T"],
    ["-timeout=5s"],
    ["-path", "x"],
    ["task-force"],
    ["-H", "Authorization: Bearer ${TOKEN}"],
    ["--header", "X-Team: ${TEAM}"],
    ["--no-header", "table.csv"],
    ["-h", "localhost"],
    ["-e", "print(1)"],
    ["-e", "TOKEN"],
    ["-e", "SLACK=${SLACK}"],
    ["FOO=bar"],
    ["--env", "production"],
    ["--config", '{"port": 80, "name": "x", "key": "${KEY}"}'],
    ['--config={"max_tokens": 4096}'],
    ["-c", 'model="gpt-5"'],
    ["-c", "sandbox_mode=read-only"],
    ["-c", 'mcp_servers.x.env={A="${A}"}'],
    ["--settings", "./settings.json"],
    ["{placeholder}"],
    ["https://h/mcp"],
    ["https://mcp.example/some/path?project=notes"],
    ["--from", "git+https://github.com/o/r@0123456789abcdef0123456789abcdef01234567"],
    ["https://registry.npmjs.org/pkg/-/pkg-server-filesystem-2025.1.14.tgz"],
    ["https://h/openai/deployments/gpt-4o-mini-2024-07-18"],
    ["-f", "compose.yaml"],
    ["-project", "x"],
    ["-u", "https://h/a:b"],
]


PARTS: list[tuple[list[str], str]] = [
    (["-e", "SLACK=hush"], "SLACK=" + redaction.REDACTED),
    (["env", "-i", "SLACK=hush"], "SLACK=" + redaction.REDACTED),
    (['--config={"a": 1, "apiKey": "hush"}'], '--config={"a": 1, "apiKey": "' + redaction.REDACTED + '"}'),
    (["-c", 'p.x.http_headers={a="hush"}'], "p.x.http_headers=" + redaction.REDACTED),
    (["https://me:hush@mcp.example:8443/mcp"], "https://mcp.example:8443/" + redaction.REDACTED),
    (["https://[::1]:80/hush7Xw9LmT4vB2kN8"], "https://[::1]:80/" + redaction.REDACTED),
    (["--url=https://h/?api_key=hush"], "--url=https://h/" + redaction.REDACTED),
]
"""Arguments of which a part tells no secret: that part stays to be seen."""


@pytest.mark.parametrize(("args", "part"), PARTS)
def test_what_is_no_secret_of_an_argument_is_shown_and_written_back(args: list[str], part: str) -> None:
    stored = {"args": ["server", *args]}
    assert redaction.redact_secrets(stored)["args"][-1] == part
    assert redaction.redact_secrets(stored, redaction.MASK)["args"][-1] == part.replace(
        redaction.REDACTED, redaction.MASK
    )
    other = part.replace("h/", "evil/").replace("example", "evil").replace("SLACK", "LOG").replace("p.x", "p.y")
    for changed in (other if other != part else f"x{part}", f"{part}x", part + part):
        with pytest.raises(BadRequest):
            redaction.restore_secrets({"args": ["server", *args[:-1], changed]}, stored)
        with pytest.raises(BadRequest):
            redaction.restore_text(json.dumps({"args": ["server", *args[:-1], changed]}), stored)
    whole = {"args": ["server", *args[:-1], redaction.REDACTED]}
    assert redaction.restore_secrets(whole, stored) == stored


def test_the_program_env_is_known_as_the_command_too() -> None:
    entry = {"command": "/usr/bin/env", "args": ["-i", "SLACK=hush", "server", "FOO=bar"]}
    assert redaction.redact_secrets(entry)["args"] == ["-i", "SLACK=" + redaction.REDACTED, "server", "FOO=bar"]
    assert redaction.restore_secrets(redaction.redact_secrets(entry), entry) == entry
    with pytest.raises(BadRequest, match="would be shown"):
        redaction.restore_secrets(redaction.redact_secrets(entry) | {"command": "server"}, entry)


def redact_arguments(args: list[str]) -> str:
    servers = {"x": {"command": "npx", "args": ["server", *args]}}
    return json.dumps(redaction.redact_secrets({"mcp": {"servers": servers}}))


@pytest.mark.parametrize("case", SECRET)
def test_a_secret_argument_is_hidden_and_comes_back(case: str) -> None:
    args = SECRET[case]

    assert "hush" not in redact_arguments(args).lower()
    stored = {"args": ["server", *args]}
    assert redaction.restore_secrets(redaction.redact_secrets(stored), stored) == stored
    raw = json.dumps(stored)
    assert "hush" not in redaction.redact_text(raw, stored).lower()


@pytest.mark.parametrize("args", PLAIN, ids=" ".join)
def test_an_argument_that_is_no_secret_stays_to_be_seen(args: list[str]) -> None:
    assert redaction.redact_secrets({"args": ["server", *args]}) == {"args": ["server", *args]}


@pytest.mark.parametrize(
    "line",
    [
        "sshpass -pHUSH ssh h",
        "curl -ume:hush h",
        "x -k HUSH",
        "x --token hush",
        f"x {JWT}",
        "env SLACK=hush x",
        "docker run -e SLACK=hush x",
        "curl -H 'X-Team: hush' h",
        """x --config '{"apiKey": "hush"}'""",
        "x --url https://h/hush7Xw9LmT4vB2kN8/mcp",
    ],
)
def test_a_command_line_in_one_text_hides_it_too(line: str) -> None:
    assert "hush" not in json.dumps(redaction.redact_secrets({"command": line})).lower()


def test_no_command_shows_it(tmp_path: Path) -> None:
    args = [word for words in SECRET.values() for word in words]
    config = {"mcp": {"servers": {"x": {"command": "/bin/false", "args": args, "enabled": False}}}}
    (tmp_path / "openclaw.json").write_text(json.dumps(config))
    for words in (("mcp", "list"), ("mcp", "list", "--json"), ("config", "get"), ("doctor",), ("doctor", "--json")):
        command = [OPENCLAW, *words, "--state-dir", str(tmp_path)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
        assert "hush" not in (result.stdout + result.stderr).lower(), words
        assert "unrecognized" not in result.stderr, words
