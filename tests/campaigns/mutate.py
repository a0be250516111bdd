"""Inputs that nobody would write: damaged valid files, and JSON with values of wrong kinds.

An input is a tree: file name -> bytes or ``Special``. Everything is drawn from one
``random.Random``, so that a seed reproduces the input.
"""

# ruff: noqa: E501 (tables of odd values)

import copy
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Special:
    """What takes the place of a file: "fifo", "folder", "broken" (a link), or a link to a path."""

    kind: str


Tree = dict[str, bytes | Special]
SPECIALS = tuple(map(Special, ("fifo", "folder", "broken", "/dev/zero", "/dev/full", "/dev/tty")))
# Numbers at the ends of the ranges of fields of 8 to 64 bits, signed or not.
EDGES = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)


class Raw(str):
    """Text that goes into JSON unchanged."""


DEEP = (60, 900, 3000, 100_000)
# JSON values in place of the expected one.
ODD = (
    None, True, False, 0, 1, -1, 2, -(2**31), 2**31, 2**53, 2**63, 2**64, 1.5, 1e300, -1e300,
    *map(Raw, ("1e999", "-1e999", "NaN", "Infinity", "-Infinity", "1e-400", "-0", "-0.0")),
    Raw("1" + "0" * 400), Raw("9" * 4301), Raw("1" * 100_000), Raw("0.1" + "0" * 5000 + "1"),
    "", " ", ".", "..", "/", "\0", "\n", "a\nb", "x" * 256, "x" * 5000, "../../outside/x", "/etc/passwd",
    "~", "~nobody/x", "nan", "inf", "-1", "1e400", "é", "\ud800", "\udfff x", "\u2028", "\x1b]0;t\x07",
    "<script>", "{{ x }}", "%s%n", "C:\\x", "[/red]", "[link=file:///]", "2024-13-45", "0001-01-01",
    "9999-12-31T23:59:59+23:59", [], {}, [None], [[]], [{}], {"": None}, {"a": {"b": {}}}, [1, "a", None],
    list(range(300)), ["a"] * 300, {str(n): n for n in range(300)}, {"\ud800": 1}, {"x" * 300: 1},
)  # fmt: skip


def odd(rule: random.Random):
    """Return a JSON value that is rarely the expected one."""
    if rule.random() < 0.06:
        depth = rule.choice(DEEP)
        opened, closed = rule.choice((("[", "]"), ('{"a":', "}"), ('[{"b":', "}]")))
        return Raw(opened * depth + "1" + closed * depth)
    # A copy, so that changes inside the value do not reach the next input.
    return copy.deepcopy(rule.choice(ODD))


def dumps(value) -> bytes:
    """Return JSON with each ``Raw`` unchanged, and lone surrogates as escapes."""
    kept: list[str] = []

    def plain(part):
        if isinstance(part, Raw):
            kept.append(part)
            return f"\ue000{len(kept) - 1}\ue001"
        if isinstance(part, dict):
            return {name: plain(item) for name, item in part.items()}
        return [plain(item) for item in part] if isinstance(part, list) else part

    text = json.dumps(plain(value))
    for number, raw in enumerate(kept):
        text = text.replace(f'"\\ue000{number}\\ue001"', raw)
    return text.encode()


def json_like(rule: random.Random, value, times: int = 0):
    """Return a copy of a JSON value with odd values in one to three places."""
    value = json.loads(json.dumps(value))
    for _ in range(times or rule.choice((1, 1, 1, 2, 3))):
        if not isinstance(value, dict | list) or rule.random() < 0.02:
            return odd(rule)
        _change(rule, value)
    return value


def _change(rule, value):
    place, keys = value, list(_keys(value))
    while keys:
        key = rule.choice(keys)
        inner = place[key]
        if list(_keys(inner)) and rule.random() < 0.7:
            place, keys = inner, list(_keys(inner))
            continue
        break
    act = rule.random()
    if not keys or act < 0.1:
        if isinstance(place, dict):
            place[rule.choice(("", "x", "\ud800", "a" * 300, "__class__"))] = odd(rule)
        else:
            place.append(odd(rule))
    elif act < 0.2:
        del place[key]
    elif act < 0.3 and isinstance(place, list):
        place.extend([place[key]] * rule.choice((1, 2, 50)))
    elif act < 0.3:
        place[f"{key}2"] = place[key]
    else:
        place[key] = odd(rule)


