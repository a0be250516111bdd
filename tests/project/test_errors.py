"""InputError is one line that a terminal can show, whatever text it quotes."""

import pytest

from labkit.errors import InputError, nearest, refuse_unknown


@pytest.mark.parametrize(
    "message, expected",
    [
        ("batch is 0; expected 1", "batch is 0; expected 1"),
        ("two  spaces stay", "two  spaces stay"),
        ("a is:\n  b\n\n  c", "a is: b; c"),
        ("title \x1b]0;x\x07", "title \\x1b]0;x\\x07"),
        ("half \ud800", "half \\ud800"),
        ("é 😀 漢", "é 😀 漢"),
        (KeyError("a\n"), "'a\\n'"),
        ("", ""),
    ],
)
def test_any_message_becomes_one_line(message, expected):
    assert str(InputError(message)) == expected


@pytest.mark.parametrize("letter", ["x", "\0", "x\ny"])
def test_no_message_is_longer_than_a_thousand_letters(letter):
    text = str(InputError(f"a {letter * 5000}; expected b"))
    assert len(text) <= 1000 and text.startswith("a ") and len(text.splitlines()) == 1
    assert "expected b" in str(InputError(f"a {'x' * 5000}; expected b"))


def test_long_names_are_refused_at_once():
    with pytest.raises(InputError, match="expected one of: epochs"):
        refuse_unknown("setting", "x" * 200_000, ["epochs"])
    assert nearest("epoch", ["epochs"]) == " Did you mean 'epochs'?"
    assert nearest("O1", ["O0", "O2", "O3"]) == ""  # O1 is the mildest level, O3 the boldest
