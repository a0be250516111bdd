"""Figures show the numbers as given; points and groups are those of the reference and of labkit."""

import base64
import io

import mindspore as ms
import numpy as np
import pytest
from matplotlib.colors import to_hex
from mindspore import Tensor, nn
from PIL import Image

from labkit import AccumulatedStep, LossNet
from labkit.algorithms.adasum.combine import rounds
from labkit.labs.figures import accumulation, adasum, migration, subspace, thor
from labkit.labs.figures import common as plots
from labkit.labs.results import Curve
from labkit.migration.judge import Row
from labkit.reference import TraceRule, adasum_pair
from labkit.training.records import Records
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


def test_accuracies_become_errors_and_losses_a_running_mean_of_25():
    np.testing.assert_allclose(plots.errors([0.98, None, 0.5]), [2, 100, 50])
    records, losses = Records(), np.random.default_rng(0).uniform(0.5, 2, 60)
    for loss in losses:
        records.add(images=96, loss=float(loss))
    each, mean = plots.training_curve(records, "over images").axes[0].get_lines()
    np.testing.assert_array_equal(each.get_xydata(), np.c_[96 * np.arange(1, 61), losses])
    expected = [losses[max(n - 12, 0) : n + 13].mean() for n in range(60)]
    np.testing.assert_allclose(mean.get_ydata(), expected)


def test_every_seed_is_a_dot_and_their_mean_a_line():
    accuracies = {"adasum": {0.03: [0.98, 0.96], 0.06: [0.9, None]}, "mean": {0.03: [0.9]}}
    (axis,) = adasum.over_settings(accuracies, "rate", "rates", 0.03).axes
    np.testing.assert_allclose(lines(axis)["Adasum"].get_ydata(), [3, 55])
    dots = [line.get_ydata() for line in axis.get_lines() if line.get_marker() == "."]
    np.testing.assert_allclose(np.concatenate(dots), [2, 4, 10, 100, 10])
    assert axis.get_lines()[-1].get_xdata() == [0.03, 0.03]  # the rate of the single worker
    methods = {"stage_one": [0.92, 0.94], "tenth": [0.97, 0.98]}
    first, second = subspace.by_method({"8": methods, "32": methods | {"tenth": [0.9]}}).axes
    seeds = [list(line.get_xdata()) for line in first.get_lines() if line.get_marker() == "o"]
    np.testing.assert_allclose(seeds, [[8, 6], [3, 2]])
    bars = [line.get_xdata()[0] for line in second.get_lines() if line.get_marker() != "o"]
    np.testing.assert_allclose(bars, [7, 10])


@pytest.mark.parametrize("tail", accumulation.TAILS)
@pytest.mark.parametrize(("micro_steps", "in_epoch"), [(4, 7), (3, 6), (5, 3)])
def test_the_groups_are_those_of_the_step(eager, tail, micro_steps, in_epoch):
    """Micro-batch i is the row e_i, so the weights that an update moves show its micro-batches."""
    count = 2 * in_epoch
    network = nn.Dense(count, 1, weight_init="zeros", has_bias=False)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    step = AccumulatedStep(LossNet(network, nn.MSELoss()), optimizer, micro_steps, tail=tail)
    groups, before = [], np.zeros(count)
    for number, row in enumerate(np.eye(count, dtype=np.float32)):
        step(Tensor(row[None]), Tensor(np.ones((1, 1), np.float32)))
        if (number + 1) % in_epoch == 0:
            step.end_epoch()
        weights = network.weight.asnumpy()[0].copy()
        if step.last_update.number > len(groups):
            groups.append(np.flatnonzero(weights != before).tolist())
        before = weights
    assert groups == accumulation.updates(in_epoch, micro_steps, tail)
    assert step.last_update.number == len(groups)


CASES = [(8, 3, 1), (8, 3, 2), (9, 3, 2), (8, 7, 2), (12, 5, 3), (4, 7, 4), (7, 1, 2), (10, 5, 4)]


@pytest.mark.parametrize(("size", "kernel", "stride"), CASES)
def test_the_windows_are_those_of_mindspore(eager, size, kernel, stride):
    """Row i holds 2^i, so the sum of a window shows which rows are in it."""
    column = Tensor(2.0 ** np.arange(size).reshape(1, 1, size, 1), ms.float32)
    half = (kernel - 1) // 2
    modes = [dict(pad_mode="pad", padding=(half, half, 0, 0)), dict(pad_mode="same")]
    assert list(migration.windows(size, kernel, stride)) == [f"padding={half}", '"same"']
    for mode, seen in zip(modes, migration.rows_seen(size, kernel, stride), strict=True):
        layer = nn.Conv2d(1, 1, (kernel, 1), stride, weight_init="ones", **mode)
        sums = layer(column).asnumpy()[0, 0, :, 0]
        assert [sum(2**row for row in rows) for rows in seen] == sums.tolist()


