"""The language model as a program on two ranks."""

import re

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("step", [pytest.param("plain", marks=pytest.mark.long), "adasum"])
def test_two_ranks_make_the_updates_of_one_process(example, runtime, step, capfd):
    ends = []
    for ranks in ("1", "2"):
        example("language_model").main(["--step", step, "--updates", "3", "--ranks", ranks])
        ends.append(float(re.search(rf"{step}: (\S+) nats", capfd.readouterr().out)[1]))
    assert ends[0] == pytest.approx(ends[1], abs=2e-3) and ends[0] < 4.2
