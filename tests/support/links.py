"""Finds the links of notebooks and pages that lead nowhere, without a network.

A link into a notebook names an anchor ``<a id="...">``, because JupyterLab does not find a heading
with characters beyond ASCII, and looks in every open notebook.
Anchors on a page are spelled as GitHub spells those of headings.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import urlsplit

from labkit.tools.labs import read_notebook
from tests.support.texts import markdown, without_code, without_fences

# Public primary sources: papers, documentation, code, licences, publishers of data.
HOSTS = frozenset(
    "arxiv.org creativecommons.org developers.google.com distill.pub docs.pytorch.org doi.org "
    "en.wikipedia.org gitee.com github.com horovod.readthedocs.io image-net.org jmlr.org "
    "keepachangelog.com mlsys.org "
    "onnx.ai openaccess.thecvf.com openreview.net ossci-datasets.s3.amazonaws.com "
    "papers.nips.cc proceedings.mlr.press proceedings.mlsys.org proceedings.neurips.cc "
    "pytorch.org semver.org www.apache.org www.cs.toronto.edu www.image-net.org "
    "www.jmlr.org www.mindspore.cn yann.lecun.com zh.d2l.ai d2l.ai".split()
)

_HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
_ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\">")
_LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|\b(?:href|src)=[\"']([^\"']+)[\"']"
    r"|^\[[^\]\n]+\]: (\S+)|<(https?://[^>\s]+)>",
    re.MULTILINE,
)
_ELSEWHERE = re.compile(r"(?:mailto|data|attachment):")
_ABSOLUTE = re.compile(r"file:|/|~|[A-Za-z]:[\\/]")


def faults(place: PurePosixPath, root: Path, committed: Collection[str]) -> list[str]:
    """Return the links of a notebook or page that lead nowhere, or out of the project.

    place      path of the file in the project, such as notebooks/01_name.ipynb
    root       folder of the project
    committed  paths of the committed files, as `git ls-files` prints them
    """
    dead = []
    for number, text in enumerate(_texts(root / place)):
        for link in _links(text):
            if fault := _fault(link, place, root, committed):
                dead.append(f"{place}, part {number}: link {link} {fault}")
    return dead


def _texts(path: Path) -> list[str]:
    """Return the markdown of a notebook's cells ("" for code), or a page as one text."""
    if path.suffix != ".ipynb":
        return [path.read_text(encoding="utf-8")]
    return markdown(read_notebook(path)["cells"])


def _links(source: str) -> Iterator[str]:
    for groups in _LINK.findall(without_code(source)):
        yield next(filter(None, groups))


def _fault(link: str, place: PurePosixPath, root: Path, committed: Collection[str]) -> str:
    if link.startswith(("http:", "https:")):
        return _address_fault(link)
    if _ELSEWHERE.match(link):
        return ""
    if _ABSOLUTE.match(link):
        return "is an absolute path"
    target, _, anchor = link.partition("#")
    path = normpath(str(place.parent / target)) if target else str(place)
    if path.startswith(".."):
        return "leads out of the project"
    if target and path not in committed and not any(f.startswith(f"{path}/") for f in committed):
        return "leads to nothing that is committed"
    if anchor and anchor not in _anchors(root / path):
        return "leads to no place there"
    return ""


def _address_fault(link: str) -> str:
    parts = urlsplit(link)
    if not re.fullmatch(r"https?://[a-z0-9.-]+(?:[/?#][!-~]*)?", link):
        return "is not a well-formed address"
    return "" if parts.netloc in HOSTS else f"leads to {parts.netloc}, which is not in HOSTS"


def _anchors(path: Path) -> set[str]:
    """Return the anchors of a page or notebook."""
    text = "\n\n".join(_texts(path))
    if path.suffix not in (".md", ".ipynb"):
        return {f"L{number}" for number in range(1, len(text.splitlines()) + 1)}
    text = without_fences(text)
    anchors = set(_ANCHOR.findall(text))
    if path.suffix == ".md":
        anchors |= {github_anchor(heading) for heading in _HEADING.findall(text)}
    return anchors


def github_anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading of a Markdown page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
