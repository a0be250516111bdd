"""The image-folder pipeline: values, shards, and refusal of bad input."""

import inspect
import shutil
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore.dataset import vision
from PIL import Image

from labkit.data import imagefolder
from labkit.data.imagefiles import class_names
from labkit.data.imagefolder import MEAN, STD, create_dataset, create_dataset2, create_datasets
from labkit.errors import InputError
from labkit.ranks import cluster
from tests.support.image_files import batches, encode, numbered, store, usable, write_pictures

COUNTS = {"ant": 7, "bee": 7, "cow": 9}
COUNT = sum(COUNTS.values())
LABELS = np.repeat([0, 1, 2], list(COUNTS.values()))
SMALL = dict(image_size=16, resize=None)
# Two float32 roundings of values up to 2.6.
FLOAT32 = 2e-6
pytestmark = pytest.mark.usefixtures("seeded")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """23 images whose number is their grey level."""
    return numbered(tmp_path_factory.mktemp("numbered"), COUNTS)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Two classes of 12 pictures each."""
    return write_pictures(tmp_path_factory.mktemp("pictures"), ("ant", "bee"), 12)


def numbers(dataset, epochs=1):
    """Return the numbers of the images, batch by batch, after checking their labels."""
    collected = []
    for images, labels in batches(dataset, epochs):
        number = np.rint((images[:, 0, 3, 3] * STD[0] + MEAN[0]) * 255).astype(int)
        np.testing.assert_array_equal(labels, LABELS[number])
        collected.append(number.tolist())
    return collected


def flat(lists):
    return [number for numbers in lists for number in numbers]


# ---- shapes and values


def test_the_seeds_call_takes_its_five_arguments_by_place(folder):
    dataset = create_dataset(str(folder), 4, 2, 1, False, **SMALL)
    assert numbers(dataset) == [[11, 12, 13, 14], [15, 16, 17, 18], [19, 20, 21, 22]]


@pytest.mark.parametrize(("share", "train"), [((1, 0), True), ((2, 1), True), ((2, 1), False)])
def test_what_finder_and_explorer_leave_behind_is_skipped(folder, tmp_path, share, train):
    """The images and their order are those of the folder without it."""
    littered = shutil.copytree(folder, tmp_path / "littered")
    for name in ("ant", "cow"):
        store(littered / name, dict.fromkeys(("._0.jpg", ".DS_Store", "Thumbs.db"), b"x"))
    both = [
        numbers(create_dataset(root, 4, *share, train, augment=False, **SMALL), epochs=2)
        for root in (folder, littered)
    ]
    assert both[0] == both[1]


def of_the_seeds(pictures, *operations, shuffle):
    """Return the images that these operations make, normalised as in the source documents."""
    mean, std = ((np.array(values) * 255).tolist() for values in (MEAN, STD))
    operations = [*operations, vision.Normalize(mean, std), vision.HWC2CHW()]
    dataset = ds.ImageFolderDataset(str(pictures), shuffle=shuffle, num_parallel_workers=1)
    return batches(dataset.map(operations, "image", num_parallel_workers=1).batch(24))[0][0]


def test_augmented_images_are_the_operations_of_the_seeds(pictures):
    """Crops and flips differ by epoch; the operations are those of ImageNet training."""
    first, second = batches(create_dataset(pictures, 24), epochs=2)
    assert not np.array_equal(np.sort(first[0].sum((1, 2, 3))), np.sort(second[0].sum((1, 2, 3))))
    ms.set_seed(1)
    crop = vision.RandomCropDecodeResize(224, scale=(0.08, 1.0), ratio=(0.75, 1.333))
    expected = of_the_seeds(pictures, crop, vision.RandomHorizontalFlip(0.5), shuffle=True)
    np.testing.assert_array_equal(first[0], expected)


def test_evaluation_is_the_operations_of_the_seeds_and_training_may_be_too(pictures):
    """``augment=False`` is the pipeline of the source document: shuffled, but not augmented."""
    operations = vision.Decode(), vision.Resize(256), vision.CenterCrop(224)
    actual = batches(create_dataset(pictures, 24, do_train=False))[0][0]
    expected = of_the_seeds(pictures, *operations, shuffle=False)
    np.testing.assert_array_equal(actual, expected)
    plain = batches(create_dataset(pictures, 24, augment=False))[0][0]
    assert not np.array_equal(plain, actual)
    order = lambda images: np.lexsort(images[:, :, 100, 100].T)  # noqa: E731
    np.testing.assert_array_equal(plain[order(plain)], actual[order(actual)])
    assert create_dataset(pictures, 5, augment=False).get_dataset_size() == 4


@pytest.mark.parametrize(
    ("image_size", "resize", "rows"), [(224, "auto", 256), (32, "auto", 37), (16, 20, 20)]
)
def test_the_shorter_side_is_resized_before_the_crop(tmp_path, image_size, resize, rows):
    """A ramp from 0 to 255 along the rows shows which rows are in the crop."""
    ramp = np.broadcast_to(np.linspace(0, 255, 400)[:, None, None], (400, 500, 3))
    store(tmp_path / "a", {"ramp.png": encode(Image.fromarray(ramp.astype(np.uint8)), "PNG")})
    dataset = create_dataset(tmp_path, 1, do_train=False, image_size=image_size, resize=resize)
    column = (batches(dataset)[0][0][0, 0, :, 0] * STD[0] + MEAN[0]) * 255
    assert column.shape == (image_size,)
    top = (rows - image_size) // 2
    expected = (np.arange(top, top + image_size) + 0.5) / rows * 255
    np.testing.assert_allclose(column, expected, atol=1.5)


# ---- kinds of files


@pytest.mark.parametrize("backend", ["mindspore", "pillow"])
@pytest.mark.parametrize("name", usable())
def test_every_usable_kind_becomes_three_channels(tmp_path, name, backend):
    """Values are Pillow's, except for 16-bit grayscale, which Pillow converts to white."""
    content = usable()[name]
    store(tmp_path / "a", {name: content})
    options = dict(do_train=False, image_size=40, resize=None, backend=backend)
    if name == "16 bits gray.png" and backend == "pillow":
        with pytest.raises(InputError, match="a/16 bits gray.png is a 16-bit gray.*white"):
            create_dataset(tmp_path, 1, **options)
        return
    images = batches(create_dataset(tmp_path, 1, **options))[0][0]
    image = Image.open(tmp_path / "a" / name)
    if name == "16 bits gray.png":
        expected = np.repeat(np.asarray(image)[..., None] >> 8, 3, axis=2)
    else:
        expected = np.asarray(image.convert("RGB"))
    expected = expected[4:44, 12:52].astype(int)
    actual = (images[0].transpose(1, 2, 0) * STD + MEAN) * 255
    # Pillow converts CMYK in integers, MindSpore differently: 1 grey level measured.
    limit = 1.0 if name in ("cmyk.jpg", "ycck.jpg") and backend == "mindspore" else 0.0
    assert np.abs(actual - expected).max() <= limit + 255 * FLOAT32


