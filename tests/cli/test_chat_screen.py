"""The chat's screen: what arrives never falls into what is typed."""

from openclaw_mcp.cli.chat_screen import TerminalScreen
from openclaw_mcp.cli.report import printable
from tests.cli.screens import Terminal


def make(width: int = 40, height: int = 8) -> tuple[TerminalScreen, Terminal]:
    terminal = Terminal(width, height)
    return TerminalScreen(terminal.write, terminal.size), terminal


def test_what_arrives_is_shown_above_what_is_typed() -> None:
    screen, terminal = make()
    screen.show("-- main")
    screen.on_input(b"half a sen")
    screen.show("an answer\nof two lines")
    screen.on_input(b"tence")
    assert terminal.text == "-- main\nan answer\nof two lines\n> half a sentence"
    assert (terminal.row, terminal.column) == (3, 17)


def test_a_reply_grows_while_a_line_is_typed() -> None:
    screen, terminal = make(width=20)
    screen.show("-- main")
    for piece in ("The reply ", "is longer", " than one line", "."):
        screen.add_text(piece)
        screen.on_input(b"x")
    assert terminal.text == "-- main\nThe reply is longer\nthan one line.\n> xxxx"
    screen.end_text()
    screen.show("next")
    assert terminal.text.endswith("line.\nnext\n> xxxx")


def test_a_reply_that_fills_its_line_exactly_loses_nothing() -> None:
    screen, terminal = make(width=10)
    screen.add_text("0123456789")
    screen.add_text("abc")
    assert terminal.text == "0123456789\nabc\n>"


def test_everything_stays_in_place_when_the_screen_scrolls() -> None:
    screen, terminal = make(height=4)
    screen.on_input(b"typed")
    for number in range(10):
        screen.add_text(f"line {number}")
        screen.add_text(" ends\n")
    assert terminal.text.splitlines() == [*(f"line {number} ends" for number in range(10)), "> typed"]


def test_the_typed_line_may_take_several_rows_and_the_cursor_is_within_it() -> None:
    screen, terminal = make(width=10)
    screen.on_input(b"0123456789ab\x1b[D\x1b[D")
    screen.show("news")
    screen.on_input(b"X")
    assert terminal.text == "news\n> 01234567\n89Xab"
    assert (terminal.row, terminal.column) == (2, 3)


def test_an_entered_line_stays_and_the_status_is_before_the_next() -> None:
    screen, terminal = make()
    screen.on_input(b"hello\r")
    screen.set_status("(working)")
    assert terminal.text == "> hello\n(working) >"
    screen.on_input(b"x")
    assert screen.clear_line()
    assert not screen.clear_line()
    screen.close()
    assert terminal.text == "> hello"


def test_control_characters_of_an_agent_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[2Jb\x07\x9b\r\nc\td") == "a[2Jb\nc\td"
    assert printable("👩\u200d🚀 e\u0301") == "👩\u200d🚀 e\u0301"
    assert printable("left\u202eright") == "leftright"
