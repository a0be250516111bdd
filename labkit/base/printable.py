"""Text out of files, as a terminal may show it."""

import re

# C0 but tab and line end, DEL, C1, and what turns the direction of the text around it.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return ``text`` with control characters written out, as ``\\u001b``.

    An escape sequence in a log or a name could else set the terminal's title or clipboard, or hide
    what stands before it. JSON stays JSON.
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
