"""Links between and inside notebooks are made from headings and header cards, reproducibly."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit.tools import notebook_files as files
from labkit.tools.labs import find_labs
from labkit.tools.running import digests
from scripts.notebooks import navigation

CARD = "# {} · {}\n\nWhat it teaches.\n\n| | |\n|---|---|\n| **You need to know** | sums |\n"
CARD += "| **Takes** | 2 minutes |\n"
SOURCES = "| 003, sums | 15 | [01](../notebooks/01_sums.ipynb) |\n\n## 003 · Long, long sums\n"
UP = "[Map of the labs](00_start.ipynb#map) | [Sources](../docs/sources.md#003--long-long-sums)"


@pytest.fixture
def project(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "sources.md").write_text(SOURCES)
    notebook_of(tmp_path, "00_start", "## 1 · The labs", map_here=True)
    notebook_of(
        tmp_path, "01_sums", "## 1 · Sums: `a`\n\n### By hand\n\n```\n## no\n```", "## 2 · x"
    )
    notebook_of(tmp_path, "02_products", "## 1 · x", "### By hand\n\n## 2 · y\n\n### By hand")
    return tmp_path


def notebook_of(project, name, *texts, map_here=False):
    cells = [new_markdown_cell(CARD.format(name[:2], name[3:].title()))]
    cells += [new_markdown_cell(text) for text in texts]
    if map_here:
        cells.append(new_markdown_cell("", id="map"))
    nbformat.write(new_notebook(cells=cells), project / "notebooks" / f"{name}.ipynb")


def cells_of(project: Path, name: str) -> dict[str, str]:
    cells = files.read(project / "notebooks" / f"{name}.ipynb")["cells"]
    return {cell["id"]: cell["source"] for cell in cells}


def write(project):
    labs = find_labs(project)
    return [lab.name for lab in navigation.write(project, labs, labs)]


def test_a_notebook_leads_to_its_neighbours_the_map_its_sources_and_its_sections(project):
    assert write(project) == ["00_start", "01_sums", "02_products"]
    ways, contents = cells_of(project, "01_sums")["navigation"].split("\n\n")
    assert ways == f"← [00 · Start](00_start.ipynb) | {UP} | [02 · Products](02_products.ipynb) →"
    assert contents == ("**Contents** (5 minutes of reading): [Sums: `a`](#01-sums-a), [x](#01-x)")
    assert [*cells_of(project, "01_sums")][1] == "navigation"
    last, source = [*cells_of(project, "01_sums").items()][-1]
    # At the end notebooks are linked by number; the sources are linked only at the top.
    assert (last, source) == (
        "navigation-end",
        "← [Notebook 00](00_start.ipynb) | [Map of the labs](00_start.ipynb#map) | "
        "[Notebook 02](02_products.ipynb) →",
    )
    first = cells_of(project, "00_start")
    assert first["navigation"].startswith("[Map of the labs](#map) | [Sources](../docs/sources.md)")
    assert first["navigation-end"] == "[Map of the labs](#map) | [Notebook 01](01_sums.ipynb) →"
    assert cells_of(project, "02_products")["navigation"].split("\n\n")[0].endswith("sources.md)")
    assert cells_of(project, "02_products")["navigation-end"].endswith("00_start.ipynb#map)")


def test_a_second_notebook_and_its_lab_lead_to_each_other_and_the_way_passes_it_by(project):
    notebook_of(project, "01_sums_in_depth", "## 1 · Sums: `a`\n\n[back](01_sums.ipynb)")
    write(project)
    there, back = (cells_of(project, name) for name in ("01_sums", "01_sums_in_depth"))
    after = "[02 · Products](02_products.ipynb) →"
    own = "[01 · Sums_In_Depth](01_sums_in_depth.ipynb)"
    ways = [notebook["navigation"].split("\n\n")[0] for notebook in (there, back)]
    assert ways == [
        f"← [00 · Start](00_start.ipynb) | {UP} | {own} | {after}",
        f"← [01 · Sums](01_sums.ipynb) | {UP} | {after}",
    ]
    assert '<a id="01-in-depth-sums-a"></a>' in "\n".join(back.values())
    first = cells_of(project, "02_products")["navigation-end"].split(" | ")[0]
    assert first == "← [Notebook 01](01_sums.ipynb)"
    assert cells_of(project, "00_start")["map"].index("01_sums_in_depth") > 0


def test_every_heading_below_the_title_has_an_anchor_of_its_own(project):
    write(project)
    text = "\n".join(cells_of(project, "01_sums").values())
    assert '<a id="01-sums-a"></a>\n\n## 1 · Sums: `a`\n' in text
    assert '<a id="01-by-hand"></a>\n\n### By hand' in text
    assert text.count("<a id=") == 3 and "```\n## no" in text
    text = "\n".join(cells_of(project, "02_products").values())
    assert text.index('"02-by-hand"') < text.index('"02-y"') < text.index('"02-by-hand-2"')


def test_the_map_tells_what_the_header_cards_say(project):
    write(project)
    assert cells_of(project, "00_start")["map"] == '<a id="map"></a>\n\n' + "\n\n".join(
        f"**[{number} · {title}]({number}_{title.lower()}.ipynb)**<br>\nWhat it teaches.<br>\n"
        "*First:* sums.<br>\n*Reading:* 5 minutes. *Machine:* 2 minutes."
        for number, title in (("01", "Sums"), ("02", "Products"))
    )


def test_it_is_written_once_and_follows_a_heading(project):
    write(project)
    assert write(project) == []
    path = project / "notebooks" / "01_sums.ipynb"
    notebook = files.read(path)
    digest = digests.source_digest(notebook)
    heading = next(cell for cell in notebook["cells"] if "## 2 · x" in cell["source"])
    heading["source"] = heading["source"].replace("· x", "· z")
    assert digests.source_digest(notebook) != digest
    files.write(path, notebook)
    assert write(project) == ["01_sums"]
    text = "\n".join(cells_of(project, "01_sums").values())
    assert "[z](#01-z)" in text and "01-x" not in text


def test_what_the_program_writes_is_not_what_a_person_writes(project):
    path = project / "notebooks" / "01_sums.ipynb"
    notebook = files.read(path)
    notebook["cells"][2]["source"] = '<a id="mine"></a>\n\ntext'
    files.write(path, notebook)
    before = digests.source_digest(notebook)
    write(project)
    assert digests.source_digest(files.read(path)) == before
    assert '<a id="mine"></a>\n\ntext' in cells_of(project, "01_sums").values()


def test_reading_counts_words_and_lines_of_code():
    words = new_markdown_cell("word " * 2000 + "\n\n```\n" + "line\n" * 75 + "```")  # 10 + 5
    code = new_code_cell("a = 1\n\n" * 150)  # 10
    links = new_markdown_cell("word " * 9999)
    links.metadata["tags"] = [digests.NAVIGATION]
    assert navigation.reading_minutes({"cells": [words, code, links]}) == 25


def test_what_looks_like_a_link_in_code_stays(tmp_path):
    text = "use `layers[0](images)` and [this](a.png)"
    moved = files.relinked(text, tmp_path / "notebooks", tmp_path / "work", with_labs=True)
    assert moved == "use `layers[0](images)` and [this](../notebooks/a.png)"


def test_a_notebook_that_is_written_anew_keeps_its_mode(tmp_path):
    path = tmp_path / "a.ipynb"
    files.write(path, {"cells": []})
    path.chmod(0o600)
    files.write(path, files.read(path))
    assert path.stat().st_mode & 0o777 == 0o600
