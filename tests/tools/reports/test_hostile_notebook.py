"""Hostile notebooks: on their pages nothing runs, loads or redirects, and no conversion hangs."""

import itertools
import re
import time

import pytest

from labkit.errors import InputError
from labkit.tools.reports import maths, notebook_page, page
from tests.support import chromium
from tests.support import run_folders as folders
from tests.support.run_folders import code, display, markdown

LIVE = (
    '<meta http-equiv="refresh" content="0;url=http://evil.test/r">',
    "<script>document.title='ran';fetch('http://evil.test/s');alert(1)</script>",
    '<form id=f action="http://evil.test/f"><input name=a><button autofocus>go</button></form>',
    '<img src="http://evil.test/i" onerror="document.title=\'ran\';alert(1)">',
    '<iframe src="http://evil.test/i" srcdoc="<script>alert(1)</script>"></iframe>',
)
# Markup that hides the live part from one parser but not from another; {} is its place.
WRAPS = (
    "{}",
    "<!-->{}-->",
    "<!--->{}-->",
    "<!-- --!>{}-->",
    "<!--><!-- {} -->",
    "<!-{}->",
    "<![CDATA[ ]]{} ]]>",
    "<![CDATA[>{}]]>",
    "<svg><![CDATA[ ]]><p>{}]]></svg>",
    "<?php > {} ?>",
    "<!DOCTYPE x [ <!ENTITY > {} ]>",
    "<!x>{}",
    "<!--[if IE]>{}<![endif]-->",
    "<![if !IE]>{}<![endif]>",
    "<svg><style><!--</style>{}--></svg>",
    "<svg><title>{}</title></svg>",
    "<svg></p><style><a id=\"</style>{}\">",
    "<math><mtext><table><mglyph><style><!--</style>{}--></style></mglyph></table></mtext></math>",
    "<math><annotation-xml encoding=text/html><style>{}</style></annotation-xml></math>",
    "<noscript><p title=\"</noscript>{}\"></noscript>",
    "<template>{}</template>",
    "<textarea><!--</textarea>{}--></textarea>",
    "<title><p title=\"</title>{}\"></title>",
    "<xmp><p title=\"</xmp>{}\"></xmp>",
    "<style><p title=\"</style>{}\"></style>",
    "<plaintext>{}",
    "<noembed></noembed >{}",
    "<select><option>{}",
    "<table><tr><td></table>{}",
    "</div></div></main></body></html>{}",
    "<p title='<!--'>{}<p title='-->'>",
    "<a title=\"`<p>\">{}",
    "<b/x=/{}",
    "<p\x0ctitle=a\x0c>{}",
    "<ScRiPt/x>//</ScRiPt\n>{}",
    "<div class=output_markdown>$x$&lt;b&gt;{}</div>",
)  # fmt: skip
SINGLE = (
    "<svg onload=alert(1)><use href=http://evil.test/u></use><image href=http://evil.test/i></svg>",
    '<body onload=alert(1) background="http://evil.test/b">',
    '<p style="background:u\\72l(http://evil.test/c)">p</p>',
    '<p style="background:image-set(\'http://evil.test/c\' 1x)">p</p>',
    '<p style="position:fixed;inset:0;color:red;background-image:url(//evil.test/d)">p</p>',
    '<link rel=stylesheet href=http://evil.test/l><link rel=prefetch href=http://evil.test/p>',
    '<link rel=dns-prefetch href=//evil.test><base href=http://evil.test/>',
    '<a href="javascript:alert(1)">a</a><a href="java\nscript:alert(1)">a</a>',
    '<a href=" \x01javascript:alert(1)">a</a><a href="http://evil.test" ping="http://evil.test/p">',
    '<a href="data:text/html,<script>alert(1)</script>">a</a><a href="vbscript:x">a</a>',
    '<object data="http://evil.test/o"></object><embed src="http://evil.test/e">',
    '<video src="http://evil.test/v" poster="http://evil.test/p" autoplay></video><audio src=x>',
    '<img srcset="http://evil.test/s 1x"><picture><source srcset="http://evil.test/t"></picture>',
    '<img src="data:image/svg+xml,<svg xmlns=http://www.w3.org/2000/svg onload=alert(1)>">',
    '<details open ontoggle=alert(1)></details><input autofocus onfocus=alert(1)>',
    '<marquee onstart=alert(1)>m</marquee><isindex action=http://evil.test>',
    '<style>@import "http://evil.test/c";*{background:url(http://evil.test/d)}</style>',
    '<frameset onload=alert(1)><frame src=http://evil.test/f></frameset>',
    '<table background="http://evil.test/t"><td background="http://evil.test/u">x</td></table>',
    '<x-y onclick=alert(1) tabindex=1 autofocus onfocus=alert(1)>x</x-y>',
    "$\\text{<script>alert(1)</script>}$ $x\" onload=\"a$ $$</code><script>alert(1)</script>",
)  # fmt: skip
CORPUS = [
    wrap.replace("{}", live) for wrap, live in itertools.product(WRAPS, LIVE)
] + [*SINGLE]  # fmt: skip


