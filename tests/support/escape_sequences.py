"""A text that controls a terminal, and the control characters in it."""

EVIL = "\x1b]0;title\x07 \x1b]52;c;aGk=\x07 \x1b[2J \x9b31m \u202egnp.exe \x08\x08 \r hidden \x7f"
BAD = set("\x1b\x07\x9b\u202e\x08\r\x7f")
