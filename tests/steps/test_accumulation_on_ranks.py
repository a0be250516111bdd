"""Two processes that each have a part of the samples train as one process with all of them.

Sending several gradients in one message gives the same weights as one message for each.
"""

import numpy as np
import pytest

from labkit import reference
from tests import twins
from tests.support.accumulation_on_ranks import CASES, FUSED, INDICES, LEARNING_RATE, batch
from tests.support.msrun import rank_results
from tests.support.step_cells import linear, two_means
from tests.support.tolerances import TOLERANCE

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


@pytest.fixture(scope="module")
def ranks(root, tmp_path_factory):
    """The results of both ranks; fails if one of them fails, hangs or is left running."""
    out = tmp_path_factory.mktemp("ranks")
    program = root / "tests" / "support" / "accumulation_on_ranks.py"
    return rank_results(out, program, out, root=root)


def one_process(case):
    """Yield (weights, twins.Accumulation) after every call, all samples in one process."""
    kind, options, sizes, nan, calls = CASES[case]
    options = {name: value for name, value in options.items() if name != "loss_scale"}
    of_means = options.pop("of_means", False)
    decay = options.pop("weight_decay", 0.0)
    reduction = options.get("reduction", "mean")
    # A plain step has one micro-batch per rank, and drops all of them if one is not finite.
    plain = kind == "plain"
    options |= {"nonfinite": "drop_group"} if plain else {}
    group = twins.Accumulation(micro_steps=2 if plain else 4, **options)
    network = linear()
    weights = [p.asnumpy().astype(np.float64) for p in (network.weight, network.bias)]
    velocities = [np.zeros_like(w) for w in weights]
    for call in range(calls + 1):
        made = []
        for rank in range(2):
            if call == calls:
                made.append(group.end_epoch())
                continue
            arrays = batch(rank, call, sizes, nan)
            loss, gradients = twins.linear_regression(*weights, *arrays)
            weight = 1.0 if of_means else twins.weight(len(arrays[0]), reduction)
            made.append(
                group.micro_batch(
                    twins.MicroBatch(loss, weight, gradients, len(arrays[0]), np.isfinite(loss))
                )
            )
        for update in filter(None, made):
            # The reduction over ranks is always the mean.
            share = 0.5 if reduction == "sum" else 1.0
            decayed = [
                share * g + decay * w for g, w in zip(update.gradients, weights, strict=True)
            ]
            weights, velocities = reference.momentum_update(
                weights, velocities, decayed, LEARNING_RATE
            )
        yield weights, group


PAIRS = [case for case, (_, options, *_) in CASES.items() if "pairs" in options]


@pytest.mark.parametrize("case", PAIRS)
def test_two_means_over_all_ranks_are_those_of_all_rows(ranks, case):
    """Of two pairs each is a mean over its own rows of all micro-batches and ranks."""
    kind, options, sizes, _, calls = CASES[case]
    network, group = linear(), 1 if kind == "plain" else 2
    weights = [p.asnumpy().astype(np.float64) for p in (network.weight, network.bias)]
    velocities = [np.zeros_like(w) for w in weights]
    for end in range(group, calls + 1, group):
        parts = [batch(r, call, sizes) for call in range(end - group, end) for r in range(2)]
        loss, gradients = two_means(*weights, *map(np.concatenate, zip(*parts, strict=True)))
        norm = twins.global_norm(gradients)
        gradients = twins.clip_by_global_norm(gradients, options.get("clip_norm", 1e9))
        weights, velocities = reference.momentum_update(
            weights, velocities, gradients, LEARNING_RATE
        )
        for results in ranks:
            for name, expected in zip(("weight", "bias"), weights, strict=True):
                actual = results[f"{case}/{end - 1}/{name}"]
                np.testing.assert_allclose(actual, expected, **TOLERANCE["float32, many updates"])
            last = results[f"{case}/{end - 1}/last"]
            assert last == pytest.approx([end // group, loss, norm, 8 * group], rel=1e-5)


@pytest.mark.parametrize("case", sorted(CASES.keys() - set(PAIRS)))
def test_two_ranks_are_one_process(ranks, case):
    """Parameters, number, loss, norm and images of every update agree, on both ranks."""
    share = 0.5 if "sum" in case else 1.0
    calls = 0
    for call, (weights, group) in enumerate(one_process(case)):
        calls += 1
        for results in ranks:
            for name, expected in zip(("weight", "bias"), weights, strict=True):
                actual = results[f"{case}/{call}/{name}"]
                np.testing.assert_allclose(actual, expected, **TOLERANCE["float32, many updates"])
            number, loss, norm, images = results[f"{case}/{call}/last"]
            assert number == len(group.updates)
            if group.updates:
                last = group.updates[-1]
                assert loss == pytest.approx(last.loss, rel=1e-5)
                assert norm == pytest.approx(share * last.norm, rel=1e-5)
                assert images == last.images
        for name in ("weight", "bias"):
            key = f"{case}/{call}/{name}"
            np.testing.assert_array_equal(ranks[0][key], ranks[1][key])
    assert calls == CASES[case][-1] + 1 and group.updates


def test_each_rank_counts_what_it_dropped(ranks):
    for case, (_, _, _, nan, calls) in CASES.items():
        for rank in range(2):
            expected = sum(1 for at, _ in nan if at == rank)
            assert ranks[rank][f"{case}/{calls}/dropped"] == expected, case


@pytest.mark.parametrize("kind", FUSED)
def test_weights_are_the_same_to_the_bit_whatever_the_messages(ranks, kind):
    expected = ranks[0][f"fused/{kind}/single"]
    assert np.isfinite(expected).all()
    for name in INDICES:
        for results in ranks:
            np.testing.assert_array_equal(results[f"fused/{kind}/{name}"], expected)


def test_the_steps_do_not_train_alike(ranks):
    weights = [ranks[0][f"fused/{kind}/single"] for kind in FUSED]
    assert all(np.abs(a - b).max() > 1e-4 for a, b in zip(weights, weights[1:], strict=False))
