"""The order of both pipelines is new in each epoch, depends on the seed alone and is resumable."""

import os

import mindspore as ms
import numpy as np
import pytest

from labkit.data import imagefolder, mnist
from tests.support.idx_files import write_set
from tests.support.image_files import numbered

COUNT = 60
pytestmark = pytest.mark.usefixtures("seeded")


@pytest.fixture(scope="module", params=["MNIST", "images"])
def create(request, tmp_path_factory):
    """A function that creates the pipeline over images whose number is their grey level."""
    root = tmp_path_factory.mktemp("numbered")
    if request.param == "MNIST":
        grey = np.arange(COUNT, dtype=np.uint8)
        write_set(root, "train", np.tile(grey[:, None, None], (28, 28)), grey % 10)
        return lambda batch_size, **options: mnist.create_dataset(root, batch_size, **options)
    numbered(root, {"ant": 20, "bee": 15, "cow": 25})
    plain = {"augment": False, "image_size": 16, "resize": None}
    return lambda batch_size, **options: imagefolder.create_dataset(
        root, batch_size, **options | plain
    )


def levels(dataset, epochs=1):
    """Return the normalised grey levels, batch by batch, over ``epochs`` of one iterator.

    They identify the images: normalisation is monotonic, and every grey level occurs once.
    """
    iterator = dataset.create_tuple_iterator(num_epochs=epochs, output_numpy=True)
    return [images[:, 0, 3, 3].tolist() for _ in range(epochs) for images, _ in iterator]


def test_every_epoch_holds_each_image_once_in_an_order_of_its_own(create):
    batches = levels(create(20), epochs=2)
    first, second = (sum(batches[place : place + 3], []) for place in (0, 3))
    assert sorted(first) == sorted(second) and len(set(first)) == COUNT
    assert first != second and first != sorted(first)


def test_the_order_is_a_function_of_the_seed_alone(create):
    def order(ranks=1, workers=1):
        options = {"rank_size": ranks, "rank_id": ranks - 1, "num_parallel_workers": workers}
        return levels(create(6, **options), epochs=2)

    first, sharded = order(), order(2)
    # Neither the number of workers nor datasets used before matter.
    workers = min(2, len(os.sched_getaffinity(0)))
    assert order(workers=workers) == first and order(2, workers) == sharded
    ms.set_seed(2)
    assert order() != first and order(2) != sharded


def test_repeat_is_more_epochs_in_one(create):
    twice = create(25, repeat_size=2)
    assert twice.get_dataset_size() == 4
    assert levels(twice) == levels(create(25), epochs=2)
