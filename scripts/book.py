"""Build the book: the labs with their stored outputs, guides, commands and API, in every language.

    python -m scripts.book [FOLDER]         into build/book if not given; open FOLDER/index.html

Each language is staged as a folder of Markdown, translated by its catalogues, and built by Sphinx,
where a warning is an error. Then every link of every page is looked up.
"""

import base64
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat
import yaml
from myst_parser.mdit_to_docutils.base import default_slugify

import labkit
from labkit.labs.language import LANGUAGES, blocks, catalogue, translate
from labkit.recipes import RECIPES
from scripts.catalogues import pages

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "docs" / "book"
COPIED = ("docs/figures", "examples")
ENGLISH = ("CONTRIBUTING.md", "RELEASING.md", "labkit/labs/results/README.md")
# Room of labkit -> the title of its part of the API.
ROOMS = {
    "runtime": "Start", "steps": "Steps", "algorithms": "Techniques", "optimizers": "Optimizers",
    "training": "Training", "nets": "Networks", "ranks": "Ranks", "labs": "Labs",
    "upstream": "MindSpore's names", "errors": "Errors",
}  # fmt: skip
CLAIMS = "What the text says, checked"
_EMBEDDED = re.compile(r"^(\[flow\]: data:image/([a-z+]+);base64,(\S+))$", re.M)
_HOME = re.compile(r"(?<=\]\()((?:\.\./)+)README\.md")
_OTHER_README = re.compile(r"^\[.*\]\(README\w*\.md\)\n\n", re.M)
_CALLED = "import sys; sys.argv[0] = 'labkit'; from labkit.tools.cli import app; app()"
FRONT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>mindspore-labs</title>
<meta http-equiv="refresh" content="0; url=en/index.html">
<p><a href="en/index.html">English</a> · <a href="zh/index.html" lang="zh">中文</a></p></html>
"""


def in_language(markdown: str, words: Mapping[str, str]) -> str:
    """Return a page in another language; a heading keeps its English anchor for links."""
    parts = []
    for block in blocks(markdown):
        text = block.strip("\n")
        if text.startswith("#") and text in words:
            parts.append(f'<a id="{default_slugify(text.lstrip("# "))}"></a>\n\n')
        parts.append(block)
    return translate("".join(parts), words)


def stage(language: str, folder: Path) -> None:
    """Write the sources of the book in a language: Markdown, notebooks and configuration."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name)
    shutil.copytree(BOOK, folder, dirs_exist_ok=True)
    for page in (*pages(), *map(Path, ENGLISH)):
        path = folder / ("index.md" if str(page) == "README.md" else page)
        path.parent.mkdir(parents=True, exist_ok=True)
        words = {} if str(page) in ENGLISH else catalogue(language, page.with_suffix(""))
        path.write_text(staged(page, words, path.parent), encoding="utf-8")
    titles = layout()["titles"].get(language, {})
    with (folder / "index.md").open("a", encoding="utf-8") as index:
        for title, names in layout()["parts"].items():
            tree = ["```{toctree}", ":hidden:", f":caption: {titles.get(title, title)}", "", *names]
            index.write("\n".join(["", *tree, "```", ""]))
    for name, text in {"api": api(), "commands": commands(), "examples": examples()}.items():
        for english, other in titles.items():
            text = re.sub(rf"^(#+) {english}$", rf"\1 {other}", text, flags=re.M)
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def staged(page: Path, words: Mapping[str, str], folder: Path) -> str:
    """Return a page as Sphinx reads it; pictures inside a notebook go to files of ``folder``."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page.suffix == ".md":
        text = _OTHER_README.sub("", in_language(text, words))
        return _HOME.sub(r"\1index.md", text)
    notebook = nbformat.reads(text, 4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = with_pictures(translate(cell.source, words), folder)
        elif "claims" in cell.metadata.get("tags", ()):
            cell.metadata.tags.append("hide-cell")
    return nbformat.writes(notebook)


def layout() -> dict[str, Any]:
    """Return the book's parts, and their titles in other languages."""
    return yaml.safe_load((BOOK / "layout.yaml").read_text(encoding="utf-8"))


def with_pictures(markdown: str, folder: Path) -> str:
    """Write the pictures that a text embeds to files of ``folder``; return it with their links."""
    for line, kind, data in _EMBEDDED.findall(markdown):
        picture = base64.b64decode(data)
        name = f"{hashlib.sha256(picture).hexdigest()[:16]}.{kind.removesuffix('+xml')}"
        (folder / name).write_bytes(picture)
        markdown = markdown.replace(line, "").replace("][flow]", f"]({name})")
    return markdown


