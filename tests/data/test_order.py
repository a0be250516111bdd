"""The order of both pipelines is new in each epoch, depends on the seed alone and is resumable."""

import os

import mindspore as ms
import numpy as np
import pytest

from labkit.data import imagefolder, mnist
from tests.support.data_archives import write_set
from tests.support.image_files import batches, write_pictures

COUNT = 60
pytestmark = pytest.mark.usefixtures("seeded")


@pytest.fixture(scope="module", params=["MNIST", "images"])
def create(request, tmp_path_factory):
    """A function that creates the pipeline over 60 images, no two alike."""
    root = tmp_path_factory.mktemp("alike")
    if request.param == "images":
        write_pictures(root, ("ant", "bee", "cow"), COUNT // 3)
        plain = {"augment": False, "image_size": 24}
        return lambda *sizes, **options: imagefolder.create_dataset(root, *sizes, **plain | options)
    grey = np.arange(COUNT, dtype=np.uint8)
    write_set(root, "train", np.tile(grey[:, None, None], (28, 28)), grey % 10)
    return lambda batch_size, augment=False, **options: mnist.create_dataset(
        root, batch_size, **options
    )


def shown(dataset, epochs=1):
    """Return the bytes of each image, batch by batch, over ``epochs`` of one iterator."""
    return [[image.tobytes() for image in images] for images, _ in batches(dataset, epochs)]


def test_every_epoch_holds_each_image_once_in_an_order_of_its_own(create):
    each = shown(create(20), epochs=2)
    first, second = (sum(each[place : place + 3], []) for place in (0, 3))
    assert sorted(first) == sorted(second) and len(set(first)) == COUNT and first != second


def test_the_order_is_a_function_of_the_seed_alone(create):
    def order(ranks=1, workers=1):
        options = {"rank_size": ranks, "rank_id": ranks - 1, "num_parallel_workers": workers}
        return shown(create(6, **options), epochs=2)

    first, sharded = order(), order(2)
    # Neither the number of workers nor datasets used before matter.
    workers = min(2, len(os.sched_getaffinity(0)))
    assert order(workers=workers) == first and order(2, workers) == sharded
    ms.set_seed(2)
    assert order() != first and order(2) != sharded


def test_repeat_is_more_epochs_in_one(create):
    twice = create(25, repeat_size=2)
    assert twice.get_dataset_size() == 4
    assert shown(twice) == shown(create(25), epochs=2)


@pytest.mark.parametrize(
    ("ranks", "step", "fast"), [(1, 14, False), (1, 15, False), (2, 20, False), (1, 16, True)]
)
def test_resume_at_any_step_is_the_tail_of_the_whole(create, monkeypatch, ranks, step, fast):
    """Crops and flips too, without MindSpore's fast recovery, which ``labkit.start`` turns off.

    MNIST's buffer here is smaller than the set, as it is for 60 000 images.
    """
    monkeypatch.setattr(mnist, "SHUFFLE_BUFFER", 16)

    def epochs_of_batches(start):
        options = {"rank_size": ranks, "rank_id": ranks - 1, "augment": not fast}
        dataset = create(4 // ranks, **options)
        dataset.set_init_step(start)
        iterator = dataset.create_tuple_iterator(num_epochs=2, output_numpy=True)
        collected = []
        while len(collected) < 30 - start:
            collected += [images.tobytes() for images, _ in iterator]
        return collected

    before = ms.dataset.config.get_fast_recovery()
    ms.dataset.config.set_fast_recovery(fast)
    try:
        whole = epochs_of_batches(0)
        assert len(whole) == 30 and epochs_of_batches(step) == whole[step:]
    finally:
        ms.dataset.config.set_fast_recovery(before)
