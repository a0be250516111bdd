"""The project avoids words that no textbook would use, and names that say nothing."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from labkit.tools import notebook_files
from tests.support import identifiers, texts

ROOT = Path(__file__).parents[2]
FOLDERS = "labkit scripts benchmarks examples data_scripts docs tests notebooks".split()


def files_by_room() -> dict[str, list[Path]]:
    """Return pages, notebooks and Python files, by the first two folders of their paths."""
    rooms = defaultdict(list)
    for path in sorted(texts.committed_files(ROOT)):
        parts = path.relative_to(ROOT).parts
        if path.suffix in (".md", ".py", ".ipynb") and parts[0] in (*FOLDERS, path.name):
            rooms["/".join(parts[:-1][:2])].append(path)
    return rooms


ROOMS = files_by_room()

# Words to avoid, as a pattern, and what to write instead.
INSTEAD = {
    r"mend(s|ed|ing)?": "fix, correct",
    r"dearer": "costs more",
    r"(?<!-)anew(?!:)": "again",
    r"foresee[sn]?|foresaw": "predict, expect",
    r"in truth": "in fact; mostly nothing",
    r"by heart": "memorise",
    r"another one": "a second one; a different one: say which",
    r"(?<!there )(is|are|was|were) (?-i:none)": "is not one: say what",
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
_NO_PROSE = re.compile(r"`[^`\n]*`|\$\$.+?\$\$|\$[^$\n]+\$|\]\([^)]*\)|<[^>\n]*>", re.DOTALL)
_NOT_WRITTEN = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): INSTEAD[words] for words in INSTEAD}


def prose(path: Path) -> str:
    """Return the prose of a file, of programs too, without code, formulas, addresses or HTML."""
    return _in_a_line(_NO_PROSE.sub(" ", texts.without_fences(texts.text_of(path))))


def _in_a_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def faults(text: str) -> list[str]:
    """Return each place where ``text`` has words to avoid, and what to write instead."""
    return [
        f"...{text[max(match.start() - 30, 0) : match.end() + 20]}...: write {instead}"
        for pattern, instead in _NOT_WRITTEN.items()
        for match in pattern.finditer(text)
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_the_language_is_plain(room):
    others = [path for path in ROOMS[room] if path != Path(__file__)]
    faulty = [(path.name, fault) for path in others for fault in faults(prose(path))]
    assert not faulty, "\n".join(map(": ".join, faulty))


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
    faulty = faults(_in_a_line(text))
    assert len(faulty) == 1 and ": write " in faulty[0]


@pytest.mark.parametrize(
    "text",
    ["I recommend it: amendments", "one update of none of them", "It predicts; correct it again."],
)
def test_plain_words_are_no_fault(text):
    assert faults(text) == []


# Words that stand for a thing without naming it: `_pick_one`, `found`.
PLACEHOLDERS = {"one", "found", "came", "told"}
# Parts of names in which "one" is the number, or part of a term.
NUMBERS = {
    "one_hot": "a vector of zeros and a one",
    "with_one": "a 1 is put below each column",
    "at_one": "at a loss scale of 1",
    "stage_one": "the first of the two stages that the documents number",
    "one_by_one": "each after the other",
    "one_of": "a choice, as JSON Schema calls it",
    "one_(convolution|dimensional|image|line|process|product|step)": "a count: not two",
}
_NUMBER = re.compile(rf"(?<![^_])({'|'.join(NUMBERS)})(?![^_])")
# Keys of the JSON that `labkit doctor` prints.
KEYS = {("labkit/tools/doctor/__init__.py", "found"), ("labkit/tools/doctor/check.py", "found")}


def says_nothing(name: str) -> bool:
    """Whether a word of an identifier is a placeholder."""
    # The name of a test is a sentence.
    if name.startswith("test_"):
        return False
    return not PLACEHOLDERS.isdisjoint(_NUMBER.sub("", name.lower()).split("_"))


def empty_names(path: Path) -> list[str]:
    """Return the places where a Python file or a notebook defines a name that says nothing."""
    place = path.relative_to(ROOT).as_posix()
    if path.suffix == ".md":
        return []
    if path.suffix == ".py":
        trees = [(place, ast.parse(path.read_text(encoding="utf-8")))]
    else:
        cells = enumerate(notebook_files.read(path)["cells"])
        code = ((number, cell) for number, cell in cells if cell["cell_type"] == "code")
        trees = [(f"{place}, cell {number}", texts.tree_of(cell)) for number, cell in code]
    return [
        f"{where}:{line}: {name}"
        for where, tree in trees
        for line, name in identifiers.given_in(tree)
        if says_nothing(name) and (place, name) not in KEYS
    ]


def test_all_folders_are_read():
    assert {room.partition("/")[0] for room in ROOMS} == {"", *FOLDERS}


@pytest.mark.parametrize("room", ROOMS)
def test_a_name_says_what_it_names(room):
    faulty = [fault for path in ROOMS[room] for fault in empty_names(path)]
    assert not faulty, "\n".join(faulty)


@pytest.mark.parametrize(
    "code",
    [
        "one = 1",
        "ONE, TWO = 1, 2",
        "for found in x: pass",
        "[came for came in x]",
        "if (found := f()): pass",
        "def one_lab(): pass",
        "def f(told): pass",
        "lambda *, found: 0",
        "class A:\n    def _pick_one(self): pass",
        "class A:\n    found: str",
        "self.one_found = 1",
        "import x as one",
        "with x as found: pass",
        "try: pass\nexcept E as came: pass",
        "match x:\n    case [found, *_]: pass",
        "stage_one_found = one_hot_one = 1",
    ],
)
def test_a_name_that_says_nothing_is_found(code):
    names = [name for _, name in identifiers.given_in(ast.parse(code)) if says_nothing(name)]
    assert names


@pytest.mark.parametrize(
    "name",
    ["ones", "one_hot", "_one_step", "train_stage_one", "_ONE_DIMENSIONAL", "foundation"]
    + ["test_a_name_that_says_nothing_is_found", "money", "none", "with_one"],
)
def test_a_name_with_the_number_one_says_something(name):
    assert not says_nothing(name)