# ---- shards; order and resuming are in test_order.py


@pytest.mark.parametrize("ranks", [1, 3, 23])
def test_evaluation_over_ranks_shows_every_image_once(folder, ranks):
    each = [create_dataset(folder, 10, ranks, rank, False, **SMALL) for rank in range(ranks)]
    parts = [flat(numbers(dataset)) for dataset in each]
    assert flat(parts) == list(range(COUNT))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_shards_are_disjoint_of_one_size_and_change(folder, ranks):
    share, shown = COUNT // ranks, []
    for rank in range(ranks):
        dataset = create_dataset(folder, 1, ranks, rank, augment=False, **SMALL)
        assert dataset.get_dataset_size() == share
        shown.append(flat(numbers(dataset, epochs=4)))
    epochs = [flat(item[e * share : (e + 1) * share] for item in shown) for e in range(4)]
    assert all(len(epoch) == len(set(epoch)) == share * ranks for epoch in epochs)
    # The images left out change: after four epochs all have been seen.
    assert set(flat(epochs)) == set(range(COUNT))
    assert len({tuple(epoch[:share]) for epoch in epochs}) == 4


# ---- both sets together


def test_both_sets_and_their_classes(tmp_path):
    for name in ("train", "val"):
        numbered(tmp_path / name, COUNTS)
    train, val, names = create_datasets(tmp_path, 10, augment=False, **SMALL)
    assert names == class_names(tmp_path / "train") == ("ant", "bee", "cow")
    assert (train.get_dataset_size(), val.get_dataset_size()) == (2, 3)
    assert numbers(val) == [[*range(10)], [*range(10, 20)], [20, 21, 22]]
    _, val, _ = create_datasets(tmp_path, 11, 2, 1, **SMALL)
    assert numbers(val) == [[*range(11, 22)], [22]]
    for place in ("train/bat", "val/dog", "val/elk"):
        store(tmp_path / place, {"a.png": usable()["rgb.png"]})
    message = "expected the same classes in both, got bat in train alone, dog, elk in val alone"
    with pytest.raises(InputError, match=message):
        create_datasets(tmp_path, 4, **SMALL)


