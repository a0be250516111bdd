"""No link in the notebooks, README or docs is dead; checked without a network."""

from pathlib import Path, PurePosixPath

import pytest

from tests.support import links, texts

ROOT = Path(__file__).parents[2]
PATTERNS = ("*.md", "docs/*.md", "labkit/**/*.md", "notebooks/*.ipynb")
PAGES = [page for pattern in PATTERNS for page in sorted(ROOT.glob(pattern))]


@pytest.fixture(scope="module")
def committed():
    return {path.relative_to(ROOT).as_posix() for path in texts.committed_files(ROOT)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page, committed):
    place = PurePosixPath(page.relative_to(ROOT).as_posix())
    assert links.faults(place, ROOT, committed) == []
