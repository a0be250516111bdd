"""MNIST and data sets of its format: a folder of IDX files becomes a MindSpore dataset.

The pipeline is that of MindSpore's tutorial on gradient accumulation (r1.0): Resize to 32 x 32
LINEAR, two Rescales, HWC2CHW, labels to int32, shuffle with a buffer of 10 000, batch, repeat.
It yields images float32 (batch, 1, 32, 32) and labels int32 (batch,).

The order of the images depends only on the seed (`mindspore.set_seed`, read when an iterator is
made), not on the number of workers, and `dataset.set_init_step` resumes it exactly. The images
themselves are within 0.76 grey levels of exact bilinear interpolation: Resize on uint8 works in
integers and rounds.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore.dataset import transforms, vision

from labkit.base.arguments import choice, fit_workers, flag, integer, names_checked, wrong
from labkit.data import RESCALES, idx
from labkit.data.imagefiles import existing_folder
from labkit.data.shards import choose_images
from labkit.errors import InputError

MEAN = 0.1307
STD = 0.3081
SIDE = 32
SHUFFLE_BUFFER = 10_000
USAGES = ("train", "test")

_FILE_PREFIX = {"train": "train", "test": "t10k"}
_EVALUATION_BATCH = 1000
PIXELS = (28, 28)


@dataclass(frozen=True)
class _Files:
    """One checked set: the folder of its two files, its usage, and its number of images."""

    folder: Path
    usage: str
    count: int


@names_checked
def create_dataset(
    data_path: str | os.PathLike,
    batch_size: int = 32,
    repeat_size: int = 1,
    num_parallel_workers: int = 1,
    *,
    usage: str | None = None,
    shuffle: bool = True,
    drop_remainder: bool | None = None,
    images: int | None = None,
    rescale: str = "correct",
    rank_size: int = 1,
    rank_id: int = 0,
) -> ds.Dataset:
    """Return the pipeline over one set: (batch, 1, 32, 32) float32, (batch,) int32.

    MNIST's 60 000 training images make 1875 batches of 32.

    Args:
        data_path: folder that holds the two files of a set (`.../train`), or, with ``usage``, one
            that holds `train` and `test`.
        batch_size: images in a batch.
        repeat_size: passes over the data in one epoch of the dataset.
        num_parallel_workers: workers of each operation; limited to the number of cores, with a
            printed notice.
        usage: "train" or "test"; None: the set that ``data_path`` holds.
        shuffle: whether the images come in a new order each epoch.
        drop_remainder: whether an incomplete last batch is dropped; None: same as ``shuffle``.
        images: number of images to use, the first ones of the file; None: all.
        rescale: "correct", or "seed" for the tutorial's order of the two Rescales.
        rank_size: number of ranks that share the images, which must be all images of the set. As
            in ``imagefolder``: equal parts of the shuffled images, or, in file order, parts that
            together hold every image once.
        rank_id: this rank, from 0.

    Raises:
        InputError: if files are missing or broken, or an argument does not fit them.
    """
    choice("rescale", rescale, RESCALES)
    shuffle = flag("shuffle", shuffle)
    drop = shuffle if drop_remainder is None else flag("drop_remainder", drop_remainder)
    batch_size = integer("batch_size", batch_size)
    repeat_size = integer("repeat_size", repeat_size)
    files = _find_files(data_path, usage)
    count = _image_count(files, images)
    rank_size = integer("rank_size", rank_size)
    rank_id = integer("rank_id", rank_id, 0, rank_size - 1)
    rows = count // rank_size if drop else count
    if batch_size > rows:
        raise wrong("batch_size", batch_size, f"at most {rows}, the number of images")
    sampler = _sampler(count, shuffle)
    if rank_size > 1:
        if count < files.count:
            raise InputError(f"images: expected None with {rank_size} ranks, got {images}")
        sampler = choose_images(count, files.folder, batch_size, rank_size, rank_id, shuffle)
    workers = fit_workers(num_parallel_workers)

    dataset = ds.MnistDataset(
        str(files.folder),
        usage=files.usage,
        sampler=sampler,
        num_parallel_workers=workers,
    )
    dataset = dataset.map(transforms.TypeCast(ms.int32), "label", num_parallel_workers=workers)
    dataset = dataset.map(image_operations(rescale), "image", num_parallel_workers=workers)
    if shuffle:
        dataset = dataset.shuffle(SHUFFLE_BUFFER)
    dataset = dataset.batch(batch_size, drop_remainder=drop, num_parallel_workers=workers)
    return dataset.repeat(repeat_size)


@names_checked
def create_eval_dataset(
    data_path: str | os.PathLike,
    batch_size: int | None = None,
    num_parallel_workers: int = 1,
    *,
    usage: str | None = "test",
    images: int | None = None,
    rescale: str = "correct",
    rank_size: int = 1,
    rank_id: int = 0,
) -> ds.Dataset:
    """Return the pipeline for evaluation: in file order, every image once, none dropped.

    Args:
        data_path: as in ``create_dataset``.
        batch_size: default 1000, or all images if there are fewer. An incomplete last batch has
            another shape, for which a compiled network compiles again (0.2 to 0.45 s): 1000
            divides MNIST's 10 000 test images.
        num_parallel_workers: as in ``create_dataset``.
        usage: as in ``create_dataset``.
        images: as in ``create_dataset``.
        rescale: as in ``create_dataset``.
        rank_size: as in ``create_dataset``.
        rank_id: as in ``create_dataset``.

    Raises:
        InputError: as in ``create_dataset``.
    """
    if batch_size is None:
        count = _image_count(_find_files(data_path, usage), images)
        batch_size = min(_EVALUATION_BATCH, count)
    return create_dataset(
        data_path,
        batch_size,
        num_parallel_workers=num_parallel_workers,
        usage=usage,
        shuffle=False,
        images=images,
        rescale=rescale,
        rank_size=rank_size,
        rank_id=rank_id,
    )


@names_checked
def load_arrays(
    data_path: str | os.PathLike,
    usage: str | None,
    images: int | None = None,
    *,
    rescale: str = "correct",
) -> tuple[np.ndarray, np.ndarray]:
    """Return images, float32 (count, 1, 32, 32), and labels, int32 (count,), in file order.

    The pipeline itself produces them; the 60 000 training images take 246 MB and 2 s. The
    arguments and errors are those of ``create_dataset``.
    """
    dataset = create_eval_dataset(data_path, usage=usage, images=images, rescale=rescale)
    batches = list(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True, do_copy=True))
    pictures, labels = zip(*batches, strict=True)
    return np.concatenate(pictures), np.concatenate(labels)


def image_operations(rescale: str) -> Sequence[vision.transforms.ImageTensorOperation]:
    """Return the operations: (28, 28, 1) uint8 -> (1, 32, 32) float32; see ``RESCALES``."""
    to_unit = vision.Rescale(1.0 / 255.0, 0.0)
    normalise = vision.Rescale(1.0 / STD, -MEAN / STD)
    return [
        vision.Resize((SIDE, SIDE), interpolation=vision.Inter.LINEAR),
        *((to_unit, normalise) if rescale == "correct" else (normalise, to_unit)),
        vision.HWC2CHW(),
    ]


def _sampler(count: int, shuffle: bool) -> ds.Sampler:
    """Choose the first ``count`` rows, in file order or shuffled again each epoch.

    RandomSampler(num_samples=count) would draw a different subset of the whole file every epoch,
    so the shuffle is applied on top of a sequential sampler. The tutorial's default sampler
    shuffles too: for all 60 000 images the order is the same.
    """
    first = ds.SequentialSampler(0, count)
    if not shuffle:
        return first
    sampler = ds.RandomSampler()
    sampler.add_child(first)
    return sampler


def _find_files(data_path: str | os.PathLike, usage: str | None) -> _Files:
    """Find and check the two files of one set; about 0.2 ms for MNIST."""
    if usage is not None:
        choice("usage", usage, USAGES)
    folder = existing_folder("data_path", data_path, "MNIST's IDX files")
    present = [name for name in USAGES if os.path.exists(_images_path(folder, name))]
    if usage is None:
        if len(present) != 1:
            raise InputError(_ambiguous(folder, present))
        usage = present[0]
    elif usage not in present and os.path.exists(_images_path(folder / usage, usage)):
        folder = folder / usage
    elif usage not in present:
        raise InputError(_missing(folder, usage))
    images = _images_path(folder, usage)
    labels = folder / f"{_FILE_PREFIX[usage]}-labels-idx1-ubyte"
    _refuse_lookalikes(folder, usage, {images.name, labels.name})
    return _Files(folder, usage, idx.check_pair(images, labels, size=PIXELS)[0])


def _refuse_lookalikes(folder: Path, usage: str, wanted: set[str]) -> None:
    # MnistDataset opens every file whose name contains these words, including a .gz or a copy, and
    # fails on it in the middle of a run.
    words = [f"{_FILE_PREFIX[usage]}-{kind}" for kind in ("images", "labels")]
    for path in sorted(folder.iterdir()):
        if path.name not in wanted and any(word in path.name for word in words):
            raise InputError(
                f"data folder {folder} holds {path.name} beside the unpacked files; expected "
                f"{' and '.join(sorted(wanted))} alone, MindSpore would read it as well. Move it"
            )


def _images_path(folder: Path, usage: str) -> Path:
    return folder / f"{_FILE_PREFIX[usage]}-images-idx3-ubyte"


def _ambiguous(folder: Path, present: list[str]) -> str:
    if present or any(os.path.exists(_images_path(folder / name, name)) for name in USAGES):
        return f'{folder} does not say which set is meant; give usage="train" or usage="test"'
    return _missing(folder, *USAGES)


def _missing(folder: Path, *usages: str) -> str:
    names = " or ".join(_images_path(folder, usage).name for usage in usages)
    held = sorted(path.name for path in folder.iterdir())
    content = f"holds {', '.join(held[:6])}{' ...' * (len(held) > 6)}" if held else "is empty"
    return (
        f"data folder {folder} {content}; expected {names} and its labels, unpacked "
        "(data_scripts/mnist.py prepares them)"
    )


def _image_count(files: _Files, images: int | None) -> int:
    return files.count if images is None else integer("images", images, 1, files.count)
