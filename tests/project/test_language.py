"""What the project does not write: words and turns that a textbook in English would not have."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    *(f"notebooks/{path.name}" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))),
    "README.md",
    "CONTRIBUTING.md",
]

# What is not written, as a pattern, and what is written instead.
INSTEAD = {
    r"mend(s|ed|ing)?": "fix, correct",
    r"dearer": "costs more",
    r"anew": "again",
    r"foresee[sn]?|foresaw": "predict, expect",
    r"in truth": "in fact; mostly nothing",
    r"by heart": "memorise",
    r"another one": "a second one; a different one: say which",
    r"(is|are|was|were) none": "is not one; there is none of ...: say what",
    r"what of": "what about; the part of ... that",
    r"bites people": "common problems",
    r"whoever": "anyone who, anything that",
    r"hold(s|ing)? against|held against": "compare with",
    r"of use": "useful",
    r"without a word|no word (for|of) it": "silently; this is not documented",
    r"on your word": "if you confirm it",
    r"throws? about": "scatters; perturbs",
    r"takes? apart|taken apart": "splits",
    r"looked at and taken back": "evaluated and undone",
    r"now and then": "rarely, every n updates",
    r"told (by|from)": "known from, distinguished by",
    r"lets? through": "passes on",
    r"is no (error|index|link|hindrance)": "is not an error",
    r"has nothing to say": "is zero",
    r"say the same": "agree",
    r"about different things": "point in different directions",
}
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_NO_PROSE = re.compile(r"`[^`\n]*`|\$\$.+?\$\$|\$[^$\n]+\$|\]\([^)]*\)|<[^>\n]*>", re.DOTALL)
_NOT_WRITTEN = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): INSTEAD[words] for words in INSTEAD}


def prose(path: Path) -> str:
    """The text that a reader reads: no code, formulas, addresses or HTML."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        own = (cell for cell in cells if "navigation" not in cell["metadata"].get("tags", []))
        text = "\n\n".join("".join(cell["source"]) for cell in own)
    return re.sub(r"\s+", " ", _NO_PROSE.sub(" ", _FENCE.sub("", text)))


def faults(text: str) -> list[str]:
    """Each place where ``text`` has what is not written, and what to write."""
    return [
        f"...{text[max(found.start() - 30, 0) : found.end() + 20]}...: write {instead}"
        for pattern, instead in _NOT_WRITTEN.items()
        for found in pattern.finditer(text)
    ]


@pytest.mark.parametrize("name", FILES)
def test_the_language_is_plain(name):
    assert faults(prose(ROOT / name)) == []


@pytest.mark.parametrize(
    "text",
    [
        "fewer updates, each dearer",
        "Each is shown failing, measured, and mended.",
        "It was 0.04 in truth.",
        "the sample with\nanother one",
        "A name that is none is refused.",
        "a step that the slope foresees",
        "`labkit doctor` looks for what bites people",
    ],
)
def test_what_is_not_written_is_found(text):
    faulty = faults(re.sub(r"\s+", " ", text))
    assert len(faulty) == 1 and ": write " in faulty[0]


@pytest.mark.parametrize(
    "text",
    ["I recommend it: amendments", "one update of none of them", "It predicts; correct it again."],
)
def test_plain_words_are_no_fault(text):
    assert faults(text) == []
