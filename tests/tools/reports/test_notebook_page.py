"""An executed notebook as a page: nothing runs in it and nothing is loaded."""

import base64
import re

import pytest

from labkit.errors import InputError
from labkit.tools.reports import notebook_page
from tests.support import run_folders as folders
from tests.support.run_folders import code, display, markdown


def convert(tmp_path, *cells):
    return notebook_page.convert(folders.write_notebook(tmp_path, *cells))


def test_relative_links_lead_to_files_that_are_there(tmp_path):
    (tmp_path / "data one.csv").write_text("")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mindspore-labs"\n')
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "02.ipynb").write_text("")
    links = "[a](data%20one.csv) [b](02.ipynb#two) [c](gone.csv) [d](https://a.org) [e](#f)"
    _, body = convert(tmp_path, markdown(links))
    expected = [f"file://{tmp_path}/data%20one.csv", f"file://{tmp_path}/notebooks/02.ipynb#two",
                "https://a.org", "#f"]  # fmt: skip
    assert re.findall('href="([^"]*)"', body) == expected
    assert "<a>c</a>" in body


def test_text_code_output_picture_and_error_are_shown(tmp_path):
    picture = base64.b64encode(folders.png()).decode()
    title, body = convert(
        tmp_path,
        markdown("# The *title*\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n$x^2$"),
        code("print('<b>')", {"output_type": "stream", "name": "stdout", "text": "<b>\n"}),
        code("plot()", display("image/png", picture, {"image/png": {"alt": "a white point"}})),
        code("1 / 0", {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "by zero",
                       "traceback": ["\x1b[31mZeroDivisionError\x1b[0m: by zero"]}),
    )  # fmt: skip
    assert title == "The *title*" and "<h1" in body and "<table>" in body and "<math" in body
    assert "&lt;b&gt;" in body and 'alt="a white point"' in body
    assert "ZeroDivisionError" in body and "\x1b" not in body


def test_a_picture_of_docs_figures_is_embedded_and_no_other_file(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mindspore-labs"\n')
    figures = tmp_path / "docs" / "figures"
    figures.mkdir(parents=True)
    svg = '<svg xmlns="http://www.w3.org/2000/svg"/>'
    for place in (figures / "a.svg", figures / "a.txt", tmp_path / "docs" / "b.svg"):
        place.write_text(svg)
    (figures / "large.svg").write_text(svg + " " * 100_000)
    (figures / "elsewhere.svg").symlink_to(tmp_path / "docs" / "b.svg")
    (tmp_path / "notebooks").mkdir()
    names = ("figures/a.svg", "figures/a.txt", "b.svg", "figures/large.svg",
             "figures/elsewhere.svg", "figures/gone.svg", "figures/../b.svg",
             "figures/../figures/a.svg")  # fmt: skip
    shown = markdown("\n\n".join(f"![of {name}](../docs/{name})" for name in names))
    own = base64.b64encode(svg.encode()).decode()
    data = code("show()", display("text/html", f'<img src="data:image/svg+xml;base64,{own}">'))
    _, body = notebook_page.convert(folders.write_notebook(tmp_path / "notebooks", shown, data))
    expected = f'<img alt="of figures/a.svg" src="data:image/svg+xml;base64,{own}"/>'
    assert re.findall("<img[^>]*>", body) == [expected]
    assert all(f"[picture: of {name}]" in body for name in names[1:])


def test_what_only_a_program_could_show_is_left_out_without_a_warning(tmp_path, caplog, recwarn):
    _, body = convert(
        tmp_path,
        code("show()", display("text/html", '<img src="https://a.org/x.png">')),
        code("js()", display("application/javascript", "x()")),
        code("w()", display("application/vnd.jupyter.widget-view+json", {"model_id": "1"})),
    )
    assert "x()" not in body and "a.org" not in body and "[picture: No description" in body
    assert not caplog.records and not recwarn.list


def test_no_template_of_the_working_folder_is_used(tmp_path, monkeypatch):
    (tmp_path / "basic").mkdir()
    # Code in a template is executed; this expression could reach every module.
    (tmp_path / "basic" / "index.html.j2").write_text("{{ cycler.__init__.__globals__.keys() }}")
    (tmp_path / "basic" / "conf.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    notebook_page._exporter.cache_clear()
    _, body = convert(tmp_path, markdown("# The title"))
    notebook_page._exporter.cache_clear()
    assert "The title" in body and "__name__" not in body


def test_ids_are_unique(tmp_path):
    _, body = convert(tmp_path, markdown("# One\n\n# One"), markdown("# One"))
    assert body.count('id="One"') == 1 and "¶" not in body


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": []}', '{"nbformat": 4, "cells": [{}]}'])
def test_what_is_no_notebook_is_refused(tmp_path, text):
    (tmp_path / "n.ipynb").write_text(text)
    with pytest.raises(InputError, match="n.ipynb cannot be converted"):
        notebook_page.convert(tmp_path / "n.ipynb")
