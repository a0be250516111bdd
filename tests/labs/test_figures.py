"""Figures show the numbers as given; points and groups are those of the reference and of labkit."""

import base64
import html
import io
import itertools
import json
import re
from xml.etree import ElementTree

import mindspore as ms
import numpy as np
import pytest
from matplotlib.colors import to_hex
from mindspore import Tensor, nn
from PIL import Image

from labkit.algorithms.adasum.combine import rounds
from labkit.labs.figures import adasum, migration, moving, thor
from labkit.labs.figures import common as plots
from labkit.reference import TraceRule, adasum_pair
from tests.support.programs import run_code

DRAW = """from labkit.labs.figures import common as plots
figure, axis = plots.axes()
axis.plot([0, 1], label="a_b")
print(plots.png(figure))"""


def test_a_reader_s_own_settings_of_matplotlib_change_no_pixel(tmp_path):
    """Neither those of a matplotlibrc, here of the working folder, nor a backend with a screen."""
    plain = run_code(DRAW, cwd=tmp_path)
    own = "text.usetex: True\naxes.facecolor: black\nlines.linestyle: none\nfont.size: 20\n"
    (tmp_path / "matplotlibrc").write_text(own)
    others = run_code(DRAW, cwd=tmp_path, env={"MPLBACKEND": "tkagg"})
    assert others.stdout == plain.stdout != "", others.stderr


def drawn(draw, *arguments, **values):
    """Return a new axis on which ``draw`` has drawn."""
    _, axis = plots.axes()
    draw(axis, *arguments, **values)
    return axis


def lines(axis):
    """Return label -> line."""
    return {line.get_label(): line for line in axis.get_lines()}


def point(line):
    (x,), (y,) = line.get_data()
    return x, y


def test_accuracies_become_errors():
    np.testing.assert_allclose(plots.errors([0.98, None, 0.5]), [2, 100, 50])


def test_every_seed_is_a_dot_and_their_mean_a_line():
    accuracies = {"adasum": {0.03: [0.98, 0.96], 0.06: [0.9, None]}, "mean": {0.03: [0.9]}}
    (axis,) = adasum.over_settings(accuracies, "rate", "rates", 0.03).axes
    np.testing.assert_allclose(lines(axis)["Adasum"].get_ydata(), [3, 55])
    dots = [line.get_ydata() for line in axis.get_lines() if line.get_marker() == "."]
    np.testing.assert_allclose(np.concatenate(dots), [2, 4, 10, 100, 10])
    assert axis.get_lines()[-1].get_xdata() == [0.03, 0.03]  # the rate of the single worker


CASES = [(8, 3, 1), (8, 3, 2), (9, 3, 2), (8, 7, 2), (12, 5, 3), (4, 7, 4), (7, 1, 2), (10, 5, 4)]


@pytest.mark.parametrize(("size", "kernel", "stride"), CASES)
def test_the_windows_are_those_of_mindspore(eager, size, kernel, stride):
    """Row i holds 2^i, so the sum of a window shows which rows are in it."""
    column = Tensor(2.0 ** np.arange(size).reshape(1, 1, size, 1), ms.float32)
    half = (kernel - 1) // 2
    modes = [dict(pad_mode="pad", padding=(half, half, 0, 0)), dict(pad_mode="same")]
    assert list(migration.windows(size, kernel, stride)) == [f"padding={half}", '"same"']
    both = migration.windows(size, kernel, stride).values()
    for mode, (*_, seen) in zip(modes, both, strict=True):
        layer = nn.Conv2d(1, 1, (kernel, 1), stride, weight_init="ones", **mode)
        sums = layer(column).asnumpy()[0, 0, :, 0]
        assert [sum(2**r for r in rows if 0 <= r < size) for rows in seen] == sums.tolist()


@pytest.mark.parametrize(("angle", "ratio"), [(60, 1.5), (0, 1.0), (180, 2.0), (90, 0.25)])
def test_two_vectors_are_combined_as_the_reference_does(angle, ratio):
    plane, lengths = drawn(adasum.two_vectors, angle=angle, ratio=ratio).child_axes
    b = ratio * np.array([np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))])
    expected = {"Adasum": adasum_pair([1, 0], b), "sum": b + [1, 0], "mean": (b + [1, 0]) / 2}
    marks = {name.split(":")[0]: line for name, line in lines(plane).items()}
    for name, vector in expected.items():
        np.testing.assert_allclose(point(marks[name]), vector, atol=1e-12)
        at = lines(lengths)[name].get_ydata()[angle]
        assert at == pytest.approx(np.linalg.norm(vector), abs=1e-12)
        assert marks[name].get_label() == f"{name}: {at:.2f}"


