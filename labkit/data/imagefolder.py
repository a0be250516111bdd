"""The ImageNet-style pipeline: a folder of classes becomes a MindSpore dataset.

It yields images float32 (batch, 3, image_size, image_size) and labels int32 (batch,). The label
is the index of the class folder's name in the sorted list of names (`imagefiles.class_names`).

Training   RandomCropDecodeResize(image_size, scale (0.08, 1), ratio (3/4, 1.333)), flip 1/2,
           Normalize(255 mean, 255 std), HWC2CHW; shuffled, incomplete last batch dropped.
Evaluation Decode, Resize(256/224 image_size), CenterCrop(image_size), Normalize, HWC2CHW; in
           order of the file names, every image once.
Source: `create_dataset` of "ResNet-50 migration" (the first five arguments; it has no augmentation,
which is ``augment=False``) and `create_dataset2` of the ResNet-50 and THOR tutorials. Departures:
the number of workers is limited to the cores (the sources ask for 8), evaluation keeps its
incomplete last batch (`create_dataset2` drops it), and shards are exact (see ``create_dataset``).

Files are converted to three channels as follows: grayscale is repeated, a palette looked up, alpha
dropped, CMYK with Adobe's marker converted, the upper 8 of 16 bits taken, EXIF orientation ignored.
The result is bit for bit that of Pillow's convert("RGB"), except for 16-bit grayscale and for CMYK,
which is within 1 grey level. Files that `labkit.data.imagefiles` cannot use are refused by name
when the dataset is created.

The order depends on the seed (`labkit.runtime.start`) alone, random crops and flips on the seed and
num_parallel_workers. `dataset.set_init_step` resumes both exactly.
"""

import functools
import os
from collections.abc import Sequence

import mindspore as ms
import mindspore.dataset as ds
from mindspore.dataset import transforms, vision

from labkit.base import arguments
from labkit.base.arguments import choice, fit_workers, flag, integer, names_checked, number, wrong
from labkit.data.cache import open_cache
from labkit.data.imagefiles import (
    ImageFolder,
    check_same_classes,
    read_folder,
)
from labkit.data.shards import choose_images
from labkit.errors import InputError

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
SCALE = (0.08, 1.0)
RATIO = (0.75, 1.333)
# "mindspore": the C++ operations, whose bilinear resize has no antialiasing. "pillow": the same
# operations on PIL images, equal to Pillow's and thus to torchvision's on PIL images.
BACKENDS = ("mindspore", "pillow")


@names_checked
def create_dataset(
    dataset_path: str | os.PathLike,
    batch_size: int = 32,
    rank_size: int = 1,
    rank_id: int = 0,
    do_train: bool = True,
    *,
    image_size: int = 224,
    resize: int | str | None = "auto",
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    augment: bool = True,
    backend: str = "mindspore",
    repeat_size: int = 1,
    num_parallel_workers: int = 1,
    cache_session_id: int | None = None,
    check: bool = True,
) -> ds.Dataset:
    """Return the pipeline over one folder: (B, 3, S, S) float32, (B,) int32, S = image_size.

    An incomplete last batch has another shape, for which a network compiles again.

    Args:
        dataset_path: folder with one folder per class.
        batch_size: B.
        rank_size: number of ranks that share the N images. In training every rank gets floor(N /
            rank_size) images of one common shuffle, so all make the same number of steps; up to
            rank_size - 1 images are left out, different ones each epoch. In evaluation ranks get
            consecutive parts, every image on exactly one rank, whose sizes differ by at most 1: add
            up counts, do not average. (MindSpore's own shards repeat images to have equal sizes.)
        rank_id: this rank, from 0.
        do_train: True: training; False: evaluation.
        image_size: S.
        resize: length of the shorter side before the centre crop; "auto": image_size * 256 / 224,
            rounded; None: no resize, for images of the right size.
        mean: mean of each channel, for values from 0 to 1.
        std: standard deviation of each channel, for values from 0 to 1.
        augment: False: training images are preprocessed as in evaluation (the pipeline of
            "ResNet-50 migration").
        backend: "mindspore", or "pillow": the antialiased resize of a PyTorch pipeline, 2 to 5
            times slower (`labkit.data.parity` measures the difference); not with augmentation,
            because no seed sets Pillow's random numbers.
        repeat_size: passes over the data in one epoch of the dataset.
        num_parallel_workers: workers of each operation; limited to the number of cores, with a
            printed notice.
        cache_session_id: evaluation only: keep the preprocessed images in MindSpore's dataset
            cache, under the number that `dataset-cache --generate_session` prints.
        check: False: do not open the files beforehand (0.6 s for 12 000 small ones).

    Raises:
        InputError: if arguments do not fit, or a folder or file cannot be used.
    """
    do_train, augment = flag("do_train", do_train), flag("augment", augment)
    batch_size = integer("batch_size", batch_size)
    repeat_size = integer("repeat_size", repeat_size)
    length = resize_length(image_size, resize)
    random = do_train and augment
    _check_backend(backend, do_train, random, cache_session_id)
    folder = read_folder(dataset_path, check=flag("check", check), deep=backend == "mindspore")
    if random:
        operations = augmenting_operations(image_size, mean, std)
    else:
        _refuse_small(folder, image_size, length)
        operations = plain_operations(image_size, length, mean, std, backend)
    sampler = choose_images(folder.images, folder.path, batch_size, rank_size, rank_id, do_train)
    cache = None if cache_session_id is None else open_cache(cache_session_id, folder)
    workers = fit_workers(num_parallel_workers)

    dataset = ds.ImageFolderDataset(
        str(folder.path),
        sampler=sampler,
        class_indexing={name: index for index, name in enumerate(folder.classes)},
        num_parallel_workers=workers,
    )
    dataset = dataset.map(operations, "image", num_parallel_workers=workers, cache=cache)
    dataset = dataset.map(transforms.TypeCast(ms.int32), "label", num_parallel_workers=workers)
    dataset = dataset.batch(batch_size, drop_remainder=do_train, num_parallel_workers=workers)
    return dataset.repeat(repeat_size)