def api() -> str:
    """Return the page that lists every public name, by room."""
    text = ["# API", "", "What `import labkit` offers, and "
            "`labkit.migration` and `labkit.reference`. Everything else may change."]  # fmt: skip
    for title, names in _groups().items():
        listed = "\n".join(f"   {name}" for name in names)
        text += ["", f"## {title}", "", "```{eval-rst}", ".. autosummary::", "   :toctree: api",
                 "   :nosignatures:", "", listed, "```"]  # fmt: skip
    return "\n".join(text) + "\n"


def _groups() -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    homes = {name: labkit._HOME[name] for name in labkit.__all__}
    for room, title in ROOMS.items():
        own = [f"labkit.{name}" for name, home in homes.items() if home.split(".")[1] == room]
        groups[title] = own
    assert sum(map(len, groups.values())) == len(homes), "a room has no title"
    for module, title in {"migration": "From PyTorch", "reference": "Float64 twins"}.items():
        members = vars(importlib.import_module(f"labkit.{module}")).items()
        groups[title] = sorted(
            f"labkit.{module}.{name}"
            for name, value in members
            if name[0] != "_" and getattr(value, "__module__", "").startswith(f"labkit.{module}")
        )
    return groups


@cache  # it is the same in every language
def commands() -> str:
    """Return the page with the help of every command and recipe."""
    names = ["list", "run", "sweep", "report", "lab", "convert", "doctor", "train", "eval"]
    asked = [[], *([name] for name in names), *(["train", each] for each in RECIPES)]
    environment = os.environ | {"COLUMNS": "88", "TERM": "dumb", "LABKIT_PRESET": ""}

    def section(words: list[str]) -> str:
        command = [sys.executable, "-c", _CALLED, *words, "--help"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return f"## {' '.join(['labkit', *words])}\n\n```text\n{done.stdout.strip()}\n```\n"

    head = "# Commands\n\nExit codes: 0 all passed, 1 a lab failed, 2 bad input, 130 Ctrl-C.\n"
    with ThreadPoolExecutor(2) as two_at_once:
        return "\n".join([head, *two_at_once.map(section, asked)])


def examples() -> str:
    """Return the page with the example programs."""
    text = ["# Examples", ""]
    for path in sorted((ROOT / "examples").glob("*.py")):
        text += [f"## {path.name}", "", f"```{{literalinclude}} examples/{path.name}", "```", ""]
    return "\n".join(text)


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken(folder: Path) -> Iterator[str]:
    """Yield every link of the book that leads to no file, or to no place in its page."""
    read = {path: Page(path) for path in folder.rglob("*.html")}
    for path, page in read.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path.parent / unquote(parts.path) if parts.path else path
            target = Path(os.path.normpath(target))
            place = unquote(parts.fragment) if target in read else ""
            if not target.exists() or (place and place not in read[target].anchors):
                yield f"{path.relative_to(folder)}: {link}"


def build(staged: Path, folder: Path) -> bool:
    """Stage and build every language, all at once; return whether one has failed."""
    builds = []
    for language in LANGUAGES:
        stage(language, staged / language)
        code = {"zh": "zh_CN"}.get(language, language)
        claims = layout()["titles"].get(language, {}).get(CLAIMS, CLAIMS)
        command = ["-W", "--keep-going", "-q", "-b", "html", "-D", f"language={code}"]
        for prompt in ("nb_code_prompt_show", "nb_code_prompt_hide"):
            command += ["-D", f"{prompt}={claims}"]
        places = [str(staged / language), str(folder / language)]
        builds.append(
            subprocess.Popen([sys.executable, "-m", "sphinx", *command, *places], cwd=ROOT)
        )
    failed = [each.wait() for each in builds]
    for language in LANGUAGES:  # MyST-NB's copies of the outputs
        shutil.rmtree(folder / language / "jupyter_execute", ignore_errors=True)
    return any(failed)


def main(words: list[str]) -> int:
    began = time.monotonic()
    folder = Path(words[0] if words else ROOT / "build" / "book").resolve()
    if words and folder.exists():
        sys.exit(f"{folder}: expected a new folder")
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as sources:
        failed = build(Path(sources), folder)
    (folder / "index.html").write_text(FRONT, encoding="utf-8")
    lost = list(broken(folder))
    for line in lost:
        print(line, file=sys.stderr)
    count = len(list(folder.rglob("*.html")))
    print(f"{count} pages in {time.monotonic() - began:.0f} s, {len(lost)} broken links: {folder}")
    return failed or bool(lost)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
