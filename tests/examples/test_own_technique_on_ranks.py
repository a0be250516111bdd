"""A technique written outside labkit, on two ranks: the rows of both form one batch."""

import numpy as np
import pytest

from tests.support import own_technique_on_ranks as program
from tests.support.msrun import rank_results
from tests.support.tolerances import TOLERANCE

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


def test_two_ranks_are_one_process_with_all_rows(root, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(root / "examples")
    arguments = program.__file__, root / "examples", tmp_path
    first, second = rank_results(tmp_path, *arguments, root=root)
    whole = program.trained(root / "examples")
    assert int(whole.updates.asnumpy()) == 7
    weights = ("weight", "bias", "lookahead.slow.weight", "lookahead.slow.bias")
    state = {parameter.name: parameter.asnumpy() for parameter in whole.get_parameters()}
    for name in weights:
        np.testing.assert_array_equal(first[name], second[name], name)
        np.testing.assert_allclose(
            first[name], state[name], err_msg=name, **TOLERANCE["float32, a few updates"]
        )