def _keys(value):
    if isinstance(value, dict):
        return value.keys()
    return range(len(value)) if isinstance(value, list) else ()


def damaged(rule: random.Random, content: bytes, other: bytes = b"") -> bytes:
    """Return the bytes after one to four of: flips, cuts, insertions, copies, numbers, splices."""
    altered = bytearray(content)
    for _ in range(rule.choice((1, 1, 2, 3, 4))):
        rule.choice(_ACTS)(rule, altered, other or content)
    return bytes(altered)


def _flip(rule, altered, _other):
    for _ in range(rule.choice((1, 1, 2, 8, 64))):
        if altered:
            altered[rule.randrange(len(altered))] ^= 1 << rule.randrange(8)


def _cut(rule, altered, _other):
    del altered[rule.randrange(len(altered) + 1) :]


def _remove(rule, altered, _other):
    start = rule.randrange(len(altered) + 1)
    del altered[start : start + rule.choice((1, 2, 4, 64, 512, 4096))]


def _insert(rule, altered, _other):
    start = rule.randrange(len(altered) + 1)
    altered[start:start] = rule.randbytes(rule.choice((1, 2, 4, 64, 512)))


def _copy(rule, altered, _other):
    start = rule.randrange(len(altered) + 1)
    altered[start:start] = altered[start : start + rule.choice((1, 16, 512, 4096))]


def _number(rule, altered, _other):
    width = rule.choice((1, 2, 4, 8))
    if len(altered) >= width:
        start = rule.randrange(len(altered) - width + 1)
        value = rule.choice(EDGES) % 2 ** (8 * width)
        altered[start : start + width] = value.to_bytes(width, rule.choice(("little", "big")))


def _splice(rule, altered, other):
    start = rule.randrange(len(altered) + 1)
    altered[start:] = other[rule.randrange(len(other) + 1) :]


def _overwrite(rule, altered, _other):
    start = rule.randrange(len(altered) + 1)
    count = rule.choice((1, 4, 16, 512))
    filled = rule.choice((b"\0", b"\xff", b" ", b"\n", b"9", b"-", b"\xc3", b"{", b"[")) * count
    altered[start : start + count] = filled


_ACTS = (_flip, _flip, _cut, _remove, _insert, _copy, _number, _number, _splice, _overwrite)
_TOKENS = tuple(
    "[ ] { } : , \" ' \\ \n \t \r\n \0 \ufeff & * ! | > % @ ` # - -- 0x _ e 1e999 nan inf true null".split(" ")
) + ("9" * 5000, "\ud7ff", "\U0001f600", "[" * 2000, "{" * 2000, "- " * 2000, "&a [*a]", "!!python/x ")  # fmt: skip


def text_damaged(rule: random.Random, content: bytes) -> bytes:
    """Return a text with tokens inserted, characters removed or lines copied; or damaged bytes."""
    if rule.random() < 0.3:
        return damaged(rule, content)
    text = content.decode("utf-8", "replace")
    for _ in range(rule.choice((1, 1, 2, 4))):
        act, start = rule.random(), rule.randrange(len(text) + 1)
        if act < 0.5:
            text = text[:start] + rule.choice(_TOKENS) + text[start:]
        elif act < 0.7:
            text = text[:start] + text[start + rule.choice((1, 3, 20)) :]
        else:
            lines = text.splitlines(keepends=True) or [""]
            lines.insert(rule.randrange(len(lines) + 1), lines[rule.randrange(len(lines))])
            if act < 0.85:
                lines.pop(rule.randrange(len(lines)))
            text = "".join(lines)
    return text.encode("utf-8", "surrogatepass")


def json_file(rule: random.Random, value) -> bytes:
    """Return a JSON file with odd values in it, or with damaged text."""
    if rule.random() < 0.7:
        return dumps(json_like(rule, value))
    return text_damaged(rule, json.dumps(value, indent=1).encode())


def write(tree: Tree, folder: Path) -> None:
    """Write a tree into ``folder``, which exists and is empty."""
    for name, content in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content.kind == "fifo":
            os.mkfifo(path)
        elif content.kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("nowhere" if content.kind == "broken" else content.kind)
