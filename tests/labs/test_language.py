"""Translations: complete, with the same code, links and formulas; what is stale is not shown."""

import re

import pytest
from babel.messages.pofile import read_po
from hypothesis import example, given
from hypothesis import strategies as st

from labkit.errors import InputError
from labkit.labs import language
from labkit.labs.exercises.start import check, hint
from labkit.tools.work import _for_learners
from scripts.catalogues import LOCALE, ROOT, readme, sources, updated

# What a reader's machine reads, or what must not change: links, code, tags, placeholders.
KEPT = (r"\]\(([^)\s]+)\)", r"(`[^`\n]+`)", r"(\]\[flow\])", r"(<[^>]+>)")
HEADING = re.compile(r"^#+ ", re.M).findall
PLACES = re.compile(r"\{[\w:.]+\}").findall
FORMULA = re.compile(r"\$\$?([^$]+)\$\$?")
CHINESE = r"[\u4e00-\u9fff]"


def kept(text):
    text = text.replace("README_zh.md", "README.md")  # each README leads to the other
    text = " ".join(text.split())
    formulas = {re.sub(r"\s", "", each) for each in FORMULA.findall(text) if r"\text{" not in each}
    return [sorted(re.findall(pattern, text)) for pattern in KEPT], formulas


@pytest.mark.parametrize("name", [*map(str, sources())])
def test_every_message_is_translated_with_its_code_links_and_formulas(name):
    path = LOCALE / "zh" / f"{name}.po"
    text, left = updated(path, "zh", sources()[name]())
    assert not left, "python -m scripts.catalogues lists what is to be translated"
    assert text == path.read_text(encoding="utf-8"), "python -m scripts.catalogues writes it anew"
    with path.open("rb") as file:
        for each in filter(lambda each: each.id, read_po(file, locale="zh")):
            assert kept(each.id) == kept(each.string), each.id
            if name == "exercises":
                assert {*PLACES(each.id)} == {*PLACES(each.string)}, each.id
            assert each.id.count("\n|") == each.string.count("\n|"), each.id
            assert "\n\n" not in each.string
            assert HEADING(each.id) == HEADING(each.string), each.id


def test_the_readme_is_that_of_the_catalogue():
    assert readme("zh") == (ROOT / "README_zh.md").read_text(encoding="utf-8")


def terms():
    lines = (LOCALE / "zh" / "glossary.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if line and line[0] != "#"]


@pytest.mark.parametrize(("english", "chinese"), terms())
def test_a_term_of_the_glossary_is_used_wherever_the_english_has_it(english, chinese):
    term = re.compile(rf"\b{re.escape(english)}s?\b", re.I)
    where = 0
    for path in (LOCALE / "zh").rglob("*.po"):
        with path.open("rb") as file:
            for each in read_po(file, locale="zh"):
                words = re.sub(r"`[^`]*`|\]\([^)]*\)|\$[^$]*\$", "", each.id)
                if each.string and term.search(words):
                    where += 1
                    assert re.search(chinese, each.string), f"{path.name}: {each.id}"
    assert where, "no page has this term"


@given(st.text(alphabet="ab# \n`>|$é\u2028\x0b"))
@example("a\n\n```\nx\n\ny\n```\n\nb")
def test_joined_blocks_are_the_text(text):
    assert "".join(language.blocks(text)) == text


def test_code_formulas_and_pictures_are_no_messages():
    text = """# Title

```python
print("no message")

x = 1
```

$$x = \\text{one}$$

[flow]: data:image/png;base64,AAAA
> quoted
> lines
"""
    assert [*language.messages(text)] == [
        "# Title",
        "[flow]: data:image/png;base64,AAAA\n> quoted\n> lines",
    ]
    assert language.translate(text, {"# Title": "# 标题"}) == text.replace("Title", "标题")


def test_a_changed_sentence_is_english_again_and_counts_as_untranslated(tmp_path, monkeypatch):
    page = tmp_path / "locale" / "zh" / "page.po"
    page.parent.mkdir(parents=True)
    monkeypatch.setattr(language, "labs_source", lambda: tmp_path)
    first, left = updated(page, "zh", iter([("One sentence of ten words.", "c1")]))
    assert left == ["One sentence of ten words."]
    page.write_text(first.rstrip()[:-2] + '"译文"\n', "utf-8")
    assert language.catalogue("zh", "page") == {"One sentence of ten words.": "译文"}
    second, left = updated(page, "zh", iter([("One sentence of nine words.", "c1")]))
    assert left == ["One sentence of nine words."] and "fuzzy" in second and "译文" in second
    page.write_text(second, "utf-8")
    assert language.catalogue("zh", "page") == {}


def test_an_unknown_language_or_page_is_refused():
    with pytest.raises(InputError, match="unknown language 'fr'; expected one of: en, zh"):
        language.catalogue("fr", "README")
    with pytest.raises(InputError, match="no translation of none"):
        language.catalogue("zh", "none")
    assert language.catalogue("en", "none") == {}


def test_exercises_speak_the_language_of_the_kernel(monkeypatch, capsys):
    def output_side(side, kernel, stride, pad_mode):
        return side

    said = {}
    for code in language.LANGUAGES:
        monkeypatch.setenv(language.VARIABLE, code)
        check("output_side", output_side)
        hint("output_side")
        said[code] = capsys.readouterr().out
    assert "public checks passed; " in said["en"] and not re.search(CHINESE, said["en"])
    assert all(re.search(CHINESE, line) for line in said["zh"].splitlines())
    assert re.findall(r"\d+", said["en"])[0] in said["zh"]


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_only_words_differ_between_the_languages_of_a_notebook(path, tmp_path):
    english, chinese = (
        _for_learners(path, tmp_path, language.catalogue(code, f"notebooks/{path.stem}"))["cells"]
        for code in language.LANGUAGES
    )
    assert len(english) == len(chinese) > 25
    for ours, theirs in zip(english, chinese, strict=True):
        if ours["cell_type"] == "code":
            assert ours == theirs
        else:
            assert ours | {"source": ""} == theirs | {"source": ""}
            assert not [*language.messages(ours["source"])] or re.search(CHINESE, theirs["source"])
