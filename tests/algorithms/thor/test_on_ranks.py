"""THOR on two and four processes is THOR on one with all rows."""

import numpy as np
import pytest

from tests.support.msrun import Launches
from tests.support.thor_on_ranks import CASES, FAILURES, NAN_RANK, UPDATES, run
from tests.support.tolerances import TOLERANCE

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


@pytest.fixture(scope="module")
def launches(root, tmp_path_factory):
    program = root / "tests" / "thor_on_ranks.py"
    return Launches(program, [2, 4], root, tmp_path_factory.mktemp("launches"))


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, launches):
    """What each rank found."""
    return launches(request.param)


@pytest.fixture(scope="module")
def alone(runtime):
    """The same cases in this process, made when asked for."""
    made = {}

    def find(case):
        if case not in made:
            made[case] = run(case)
        return made[case]

    return find


@pytest.mark.parametrize("case", CASES)
def test_ranks_are_one_process(ranks, alone, case):
    """Parameters, factors, inverses, decisions and what is noted, after every update."""
    if f"{case}/0/last" not in ranks[0]:
        pytest.skip("on two ranks only")
    expected = alone(case)
    assert expected[f"{case}/{UPDATES - 1}/last"][0] > 1
    for name, value in expected.items():
        part = name.removeprefix(f"{case}/").split("/", 1)[-1]
        if part in ("owned", "inverted"):
            continue
        for found in ranks:
            if part.startswith("count/") and part != "count/damping":
                np.testing.assert_array_equal(found[name], value, err_msg=name)
            elif case == "retried":
                # Of a matrix of condition 1e6: the ranks are equal, see below, to one another.
                assert np.isfinite(found[name]).all()
            elif part == "last":
                np.testing.assert_allclose(found[name], value, rtol=1e-4, err_msg=name)
            else:
                tolerance = TOLERANCE["float32, many updates"]
                np.testing.assert_allclose(found[name], value, err_msg=name, **tolerance)


def test_the_ranks_are_equal_to_the_bit(ranks):
    names = [name for name in ranks[0] if "/network/" in name or "/inverse/" in name]
    assert names
    for name in names:
        for other in ranks[1:]:
            np.testing.assert_array_equal(other[name], ranks[0][name], err_msg=name)


def test_each_layer_is_inverted_by_one_rank(ranks):
    owners = ranks[0]["lenet/owned"]
    for rank, found in enumerate(ranks):
        own = [i for i, owner in enumerate(owners) if owner == rank]
        assert sorted(found["lenet/inverted"]) == own
    assert len(set(owners)) == min(len(ranks), len(owners))


@pytest.mark.parametrize("case", FAILURES)
def test_all_ranks_stop(ranks, case):
    """None waits for the others, and no weight has moved on any."""
    if len(ranks) > 2:
        pytest.skip("on two ranks only")
    for rank, found in enumerate(ranks):
        said = str(found[f"{case}/said"])
        if case == "no inverse":
            assert "have no inverse in float32" in said
        elif rank == NAN_RANK:
            assert "the batch's tensor 0 is not finite" in said
        else:
            assert "not finite on another rank" in said
        assert found[f"{case}/same"]
