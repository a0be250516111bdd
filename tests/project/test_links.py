"""No link in the notebooks, README or docs is dead; checked without a network."""

from pathlib import Path, PurePosixPath

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook

from tests.support import links, texts

ROOT = Path(__file__).parents[2]
PATTERNS = ("*.md", "docs/*.md", "labkit/**/*.md", "notebooks/*.ipynb")
PAGES = [page for pattern in PATTERNS for page in sorted(ROOT.glob(pattern))]


@pytest.fixture(scope="module")
def committed():
    return {path.relative_to(ROOT).as_posix() for path in texts.committed_files(ROOT)}


def test_the_pages_are_there():
    names = {page.name for page in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "sources.md", "00_start_here.ipynb"} <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page, committed):
    place = PurePosixPath(page.relative_to(ROOT).as_posix())
    assert links.faults(place, ROOT, committed) == []


FILES = {
    "README.md": "# Labs\n\n## How to run, quickly\n\n```\n# no heading\n```\n",
    "labkit/steps/step.py": "a = 1\nb = 2\n",
    "notebooks/figure.png": "",
}
LAB = "notebooks/03_thor.ipynb"


@pytest.fixture
def project(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "notes.txt").touch()  # exists, but is not committed
    text = '<a id="03-data"></a>\n\n## 4 · Data\n\n## Plain\n\n```\n<a id="code">\n```'
    nbformat.write(new_notebook(cells=[new_markdown_cell(text)]), tmp_path / LAB)
    return tmp_path


def faults_of(project: Path, text: str) -> list[str]:
    place = PurePosixPath("notebooks/04_adasum.ipynb")
    cell = new_markdown_cell(f'<a id="04-from-scratch"></a>\n\n## 5 · From scratch\n\n{text}')
    nbformat.write(new_notebook(cells=[cell]), project / place)
    return links.faults(place, project, {*FILES, LAB})


@pytest.mark.parametrize(
    "link",
    [
        "[a](03_thor.ipynb)",
        "[a](03_thor.ipynb#03-data)",
        "[a](#04-from-scratch)",
        "[a](../README.md#how-to-run-quickly)",
        "[a](../labkit/steps/step.py#L2) and [b](../labkit)",
        '![alt](figure.png "A title") <img src="figure.png" alt="a">',
        "[a](https://arxiv.org/abs/2006.02924#x), <a href='mailto:a@example.org'>b</a>",
        "`[a](nowhere.md)`",
        "```\n[a](nowhere.md)\n```",
        "![alt](attachment:figure.png)",
    ],
)
def test_a_link_that_leads_somewhere_is_no_fault(project, link):
    assert faults_of(project, link) == []


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("[a](05_thor.ipynb)", "leads to nothing that is committed"),
        ("[a](../notes.txt)", "leads to nothing that is committed"),
        ("![alt](missing.png)", "leads to nothing that is committed"),
        ("<img src='missing.png'>", "leads to nothing that is committed"),
        ("[a][b]\n\n[b]: missing.md", "leads to nothing that is committed"),
        ("[a](../../other/README.md)", "leads out of the project"),
        ("[a](/home/ann/README.md)", "is an absolute path"),
        ("[a](file:///x.md)", "is an absolute path"),
        ("[a](C:\\x.md)", "is an absolute path"),
        ("[a](~/x.md)", "is an absolute path"),
        # JupyterLab follows neither non-ASCII characters nor an anchor without its lab's prefix.
        ("[a](03_thor.ipynb#4-·-Data)", "leads to no place there"),
        ("[a](03_thor.ipynb#Plain)", "leads to no place there"),
        ("[a](03_thor.ipynb#code)", "leads to no place there"),
        ("[a](#nowhere)", "leads to no place there"),
        ("[a](../README.md#no-heading)", "leads to no place there"),
        ("[a](../labkit/steps/step.py#L3)", "leads to no place there"),
        ("[a](https://example.org/x)", "leads to example.org, which is not in HOSTS"),
        ("<https://example.org/x>", "leads to example.org, which is not in HOSTS"),
        ("[a](https:/arxiv.org/abs/1)", "is not a well-formed address"),
        ("[a](https://arxiv.org:80/abs/1)", "is not a well-formed address"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(project, link, said):
    faults = faults_of(project, link)
    assert len(faults) == 1, faults
    assert faults[0].startswith("notebooks/04_adasum.ipynb, part 0: ") and faults[0].endswith(said)
