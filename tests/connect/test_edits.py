"""Settings that people keep by hand survive our edits to the byte."""

import json

import pyjson5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_mcp.connect import jsonc, toml
from openclaw_mcp.connect.jsonc import CannotEdit

COMMENTED = """\
// how I like it
{
  "theme": "dark", /* "mcpServers": {} is below */
  "mcpServers": {
    // mine
    "mine": {"command": "a // b", "args": ["x", /* none */ "y"]}, // keep
  },
  "n": 1.5e3
}
"""

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
files = st.dictionaries(names, values, max_size=4)


def test_an_entry_joins_the_others_and_comments_stay() -> None:
    edited = jsonc.put(COMMENTED, ("mcpServers",), "ours", {"command": "c"})

    assert pyjson5.decode(edited)["mcpServers"]["ours"] == {"command": "c"}
    assert "// mine" in edited
    assert "// keep" in edited
    assert jsonc.drop(edited, ("mcpServers",), "ours") == COMMENTED


def test_a_missing_place_is_made_with_the_files_own_indent() -> None:
    edited = jsonc.put('{\n\t"a": 1\n}\n', ("mcpServers",), "ours", {"command": "c"})

    assert edited == '{\n\t"a": 1,\n\t"mcpServers": {\n\t\t"ours": {\n\t\t\t"command": "c"\n\t\t}\n\t}\n}\n'


def test_windows_line_ends_stay() -> None:
    edited = jsonc.put('{\r\n  "a": 1\r\n}\r\n', ("m",), "ours", {"b": [1]})

    assert "\n" not in edited.replace("\r\n", "")


@given(files, names, values, st.sampled_from([None, 1, 2, 4, "\t"]))
def test_what_goes_in_comes_out_and_the_rest_is_as_before(
    file: dict[str, object], name: str, value: object, indent: int | str | None
) -> None:
    file["place"] = {"theirs": 1}
    text = json.dumps(file, indent=indent)
    edited = jsonc.put(text, ("place",), f"{name}!", value)

    assert json.loads(edited) == {**file, "place": {"theirs": 1, f"{name}!": value}}
    assert jsonc.drop(edited, ("place",), f"{name}!") == text


@given(files, names, values)
def test_an_entry_that_is_there_is_replaced(file: dict[str, object], name: str, value: object) -> None:
    text = jsonc.put(json.dumps({**file, "place": {name: "old", "other": 2}}, indent=2), ("place",), name, value)

    assert json.loads(text)["place"] == {"other": 2, name: value}


@given(st.text('{}[]",:/*\\ \n\tabc1', max_size=40))
def test_broken_text_is_refused_and_never_read_for_ever(text: str) -> None:
    try:
        edited = jsonc.put(text, ("place",), "ours", 1)
    except CannotEdit:
        return
    assert "ours" in edited


@pytest.mark.parametrize("text", ["[]", "{", '{"a" 1}', "{a: 1}", '{"a": 1 "b": 2}', "/* never", '{"place": 3}'])
def test_a_text_that_is_no_settings_file_is_refused(text: str) -> None:
    with pytest.raises(CannotEdit):
        jsonc.put(text, ("place",), "ours", 1)


MINE = '# mine\nmodel = "m"\n\n[mcp_servers.mine]\ncommand = "x"\nargs = ["[not.a.table]"]\n'


@pytest.mark.parametrize("text", [MINE, "", MINE.rstrip("\n") + "\n", "a = 1\n", MINE + "\n[other]\nx = 1\n"])
def test_a_table_goes_to_the_end_and_out_again(text: str) -> None:
    edited = toml.put(text, "mcp_servers", "ours", {"command": "c", "args": ["a", 'q"'], "env": {"K": "v", "a.b": "w"}})

    assert toml.read(edited)["mcp_servers"]["ours"] == {
        "command": "c",
        "args": ["a", 'q"'],
        "env": {"K": "v", "a.b": "w"},
    }
    assert toml.drop(edited, "mcp_servers", "ours") == text


def test_a_table_in_several_parts_is_removed_whole() -> None:
    text = '[mcp_servers.ours]\ncommand = "c"\n\n[mcp_servers.ours.env]\nK = "v"\n\n[mcp_servers."ours two"]\nx = 1\n'

    assert toml.drop(text, "mcp_servers", "ours") == '[mcp_servers."ours two"]\nx = 1\n'


@pytest.mark.parametrize("text", ['mcp_servers = { mine = { command = "x" } }\n', "mcp_servers = 3\n", "a = = 1\n"])
def test_tables_we_cannot_add_to_are_refused(text: str) -> None:
    with pytest.raises(CannotEdit):
        toml.put(text, "mcp_servers", "ours", {"command": "c"})