def test_tensors_are_counted_by_stage_and_layer_and_the_first_fault_is_named():
    off = {("forward", "maxpool"), ("forward", "layer2.0.conv2"), ("forward", "avgpool")}
    names = ["preprocessing images", "weights conv1.weight", "weights layer2.0.bn1.weight"]
    names += [f"forward {name}" for name in ("maxpool", "conv1", "layer2.0.conv2", "avgpool", "fc")]
    pairs = [tuple(each.split()) for each in [*names, "loss loss"]]
    off.add(("loss", "loss"))
    rows = [Row(*pair, 0.5 * (pair in off), 1e-4, pair not in off) for pair in pairs]
    axis = drawn(migration.fault, rows, "max-pool")
    assert axis.get_title() == "max-pool\nfirst: forward, maxpool"
    boxes = [(*text.get_position(), text.get_text()) for text in axis.texts]
    stages, layers = [[tick.get_text() for tick in each.get_ticklabels()]
                      for each in (axis.yaxis, axis.xaxis)]  # fmt: skip
    found = [(stages[y], layers[round(x)] if x % 1 == 0 else "", text) for x, y, text in boxes]
    assert found == [
        ("preprocessing", "", "ok"), ("weights", "stem", "ok"), ("weights", "layer2", "ok"),
        ("forward", "stem", "1/2"), ("forward", "layer2", "1/1"), ("forward", "fc", "ok"),
        ("loss", "", "1/1"),
    ]  # fmt: skip


def test_the_critical_batch_size_is_marked_where_the_updates_are_twice_the_fewest():
    updates = {"mean": {32: [1000, 1100], 64: [600, 500], 2048: [200, 200]}}
    updates["adasum"] = {32: [1000, 1100], 64: [550, 450], 2048: [100, 120]}
    # Adasum scales perfectly here: its critical batch size is infinite and not drawn.
    curves = {"mean": Curve(200.0, 26_000.0), "adasum": Curve(0.0, 33_000.0)}
    shown = lines(adasum.critical_batch(updates, curves).axes[0])
    np.testing.assert_allclose(shown["Adasum"].get_xydata(), [(32, 1050), (64, 500), (2048, 110)])
    np.testing.assert_allclose(shown["perfect scaling"].get_ydata(), [1050, 525, 1050 / 64])
    critical = {name: shown[name].get_xydata().tolist() for name in shown if "crit" in name}
    assert critical == {"$B_{crit}$ of mean: 130": [[130, 400]]}


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


@pytest.mark.parametrize(("angle", "rate"), [(60, 0.5), (30, 1), (85, 1), (150, 1)])
def test_two_steps_in_both_orders_end_where_sgd_ends_and_at_rate_1_adasum(angle, rate):
    x, y = np.array([1.0, 0.0]), np.array([np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))])
    axis = drawn(adasum.both_orders, angle=angle, rate=rate)
    ends = []
    for first, second in ((x, y), (y, x)):
        w = -rate * first  # at 0 the gradient is the vector
        ends.append(w - rate * (second @ w + 1) * second)
    marks, single = lines(axis), -rate * adasum_pair(x, y)
    np.testing.assert_allclose(point(marks["mean of both orders"]), np.mean(ends, 0), atol=1e-12)
    np.testing.assert_allclose(point(marks["one step, Adasum"]), single, atol=1e-12)
    np.testing.assert_allclose(point(marks["one step, mean"]), -rate * (x + y) / 2, atol=1e-12)
    apart = np.linalg.norm(np.mean(ends, 0) - single)
    assert (apart < 1e-12) == (rate == 1) and f": {apart:.2f}" in axis.get_title()


