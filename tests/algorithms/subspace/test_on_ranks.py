"""Components and rows divided among ranks: the weights are those of one process."""

import numpy as np
import pytest

from tests.support import subspace_on_ranks
from tests.support.msrun import Launches
from tests.support.operator_platforms import missing
from tests.support.subspace_on_ranks import CASES, RANKS, UPDATES, cases

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


@pytest.fixture(scope="module")
def launches(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("launches")
    return Launches(subspace_on_ranks.__file__, RANKS, root, folder)


@pytest.fixture(scope="module", params=RANKS)
def ranks(request, launches):
    """Return what each of 2 and 3 ranks writes."""
    return launches(request.param)


def of_case(values, case, kind):
    return {n: value for n, value in values.items() if n.startswith(f"{case}/{kind}/")}


def test_replicas_hold_the_same_bits(ranks):
    """They agree after every update, whichever ranks had a finite micro-batch."""
    names = {name for name in ranks[0] if name.count("/") == 2}
    assert len(names) >= 6 * UPDATES
    for rank in ranks[1:]:
        for name in names:
            np.testing.assert_array_equal(rank[name], ranks[0][name], err_msg=name)


@pytest.mark.parametrize(("count", "case"), [(n, case) for n in RANKS for case in cases(n)])
def test_ranks_are_one_process_with_all_rows(count, case, launches):
    """The weights agree to 1e-4, and every search has the same trials and the same step."""
    ranks, alone = launches(count), subspace_on_ranks.run(case, count)
    weights = of_case(alone, case, "weights")
    assert len(weights) == UPDATES * CASES[case][1].get("micro_steps", 1)
    for kind in ("weights", "last", "search"):
        for name, expected in of_case(alone, case, kind).items():
            np.testing.assert_allclose(ranks[0][name], expected, 1e-4, 1e-4, err_msg=name)
    moved = list(weights.values())
    assert np.abs(moved[-1] - moved[0]).max() > 0.02  # 200 times the tolerance
    if case == "micro-batches":
        searches = np.array(list(of_case(alone, case, "search").values()))
        assert 0 < searches[-1, 2] < UPDATES and set(searches[:, 0]) == {0, 1, 2}


def test_ranks_that_differ_are_refused(launches):
    for rank in launches(2):
        for what, message in {
            "basis": "rank 1 differs from rank 0 in basis",
            "weights": "rank 1 differs from rank 0 in state of weights and optimizer",
        }.items():
            assert str(rank[f"refused/{what}"]).startswith(message)


def test_its_operators_are_documented(launches):
    names = set(launches(2)[0]["operators"].tolist())
    assert {"AllReduce", "MatMul", "SGD"} <= names
    assert missing(names) == {}


def test_the_first_rank_makes_a_basis_and_all_load_it(launches):
    """No rank waits for one that has refused."""
    first, second = launches(2)
    for rank in (first, second):
        assert len(set(rank["basis/checksums"].tolist())) == 1
    made, loaded = first["basis/said"].tolist()
    assert made.startswith("labkit: basis of 3 components computed")
    assert loaded.endswith("nothing computed") and not second["basis/said"].size
    words = "components: expected at least 1 and at most 5, one less than the snapshots in"
    assert words in str(first["basis/refused"])
    assert str(second["basis/refused"]) == f"rank 0: {first['basis/refused']}"