@pytest.mark.parametrize("workers", range(2, 17))
def test_the_tree_is_that_of_the_compiled_one(workers):
    lines = drawn(adasum.tree, workers=workers).lines
    marks = [line for line in lines if len(line.get_xydata()) == 1]
    nodes = [(*mark.get_xydata()[0], to_hex(mark.get_markerfacecolor())) for mark in marks]
    # Where three are combined, a round of three pairs keeps the third ones for a second round.
    tree = [one for one in rounds(workers) if not one.averaged]
    assert max(height for _, height, _ in nodes) == len(tree)
    assert [height for _, height, _ in nodes].count(0) == workers
    for height, one in enumerate(tree, 1):
        colors = [color for _, at, color in sorted(nodes) if at == height]  # from left to right
        pairs = len(one.of_first) - 3 * one.keeps
        assert colors == [plots.BLUE.lower()] * pairs + [plots.SKY.lower()] * one.keeps


def test_the_trace_rules_decisions_are_the_rules_and_drawn_by_layer():
    """Two layers; the first changes by 0.5 %, 1.2 %, 0.05 % and 48 % since its last refresh."""
    traces = np.array([[100.0, 100], [100.5, 100], [101.2, 150], [101.25, 900], [150, 900]])
    words = thor.decide(traces, 0.01, 0.001)
    assert [row[0] for row in words] == ["refresh", "skip", "refresh", "freeze", "freeze"]
    assert [row[1] for row in words] == ["refresh", *["freeze"] * 4]
    words, rule, last = thor.decide(traces, 0.01, 0), TraceRule(0.01, 0), traces[0].copy()
    for row, now in zip(words[1:], traces[1:], strict=True):
        assert row == [rule.decide(*pair) for pair in zip(now, last, strict=True)]
        refreshed = np.array(row) == "refresh"
        last[refreshed] = now[refreshed]
    assert "freeze" not in np.ravel(words) and words[3] == ["skip", "refresh"]
    history = [["refresh", "refresh"], ["skip", "freeze"], ["refresh", "freeze"]]
    axis = drawn(thor.decisions, history, ["conv1", "fc1"], 5, "rule")
    (image,) = axis.get_images()
    np.testing.assert_array_equal(image.get_array(), [[0, 1, 0], [0, 2, 2]])
    assert image.get_extent()[:2] == [-2.5, 12.5]  # updates 0, 5, 10 are the columns' centres
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["conv1: 2", "fc1: 1"]


def bar(axis, height, width):
    axis.bar([0], [height], width)
    axis.set(xlim=(-2, 2), ylim=(0, 2), title=f"{height} {width}")


def picture_of(data):
    return Image.open(io.BytesIO(base64.b64decode(data)))


def visible(part, frame):
    """Return the texts of an SVG that are shown in a frame."""
    frames = part.get("data-k")
    if frames and str(frame) not in frames.split():
        return []
    return [part.text or "", *(text for child in part for text in visible(child, frame))]


def test_a_moving_figure_holds_each_frame_and_its_sentence(monkeypatch):
    """tests/browser moves one."""
    shown = []
    monkeypatch.setattr(moving, "display", lambda data, **options: shown.append(data))

    def said(axis, height, width):
        bar(axis, height, width)
        return f"{height} & {width}"

    places = {"height": ("height <m>", [0.5, 1, 2]), "width": ("w", ["1", "2"])}
    widths = {"1": 1, "2": 2}
    draw = lambda axis, height, width: said(axis, height, widths[width])  # noqa: E731
    stills = [{"height": 1, "width": "2"}, {"height": 2, "width": "1"}]
    moving.moving(draw, "bars & more", stills, (3.0, 2.0), **places)
    (data,) = shown
    assert picture_of(data["image/png"]).size == (600, 200) and data["text/plain"] == "bars & more"
    page = re.fullmatch(r'<img alt="(.*?)" src="(.*?)" data-box=\'(.*?)\' onload=.*>',
                        data["text/html"], re.DOTALL)  # fmt: skip
    box = html.unescape(page[3])
    svg = ElementTree.fromstring(re.search("<svg.*</svg>", box, re.DOTALL)[0])
    texts = json.loads(html.unescape(re.search('data-texts="(.*?)"', box)[1]))
    assert html.unescape(page[1]) == svg.get("aria-label") == "bars & more"
    for frame, (height, width) in enumerate(itertools.product([0.5, 1, 2], [1, 2])):
        titles = [text for text in visible(svg, frame) if re.fullmatch(r"[\d.]+ \d", text)]
        assert titles == [f"{height} {width}"] and texts[frame] == f"{height} & {width}"
    starts = re.findall(r'max="(\d)" value="(\d)"', box)
    assert starts == [("2", "1"), ("1", "1")] and "height &lt;m&gt;" in box
