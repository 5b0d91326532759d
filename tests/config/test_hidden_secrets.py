"""A hidden secret goes back to its own place, or nothing is written: texts that would bring it somewhere else."""

import json
from typing import Any

import pytest

from openclaw_mcp.config import parsing, redaction
from openclaw_mcp.core.errors import BadRequest

MARK = redaction.REDACTED
SECRET = "sk-4711"
STORED: dict[str, Any] = {
    "meta": {"aKey": "*/ //", "bKey": "*/", "cKey": '", "name": "'},
    "agents": {"list": [{"id": "main", "name": "Ann", "runtimeEnv": {"A_KEY": SECRET}}]},
}
ENTRY = '{"id":"main","runtimeEnv":{"A_KEY":"' + MARK + '"}}'


def escaped(number: object = "") -> str:
    r"""The mark as JSON may write it: `\u005f` for its first sign."""
    return r'"\u005f' + MARK[1:] + (f"{number}#" if number != "" else "") + '"'


LISTS = {
    "in a comment": f'{{"agents":{{"list":[{ENTRY} /* {MARK} */]}}}}',
    "in a comment to the end of the line": f'{{"agents":{{"list":[{ENTRY}]}} // {MARK}\n}}',
    "in a quoted comment": f'{{"agents":{{"list":[{ENTRY} /* "{MARK}" */]}}}}',
    "within a text": f'{{"agents":{{"list":[{{"id":"main","name":"x{MARK}","runtimeEnv":{{"A_KEY":"{MARK}"}}}}]}}}}',
    "at the beginning of a text": f'{{"agents":{{"list":[{{"id":"main","name":"{MARK}x"}}]}}}}',
    "as the name of a key": f'{{"{MARK}":1,"agents":{{"list":[{ENTRY}]}}}}',
    "as a key without quotes": f'{{{MARK}:1,"agents":{{"list":[{ENTRY}]}}}}',
    "twice under one name": f'{{"meta":{{"aKey":"{MARK}","aKey":"{MARK}"}}}}',
    "with an escaped one": f'{{"meta":{{"aKey":{escaped()}}},"agents":{{"list":[{ENTRY}]}}}}',
    "with a numbered one": f'{{"meta":{{"aKey":{escaped(0)}}},"agents":{{"list":[{ENTRY}]}}}}',
    "a numbered one for one in a comment": (
        f'{{"meta":{{"aKey":{escaped(1)}}},"agents":{{"list":[{ENTRY}, /* {MARK} , name: "y{MARK}" */]}}}}'
    ),
    "an escaped one for one in a comment": f'{{"meta":{{"aKey":{escaped()}}}, /* "{MARK}" */ "agents":{{}}}}',
    "after a line that goes on": f'{{"meta":{{"aKey":"\\\n{MARK}"}}}}',
    "with an escape before it": f'{{"agents":{{"list":[{{"id":"main","runtimeEnv":{{"A_KEY":"\\u0020{MARK}"}}}}]}}}}',
    "an entry of the same name, escaped": (
        f'{{"agents":{{"list":[{ENTRY}, {{"id":"main","name":"n","runtimeEnv":{{"A_KEY":{escaped(0)}}}}}]}}}}'
    ),
}


@pytest.mark.parametrize("raw", LISTS.values(), ids=LISTS.keys())
def test_a_text_that_holds_the_mark_elsewhere_is_refused(raw: str) -> None:
    with pytest.raises(BadRequest, match=r"write it in quotes|nothing is stored|would be shown"):
        redaction.restore_text(raw, STORED)


@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize("secret", [SECRET, "it's", 'say "x"', "*/ //", "a\\b", "\n", "${x}#", "7", 7, 7.5])
def test_a_secret_is_one_value_with_any_text(secret: Any, quote: str) -> None:
    stored = {"meta": {"aKey": secret, "note": "n"}, "ui": {"x": 1}}
    raw = f"{{ // a line\n'meta': {{'aKey': {quote}{MARK}{quote}, /* more */ 'note': 'n'}},\n 'ui': {{'x': 1}} }}"
    back = redaction.restore_text(raw, stored)
    assert parsing.parse(back) == stored
    assert "// a line\n" in back


def test_what_was_shown_can_be_written_back() -> None:
    raw = json.dumps(STORED, indent=2)
    assert parsing.parse(redaction.restore_text(redaction.redact_text(raw, STORED), STORED)) == STORED
