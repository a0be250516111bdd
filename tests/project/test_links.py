"""No link in the notebooks, README or docs is dead; checked without a network."""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath

import pytest

from tests.support.texts import committed_files, text_of, without_code

ROOT = Path(__file__).parents[2]
PATTERNS = ("*.md", "docs/**/*.md", "labkit/**/*.md", "notebooks/*.ipynb")
PAGES = [page for pattern in PATTERNS for page in sorted(ROOT.glob(pattern))]
HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\">")
LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|\b(?:href|src)=[\"']([^\"']+)[\"']"
    r"|^\[[^\]\n]+\]: (\S+)|<(https?://[^>\s]+)>",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def committed():
    return {path.relative_to(ROOT).as_posix() for path in committed_files(ROOT)}


def anchors(path):
    """Return the anchors of a page; JupyterLab finds no heading beyond ASCII, GitHub does."""
    text = text_of(path)
    found = set(ANCHOR.findall(text))
    if path.suffix == ".md":
        headings = HEADING.findall(text)
        found |= {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
    return found


def leads_somewhere(link, place, committed):
    if re.match(r"https?://[a-z0-9.-]+\.[a-z]+(?:[/?#][!-~]*)?$|mailto:|data:|attachment:", link):
        return True
    target, _, anchor = link.partition("#")
    path = normpath(str(place.parent / target)) if target else str(place)
    if target and path not in committed and not any(f.startswith(f"{path}/") for f in committed):
        return False
    return not anchor or anchor in anchors(ROOT / path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page, committed):
    place = PurePosixPath(page.relative_to(ROOT).as_posix())
    links = [next(filter(None, groups)) for groups in LINK.findall(without_code(text_of(page)))]
    assert [link for link in links if not leads_somewhere(link, place, committed)] == []
