"""``basis_of`` over ranks: one makes it, all have it, and none waits for one that has refused."""

import json

import numpy as np
import pytest

from labkit.algorithms.subspace import Basis
from tests.algorithms.subspace import basis_on_ranks
from tests.support.msrun import msrun
from tests.support.snapshots import size, with_spectrum, write


@pytest.mark.slow
def test_the_first_rank_makes_it_and_all_load_it(root, tmp_path):
    write(tmp_path / "snapshots", with_spectrum(6, size(), 2.0 ** -np.arange(5.0)))
    code, logs = msrun(tmp_path, basis_on_ranks.__file__, tmp_path, root=root)
    assert code == 0, logs
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    expected = Basis.of(tmp_path / "snapshots", None, 3).checksum
    for one in found:
        assert one["ranks"] == 2 and one["made"] == one["loaded"] == expected
    assert "holds 6 snapshots; 7 components need at least 8" in found[0]["refused"]
    assert found[1]["refused"] == "rank 0 could not make the basis; its message says why"
    said = "".join(log.read_text(errors="replace") for log in tmp_path.rglob("*.log"))
    assert said.count("labkit: basis of 3 components computed") == 1
    assert said.count("nothing computed") == 1
