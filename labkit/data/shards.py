"""Which images of a folder one rank sees, in which order: exact shards for MindSpore's readers."""

from pathlib import Path

import mindspore.dataset as ds

from labkit.base.arguments import integer, wrong


def choose_images(
    count: int, path: Path, batch_size: int, rank_size: int, rank_id: int, do_train: bool
) -> ds.Sampler:
    """Return the sampler of rank ``rank_id`` of ``rank_size`` over N = ``count`` images.

    In training floor(N / rank_size) images of one shuffle that all ranks share, new each epoch:
    disjoint, and of one size so that all ranks make as many steps; up to rank_size - 1 images are
    left out, other ones each epoch. In evaluation consecutive parts in file order: every image on
    exactly one rank. MindSpore's num_shards fills shards up with images of other ones, in
    evaluation too: of 23 images on 4 ranks it shows one twice.

    Raises:
        InputError: when ``rank_id`` is no rank, or a rank would have no batch.
    """
    rank_size = integer("rank_size", rank_size)
    rank_id = integer("rank_id", rank_id, 0, rank_size - 1)
    of = f" of each of {rank_size} ranks" if rank_size > 1 else ""
    share = count // rank_size
    if do_train and batch_size > share:
        images = f"the number of images{of} in {path}"
        raise wrong("batch_size", batch_size, f"at most {share}, {images}")
    if share == 0:  # SequentialSampler would take 0 images for all
        raise wrong("rank_size", rank_size, f"at most {count}, the number of images in {path}")
    if do_train and rank_size == 1:
        return ds.RandomSampler()
    if do_train:
        # Without num_samples shards are filled up with images of other ones.
        return ds.DistributedSampler(rank_size, rank_id, shuffle=True, num_samples=share)
    first, last = (count * rank // rank_size for rank in (rank_id, rank_id + 1))
    return ds.SequentialSampler(first, last - first)


def batches_in_epoch(count: int, path: Path, batch_size: int, rank_size: int) -> int:
    """Return how many batches a rank trains on in an epoch of ``count`` images; reads none.

    Raises:
        InputError: as ``choose_images`` does.
    """
    choose_images(count, path, batch_size, rank_size, 0, do_train=True)  # refuses what has no batch
    return count // rank_size // batch_size
