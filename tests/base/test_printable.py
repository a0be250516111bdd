"""Control characters are escaped; tests/tools shows that every command does this."""

import json

from tests.support.escape_sequences import BAD, EVIL

from labkit.base.printable import printable


def test_control_characters_are_written_out():
    assert printable("a\x1b[2J\n\tb\x9b") == "a\\u001b[2J\n\tb\\u009b"
    plain = "Größe 梯度 🙂 ─│ −1 % \n\t"
    assert printable(plain) == plain
    record = {"name": EVIL, "more": "\\"}
    assert json.loads(printable(json.dumps(record, ensure_ascii=False))) == record
    assert not BAD & set(printable(EVIL))