@pytest.mark.parametrize("workers", range(2, 17))
def test_the_tree_is_that_of_the_compiled_one(workers):
    nodes = [(*text.get_position(), to_hex(text.get_bbox_patch().get_facecolor()))
             for text in drawn(adasum.tree, workers=workers).texts]  # fmt: skip
    # Where three are combined, a round of three pairs keeps the third ones for a second round.
    tree = [one for one in rounds(workers) if not one.averaged]
    assert max(height for _, height, _ in nodes) == len(tree)
    assert [height for _, height, _ in nodes].count(0) == workers
    for height, one in enumerate(tree, 1):
        colors = [color for _, at, color in sorted(nodes) if at == height]  # from left to right
        pairs = len(one.of_first) - 3 * one.keeps
        assert colors == [plots.BLUE.lower()] * pairs + [plots.SKY.lower()] * one.keeps


@pytest.mark.parametrize("sigma", [0.1, 0.4, 0.9])
def test_each_trial_keeps_or_breaks_armijos_condition(sigma):
    """Without noise: the accepted trial is the first below its bound."""
    refused = 0
    for search in subspace.searches(0.0, sigma)[:6]:
        sizes = [size for size, _, _ in search.trials]
        np.testing.assert_allclose(sizes, 0.55 ** np.arange(len(sizes)))
        d = (search.trials[0][1] - search.start) / sizes[0]
        slope = search.start @ subspace.HESSIAN @ d
        assert slope < 0
        for size, place, accepted in search.trials:
            np.testing.assert_allclose(place, search.start + size * d, atol=1e-9)
            bound = subspace.loss_at(search.start) + sigma * size * slope
            assert (subspace.loss_at(place) < bound) == accepted
            refused += not accepted
        np.testing.assert_allclose(search.end, search.trials[-1][1])
    assert refused


def test_noise_moves_the_search_and_gradient_descent_alike():
    quiet, noisy = subspace.searches(0.0), subspace.searches(1.0)
    np.testing.assert_array_equal(quiet[0].start, noisy[0].start)
    assert subspace.loss_at(quiet[-1].end) < 1e-12 and subspace.loss_at(noisy[-1].end) > 1e-3
    plain = subspace.START - subspace.RATE * subspace.HESSIAN @ subspace.START
    np.testing.assert_allclose(quiet[0].plain, plain)
    assert all(np.abs(a.plain - b.plain).min() > 0 for a, b in zip(quiet, noisy, strict=True))
    np.testing.assert_allclose(np.linalg.eigvalsh(subspace.HESSIAN), (0.1, 3.5), rtol=1e-12)
    axis = drawn(subspace.search, update=1, noise=0, sigma=0.4)
    assert "trials: 3, step 0.303 of d" in axis.get_title()
    np.testing.assert_allclose(lines(axis)["BFGS"].get_xydata(), [quiet[0].start, quiet[0].end])
    np.testing.assert_allclose(lines(axis)["gradient"].get_xydata(), [subspace.START, plain])


def test_the_walk_scatters_by_the_root_of_the_batch():
    """The recursion is linear, so the deviation is proportional to that of its noise."""
    wide, narrow = (subspace.noisy_walk(0.1, batch)[-200:].std(axis=0) for batch in (1, 16))
    np.testing.assert_allclose(wide / narrow, 4, rtol=0.3)
    assert (subspace.noisy_walk(0.01, 1)[-200:].std(axis=0) < wide).all()
    shown, places = lines(drawn(subspace.walk, rate=0.1, batch=4)), subspace.noisy_walk(0.1, 4)
    np.testing.assert_allclose(shown["the last one"].get_xydata(), places[-1:])
    np.testing.assert_allclose(shown["their average"].get_xydata()[0], places[150:].mean(axis=0))


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


def test_sliders_are_stills_where_nobody_watches(monkeypatch):
    """tests/browser moves one in JupyterLab."""
    shown, saved = [], []
    monkeypatch.setattr("IPython.display.display", lambda data, **more: shown.append((data, more)))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    sliders = {"height": ("height (m)", 0, 2, 0.5), "width": ("w", 1, 3, 1)}
    stills = [{"height": 0.5, "width": 2}, {"height": 1, "width": 2}, {"height": 2, "width": 1}]
    plots.interactive(bar, "bars", stills, saved.append, (3.0, 2.0), **sliders)
    titles = [axis.get_title() for axis in saved[0].axes]
    assert titles == ["0.5 2", "1 2", "2 1", ""]  # two in a row, one place empty
    ((data, options),) = shown
    picture = picture_of(data["image/png"])
    assert (picture.format, picture.mode) == ("PNG", "P") and data["text/plain"] == "bars"
    assert picture.size == (6 * plots.SHARP, 4 * plots.SHARP)
    assert options["metadata"]["image/png"] == {"alt": "bars", "width": 6 * plots.PAGE}
