"""docs/figures/*_flow.svg equal the program's output and are readable on a phone, light or dark."""

import itertools
import re
import sys
from pathlib import Path

import pytest

from tests.support import chromium
from tests.support.svg_pictures import SVG, Picture, crosses

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
NAMES = ("accumulation", "migration", "thor", "adasum", "subspace")
THEMES = ("light", "dark")


@pytest.fixture(scope="module")
def program():
    """The module docs/figures/draw.py, with its own imports."""
    sys.path.insert(0, str(FIGURES))
    import draw

    yield draw
    sys.path.remove(str(FIGURES))


@pytest.fixture(params=NAMES)
def picture(request):
    return Picture((FIGURES / f"{request.param}_flow.svg").read_text(encoding="utf-8"))


def test_the_files_are_those_that_the_program_writes(program):
    there = {path.name: path.read_bytes() for path in FIGURES.glob("*_flow.svg")}
    assert there == {name: text.encode() for name, text in program.texts().items()}
    assert len(there) == len(NAMES)


def test_a_picture_says_what_it_shows_and_loads_nothing(picture):
    assert picture.root.attrib["role"] == "img"
    assert "*" not in picture.root.findtext(f"{SVG}title")
    assert len(picture.root.findtext(f"{SVG}desc")) > 200
    shapes = ("svg", "title", "desc", "style", "rect", "text", "tspan", "path", "polygon")
    assert {element.tag for element in picture.root.iter()} <= {SVG + name for name in shapes}
    names = {name for element in picture.root.iter() for name in element.attrib}
    assert not any(name.startswith("on") or "href" in name or name == "style" for name in names)
    assert picture.text.count("://") == 1 and "url(" not in picture.text  # the namespace
    assert "@import" not in picture.text and len(picture.text.encode()) <= 20_000


def test_text_is_at_least_9_px_high_on_a_page_of_400(picture):
    assert picture.width <= 480 and picture.height <= 1.65 * picture.width
    assert min(picture.sizes) / picture.width * 400 >= 9


@pytest.mark.parametrize("dark", (False, True), ids=THEMES)
def test_few_colours_and_all_of_them_in_the_style(picture, dark, program):
    from flow import drawing

    page = THEMES[dark]
    allowed = set(drawing.PAGES[page])
    for hue, color in drawing.HUES.items():
        tint = drawing.mixed(color, drawing.PAGES[page][0], drawing._TINT[page])
        allowed |= {tint, drawing.line_color(hue, page)}
    used = {value for rule in picture.colours(dark).values() for value in rule.values()}
    assert used <= allowed and len(used) <= 13
    body = picture.text.partition("</style>")[2]
    assert not re.search(r"#[0-9a-f]{3}|rgb|fill=|stroke=", body)


