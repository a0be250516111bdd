"""Text from files, made safe to show in a terminal."""

import re

# C0 except tab and line feed, DEL, C1, and characters that change the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped, for example as ``\\u001b``.

    Otherwise an escape sequence in a log or a name could set the terminal's title or clipboard, or
    hide the text before it. JSON remains JSON.
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
