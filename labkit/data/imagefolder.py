"""The ImageNet-style pipeline: a folder of classes becomes a MindSpore dataset.

It yields images float32 (batch, 3, image_size, image_size) and labels int32 (batch,). The label
is the index of the class folder's name in the sorted list of names (`imagefiles.class_names`).

Training   RandomCropDecodeResize(image_size, scale (0.08, 1), ratio (3/4, 1.333)), flip 1/2,
           Normalize(255 mean, 255 std), HWC2CHW; shuffled, incomplete last batch dropped.
Evaluation Decode, Resize(256/224 image_size), CenterCrop(image_size), Normalize, HWC2CHW; in
           order of the file names, every image once.
Source: `create_dataset` of "ResNet-50 migration" (without augmentation, ``augment=False``) and
`create_dataset2` of the ResNet-50 and THOR tutorials. Departures: at most as many workers as cores
(the sources ask for 8), evaluation keeps its incomplete last batch, and shards are exact.

Files become three channels: grayscale is repeated, alpha dropped, CMYK with Adobe's marker
converted, the upper 8 of 16 bits taken, EXIF orientation ignored. The result is bit for bit that of
Pillow's convert("RGB"), except for 16-bit grayscale, which Pillow turns white (the backend "pillow"
refuses it), and for CMYK, which is within 1 grey level.

The order depends on the seed (`labkit.runtime.start`) alone, random crops and flips on the seed and
num_parallel_workers. `dataset.set_init_step` resumes both exactly.
"""

import os
from pathlib import Path
from typing import Any, Literal, get_args

import mindspore as ms
import mindspore.dataset as ds
from mindspore.dataset import transforms, vision

from labkit.base.arguments import choice, fit_workers, integer, local_path, wrong
from labkit.data.imagefiles import LEFT_BEHIND, class_names, read_folder
from labkit.errors import InputError
from labkit.ranks import cluster

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
# "mindspore": the C++ operations, whose bilinear resize has no antialiasing. "pillow": the same
# operations on PIL images, equal to Pillow's and thus to torchvision's on PIL images.
Backend = Literal["mindspore", "pillow"]
BACKENDS = get_args(Backend)