def luminance(color):
    """Return the relative luminance of WCAG 2 of #rrggbb."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(color, other):
    low, high = sorted((luminance(color), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", (False, True), ids=THEMES)
def test_contrast_of_text_and_of_lines_is_that_of_wcag_aa(picture, dark):
    assert round(contrast("#767676", "#ffffff"), 2) == 4.54  # WCAG's own example at its limit
    colours = picture.colours(dark)
    ground = colours[("page",)]["fill"]
    for text in picture.texts:
        ink = colours[("quiet",) if "quiet" in text.kind else ("text",)]["fill"]
        around, below = picture.under(text).kind, ground
        if not {"page", "frame", "hollow"} & around:
            (below,) = (
                rule["fill"] for k, rule in colours.items() if "fill" in rule and set(k) <= around
            )
            assert below != ground
        assert contrast(ink, below) >= 4.5, (text.text, ink, below)
    lines = [rule["stroke"] for rule in colours.values() if "stroke" in rule]
    assert len(lines) >= 4 and all(contrast(line, ground) >= 3 for line in lines)


def test_text_is_inside_its_box(picture):
    for text in picture.texts:
        box = picture.under(text)
        assert box.holds(text, 1.0 if box is not picture.page else 10.0), (text, box)


def test_no_text_touches_another_text_a_line_or_the_edge_of_a_box(picture):
    for text, other in itertools.combinations(picture.texts, 2):
        assert not text.meets(other), (text, other)
    for text in picture.texts:
        assert not [s for s in picture.segments if crosses(s, text)], text
        for box in picture.boxes:
            assert box.holds(text) or not box.meets(text), (text, box)


def test_an_arrow_ends_at_a_box(picture):
    ends = [box for box in picture.boxes if "frame" not in box.kind]
    # Lab 04's vectors, in its two panels, are arrows that do not point to a box.
    panels = [box for box in ends if "hollow" in box.kind and "dashed" not in box.kind]
    pointing = [
        (x, y) for x, y in picture.tips
        if not any(p.left < x < p.right and p.top < y < p.bottom for p in panels)
    ]  # fmt: skip
    for x, y in pointing:
        near = min(box.border_distance(x, y) for box in ends) <= 2
        # Lab 02's stages are words without a box.
        assert near or min(text.border_distance(x, y) for text in picture.texts) <= 7, (x, y)
    assert len(pointing) >= 10 and len(picture.tips) - len(pointing) == 3 * len(panels)


def test_the_planted_fault_spreads_as_drawn(program):
    """The verdicts in lab 02's picture are those of ``compare_step`` on that lab's networks."""
    from flow.migration import FAULT, LAYERS, VERDICTS

    from labkit import migration

    trace = {fault: one_step(fault) for fault in (None, FAULT)}
    rows = migration.compare_step(trace[FAULT], trace[None])
    first = migration.first_difference(rows)
    assert (first.stage, first.name.split(".")[0]) == ("forward", FAULT)
    for stage, drawn in VERDICTS.items():
        own = [row for row in rows if row.stage == stage]
        if len(drawn) == 1:
            assert all(row.passed for row in own) is drawn[0], stage
            continue
        for layer, verdict in zip(LAYERS, drawn, strict=True):
            names = {layer, "bn1"} if layer == "conv1" else {layer}
            passed = [row.passed for row in own if row.name.split(".")[0] in names]
            assert (all(passed) if passed else None) is verdict, (stage, layer)


def one_step(fault):
    """Trace one step of lab 02's small ResNet; stage ``fault`` strides by max-pool."""
    from mindspore import nn

    from labkit import migration
    from labkit.nets.resnet import BLOG, ResidualBlock, ResNet
    from labkit.runtime import pynative
    from labkit.steps.losses import CrossEntropySmooth

    def network(differences=()):
        widths = [32, 128, 256, 512, 1024]
        return ResNet(
            ResidualBlock, [1] * 4, widths[:4], widths[1:], [1, 2, 2, 2], 10,
            differences=differences,
        )  # fmt: skip

    made = network()
    if fault:
        setattr(made, fault, getattr(network(BLOG[2:3]), fault))
    shapes = {pair.torch: pair.torch_shape for pair in migration.pairs(made)}
    migration.load(made, migration.rule.state(shapes))
    loss_fn = CrossEntropySmooth(smooth_factor=0.1, num_classes=10, convention="pytorch")
    optimizer = nn.Momentum(made.trainable_params(), 0.1, 0.9)
    with pynative():
        return migration.trace(made, loss_fn, optimizer, *migration.rule.batch(8, 64, 10))


@pytest.fixture(scope="module")
def browser():
    with chromium.launched() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", NAMES)
def test_as_a_browser_draws_it(browser, name, theme):
    """Opened by itself, it has the theme's background, and texts fit by the browser's measure."""
    file = FIGURES / f"{name}_flow.svg"
    read = Picture(file.read_text(encoding="utf-8"))
    context = browser.new_context(color_scheme=theme, viewport={"width": 400, "height": 700})
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    places = page.evaluate(
        "[...document.querySelectorAll('text')].map(t => {const b = t.getBBox();"
        "return [b.x, b.x + b.width]})"
    )
    ground = page.evaluate("getComputedStyle(document.querySelector('.page')).fill")
    context.close()
    assert asked == [file.as_uri()]
    wanted = read.colours(theme == "dark")[("page",)]["fill"]
    assert tuple(map(int, re.findall(r"\d+", ground))) == tuple(bytes.fromhex(wanted[1:]))
    for text, (left, right) in zip(read.texts, places, strict=True):
        box = read.under(text)
        assert box.left <= left and right <= box.right, (text, left, right)