def _check_backend(backend: str, do_train: bool, random: bool, cache: int | None) -> None:
    choice("backend", backend, BACKENDS)
    if random and backend == "pillow":
        expected = "'mindspore' or augment=False: no seed makes Pillow's augmentation repeatable"
        raise wrong("backend", backend, expected)
    if cache is not None and (do_train or backend == "pillow"):
        raise InputError(
            f"cache_session_id: expected do_train=False and backend='mindspore', MindSpore caches "
            f"nothing else; got do_train={do_train} and backend={backend!r}"
        )


@names_checked
def create_datasets(
    folder: str | os.PathLike,
    batch_size: int = 32,
    rank_size: int = 1,
    rank_id: int = 0,
    *,
    train: str = "train",
    val: str = "val",
    augment: bool = True,
    backend: str = "mindspore",
    cache_session_id: int | None = None,
    repeat_size: int = 1,
    image_size: int = 224,
    resize: int | str | None = "auto",
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    num_parallel_workers: int = 1,
    check: bool = True,
) -> tuple[ds.Dataset, ds.Dataset, tuple[str, ...]]:
    """Return the training set, the validation set and the class names of a folder with both.

    ``augment`` and ``repeat_size`` apply to training, ``cache_session_id`` to validation;
    ``backend`` applies to validation only if training is augmented. All other arguments apply to
    both, as in ``create_dataset``.

    Args:
        folder: folder that holds the two folders of images.
        batch_size: as in ``create_dataset``, as are all other arguments except:
        train: name of the folder of training images.
        val: name of the folder of validation images.

    Raises:
        InputError: if their classes are not the same, and as in ``create_dataset``.
    """
    folder = arguments.path("folder", folder, "the path of a folder")
    names = check_same_classes(folder / train, folder / val)
    create = functools.partial(
        create_dataset,
        batch_size=batch_size,
        rank_size=rank_size,
        rank_id=rank_id,
        image_size=image_size,
        resize=resize,
        mean=mean,
        std=std,
        num_parallel_workers=num_parallel_workers,
        check=check,
    )
    train_set = create(
        folder / train,
        do_train=True,
        augment=augment,
        backend="mindspore" if augment else backend,
        repeat_size=repeat_size,
    )
    val_set = create(
        folder / val,
        do_train=False,
        backend=backend,
        cache_session_id=cache_session_id,
    )
    return train_set, val_set, names


def augmenting_operations(
    image_size: int, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> list:
    """Return the random operations of training: file bytes -> (3, S, S) float32."""
    flip = vision.RandomHorizontalFlip(0.5)
    side = integer("image_size", image_size)
    crop = vision.RandomCropDecodeResize(side, scale=SCALE, ratio=RATIO)
    return [crop, flip, _normalise(mean, std), vision.HWC2CHW()]


def plain_operations(
    image_size: int,
    resize: int | None,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    backend: str = "mindspore",
) -> list:
    """Return the operations without randomness: file bytes -> (3, S, S) float32.

    ``resize`` is the length of the shorter side before the centre crop, or None for no resize.
    """
    pillow = choice("backend", backend, BACKENDS) == "pillow"
    operations = [vision.Decode(to_pil=pillow)]
    if resize is not None:
        operations.append(vision.Resize(resize, vision.Inter.LINEAR))
    operations.append(vision.CenterCrop(integer("image_size", image_size)))
    if pillow:
        mean, std = three_numbers("mean", mean), three_numbers("std", std)
        return [*operations, vision.ToTensor(), vision.Normalize(mean, std, is_hwc=False)]
    return [*operations, _normalise(mean, std), vision.HWC2CHW()]


def _normalise(mean: Sequence[float], std: Sequence[float]) -> vision.Normalize:
    mean, std = three_numbers("mean", mean), three_numbers("std", std)
    return vision.Normalize(mean=[255 * value for value in mean], std=[255 * v for v in std])


def three_numbers(name: str, values: Sequence[float]) -> list[float]:
    """Return the three numbers of "mean" or "std"; raise ``InputError`` for anything else."""
    lowest = 0.0 if name == "mean" else 1e-6
    try:
        red, green, blue = values
        return [number(name, value, at_least=lowest, at_most=1) for value in (red, green, blue)]
    except (TypeError, ValueError) as error:
        raise wrong(name, values, f"three numbers from {lowest:g} to 1") from error


def resize_length(image_size: int, resize: int | str | None) -> int | None:
    """Return the length of the shorter side for ``resize``: a number, "auto" or None."""
    image_size = integer("image_size", image_size)
    if resize is None:
        return None
    if isinstance(resize, str):
        choice("resize", resize, ("auto",))
        return round(image_size * 256 / 224)
    return integer("resize", resize, at_least=image_size)


def _refuse_small(folder: ImageFolder, image_size: int, length: int | None) -> None:
    """Refuse images that are too small without a resize: CenterCrop would frame them in black."""
    if length is None and folder.sizes is not None and min(folder.sizes) < image_size:
        raise InputError(
            f"image folder {folder.path} holds images of {folder.sizes[0]} rows or "
            f"{folder.sizes[1]} columns; without resize, expected at least {image_size} of both"
        )
