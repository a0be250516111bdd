"""``create_dataset2``: the tutorials' arguments on the image-folder pipeline."""

import inspect

import mindspore as ms
import numpy as np
import pytest

from labkit.data import imagefolder
from labkit.data.imagefolder import create_dataset2
from labkit.errors import InputError
from labkit.ranks import cluster
from tests.support.image_files import write_pictures


@pytest.fixture(autouse=True)
def alone(seeded, monkeypatch):
    for name in cluster.SIZES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two classes of 6 pictures each."""
    return write_pictures(tmp_path_factory.mktemp("pictures"), ("n01622779", "n03676483"), 6)


def batches(dataset):
    return list(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True))


def ranks(monkeypatch, rank, size):
    """Make this process one of several that have joined."""
    monkeypatch.setattr(cluster, "joined", lambda: True)
    monkeypatch.setattr(cluster, "rank_and_size", lambda: (rank, size))


def test_the_arguments_are_the_tutorials():
    parameters = inspect.signature(create_dataset2).parameters
    assert [(name, parameter.default) for name, parameter in parameters.items()] == [
        ("dataset_path", inspect.Parameter.empty),
        ("do_train", inspect.Parameter.empty),
        ("repeat_num", 1),
        ("batch_size", 32),
        ("target", "Ascend"),
        ("distribute", False),
        ("enable_cache", False),
        ("cache_session_id", None),
        ("train_image_size", 224),
        ("eval_image_size", 224),
    ]


def test_training_is_that_of_create_dataset(pictures):
    actual = batches(create_dataset2(pictures, True, 2, 5, "CPU"))
    ms.set_seed(1)
    expected = batches(
        imagefolder.create_dataset(pictures, 5, repeat_size=2, num_parallel_workers=8)
    )
    assert len(actual) == len(expected) == 4
    for batch, other in zip(actual, expected, strict=True):
        assert batch[0].shape == (5, 3, 224, 224) and batch[1].dtype == np.int32
        np.testing.assert_array_equal(batch[0], other[0])
        np.testing.assert_array_equal(batch[1], other[1])


@pytest.mark.parametrize(
    ("target", "distribute", "parts"),
    [("Ascend", False, 2), ("CPU", True, 2), ("Ascend", True, 2), ("CPU", False, 1)],
)
def test_who_shares_the_images(pictures, monkeypatch, target, distribute, parts):
    ranks(monkeypatch, 1, 2)
    pairs = batches(create_dataset2(pictures, False, 1, 4, target, distribute))
    labels = np.concatenate([labels for _, labels in pairs]).tolist()
    assert labels == ([1] * 6 if parts == 2 else [0] * 6 + [1] * 6)


def test_ranks_that_have_not_met_are_refused(pictures, monkeypatch):
    with pytest.raises(InputError, match=r"labkit.start\(distribute=True\) before"):
        create_dataset2(pictures, True, target="CPU", distribute=True)
    monkeypatch.setenv("RANK_SIZE", "8")
    with pytest.raises(InputError, match="8 ranks were started, and this one has joined no other"):
        create_dataset2(pictures, True)
    create_dataset2(pictures, True, batch_size=2, target="CPU")


def test_the_cache_is_for_evaluation(pictures, monkeypatch):
    given = []
    monkeypatch.setattr(
        imagefolder,
        "create_dataset",
        lambda *_, cache_session_id, **__: given.append(cache_session_id),
    )
    for do_train, enable_cache in ((True, True), (False, False), (False, True)):
        create_dataset2(
            pictures, do_train, enable_cache=enable_cache, cache_session_id="1456416665"
        )
    assert given == [None, None, 1456416665]


def test_a_cache_without_session_says_what_the_tutorial_says(pictures):
    with pytest.raises(ValueError, match="A cache session_id must be provided to use cache."):
        create_dataset2(pictures, False, enable_cache=True)
