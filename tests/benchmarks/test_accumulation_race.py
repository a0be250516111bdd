"""The tutorial's training with and without its bugs."""

import accumulation_race
import numpy as np
import pytest
from race import Images

BATCHES = 10  # two groups of 4 and a tail of 2


@pytest.fixture(scope="module")
def images():
    random = np.random.default_rng(0)
    rows = BATCHES * 32
    pictures = random.normal(size=(rows, 1, 32, 32)).astype(np.float32)
    labels = random.integers(0, 10, rows).astype(np.int32)
    return Images(pictures, labels, np.arange(rows), pictures[:64], labels[:64])


@pytest.fixture(scope="module")
def losses(runtime, images):
    """Bugs -> (outcome of two epochs, the loss that the step returned for each micro-batch)."""
    returned, make_step = {"four": [], "none": []}, accumulation_race.make_step

    def noting(setting, seed):
        network, step = make_step(setting, seed)
        return network, _Noted(step, returned[setting["bugs"]])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulation_race, "make_step", noting)
        outcomes = {
            bugs: accumulation_race.train(
                {"bugs": bugs, "learning_rate": 0.01}, images, 1, epochs=2, quoted=1
            )
            for bugs in ("four", "none")
        }
    return {bugs: (outcomes[bugs], returned[bugs]) for bugs in outcomes}


class _Noted:
    """A step that records the losses it returns."""

    def __init__(self, step, losses):
        self._step, self._losses = step, losses

    def __call__(self, *batch):
        loss = self._step(*batch)
        self._losses.append(float(loss.asnumpy()))
        return loss

    def __getattr__(self, name):
        return getattr(self._step, name)


def test_the_bugs_carry_the_tail_and_print_the_last_micro_batch(losses):
    outcome, returned = losses["four"]
    points = outcome["curve"]
    assert [point["update"] for point in points] == [1, 2, 3, 4]
    # Groups begin again with each epoch: the second epoch's first group ends with number 14.
    expected = [returned[i] for i in (3, 7, BATCHES + 3, BATCHES + 7)]
    assert [point["printed_loss"] for point in points] == expected


def test_without_them_the_tail_is_an_update_and_the_mean_is_printed(losses):
    outcome, returned = losses["none"]
    points = outcome["curve"]
    assert [point["update"] for point in points] == [1, 3, 4, 6]
    groups = [returned[:4], returned[8:10], returned[10:14], returned[18:20]]
    expected = [np.mean(group) for group in groups]
    np.testing.assert_allclose([p["printed_loss"] for p in points], expected, rtol=1e-6)


def test_both_begin_alike_and_the_sum_goes_on_four_times_as_fast(losses, images):
    """Weights and images are the same, so the first losses differ only by rounding."""
    first, second = (np.array(losses[bugs][1]) for bugs in ("four", "none"))
    np.testing.assert_allclose(first[:4], second[:4], rtol=1e-6)
    assert np.abs(first[4:8] - second[4:8]).max() > 1e-6
