"""Every step on a transformer: what comes with one, against PyTorch and NumPy in float64.

Two micro-batches of 17 and 4 labels make up an update of the steps that accumulate: a mean of means
would be wrong by more than any tolerance here.
"""

import functools

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset

from labkit.steps.losses import TokenLossNet
from tests.support import tiny_gpt
from tests.support.step_cells import STEPS, assert_bit_equal, snapshot, tensors
from tests.support.subspace_cells import basis_of
from tests.support.tiny_gpt import LENGTH, Adapted, batch, gpt, optimizer
from tests.support.tolerances import TOLERANCE
from tests.support.trainings import Training

pytestmark = pytest.mark.usefixtures("runtime")

# step -> (that of ``STEPS``, micro-batches of an update, its float64 reference)
KINDS = {
    "plain": ("plain", 1, tiny_gpt.Reference),
    "accumulated": ("accumulated", 2, tiny_gpt.Reference),
    "adasum": ("adasum", 2, tiny_gpt.AdasumReference),
    "thor": ("thor", 1, tiny_gpt.ThorReference),
    "subspace": ("accumulated subspace", 2, tiny_gpt.SubspaceReference),
}
CLOSE = TOLERANCE["float32, a few updates"]
FLOAT16 = TOLERANCE["float16 network"]
INVERSES = TOLERANCE["float32, many updates"]  # THOR's, in float32


def build(kind, network="flat", **options):
    """Return (network, step); a step of ``STEPS`` has three components, two workers and so on."""
    net = whole = gpt(Adapted if network == "adapters" else nn.Dense)
    if network == "recompute":
        net.block.recompute()
    if network in ("tuple", "dict"):
        whole = {"tuple": tiny_gpt.OfTuple, "dict": tiny_gpt.OfDict}[network](net)
    step = STEPS[KINDS[kind][0]](TokenLossNet(whole), optimizer(net), **options)
    if network == "open lengths":
        kinds = ms.int32, ms.float32, ms.int32
        step.set_inputs(*(Tensor(shape=[None, None], dtype=kind) for kind in kinds))
    return net, step


def groups_of(kind, batches):
    """Cut micro-batches into those of each update."""
    size = KINDS[kind][1]
    return [batches[first : first + size] for first in range(0, len(batches), size)]


def referred(kind, network, batches, **options):
    """Return the reference after the updates that micro-batches make."""
    if kind == "subspace":
        options["basis"] = basis_of(optimizer(network).parameters, 3).matrix
    reference = KINDS[kind][2](network, **options)
    for group in groups_of(kind, batches):
        reference.update(group)
    return reference


def assert_trained(kind, network, step, batches, close=None):
    """Train; compare weights, the last loss and the number of updates with the reference's."""
    close = close or (INVERSES if kind == "thor" else CLOSE)
    before = snapshot(network)
    reference = referred(kind, network, batches)
    for each in batches:
        step(*tensors(*each))
    for name, value in snapshot(network).items():
        np.testing.assert_allclose(value, reference.values[name], err_msg=name, **close)
        moved = np.abs(reference.values[name] - before[name]).max()
        assert moved > 1e-3 if name in reference.names else moved == 0, name
    last = step.last_update
    assert last.number == len(reference.losses)
    assert last.loss == pytest.approx(reference.losses[-1], rel=close["rtol"])


@functools.cache
def batches(kind):
    """Return the micro-batches of two updates."""
    return [batch(number) for number in range(2 * KINDS[kind][1])]


# The graphs of the others take 5 to 8 s to compile, whichever of their tests comes first.
QUICK = ("plain", "accumulated")
every_step = pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k in QUICK else pytest.mark.slow) for k in KINDS]
)


@every_step
def test_masks_tied_weights_and_groups(once, kind):
    network, step = once(build, kind)
    assert_trained(kind, network, step, batches(kind))
    assert step.last_update.learning_rate == pytest.approx(tiny_gpt.RATES)


@every_step
def test_the_reference_would_tell_them_apart(kind):
    """Masks, the labels that count, a tied weight, and a rate and decay for each group."""
    network, right = gpt(), referred(kind, gpt(), batches(kind)).values
    unmasked = [(t, np.ones_like(k), y) for t, k, y in batches(kind)]
    wrong = {
        "masks": referred(kind, network, unmasked),
        "labels": referred(kind, network, [(t, k, np.maximum(y, 0)) for t, k, y in batches(kind)]),
        "rates": referred(kind, network, batches(kind), rates=(0.1, 0.1)),
        "decays": referred(kind, network, batches(kind), decays=(0.1, 0.1)),
    }
    for name, reference in wrong.items():
        assert max(np.abs(reference.values[n] - right[n]).max() for n in right) > 1e-3, name


@every_step
def test_a_micro_batch_that_is_not_finite(once, kind):
    """The first of an update, and one within: a worker of Adasum, and THOR's refresh."""
    made = [batch(number) for number in range(8)]
    for number in (2, 5):
        made[number][1][0, 0] = np.nan
    network, step = once(build, kind)
    assert_trained(kind, network, step, made)
    assert step.dropped.asnumpy() == 2


@every_step
def test_resumed_within_a_group(once, kind, tmp_path):
    columns = map(np.concatenate, zip(*(batch(number) for number in range(5)), strict=True))
    rows = dict(zip(("tokens", "keep", "labels"), columns, strict=True))
    whole = Training(
        tmp_path / "whole",
        lambda: once(build, kind)[1],
        lambda: NumpySlicesDataset(rows, shuffle=True).batch(3),
    )
    for path in whole.paths[:3]:
        records, final = whole.resumed(path, tmp_path / path.stem, whole.step)
        assert_bit_equal(final, whole.final)
        assert records == whole.rows


@every_step
@pytest.mark.parametrize("how", ["tuple", "dict", "names", "recompute"])
def test_is_the_flat_one_to_the_bit(once, kind, how):
    finals = []
    for way in ("flat", how):
        _, step = once(build, kind, way if way != "names" else "flat")
        for each in batches(kind):
            tokens, keep, labels = tensors(*each)
            if way == "tuple":
                step((tokens, {"keep": keep}), labels)
            elif way == "dict":
                step({"tokens": tokens, "keep": keep}, labels)
            elif way == "names":
                step(labels=labels, keep=keep, tokens=tokens)
            else:
                step(tokens, keep, labels)
        finals.append(snapshot(step))
    assert_bit_equal(finals[1], finals[0])


@every_step
def test_a_frozen_body_with_adapters(once, kind):
    network, step = build(kind, "adapters")
    assert_trained(kind, network, step, batches(kind))


@every_step
def test_open_lengths(once, kind):
    """One graph for two lengths, which meet in one update."""
    network, step = build(kind, "open lengths")
    made = [batch(number, columns=LENGTH - number % 2) for number in range(4)]
    assert_trained(kind, network, step, made)


@every_step
@pytest.mark.parametrize("precision", ["O2", "auto"])
def test_float16(kind, precision):
    network, step = build(kind, precision=precision, loss_scale=1024.0)
    assert_trained(kind, network, step, batches(kind), FLOAT16)
