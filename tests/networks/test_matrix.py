"""Every step on a transformer: what comes with one, against PyTorch and NumPy in float64.

Two micro-batches of 17 and 4 labels make up an update of the steps that accumulate: a mean of means
would be wrong by more than any tolerance here.
"""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset

from labkit.steps.losses import TokenLossNet
from tests.support import tiny_gpt
from tests.support.step_cells import STEPS, assert_bit_equal, snapshot, tensors
from tests.support.tiny_gpt import KINDS, LENGTH, Adapted, batch, gpt, optimizer
from tests.support.tolerances import TOLERANCE
from tests.support.trainings import Training

# Slow: whichever test of a step comes first compiles it, and takes 2 to 7 s.
pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]

CLOSE = TOLERANCE["float32, a few updates"]
FLOAT16 = TOLERANCE["float16 network"]
every_step = pytest.mark.parametrize("kind", KINDS)


def build(kind, how="open", **options):
    """Return (network, step); a step of ``STEPS`` has three components, two workers and so on."""
    net = gpt(Adapted if how == "nested" else nn.Dense)
    if how == "nested":
        net.block.recompute()
    step = STEPS[kind](TokenLossNet(net), optimizer(net), **options)
    if how == "open":
        kinds = ms.int32, ms.float32, ms.int32
        step.set_inputs(*(Tensor(shape=[None, None], dtype=each) for each in kinds))
    return net, step


def referred(kind, network, batches, **options):
    """Return the reference after the updates that micro-batches make."""
    reference, size = KINDS[kind][1](network, **options), KINDS[kind][0]
    for first in range(0, len(batches), size):
        reference.update(batches[first : first + size])
    return reference


def assert_trained(kind, network, step, batches, nested=False, close=CLOSE):
    """Train; compare weights, the last loss and the number of updates with the reference's."""
    before, reference = snapshot(network), referred(kind, network, batches)
    for each in batches:
        tokens, keep, labels = tensors(*each)
        step(*[{"tokens": tokens, "more": (keep,)}] if nested else (tokens, keep), labels)
    for name, value in snapshot(network).items():
        np.testing.assert_allclose(value, reference.values[name], err_msg=name, **close)
        moved = np.abs(reference.values[name] - before[name]).max()
        assert moved > 1e-3 if name in reference.shapes else moved == 0, name
    last = step.last_update
    assert last.number == len(reference.losses)
    assert last.loss == pytest.approx(reference.losses[-1], rel=close["rtol"])


def batches(kind, updates=2):
    """Return the micro-batches of some updates."""
    return [batch(number) for number in range(updates * KINDS[kind][0])]


@every_step
def test_masks_tied_weights_and_groups(once, kind):
    network, step = once(build, kind)
    assert_trained(kind, network, step, batches(kind))
    assert step.last_update.learning_rate == pytest.approx(tiny_gpt.RATES)


@every_step
def test_the_reference_would_tell_them_apart(kind):
    """Masks, the labels that count, and a rate and decay for each group."""
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
def test_two_lengths_in_one_graph(once, kind):
    """They meet in one update, if it has two micro-batches."""
    network, step = once(build, kind)
    made = [batch(number, columns=LENGTH - number % 2) for number in range(4)]
    assert_trained(kind, network, step, made)


@every_step
def test_a_micro_batch_that_is_not_finite(once, kind):
    """The first of an update and the last: of Adasum's two workers, of THOR's refresh."""
    size = KINDS[kind][0]
    made = [batch(number) for number in range(3 * size + 2)]
    for number in (2 * size - 2, 3 * size - 1):
        made[number][1][0, 0] = np.nan
    network, step = once(build, kind)
    assert_trained(kind, network, step, made)
    assert step.dropped.asnumpy() == 2


@every_step
def test_resumed_within_a_group(once, kind, tmp_path):
    """After the first micro-batch: half of a group of two, or between THOR's refreshes."""
    columns = map(np.concatenate, zip(*(batch(number) for number in range(4)), strict=True))
    rows = dict(zip(("tokens", "keep", "labels"), columns, strict=True))
    whole = Training(
        tmp_path / "whole",
        lambda: once(build, kind)[1],
        lambda: NumpySlicesDataset(rows, shuffle=True).batch(3),
    )
    records, final = whole.resumed(whole.paths[0], tmp_path / "resumed", whole.step)
    assert_bit_equal(final, whole.final)
    assert records == whole.rows


@every_step
def test_a_tuple_in_a_dictionary_into_a_frozen_body_with_adapters_recomputed(kind):
    network, step = build(kind, "nested")
    assert_trained(kind, network, step, batches(kind), nested=True)


# "auto" differs from "O2" in the network alone, whatever the step.
@pytest.mark.parametrize(
    ("kind", "precision"), [*((kind, "O2") for kind in KINDS), ("plain", "auto"), ("thor", "auto")]
)
def test_float16(kind, precision):
    network, step = build(kind, "static", precision=precision, loss_scale=1024.0)
    assert_trained(kind, network, step, batches(kind, updates=1), close=FLOAT16)
