"""The records of a training in pandas and TensorBoard, where these are installed."""

import pytest

pytest.importorskip("pandas", exc_type=ImportError)  # the newest needs NumPy 2
pytest.importorskip("tensorboardX")


def test_every_update_is_in_both(example, tmp_path):
    frame = example("records_elsewhere").main(tmp_path)
    assert list(frame["update"]) == list(range(1, 101))
    losses = frame.groupby("epoch")["loss"].mean()
    assert losses[4] < losses[1] - 0.05
    (events,) = tmp_path.glob("events.out.tfevents.*")
    assert events.read_bytes().count(b"loss") == 100
