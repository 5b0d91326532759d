"""Arguments of programs: a secret is hidden however it is given, and what is none stays to be seen."""

import json
import subprocess
from pathlib import Path

import pytest

from openclaw_mcp.config import text
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
    ["--header=Accept: text/plain"],
    ["-f", "compose.yaml"],
    ["-project", "x"],
    ["-u", "https://h/a:b"],
]


def shown(args: list[str]) -> str:
    servers = {"x": {"command": "npx", "args": ["server", *args]}}
    return json.dumps(text.redacted({"mcp": {"servers": servers}}))


@pytest.mark.parametrize("case", SECRET)
def test_a_secret_argument_is_hidden_and_comes_back(case: str) -> None:
    args = SECRET[case]

    assert "hush" not in shown(args).lower()
    stored = {"args": ["server", *args]}
    assert text.keep_secrets(text.redacted(stored), stored) == stored
    raw = json.dumps(stored)
    assert "hush" not in text.redacted_text(raw, stored).lower()


@pytest.mark.parametrize("args", PLAIN, ids=" ".join)
def test_an_argument_that_is_no_secret_stays_to_be_seen(args: list[str]) -> None:
    assert text.redacted({"args": ["server", *args]}) == {"args": ["server", *args]}


@pytest.mark.parametrize(
    "line", ["sshpass -pHUSH ssh h", "curl -ume:hush h", "x -k HUSH", "x --token hush", f"x {JWT}"]
)
def test_a_command_line_in_one_text_hides_it_too(line: str) -> None:
    assert "hush" not in json.dumps(text.redacted({"command": line})).lower()


def test_no_command_shows_it(tmp_path: Path) -> None:
    args = [word for words in SECRET.values() for word in words]
    config = {"mcp": {"servers": {"x": {"command": "/bin/false", "args": args, "enabled": False}}}}
    (tmp_path / "openclaw.json").write_text(json.dumps(config))
    for words in (("mcp", "list"), ("mcp", "list", "--json"), ("config", "get"), ("doctor",), ("doctor", "--json")):
        command = [OPENCLAW, *words, "--state-dir", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
        assert "hush" not in (done.stdout + done.stderr).lower(), words
        assert "unrecognized" not in done.stderr, words
