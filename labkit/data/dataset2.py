"""``create_dataset2``: the tutorials' ImageNet pipeline (THOR, Adasum, dimension reduction).

Source: src/dataset.py of the tutorials (official/cv/resnet of MindSpore's models repository). It is
``labkit.data.imagefolder.create_dataset`` with these arguments. Departures: evaluation keeps its
incomplete last batch and the order of the file names, so that every image counts (there up to
batch_size - 1 images are left out, other ones each time: 16 of ImageNet's 50 000 with 32 on one
device); shards are exact; the ranks are those that ``labkit.start(distribute=True)`` has joined,
nothing is joined here.
"""

import os

import mindspore.dataset as ds

from labkit.base.arguments import flag
from labkit.data import imagefolder
from labkit.errors import InputError, refuse_unknown
from labkit.ranks import cluster

TARGETS = ("Ascend", "GPU", "CPU")


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

    do_train          random crops and flips, shuffled, whole batches; or resize and centre crop
    repeat_num        passes over the data in one epoch of the dataset
    target            Ascend: this process' part of the images wherever it has joined others;
                      others: only with ``distribute``
    distribute        the images are shared out among the ranks
    enable_cache      evaluation: keep the finished images in MindSpore's dataset cache, under
                      cache_session_id; without effect in training
    train_image_size, eval_image_size
                      S in training and in evaluation, arguments of r1.6

    Raises ``InputError`` for a cache without session, several ranks that have not been joined, and
    as ``create_dataset`` does.
    """
    refuse_unknown("target", target, TARGETS)
    do_train, distribute = flag("do_train", do_train), flag("distribute", distribute)
    session = None
    if flag("enable_cache", enable_cache) and not do_train:
        if not cache_session_id:
            raise InputError("A cache session_id must be provided to use cache.")
        session = _whole(cache_session_id)
    rank, ranks = 0, 1
    if distribute or target == "Ascend":
        if not cluster.joined() and (distribute or cluster.ranks_started() > 1):
            raise InputError(
                f"distribute is {distribute}, {cluster.ranks_started()} ranks were started, and "
                "this one has joined no other; expected labkit.start(distribute=True) before"
            )
        rank, ranks = cluster.rank_and_size()
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


def _whole(session):
    """Return a session's number, which upstream takes as text too."""
    try:
        return int(session)
    except (TypeError, ValueError):
        raise InputError(f"cache_session_id is {session!r}; expected a whole number") from None
