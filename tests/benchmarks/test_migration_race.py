"""The race of PyTorch and MindSpore: both read, begin, train and judge the same."""

import numpy as np
import pytest
from migration_race import PLAN, MindSpore, PyTorch, side_of

from labkit.labs import recorded
from labkit.runtime import pynative


@pytest.fixture(scope="module")
def data(digits):
    return digits(60, 40)


# A small network, with settings whose effect shows within two updates.
SETTINGS = {"width": 0.125, "image_size": 32, "epochs": 2, "batch_size": 16}
SETTINGS |= {"weight_decay": 0.5, "learning_rate": 0.02}
SMALL = PLAN | {"training": PLAN["training"] | SETTINGS, "images": {"train": 60, "val": 40}}


def sides():
    """Return both sides with the rule's weights, which keep ReLU's inputs away from zero."""
    made = {name: side_of(name, SMALL, seed=3) for name in ("PyTorch", "MindSpore")}
    for side in made.values():
        side.load(recorded.state({name: value.shape for name, value in side.state().items()}))
    return made


def test_both_read_the_same_images_in_the_same_order(data):
    for part, count in (("train", 60), ("val", 40)):
        (ours, own), (theirs, labels) = (
            side.read(data / part, 32) for side in (MindSpore, PyTorch)
        )
        assert ours.shape == theirs.shape == (count, 3, 32, 32)
        assert np.array_equal(own, labels) and sorted(set(labels)) == list(range(10))
        assert np.abs(ours - theirs).max() < 2e-6 < np.abs(ours[0] - theirs[1]).max()


def test_both_begin_with_the_same_weights(runtime):
    pytest.importorskip("torch")

    ours, theirs = (side_of(name, SMALL, seed=3).state() for name in ("MindSpore", "PyTorch"))
    assert ours.keys() == theirs.keys() and len(ours) == 122
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    other = side_of("PyTorch", SMALL, seed=4).state()
    assert not np.array_equal(other["fc.weight"], ours["fc.weight"])


def test_two_updates_of_one_are_those_of_the_other(runtime):
    """Rates, momentum, decay and smoothing agree; the second update uses buffer and second rate."""
    pytest.importorskip("torch")
    images, labels = recorded.batch(8, 32, 10)
    losses, moves, logits = {}, {}, {}
    with pynative():
        for name, side in sides().items():
            side.mode(True)
            before = {n: np.array(value) for n, value in side.state().items()}
            losses[name] = [side.step(images, labels) for _ in range(2)]
            moves[name] = {n: np.array(v) - before[n] for n, v in side.state().items()}
            side.mode(False)
            logits[name] = side.logits(images)
    ours, theirs = losses.values()
    assert ours == pytest.approx(theirs, rel=1e-5) and abs(ours[1] / ours[0] - 1) > 1e-3
    for name, move in moves["PyTorch"].items():
        if not name.endswith("num_batches_tracked"):
            # Each of the two updates is rounded to a float32 of the weight's size.
            rounding = 2 * np.spacing(np.abs(before[name]).max())
            off = np.abs(moves["MindSpore"][name] - move).max()
            assert off <= 1e-3 * np.abs(move).max() + rounding, name
    assert np.abs(logits["MindSpore"] - logits["PyTorch"]).max() < 1e-3
