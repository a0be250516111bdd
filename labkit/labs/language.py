"""The labs in another language, by gettext catalogues.

``locale/LANGUAGE/PATH.po`` translates the page ``PATH``. A message is a block of Markdown, what
stands between two empty lines; code, formulas and pictures are none. A block that has no
translation, or that of an older sentence, stays English.
"""

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from labkit.base.project import labs_source
from labkit.errors import InputError, refuse_unknown

LANGUAGES = ("en", "zh")
VARIABLE = "LABKIT_LANGUAGE"  # in it a kernel checks exercises
_FENCE = re.compile(r"[> \d.-]*(```|~~~)")
_NO_WORDS = re.compile(
    r"""(\s*(<a\ id="[^"]*"></a> | </?details> | \[flow\]:\ data:\S+ | -{3,}) |
         \s*\$\$[^$]*\$\$[.,]?)+\s*""",
    re.VERBOSE,
)
_READ_BY_MACHINES = re.compile(r"\$[^$]*\$|`[^`]*`|https?://\S+")


def blocks(markdown: str) -> list[str]:
    """Return the parts of a text, which joined are the text: blocks, and what separates them."""
    parts, fenced = [""], False
    for line in markdown.splitlines(keepends=True):
        fenced ^= bool(_FENCE.match(line))
        if line.strip() or fenced:
            parts[-1] += line
        else:
            parts += [line, ""]
    return parts


def messages(markdown: str) -> Iterator[str]:
    """Yield the blocks of a text that have words to translate."""
    for block in blocks(markdown):
        text = block.strip("\n")
        wordless = not text or _FENCE.match(text) or _NO_WORDS.fullmatch(text)
        if not wordless and re.search("[A-Za-z]{2}", _READ_BY_MACHINES.sub("", text)):
            yield text


def translate(markdown: str, catalogue: Mapping[str, str]) -> str:
    """Return a text with the blocks that ``catalogue`` has in its words."""
    parts = ((block, block.strip("\n")) for block in blocks(markdown))
    return "".join(block.replace(text, catalogue.get(text, text)) for block, text in parts)


def catalogue(language: str, page: PurePath | str) -> Mapping[str, str]:
    """Return the translations of a page such as ``notebooks/03_thor``: English -> ``language``.

    Raises:
        InputError: if the language is unknown, or has no catalogue of this page.
    """
    refuse_unknown("language", language, LANGUAGES)
    if language == "en":
        return {}
    path = labs_source() / "locale" / language / f"{page}.po"
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise InputError(f"no translation of {page}: {error}") from error


@cache  # a check of an exercise asks for many messages
def _read(path: Path, written: int) -> Mapping[str, str]:
    from babel.messages.pofile import read_po  # takes 0.1 s

    with path.open("rb") as file:
        entries = read_po(file)
    shown = (each for each in entries if each.id and each.string and not each.fuzzy)
    return {str(each.id): str(each.string) for each in shown}


def said(text: str, **values: Any) -> str:
    """Return a message of the exercises in the kernel's language, with the values filled in."""
    known = catalogue(os.environ.get(VARIABLE) or "en", "exercises")
    text = known.get(text, text)
    return text.format(**values) if values else text
