"""Ranks that hold different bits, in one process: the tests make what they send each other."""

import re

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from labkit.algorithms.adasum import workers as module
from labkit.errors import InputError

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.mark.parametrize(("rank", "index"), [(1, 0), (2, 4), (1, 11)])
def test_the_first_parameter_that_differs_is_named_with_its_rank(monkeypatch, rank, index):
    parameters = [Parameter(Tensor(np.float32([n, 1])), name=f"p{n}") for n in range(12)]
    team, sent = module.Team(workers=2), []
    team.ranks = 3

    def all_alike(data):
        sent.append(np.frombuffer(data, np.uint8))
        return np.stack([sent[-1]] * 3)

    monkeypatch.setattr(module, "gather_bytes", all_alike)
    team.check_replicas(parameters)
    for parameter in parameters[index:]:
        parameter.set_data(Tensor(np.nextafter(parameter.asnumpy(), np.float32(99))))
    team.check_replicas(parameters)
    rows = np.stack([sent[0]] * 3)
    rows[rank] = sent[1]
    monkeypatch.setattr(module, "gather_bytes", lambda data: rows)
    with pytest.raises(InputError, match=re.escape(f"'p{index}' of rank {rank} is not that of")):
        team.check_replicas(parameters)
