"""The language model as a program: each technique trains, and ranks change no update."""

import functools
import re

import numpy as np
import pytest

UPDATES = 18


@pytest.fixture
def program(example, monkeypatch):
    """The example with a network of one narrow block."""
    module = example("language_model")
    small = functools.partial(module.GPT, layers=1, width=8, heads=2)
    monkeypatch.setattr(module, "GPT", small)
    return module


def losses(program, step):
    return np.array(program.main(["--step", step, "--updates", str(UPDATES), "--seed", "3"]))


@pytest.mark.parametrize("step", ["adasum", "thor", "subspace"])
def test_every_technique_lowers_the_loss(program, step, capsys):
    found = losses(program, step)
    assert len(found) == UPDATES and found[0] == pytest.approx(np.log(67), abs=0.02)
    assert found[-1] < found[UPDATES // 2] < found[0] - 0.1
    told = float(re.search(rf"{step}: (\S+) nats", capsys.readouterr().out)[1])
    assert told == pytest.approx(found[-1], abs=0.2)


def test_micro_batches_are_parts_of_the_plain_update(program):
    plain, accumulated = losses(program, "plain"), losses(program, "accumulated")
    np.testing.assert_allclose(accumulated, plain, rtol=1e-5)
    assert plain[-1] < plain[0] - 0.1
