"""Several processes that each have a part of the rows train as one process with all of them."""

import functools

import numpy as np
import pytest

from tests.support import steps_on_ranks
from tests.support.operator_platforms import missing
from tests.support.rank_programs import launches
from tests.support.steps_on_ranks import CASES, FUSED, INDICES, KINDS, LAUNCHES, RUNS
from tests.support.tolerances import TOLERANCE

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]

# By technique; an update's loss, norm, images and rates agree to ``LAST``. A rank of Adasum has the
# micro-batches of a virtual worker, and the same bits; a node's mean is summed by AllReduce.
EXACT, TO_A_MILLIONTH = dict(rtol=0, atol=0), dict(rtol=1e-6, atol=1e-6)
CLOSE = {
    "accumulation": TOLERANCE["float32, a few updates"],
    "adasum": EXACT,
    "subspace": dict(rtol=1e-4, atol=1e-4),
    "thor": TOLERANCE["float32, many updates"],
}
# More ranks than 2 where one of 2 may have nothing to compute, too: "one layer", "one component".
LONG = [("subspace", 3), ("thor", 4)]
LAST = {"accumulation": 1e-5, "adasum": 1e-5, "subspace": 1e-4, "thor": 1e-4}


@pytest.fixture(scope="module")
def ranks(root, tmp_path_factory):
    """A function: technique, number of ranks -> what each rank has written."""
    folder = tmp_path_factory.mktemp("launches")
    often = [each for each in LAUNCHES if each not in LONG]
    return launches(steps_on_ranks.__file__, often, root, folder)


@functools.cache
def one_process(name, count):
    """Return the results of one process; they must not be modified."""
    return steps_on_ranks.alone(name, count)


def of_case(written, name):
    return {key: value for key, value in written.items() if key.startswith(f"{name}/")}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param(n, c, marks=pytest.mark.long)
        if (KINDS[CASES[n].kind][1], c) in LONG
        else (n, c)
        for n, c in RUNS
    ],
)
def test_ranks_are_one_process(ranks, name, count):
    """After each round: equal to the bit on all ranks, and equal to one process with all rows."""
    expected = one_process(name, count)  # while the ranks compute
    case, technique = CASES[name], KINDS[CASES[name].kind][1]
    written = [of_case(each, name) for each in ranks(technique, count)]
    tolerance = TO_A_MILLIONTH if name == "nodes" else CLOSE[technique]
    for rank, arrays in enumerate(written):
        nan = sum(at % count == rank for at, _ in case.nan)
        assert arrays.pop(f"{name}/dropped") == nan * steps_on_ranks.turns(case)
        assert arrays.keys() == expected.keys() - {f"{name}/dropped"}
    for key, first in written[0].items():
        for arrays in written:
            np.testing.assert_array_equal(arrays[key], first, err_msg=key)
        if first.dtype.kind in "iub":
            np.testing.assert_array_equal(first, expected[key], err_msg=key)
        elif name == "retried":
            assert np.isfinite(first).all()
        elif key.endswith("/last"):
            np.testing.assert_allclose(first, expected[key], LAST[technique], err_msg=key)
        else:
            np.testing.assert_allclose(first, expected[key], err_msg=key, **tolerance)
    weights = [expected[f"{name}/{number}/weights"] for number in (0, case.rounds)]
    assert np.abs(weights[1] - weights[0]).max() > 0.02  # 200 times the widest tolerance
    assert expected[f"{name}/{case.rounds}/last"][0] >= 1


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_the_searches_differ(count):
    values = of_case(one_process("micro-batches", count), "micro-batches").items()
    searches = np.array([value for key, value in values if key.endswith("/search")])
    assert 0 < searches[-1, 2] < 6 and set(searches[:, 0]) == {0, 1, 2}


@pytest.mark.parametrize("kind", FUSED)
def test_weights_are_the_same_to_the_bit_whatever_the_messages(ranks, kind):
    results = ranks("accumulation", 2)
    expected = results[0][f"fused/{kind}/single"]
    assert np.isfinite(expected).all()
    for name in INDICES:
        for written in results:
            np.testing.assert_array_equal(written[f"fused/{kind}/{name}"], expected)


