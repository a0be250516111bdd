"""``create_dataset2``: the tutorials' ImageNet pipeline (THOR, Adasum, dimension reduction).

Source: src/dataset.py of the tutorials (official/cv/resnet of MindSpore's models repository). It is
``labkit.data.imagefolder.create_dataset`` with these arguments. Departures: evaluation keeps its
incomplete last batch and the order of the file names, so that every image counts (the source leaves
out up to batch_size - 1 images, different ones each time: 16 of ImageNet's 50 000 with 32 on one
device); shards are exact; ``labkit.start(distribute=True)`` joins the ranks, not this function.
"""

import os

import mindspore.dataset as ds

from labkit.base.arguments import choice, flag, names_checked
from labkit.data import imagefolder
from labkit.errors import InputError
from labkit.ranks import cluster

TARGETS = ("Ascend", "GPU", "CPU")


@names_checked
def create_dataset2(
    dataset_path: str | os.PathLike,
    do_train: bool,
    repeat_num: int = 1,
    batch_size: int = 32,
    target: str = "Ascend",
    distribute: bool = False,
    enable_cache: bool = False,
    cache_session_id: int | None = None,
    *,
    train_image_size: int = 224,
    eval_image_size: int = 224,
) -> ds.Dataset:
    """Return the pipeline of one folder of classes: (B, 3, S, S) float32, (B,) int32.

    Args:
        dataset_path: folder with one folder per class.
        do_train: True: random crops and flips, shuffled, whole batches; False: resize and centre
            crop.
        repeat_num: passes over the data in one epoch of the dataset.
        batch_size: B.
        target: "Ascend": this process reads its share of the images whenever it has joined other
            ranks; "GPU", "CPU": only with ``distribute``.
        distribute: whether the ranks share the images.
        enable_cache: whether evaluation keeps the preprocessed images in MindSpore's dataset cache.
        cache_session_id: session of that cache, a number or its digits.
        train_image_size: S in training (an argument of r1.6).
        eval_image_size: S in evaluation.

    Raises:
        InputError: if the cache has no session, if the ranks that share the images have not been
            joined, and as in ``imagefolder.create_dataset``.
    """
    choice("target", target, TARGETS)
    do_train, distribute = flag("do_train", do_train), flag("distribute", distribute)
    session = None
    if flag("enable_cache", enable_cache) and not do_train:
        if not cache_session_id:
            raise InputError("A cache session_id must be provided to use cache.")
        text = isinstance(cache_session_id, str) and cache_session_id.isdecimal()
        session = int(cache_session_id) if text else cache_session_id
    rank, ranks = _share(target, distribute)
    return imagefolder.create_dataset(
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


def _share(target: str, distribute: bool) -> tuple[int, int]:
    """Return (this rank, number of ranks that share the images)."""
    if not distribute and target != "Ascend":
        return 0, 1
    if not cluster.joined() and (distribute or cluster.ranks_started() > 1):
        raise InputError(
            f"distribute is {distribute}, {cluster.ranks_started()} ranks were started, and this "
            "one has joined no other; expected labkit.start(distribute=True) before"
        )
    return cluster.rank_and_size()
