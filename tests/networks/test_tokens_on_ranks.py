"""Two ranks with 17 and 4 tokens train as float64 does with all rows at once."""

import numpy as np
import pytest

from tests.support import tokens_on_ranks
from tests.support.rank_programs import rank_results
from tests.support.step_cells import assert_bit_equal
from tests.support.subspace_cells import basis_of
from tests.support.tiny_gpt import gpt, optimizer
from tests.support.tokens_on_ranks import KINDS, RANKS, UPDATES, micro_batches
from tests.support.tolerances import TOLERANCE

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


@pytest.fixture(scope="module")
def written(root, tmp_path_factory):
    """What each rank has written."""
    out = tmp_path_factory.mktemp("tokens")
    return rank_results(out, tokens_on_ranks.__file__, out, root=root, ranks=RANKS)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_of_other_token_counts_are_one_process(written, kind):
    network = gpt()
    parameters = optimizer(network).parameters
    options = {"basis": basis_of(parameters, 3).matrix} if kind == "subspace" else {}
    reference = KINDS[kind][1](network, **options)
    first, second = (
        {name: value for name, value in rank.items() if name.startswith(f"{kind}/")}
        for rank in written
    )
    assert_bit_equal(second, first)
    for update in range(UPDATES):
        by_rank = [micro_batches(kind, update, rank) for rank in range(RANKS)]
        reference.update([each for batches in by_rank for each in batches])
        number, loss, images = first.pop(f"{kind}/{update}/last")
        assert number == update + 1 and images == sum(len(b) for b in by_rank) * 3
        assert loss == pytest.approx(reference.losses[-1], rel=1e-5)
    for name, value in first.items():
        expected = reference.values[name.removeprefix(f"{kind}/")]
        np.testing.assert_allclose(
            value, expected, err_msg=name, **TOLERANCE["float32, a few updates"]
        )