def cells_of(texts):
    """Return each text as a markdown cell, as an HTML output and as a markdown output."""
    kinds = ("text/html", "text/markdown")
    outputs = [display(kind, text) for text in texts for kind in kinds]
    return *map(markdown, texts), *(code("show()", output) for output in outputs)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The pages of the corpus, 40 texts per notebook."""
    root = tmp_path_factory.mktemp("hostile")
    for number, start in enumerate(range(0, len(CORPUS), 40)):
        folder = root / "run" / f"lab-{number:02}"
        folder.mkdir(parents=True)
        folders.write_notebook(folder, *cells_of(CORPUS[start : start + 40]))
    written = page.write([root / "run"], root / "out.html")
    pages = sorted((root / "out_notebooks").glob("*.html"))
    assert len(CORPUS) >= 100 and len(pages) == -(-len(CORPUS) // 40)
    return [written, *pages]


def test_only_tags_of_the_list_are_on_the_pages(written):
    """Every "<" begins one of these tags, so that no parser can read anything else."""
    allowed = notebook_page._TAGS | maths._TAGS | {"main"}
    for path in written[1:]:
        body = path.read_text().partition("<main")[2].partition("</main>")[0]
        assert body.count("<div") > 20
        for start in re.finditer(r"<(.{0,40})", body, re.DOTALL):
            tag = re.match(r"/?([a-z0-9]+)(?=[\s/>])", start[1])
            assert tag and tag[1] in allowed, start[0]
        for tag in re.findall(r"<[a-z][^<>]*>", body):
            bare = re.sub(r'"[^"]*"', '""', tag)
            assert not re.search(r"\bon\w+=|srcset|action|ping|background=|poster", bare), tag
            assert not re.search(r'url\(|src="(?!data:)|href="(?!https?://|file://|#)', tag), tag


@pytest.mark.slow
def test_nothing_runs_loads_or_redirects_in_chromium(written):
    """The page's own policy is removed first, because cleaning must not depend on it."""
    bare = [file.with_name("bare-" + file.name) for file in written]
    for file, target in zip(written, bare, strict=True):
        text, count = re.subn(r"<meta http-equiv=[^>]*>", "", file.read_text(), count=1)
        assert count == 1
        target.write_text(text)
    seen: list[str] = []
    with chromium.launched() as browser:
        context = browser.new_context()
        context.on("request", lambda request: seen.append(request.url))
        context.on("dialog", lambda dialog: seen.append(dialog.message))
        tabs = [context.new_page() for _ in bare]
        context.on("page", lambda popup: seen.append(f"a window: {popup.url}"))
        for tab, target in zip(tabs, bare, strict=True):
            tab.goto(target.as_uri())
        tabs[0].wait_for_timeout(300)
        for tab, target in zip(tabs, bare, strict=True):
            assert tab.url == target.as_uri() and tab.title() != "ran"
            live = tab.eval_on_selector_all(
                "script, iframe, form, meta[http-equiv=refresh], object, embed, link, base",
                "all => all.map(element => element.outerHTML)",
            )
            assert live == []
    assert [url for url in seen if url[:5] != "data:"] == [target.as_uri() for target in bare]


@pytest.mark.parametrize(
    "text",
    ["<a" * 50_000, "<!--" * 30_000, "<?" * 50_000, "<a b='" * 20_000, "&#" * 40_000],
)
def test_what_a_parser_is_quadratic_in_is_read_at_once(text, tmp_path):
    """html.parser alone took 40 s."""
    began = time.process_time()
    notebook_page._clean(f'<div class="text_cell_render">{text}</div>', tmp_path)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "text",
    [
        "[a](" * 16_000,
        "![](" * 16_000,
        "[" * 2001,
        ("|a" * 2000 + "|\n") + ("|-" * 2000 + "|\n") + ("|a" * 2000 + "|\n") * 20,
        "x" * 20_001,
    ],
    ids=["links", "pictures", "brackets", "table", "long"],
)
@pytest.mark.parametrize("place", ["cell", "output"])
def test_markdown_that_takes_too_long_is_shown_as_it_is_written(text, place, tmp_path):
    """64 kB of "![](" took the formatter 16 s."""
    cell = markdown(text) if place == "cell" else code("show()", display("text/markdown", text))
    began = time.process_time()
    body = convert(tmp_path, cell, markdown("*soft*"))
    assert time.process_time() - began < 10
    assert text.strip() in body and "<em>too long to be formatted:</em>" in body
    assert "<em>soft</em>" in body


def test_markdown_up_to_the_limits_is_formatted(tmp_path):
    body = convert(tmp_path, markdown("*soft*" + "x" * 19_994), markdown("*hard*" + "[" * 2000))
    assert "<em>soft</em>" in body and "<em>hard</em>" in body and "too long" not in body


def test_a_page_formats_no_more_markdown_and_formulas_than_its_budget(tmp_path, monkeypatch):
    for _ in range(2):  # each page has its own budget, although pages share the formatter
        body = convert(tmp_path, *[markdown("*soft*" + "x" * 19_994)] * 10, markdown("*<b>*"))
        assert body.count("<em>soft</em>") == 10 and "<pre>*&lt;b&gt;*</pre>" in body
    monkeypatch.setattr(notebook_page, "_MOST_TEX", 60)
    body = convert(tmp_path, markdown(f"$a+b$ ${'x' * 501}$ $c+d$ $a+bc$ $x$"))
    shown = re.findall('<(math|code class="maths)', body)
    assert shown == ["math", 'code class="maths', "math"] + ['code class="maths'] * 2


def convert(folder, *cells):
    return notebook_page.convert(folders.write_notebook(folder, *cells))[1]


def test_html_that_is_nested_too_deep_is_refused(tmp_path):
    notebook_page._clean("<b>" * 250 + "x", tmp_path)
    with pytest.raises(InputError, match="nested more than 256 deep"):
        notebook_page._clean("<b>" * 300 + "x", tmp_path)
