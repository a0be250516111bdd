"""Two ranks with 17 and 4 tokens train as float64 does with all rows at once."""

import numpy as np
import pytest

from tests.support import tokens_on_ranks
from tests.support.rank_programs import rank_results
from tests.support.step_cells import assert_bit_equal
from tests.support.tiny_gpt import KINDS, ROWS, gpt
from tests.support.tokens_on_ranks import RANKS, UPDATES, micro_batches
from tests.support.tolerances import TOLERANCE

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


@pytest.fixture(scope="module")
def written(root, tmp_path_factory):
    """What each rank has written."""
    out = tmp_path_factory.mktemp("tokens")
    return rank_results(out, tokens_on_ranks.__file__, out, root=root, ranks=RANKS)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_of_other_token_counts_are_one_process(written, kind):
    first, second = (
        {n: v for n, v in rank.items() if n.startswith(f"{kind}/")} for rank in written
    )
    assert_bit_equal(second, first)
    reference = KINDS[kind][1](gpt())
    for update in range(UPDATES):
        reference.update([b for rank in range(RANKS) for b in micro_batches(kind, update, rank)])
        number, loss, images = first.pop(f"{kind}/{update}/last")
        assert number == update + 1 and images == RANKS * KINDS[kind][0] * ROWS
        assert loss == pytest.approx(reference.losses[-1], rel=1e-5)
    for name, value in first.items():
        wanted = reference.values[name.removeprefix(f"{kind}/")]
        np.testing.assert_allclose(
            value, wanted, err_msg=name, **TOLERANCE["float32, a few updates"]
        )
