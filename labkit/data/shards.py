"""Exact shards for MindSpore's readers: which images of a folder a rank sees, in which order."""

from pathlib import Path

import mindspore.dataset as ds

from labkit.base.arguments import integer, wrong


def choose_images(
    count: int, path: Path, batch_size: int, rank_size: int, rank_id: int, do_train: bool
) -> ds.Sampler:
    """Return the sampler of rank ``rank_id`` of ``rank_size`` over N = ``count`` images.

    In training, each rank gets floor(N / rank_size) images of one shuffle that all ranks share, new
    each epoch. The parts are disjoint, and equal in size so that all ranks make the same number of
    steps; up to rank_size - 1 images are left out, different ones each epoch. In evaluation, ranks
    get consecutive parts in file order: every image is on exactly one rank. MindSpore's num_shards
    pads shards with images of other shards, in evaluation too: of 23 images on 4 ranks it shows
    one twice.

    Raises:
        InputError: if ``rank_id`` is not a rank, or a rank would have no batch.
    """
    rank_size = integer("rank_size", rank_size)
    rank_id = integer("rank_id", rank_id, 0, rank_size - 1)
    of = f" of each of {rank_size} ranks" if rank_size > 1 else ""
    share = count // rank_size
    if do_train and batch_size > share:
        images = f"the number of images{of} in {path}"
        raise wrong("batch_size", batch_size, f"at most {share}, {images}")
    if share == 0:  # SequentialSampler would take 0 to mean all images
        raise wrong("rank_size", rank_size, f"at most {count}, the number of images in {path}")
    if do_train and rank_size == 1:
        return ds.RandomSampler()
    if do_train:
        # Without num_samples, shards are padded with images of other shards.
        return ds.DistributedSampler(rank_size, rank_id, shuffle=True, num_samples=share)
    first, last = (count * rank // rank_size for rank in (rank_id, rank_id + 1))
    return ds.SequentialSampler(first, last - first)