# ---- create_dataset2: the tutorials' arguments


def test_the_arguments_are_the_tutorials():
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(create_dataset2).parameters.items()
    }
    required = dict.fromkeys(("dataset_path", "do_train"), inspect.Parameter.empty)
    assert list(defaults.items()) == [
        *required.items(), ("repeat_num", 1), ("batch_size", 32), ("target", "Ascend"),
        ("distribute", False), ("enable_cache", False), ("cache_session_id", None),
        ("train_image_size", 224), ("eval_image_size", 224),
    ]  # fmt: skip


def test_training_is_that_of_create_dataset(pictures):
    actual = batches(create_dataset2(pictures, True, 2, 5, "CPU"))
    ms.set_seed(1)
    options = {"repeat_size": 2, "num_parallel_workers": 8}
    expected = batches(create_dataset(pictures, 5, **options))
    assert len(actual) == len(expected) == 8
    for (images, labels), other in zip(actual, expected, strict=True):
        assert images.shape == (5, 3, 224, 224) and labels.dtype == np.int32
        np.testing.assert_array_equal(images, other[0])
        np.testing.assert_array_equal(labels, other[1])


@pytest.mark.parametrize(
    ("target", "distribute", "parts"),
    [("Ascend", False, 2), ("CPU", True, 2), ("Ascend", True, 2), ("CPU", False, 1)],
)
def test_who_shares_the_images(pictures, monkeypatch, target, distribute, parts):
    monkeypatch.setattr(cluster, "joined", lambda: True)
    monkeypatch.setattr(cluster, "rank_and_size", lambda: (1, 2))
    pairs = batches(create_dataset2(pictures, False, 1, 4, target, distribute))
    labels = np.concatenate([labels for _, labels in pairs]).tolist()
    assert labels == ([1] * 12 if parts == 2 else [0] * 12 + [1] * 12)


def test_ranks_that_have_not_met_are_refused(pictures, monkeypatch):
    for name in cluster.SIZES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=r"labkit.start\(distribute=True\) before"):
        create_dataset2(pictures, True, target="CPU", distribute=True)
    monkeypatch.setenv("RANK_SIZE", "8")
    with pytest.raises(InputError, match="8 ranks were started, and this one has joined no other"):
        create_dataset2(pictures, True)
    create_dataset2(pictures, True, batch_size=2, target="CPU")


def test_the_cache_is_for_evaluation(pictures, monkeypatch):
    """Without a session it is refused, in the tutorial's words."""
    given = []
    taken = lambda *_, cache_session_id, **__: given.append(cache_session_id)  # noqa: E731
    monkeypatch.setattr(imagefolder, "create_dataset", taken)
    for do_train, enable_cache in ((True, True), (False, False), (False, True)):
        options = {"enable_cache": enable_cache, "cache_session_id": "1456416665"}
        create_dataset2(pictures, do_train, **options)
    assert given == [None, None, 1456416665]
    with pytest.raises(ValueError, match="A cache session_id must be provided to use cache."):
        create_dataset2(pictures, False, enable_cache=True)


# ---- what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 24}, "batch_size: expected at most 23, the number of images in .*, got 24"),
        ({"batch_size": 12, "rank_size": 2}, "at most 11, .* of each of 2 ranks in"),
        ({"rank_size": 2, "rank_id": 2}, "rank_id: expected an integer >= 0 and <= 1, got 2"),
        ({"rank_size": 24, "do_train": False}, "rank_size: expected at most 23, .* got 24"),
        ({"resize": "atuo", "do_train": False}, "resize: expected .*Did you mean 'auto'"),
        ({"image_size": 17, "do_train": False}, "an image of 16 rows or columns.*at least 17"),
        ({"backend": "pillow"}, "backend: expected 'mindspore' or augment=False.*got 'pillow'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(folder, arguments, message):
    with pytest.raises(InputError, match=message):
        create_dataset(folder, **({"batch_size": 4} | SMALL | arguments))