def test_the_steps_do_not_train_alike(ranks):
    weights = [ranks("accumulation", 2)[0][f"fused/{kind}/single"] for kind in FUSED]
    assert all(np.abs(a - b).max() > 1e-4 for a, b in zip(weights, weights[1:], strict=False))


def test_a_rank_that_alone_is_unsure_waits_for_nobody(ranks):
    """Both then take the tree: their bits are equal, and those of the Gram form up to rounding."""
    first, second = ranks("adasum", 2)
    common = of_case(first, "not finite")
    assert len(common) > 10
    for name, value in common.items():
        own = first[f"one is unsure/{name}"]
        np.testing.assert_allclose(own, value, rtol=2e-6, atol=1e-7)
        if "/dropped" not in name:  # each rank counts its own
            np.testing.assert_array_equal(second[f"one is unsure/{name}"], own)


def test_nodes_rows_arrive_with_the_same_bits_on_every_rank(ranks):
    """Signs of zeros, NaN, the smallest and the largest numbers included."""
    expected = np.concatenate([steps_on_ranks.rows_of_node(node) for node in (0, 1)])
    for written in ranks("adasum", 4):
        assert written["exchanged"].tobytes() == expected.tobytes()


def test_a_training_resumed_within_a_team_is_the_uninterrupted_one(ranks):
    assert all(written["resume/same"] for written in ranks("adasum", 2))


@pytest.mark.parametrize(
    ("technique", "names"),
    [("adasum", {"AllGather", "ApplyMomentum"}), ("subspace", {"AllReduce", "MatMul", "SGD"})],
)
def test_the_operators_are_documented_or_measured_here(ranks, technique, names):
    compiled = set(ranks(technique, 2)[0]["operators"].tolist())
    assert names <= compiled and missing(compiled) == {}


def test_the_first_rank_makes_a_basis_and_all_load_it(ranks):
    """No rank waits for one that has refused."""
    first, second = ranks("subspace", 2)
    for rank in (first, second):
        assert len(set(rank["basis/checksums"].tolist())) == 1
    made, loaded = first["basis/said"].tolist()
    assert made.startswith("labkit: basis of 3 components computed")
    assert loaded.endswith("nothing computed") and not second["basis/said"].size
    assert str(second["basis/refused"]) == f"rank 0: {first['basis/refused']}"


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_each_layer_is_inverted_by_one_rank(ranks, count):
    results = ranks("thor", count)
    owners = results[0]["owned"]
    for number, rank in enumerate(results):
        np.testing.assert_array_equal(rank["inverted"], np.flatnonzero(owners == number))
    assert len(set(owners.tolist())) == min(count, len(owners))


DIFFERS = "rank 1 differs from rank 0 in "
MANY = "components: expected at least 1 and at most 5, one less than the snapshots in"
# technique, number of ranks -> what is said, and by which words: on every rank, or on each
SAID = {
    ("adasum", 2): {"weights at the end": DIFFERS + "weights", "weights": DIFFERS + "weights"},
    ("adasum", 4): {
        "nodes of 2": "2 workers (1 in each process, 4 ranks, 2 nodes of 2, averaged inside)",
        "nodes of 3": "node_size is 3 and there are 4 ranks; expected a divisor",
        "nodes of 4": "nothing to combine: 1 worker (1 in each process, 4 ranks, 1 nodes of 4",
    },
    ("subspace", 2): {
        "basis": DIFFERS + "basis",
        "weights": DIFFERS + "state of weights and optimizer",
        "basis/refused": MANY,
    },
    # Nobody waits for the rank that failed, and no weight has moved on any.
    ("thor", 2): {
        "nan stops": ("not finite on another rank", "the batch's tensor 0 is not finite"),
        "no inverse": "have no inverse in float32",
    },
}


@pytest.mark.parametrize(("technique", "count"), SAID)
def test_what_each_rank_says(ranks, technique, count):
    for name, words in SAID[technique, count].items():
        each = [words] * count if isinstance(words, str) else words
        for written, expected in zip(ranks(technique, count), each, strict=True):
            assert expected in str(written[name]), name
