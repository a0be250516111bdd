"""The book: built without a warning, read in a browser without a server or a network."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import labkit
from scripts.book import ROOT, broken, in_language, with_pictures
from tests.browser.test_jupyterlab import _CHROMIUM

PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    folder = tmp_path_factory.mktemp("build") / "book"
    done = subprocess.run(
        [sys.executable, "-m", "scripts.book", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def opened(book):
    """A function that opens a page; afterwards no page had asked for anything outside."""
    program = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if program is None:
        pytest.skip("no Chromium")
    from playwright.sync_api import sync_playwright

    asked, errors = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])

        def opened(page, scheme="light", viewport=DESKTOP):
            tab = browser.new_context(viewport=viewport, color_scheme=scheme).new_page()
            tab.on("request", lambda request: asked.append(request.url))
            tab.on("pageerror", lambda error: errors.append(str(error)))
            tab.goto(f"{(book / page).as_uri()}")
            return tab

        yield opened
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert errors == []


def test_every_public_name_and_every_page_is_in_both_languages(book):
    for language in ("en", "zh"):
        pages = {
            str(path.relative_to(book / language)) for path in book.rglob(f"{language}/**/*.html")
        }
        assert {f"api/labkit.{name}.html" for name in labkit.__all__} <= pages
        assert {"index.html", "notebooks/03_thor.html", "docs/guides/thor.html"} <= pages
    real = (book / "en/api/labkit.AccumulatedStep.html").read_text("utf-8")
    assert "micro_steps" in real and "shard" not in real  # Cell's methods
    outside = re.compile(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=.(?:https?:)?//")
    for path in book.rglob("*.html"):
        assert not outside.search(path.read_text("utf-8")), path


@pytest.mark.parametrize(
    ("language", "asked", "page"),
    [("en", "micro_steps", "AccumulatedStep"), ("zh", "梯度累积", "01 · "), ("zh", "thor", "THOR")],
)
def test_search_finds_pages_without_a_server(opened, language, asked, page):
    tab = opened(f"{language}/search.html")
    tab.goto(f"{tab.url}?q={asked}")
    tab.wait_for_selector("ul.search li")
    assert any(page in title for title in tab.locator("ul.search li").all_inner_texts())
    tab.goto(f"{tab.url.partition('?')[0]}?q={'zzzqqq' if language == 'en' else '鳄鱼皮鞋'}")
    tab.wait_for_timeout(1000)
    assert tab.locator("ul.search li").count() == 0


def test_the_switch_leads_to_the_same_page_and_back(opened):
    tab = opened("en/notebooks/04_adasum.html")
    tab.locator(".languages a").click()
    assert tab.url.endswith("zh/notebooks/04_adasum.html")
    assert "工作者" in tab.locator("h1").inner_text()
    tab.locator(".languages a").click()
    assert tab.url.endswith("en/notebooks/04_adasum.html")


def test_claims_are_collapsed_and_formulas_and_code_can_be_copied(opened):
    tab = opened("en/notebooks/01_gradient_accumulation.html")
    claims = tab.locator("details.hide")
    assert claims.count() > 0 and claims.first.get_attribute("open") is None
    assert "lab.check(" in claims.first.text_content()
    assert tab.locator("math").count() > 3
    tex = tab.locator("div.math").first.get_attribute("data-tex")
    tab.evaluate("navigator.clipboard.writeText = text => { window.copied = text; }")
    tab.locator("div.math button").first.click()
    assert "\\" in tex and tab.evaluate("window.copied") == tex
    assert tab.locator("button.copybtn").count() > 10


def test_a_slider_moves_without_a_kernel(opened):
    tab = opened("en/notebooks/03_thor.html")
    slider = tab.locator("input[type=range]").first
    shown = "() => document.querySelector('input[type=range]').closest('div').outerHTML"
    before = tab.evaluate(shown)
    slider.focus()
    slider.press("ArrowRight")
    assert tab.evaluate(shown) != before


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["index", "notebooks/05_dimension_reduction", "docs/guides/thor"])
def test_a_phone_shows_a_page_without_scrolling_sideways(opened, page, scheme):
    tab = opened(f"zh/{page}.html", scheme, PHONE)
    width = tab.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"]
    image = "image => getComputedStyle(image).filter"
    filters = tab.eval_on_selector_all("article img", f"all => all.map({image})")
    assert all(("invert" in each) == (scheme == "dark") for each in filters)
    assert filters or page == "docs/guides/thor"


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#x">x</a> <a href="b.html#y">y</a> <img src="c.png">'
    )
    (tmp_path / "b.html").write_text('<p id="x"></p><a href="https://e.org/none">out</a>')
    assert [*broken(tmp_path)] == ["a.html: b.html#y", "a.html: c.png"]


def test_translated_headings_keep_their_english_anchors():
    page = in_language("## Layout of it\n\nText\n", {"## Layout of it": "## 布局", "Text": "正文"})
    assert page == '<a id="layout-of-it"></a>\n\n## 布局\n\n正文\n'


def test_embedded_pictures_become_files(tmp_path: Path):
    page = with_pictures("![a b][flow]\n\n[flow]: data:image/svg+xml;base64,PHN2Zy8+\n", tmp_path)
    (file,) = tmp_path.iterdir()
    assert page.strip() == f"![a b]({file.name})" and file.read_text() == "<svg/>"