def create_dataset(
    dataset_path: str | os.PathLike,
    batch_size: int = 32,
    rank_size: int = 1,
    rank_id: int = 0,
    do_train: bool = True,
    *,
    image_size: int = 224,
    resize: int | str | None = "auto",
    augment: bool = True,
    backend: Backend = "mindspore",
    repeat_size: int = 1,
    num_parallel_workers: int = 1,
    cache_session_id: int | None = None,
) -> ds.Dataset:
    """Return the pipeline over one folder: (B, 3, S, S) float32, (B,) int32, S = image_size.

    Args:
        dataset_path: folder with one folder per class.
        batch_size: B.
        rank_size: number of ranks that share the N images. In training every rank gets floor(N /
            rank_size) images of one common shuffle, so all make the same number of steps; up to
            rank_size - 1 images are left out, different ones each epoch. In evaluation ranks get
            consecutive parts, every image on exactly one rank, whose sizes differ by at most 1: add
            up counts, do not average.
        rank_id: this rank, from 0.
        do_train: True: training; False: evaluation.
        image_size: S.
        resize: length of the shorter side before the centre crop; "auto": image_size * 256 / 224,
            rounded; None: no resize.
        augment: False: training images are preprocessed as in evaluation.
        backend: "mindspore", or "pillow", not with augmentation: the antialiased resize of a
            PyTorch pipeline, 2 to 5 times slower (`labkit.data.parity`).
        repeat_size: passes over the data in one epoch of the dataset.
        num_parallel_workers: workers of each operation; limited to the number of cores.
        cache_session_id: evaluation only: keep the preprocessed images in MindSpore's dataset
            cache, under the number that `dataset-cache --generate_session` prints. Files that
            change after they were cached are returned in their old state.

    Raises:
        InputError: if arguments do not fit, or a folder or file cannot be used.
    """
    batch_size = integer("batch_size", batch_size)
    image_size, length = integer("image_size", image_size), resize_length(image_size, resize)
    random = do_train and augment
    if random and choice("backend", backend, BACKENDS) == "pillow":
        expected = "'mindspore' or augment=False: no seed makes Pillow's augmentation repeatable"
        raise wrong("backend", backend, expected)
    names, count, side = read_folder(dataset_path, deep=random or backend != "pillow")
    if random:
        crop = vision.RandomCropDecodeResize(image_size, scale=(0.08, 1.0), ratio=(0.75, 1.333))
        operations = [crop, vision.RandomHorizontalFlip(0.5), *_normalise()]
    elif length is None and side < image_size:
        # CenterCrop would frame them in black.
        found = f"image folder {dataset_path} holds an image of {side} rows or columns"
        raise InputError(f"{found}; without resize, expected at least {image_size} of both")
    else:
        operations = plain_operations(image_size, length, backend)
    folder = local_path("folder", dataset_path)
    sampler = choose_images(count, folder, batch_size, rank_size, rank_id, do_train)
    files = [file for name in names for file in sorted(os.listdir(folder / name))]
    if count < len(files):  # MindSpore's reader takes them all, in this order
        images = [place for place, file in enumerate(files) if not LEFT_BEHIND.match(file)]
        sampler.add_child(ds.SubsetSampler(images))
    cache = None if cache_session_id is None else ds.DatasetCache(cache_session_id, size=0)
    workers = fit_workers(num_parallel_workers)

    dataset = ds.ImageFolderDataset(
        str(folder),
        sampler=sampler,
        class_indexing={name: index for index, name in enumerate(names)},
        num_parallel_workers=workers,
    )
    dataset = dataset.map(operations, "image", num_parallel_workers=workers, cache=cache)
    dataset = dataset.map(transforms.TypeCast(ms.int32), "label", num_parallel_workers=workers)
    dataset = dataset.batch(batch_size, drop_remainder=do_train, num_parallel_workers=workers)
    return dataset.repeat(integer("repeat_size", repeat_size))


def create_datasets(
    folder: str | os.PathLike,
    batch_size: int = 32,
    rank_size: int = 1,
    rank_id: int = 0,
    *,
    train: str = "train",
    val: str = "val",
    augment: bool = True,
    backend: Backend = "mindspore",
    cache_session_id: int | None = None,
    **options: Any,
) -> tuple[ds.Dataset, ds.Dataset, tuple[str, ...]]:
    """Return the training set, the validation set and the class names of a folder with both.

    The folder holds two folders of images, named ``train`` and ``val``; all other arguments are
    those of ``create_dataset``: ``augment`` of training alone, ``cache_session_id`` of validation
    alone, and ``backend`` too where training is augmented.

    Raises:
        InputError: if their classes are not the same, and as in ``create_dataset``.
    """
    folders = local_path("folder", folder) / train, local_path("folder", folder) / val
    names, others = map(class_names, folders)
    if names != others:  # the labels of all classes after an additional one would be shifted
        pairs = (names, others), (others, names)
        alone = [", ".join(sorted({*own} - {*other})) or "none" for own, other in pairs]
        found = f"{alone[0]} in {train} alone, {alone[1]} in {val} alone"
        raise InputError(f"{folder}: expected the same classes in both, got {found}")
    share = (batch_size, rank_size, rank_id)
    of_training = "mindspore" if augment else backend
    train_set = create_dataset(folders[0], *share, augment=augment, backend=of_training, **options)
    options |= {"backend": backend, "cache_session_id": cache_session_id}
    return train_set, create_dataset(folders[1], *share, do_train=False, **options), names


