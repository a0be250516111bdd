"""Bring the translations in locale/ up to the English text, and list what is left to translate.

    python -m scripts.catalogues

A message whose sentence has changed keeps the old translation, marked fuzzy, until somebody removes
the mark: until then the page shows it in English. Exits with 1 if anything is left to translate.
"""

import io
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import nbformat
import yaml
from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_file
from babel.messages.pofile import read_po, write_po

from labkit.labs.language import LANGUAGES, catalogue, messages, translate

ROOT = Path(__file__).resolve().parents[1]
LOCALE = ROOT / "locale"
PAGES = (
    "README.md", "CHANGELOG.md", "docs/**/*.md", "labkit/steps/README.md", "benchmarks/README.md",
    "notebooks/*.ipynb", "notebooks/solutions/*.ipynb",
)  # fmt: skip
HEADER = """msgid ""
msgstr ""
"Language: {language}\\n"
"Content-Type: text/plain; charset=utf-8\\n"
"Content-Transfer-Encoding: 8bit\\n"

"""


def pages() -> list[Path]:
    """Return the translated pages, relative to the project."""
    return sorted({path.relative_to(ROOT) for each in PAGES for path in ROOT.glob(each)})


def of_page(page: Path) -> Iterator[tuple[str, str]]:
    """Yield each message of a page and, in a notebook, its cell's id."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        yield from ((message, "") for message in messages(text))
        return
    for cell in nbformat.reads(text, 4).cells:
        if cell.cell_type == "markdown":
            yield from ((message, cell.id) for message in messages(cell.source))


def of_exercises() -> Iterator[tuple[str, str]]:
    """Yield what the checks say: templates in check.py, mistakes of each exercise, hints."""
    folder = ROOT / "labkit" / "labs" / "exercises"
    found = extract_from_file("python", folder / "check.py", keywords={"said": None})
    yield from ((message, "check") for _, message, _, _ in found)
    for path in sorted(folder.glob("*.py")):
        module = __import__(f"labkit.labs.exercises.{path.stem}", fromlist=["EXERCISES"])
        for exercise in getattr(module, "EXERCISES", ()):
            yield from ((meaning, exercise.name) for meaning in exercise.mistakes.values())
    for name, hints in yaml.safe_load((folder / "hints.yaml").read_text(encoding="utf-8")).items():
        yield from ((hint, f"{name}, hint") for hint in hints)


def updated(path: Path, language: str, found: Iterator[tuple[str, str]]) -> tuple[str, list[str]]:
    """Return the text of a catalogue with the messages ``found``, and those not translated."""
    template, catalog = Catalog(), Catalog(locale=language)
    for message, comment in found:
        template.add(message, auto_comments=[comment] if comment else [])
    if path.exists():
        with path.open("rb") as file:
            catalog = read_po(file, locale=language)
    catalog.update(template)
    catalog.obsolete.clear()
    for each in catalog:
        each.flags.discard("python-format")  # which Babel takes a per cent sign for
    file = io.BytesIO()
    write_po(file, catalog, width=0, omit_header=True)
    left = [str(each.id) for each in catalog if each.id and (each.fuzzy or not each.string)]
    return HEADER.format(language=language) + file.getvalue().decode(), left


def sources() -> dict[str, Callable[[], Iterator[tuple[str, str]]]]:
    """Return the name of each catalogue -> what yields its messages."""
    found = {str(page.with_suffix("")): partial(of_page, page) for page in pages()}
    return {**found, "exercises": of_exercises}


def readme(language: str) -> str:
    """Return README.md in a language."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return translate(text, catalogue(language, "README"))


def main() -> int:
    count = 0
    for language in LANGUAGES[1:]:
        for name, found in sources().items():
            path = LOCALE / language / f"{name}.po"
            text, left = updated(path, language, found())
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            for message in left:
                print(f"{path.relative_to(ROOT)}: {message[:80]!r}")
            count += len(left)
        (ROOT / f"README_{language}.md").write_text(readme(language), encoding="utf-8")
    print(f"{count} messages to translate")
    return count > 0


if __name__ == "__main__":
    sys.exit(main())
