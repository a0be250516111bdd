"""THOR on two and four processes is THOR on one with all rows."""

import numpy as np
import pytest

from tests.support import thor_on_ranks
from tests.support.msrun import Launches
from tests.support.thor_on_ranks import CASES, FAILURES, NAN_RANK, UPDATES, run
from tests.support.tolerances import TOLERANCE

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


@pytest.fixture(scope="module")
def launches(root, tmp_path_factory):
    """``launches(ranks)`` returns what each rank writes."""
    return Launches(thor_on_ranks.__file__, [2, 4], root, tmp_path_factory.mktemp("launches"))


# Four ranks run one case.
@pytest.mark.parametrize("count, case", [*((2, case) for case in CASES), (4, "lenet")])
def test_ranks_are_one_process(count, case, launches):
    """Parameters, factors, inverses, decisions and records agree after every update."""
    expected = run(case)
    assert expected[f"{case}/{UPDATES - 1}/last"][0] > 1
    for name, value in expected.items():
        part = name.removeprefix(f"{case}/").split("/", 1)[-1]
        if part in ("owned", "inverted"):
            continue
        for rank in launches(count):
            if part.startswith("count/") and part != "count/damping":
                np.testing.assert_array_equal(rank[name], value, err_msg=name)
            elif case == "retried":
                # A matrix of condition 1e6: the ranks only equal one another, see below.
                assert np.isfinite(rank[name]).all()
            elif part == "last":
                np.testing.assert_allclose(rank[name], value, rtol=1e-4, err_msg=name)
            else:
                tolerance = TOLERANCE["float32, many updates"]
                np.testing.assert_allclose(rank[name], value, err_msg=name, **tolerance)


@pytest.mark.parametrize("count", [2, 4])
def test_the_ranks_are_equal_to_the_bit(count, launches):
    first, *others = launches(count)
    names = [name for name in first if "/network/" in name or "/inverse/" in name]
    assert names and others
    for name in names:
        for other in others:
            np.testing.assert_array_equal(other[name], first[name], err_msg=name)


@pytest.mark.parametrize("count", [2, 4])
def test_each_layer_is_inverted_by_one_rank(count, launches):
    ranks = launches(count)
    owners = ranks[0]["lenet/owned"]
    for number, rank in enumerate(ranks):
        own = [layer for layer, owner in enumerate(owners) if owner == number]
        assert sorted(rank["lenet/inverted"]) == own
    assert len(set(owners)) == min(count, len(owners))


@pytest.mark.parametrize("case", FAILURES)
def test_all_ranks_stop(case, launches):
    """No rank waits for the others, and no weight has moved on any."""
    for number, rank in enumerate(launches(2)):
        said = str(rank[f"{case}/said"])
        if case == "no inverse":
            assert "have no inverse in float32" in said
        elif number == NAN_RANK:
            assert "the batch's tensor 0 is not finite" in said
        else:
            assert "not finite on another rank" in said
        assert rank[f"{case}/same"]