def create_dataset2(
    dataset_path: str | os.PathLike,
    do_train: bool,
    repeat_num: int = 1,
    batch_size: int = 32,
    target: Literal["Ascend", "GPU", "CPU"] = "Ascend",
    distribute: bool = False,
    enable_cache: bool = False,
    cache_session_id: int | None = None,
    *,
    train_image_size: int = 224,
    eval_image_size: int = 224,
) -> ds.Dataset:
    """Return ``create_dataset`` with the arguments of the tutorials' ImageNet pipeline.

    Source: src/dataset.py of the tutorials on THOR, Adasum and dimension reduction (official/cv/
    resnet of MindSpore's models repository). Ranks are joined by ``labkit.start`` before. In
    evaluation the source leaves out up to batch_size - 1 images; here every image counts.

    Args:
        dataset_path, do_train, batch_size: as in ``create_dataset``.
        repeat_num: its ``repeat_size``.
        target: "Ascend": this process reads its share of the images whenever it has joined other
            ranks; "GPU", "CPU": only with ``distribute``.
        distribute: whether the ranks share the images.
        enable_cache, cache_session_id: whether evaluation uses MindSpore's dataset cache, and its
            session, a number or its digits.
        train_image_size, eval_image_size: ``image_size`` in training and in evaluation.

    Raises:
        InputError: if the cache has no session, if the ranks that share the images have not been
            joined, and as in ``create_dataset``.
    """
    choice("target", target, ("Ascend", "GPU", "CPU"))
    session = None
    if enable_cache and not do_train:
        if not cache_session_id:
            raise InputError("A cache session_id must be provided to use cache.")
        session = int(cache_session_id)
    shared = distribute or target == "Ascend"
    if shared and not cluster.joined() and (distribute or cluster.ranks_started() > 1):
        found = f"{cluster.ranks_started()} ranks were started, and this one has joined no other"
        raise InputError(f"{found}; expected labkit.start(distribute=True) before")
    rank, ranks = cluster.rank_and_size() if shared else (0, 1)
    return create_dataset(
        dataset_path,
        batch_size,
        ranks,
        rank,
        do_train,
        image_size=train_image_size if do_train else eval_image_size,
        repeat_size=repeat_num,
        num_parallel_workers=8,
        cache_session_id=session,
    )


def plain_operations(image_size: int, length: int | None, backend: Backend = "mindspore") -> list:
    """Return the operations without randomness; ``length`` is that of ``resize_length``."""
    pillow = choice("backend", backend, BACKENDS) == "pillow"
    resize = [] if length is None else [vision.Resize(length, vision.Inter.LINEAR)]
    operations = [vision.Decode(to_pil=pillow), *resize, vision.CenterCrop(image_size)]
    if pillow:
        return [*operations, vision.ToTensor(), vision.Normalize(MEAN, STD, is_hwc=False)]
    return [*operations, *_normalise()]


def _normalise() -> list:
    scaled = ([255 * value for value in values] for values in (MEAN, STD))
    return [vision.Normalize(*scaled), vision.HWC2CHW()]


def resize_length(image_size: int, resize: int | str | None) -> int | None:
    """Return the length of the shorter side for ``resize``: a number, "auto" or None."""
    image_size = integer("image_size", image_size)
    if isinstance(resize, str) and choice("resize", resize, ("auto",)):
        return round(image_size * 256 / 224)
    return None if resize is None else integer("resize", resize, at_least=image_size)


def choose_images(
    count: int, path: Path, batch_size: int, rank_size: int, rank_id: int, do_train: bool
) -> ds.Sampler:
    """Return the sampler of one rank, of the shards that ``create_dataset`` describes.

    MindSpore's num_shards, and a DistributedSampler without num_samples, pad shards with images of
    other shards, in evaluation too: of 23 images on 4 ranks one is there twice.
    """
    rank_size = integer("rank_size", rank_size)
    rank_id = integer("rank_id", rank_id, 0, rank_size - 1)
    share = count // rank_size
    if do_train and batch_size > share:
        of = f" of each of {rank_size} ranks" if rank_size > 1 else ""
        raise wrong(
            "batch_size", batch_size, f"at most {share}, the number of images{of} in {path}"
        )
    if share == 0:  # SequentialSampler would take 0 to mean all images
        raise wrong("rank_size", rank_size, f"at most {count}, the number of images in {path}")
    if do_train and rank_size == 1:
        return ds.RandomSampler()
    if do_train:
        return ds.DistributedSampler(rank_size, rank_id, shuffle=True, num_samples=share)
    first, last = (count * rank // rank_size for rank in (rank_id, rank_id + 1))
    return ds.SequentialSampler(first, last - first)
