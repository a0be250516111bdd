"""Ranks give the same bits as virtual workers that take turns in one process."""

import functools

import numpy as np
import pytest

from tests.support import adasum_on_ranks
from tests.support.adasum_on_ranks import CASES
from tests.support.msrun import Launches
from tests.support.operator_platforms import missing

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


@pytest.fixture(scope="module")
def ranks(root, tmp_path_factory):
    """A launch of two ranks and one of four."""
    return Launches(adasum_on_ranks.__file__, [2, 4], root, tmp_path_factory.mktemp("launches"))


@functools.cache
def virtual_workers(case):
    """Return the results of one process; they must not be modified."""
    return adasum_on_ranks.run(case)


def of_case(written, case):
    return {name: value for name, value in written.items() if name.startswith(f"{case}/")}


@pytest.mark.parametrize("case", CASES)
def test_ranks_are_virtual_workers(ranks, case):
    """After every update all ranks have the parameters of one process, to the bit.

    The requirement is 1e-6 after 20 updates; bits can be compared if a rank computes the same
    micro-batch as a virtual worker does. A node's mean is summed by AllReduce: within 1e-6.
    """
    virtual = virtual_workers(case)  # while the ranks compute
    real = [of_case(written, case) for written in ranks(CASES[case][0])]
    names = {name for name in virtual if name.count("/") == 2 and "/last/" not in name}
    assert len(names) == CASES[case][3] * (8 if "LeNet" in case else 2)
    for name in sorted(names):
        for written in real:
            np.testing.assert_array_equal(written[name], real[0][name], err_msg=name)
        if case == "nodes":
            np.testing.assert_allclose(real[0][name], virtual[name], rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(real[0][name], virtual[name], err_msg=name)
    moved = [virtual[name] for name in sorted(names) if name.endswith(("/0", "/1"))]
    assert any((a != b).any() for a, b in zip(moved[::2], moved[1::2], strict=True))
    for name, value in virtual.items():
        if "/last/" in name:
            for written in real:
                np.testing.assert_array_equal(written[name], real[0][name], err_msg=name)
            if "LeNet" not in case:
                np.testing.assert_allclose(real[0][name], value, rtol=1e-5, err_msg=name)


def test_a_rank_that_alone_is_unsure_waits_for_nobody(ranks):
    """Both then take the tree: their bits are equal, and those of the Gram form up to rounding."""
    first, second = ranks(2)
    common = of_case(first, "not finite")
    assert len(common) > 10
    for name, value in common.items():
        own = first[f"one is unsure/{name}"]
        if value.dtype.kind == "f":
            np.testing.assert_allclose(own, value, rtol=2e-6, atol=1e-7)
        else:
            np.testing.assert_array_equal(own, value)
        if "/dropped" not in name:  # each rank counts its own
            np.testing.assert_array_equal(second[f"one is unsure/{name}"], own)


def test_each_rank_counts_what_it_dropped(ranks):
    for case, dropped in {"not finite": (1, 2), "nodes": (1, 1, 1, 0)}.items():
        written = ranks(CASES[case][0])
        assert tuple(int(rank[f"{case}/dropped"]) for rank in written) == dropped


def test_nodes_rows_arrive_with_the_same_bits_on_every_rank(ranks):
    """Signs of zeros, NaN, the smallest and the largest numbers included."""
    expected = np.concatenate([adasum_on_ranks.rows_of_node(node) for node in (0, 1)])
    for written in ranks(4):
        assert written["exchanged"].tobytes() == expected.tobytes()


def test_its_operators_are_documented_or_measured_here(ranks):
    names = set(ranks(2)[0]["operators"].tolist())
    assert {"AllGather", "ApplyMomentum"} <= names
    assert missing(names) == {}


def test_a_resumed_training_is_the_uninterrupted_one(ranks):
    for written in ranks(2):
        assert written["resume/same"]


@pytest.mark.parametrize(
    ("count", "name", "words"),
    [
        (2, "planted/end", "rank 1 differs from rank 0 in weights"),
        (2, "planted/built", "rank 1 differs from rank 0 in weights"),
        (4, "nodes/text", "2 workers (1 in each process, 4 ranks, 2 nodes of 2, averaged inside)"),
        (4, "no divisor", "node_size is 3 and there are 4 ranks; expected a divisor"),
        (4, "one node", "nothing to combine: 1 worker (1 in each process, 4 ranks, 1 nodes of 4"),
    ],
)
def test_what_each_rank_says(ranks, count, name, words):
    for written in ranks(count):
        assert str(written[name]).startswith(words)
