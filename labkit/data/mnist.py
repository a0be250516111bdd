"""MNIST and data sets of its format: a folder of IDX files becomes a MindSpore dataset.

The pipeline is that of MindSpore's tutorial on gradient accumulation (r1.0): Resize to 32 x 32
LINEAR, two Rescales, HWC2CHW, labels to int32, shuffle with a buffer of 10 000, batch, repeat.
It yields images float32 (batch, 1, 32, 32) and labels int32 (batch,).

The order of the images depends only on the seed (`mindspore.set_seed`, read when an iterator is
made), not on the number of workers, and `dataset.set_init_step` resumes it exactly. The images are
within 0.76 grey levels of exact bilinear interpolation: Resize on uint8 works in integers.
"""

import os
from pathlib import Path
from typing import Any, Literal

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore.dataset import transforms, vision

from labkit.base.arguments import choice, fit_workers, integer
from labkit.data import idx
from labkit.data.imagefiles import existing_folder
from labkit.data.imagefolder import choose_images
from labkit.errors import InputError

# "seed" is the tutorial's order: x -> (x / STD - MEAN / STD) / 255, so black is -0.00166 and white
# 3.244. "correct" is (x / 255 - MEAN) / STD: black is -0.4242 and white 2.8215.
RESCALES = ("correct", "seed")
MEAN = 0.1307
STD = 0.3081
SIDE = 32
SHUFFLE_BUFFER = 10_000
USAGES = {"train": "train", "test": "t10k"}  # name of a set -> how its files begin


def create_dataset(
    data_path: str | os.PathLike,
    batch_size: int = 32,
    repeat_size: int = 1,
    num_parallel_workers: int = 1,
    *,
    usage: str | None = None,
    shuffle: bool = True,
    images: int | None = None,
    rescale: Literal["correct", "seed"] = "correct",
    rank_size: int = 1,
    rank_id: int = 0,
) -> ds.Dataset:
    """Return the pipeline over one set: (batch, 1, 32, 32) float32, (batch,) int32.

    Args:
        data_path: folder that holds the two files of a set (`.../train`), or, with ``usage``, one
            that holds `train` and `test`.
        batch_size: images in a batch; MNIST's 60 000 training images make 1875 batches of 32.
        repeat_size: passes over the data in one epoch of the dataset.
        num_parallel_workers: workers of each operation; limited to the number of cores.
        usage: "train" or "test"; None: the set that ``data_path`` holds.
        shuffle: whether the images come in a new order each epoch; an incomplete last batch is
            then dropped, and otherwise kept.
        images: number of images to use, the first ones of the file; None: all.
        rescale: "correct", or "seed" for the tutorial's order of the two Rescales.
        rank_size, rank_id: as in ``imagefolder``, of ranks that share all images of the set.

    Raises:
        InputError: if files are missing or broken, or an argument does not fit them.
    """
    choice("rescale", rescale, RESCALES)
    batch_size = integer("batch_size", batch_size)
    folder, usage, held = _find_set(data_path, usage)
    count = held if images is None else integer("images", images, 1, held)
    if rank_size != 1 and count < held:
        raise InputError(f"images: expected None with {rank_size} ranks, got {images}")
    sampler = choose_images(count, folder, batch_size, rank_size, rank_id, shuffle)
    if shuffle and rank_size == 1:
        # RandomSampler(num_samples=count) would draw a different subset of the whole file every
        # epoch, so the shuffle is applied on top of a sequential sampler. The tutorial's default
        # sampler shuffles too: for all 60 000 images the order is the same.
        sampler.add_child(ds.SequentialSampler(0, count))
    workers = fit_workers(num_parallel_workers)
    to_unit = vision.Rescale(1.0 / 255.0, 0.0)
    normalise = vision.Rescale(1.0 / STD, -MEAN / STD)
    operations = [  # (28, 28, 1) uint8 -> (1, 32, 32) float32
        vision.Resize((SIDE, SIDE), interpolation=vision.Inter.LINEAR),
        *((to_unit, normalise) if rescale == "correct" else (normalise, to_unit)),
        vision.HWC2CHW(),
    ]

    dataset = ds.MnistDataset(str(folder), usage, sampler=sampler, num_parallel_workers=workers)
    dataset = dataset.map(transforms.TypeCast(ms.int32), "label", num_parallel_workers=workers)
    dataset = dataset.map(operations, "image", num_parallel_workers=workers)
    if shuffle:
        dataset = dataset.shuffle(SHUFFLE_BUFFER)
    dataset = dataset.batch(batch_size, drop_remainder=shuffle, num_parallel_workers=workers)
    return dataset.repeat(integer("repeat_size", repeat_size))


def create_eval_dataset(
    data_path: str | os.PathLike,
    batch_size: int | None = None,
    *,
    usage: str | None = "test",
    images: int | None = None,
    **options: Any,
) -> ds.Dataset:
    """Return the pipeline of ``create_dataset`` in file order, every image once, none dropped.

    The default batch holds 1000 images, or all if there are fewer: an incomplete last batch has
    another shape, for which a network compiles again, and 1000 divides MNIST's 10 000 test images.
    """
    if batch_size is None:
        batch_size = min(1000, images or _find_set(data_path, usage)[2])
    options |= {"usage": usage, "images": images}
    return create_dataset(data_path, batch_size, shuffle=False, **options)


def load_arrays(
    data_path: str | os.PathLike,
    usage: str | None,
    images: int | None = None,
    *,
    rescale: Literal["correct", "seed"] = "correct",
) -> tuple[np.ndarray, np.ndarray]:
    """Return what ``create_eval_dataset`` yields, in file order, as arrays.

    Images are float32 (count, 1, 32, 32), labels int32 (count,); 60 000 take 246 MB and 2 s.
    """
    dataset = create_eval_dataset(data_path, usage=usage, images=images, rescale=rescale)
    batches = list(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True, do_copy=True))
    pictures, labels = zip(*batches, strict=True)
    return np.concatenate(pictures), np.concatenate(labels)


def _find_set(data_path: str | os.PathLike, usage: str | None) -> tuple[Path, str, int]:
    """Find and check the two files of one set; return their folder, usage and number of images."""
    root = existing_folder(data_path, "MNIST's IDX files")
    usages = [*USAGES] if usage is None else [choice("usage", usage, USAGES)]
    files = {name: f"{USAGES[name]}-images-idx3-ubyte" for name in usages}
    places = [(folder, name) for name in usages for folder in (root, root / name)]
    found = [(folder, name) for folder, name in places if (folder / files[name]).is_file()]
    if not found:
        expected = " or ".join(files.values())
        how = f"and its labels, unpacked (data_scripts/mnist.py --source {root} prepares them)"
        raise InputError(f"data folder {root} does not hold {expected} {how}")
    if usage is None and len(found) > 1:
        raise InputError(f'{root} holds two sets; expected usage="train" or usage="test"')
    folder, usage = found[0]
    images = folder / files[usage]
    labels = folder / f"{USAGES[usage]}-labels-idx1-ubyte"
    # MnistDataset opens every file whose name contains these words, including a .gz or a copy, and
    # fails on it in the middle of a run.
    others = {*folder.glob(f"*{images.name[:-11]}*"), *folder.glob(f"*{labels.name[:-11]}*")}
    for path in others - {images, labels}:
        raise InputError(f"{path} lies beside the unpacked files; MindSpore would read it: move it")
    return folder, usage, len(idx.read_pair(images, labels)[0])
