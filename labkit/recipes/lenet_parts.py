"""LeNet-5 and MNIST, for ``labkit.recipes.accumulation``; others use ``resnet50_parts``.

What needs MindSpore is imported inside the functions, which are called after ``labkit.start``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import InputError
from labkit.recipes.accumulation_config import AccumulationConfig

if TYPE_CHECKING:
    import numpy as np
    from mindspore import nn

_DIGITS = tuple("0123456789")
_MNIST = 60_000  # images of its training set


def datasets(
    config: AccumulationConfig,
    dataset_path: str | Path,
    rank: int,
    ranks: int,
    *,
    only_evaluate: bool = False,
) -> tuple:
    """Return (training set or None, evaluation set, class names)."""
    from labkit.data import mnist

    shared: dict[str, Any] = {
        "num_parallel_workers": config.num_parallel_workers,
        "rescale": config.rescale,
        "rank_size": ranks,
        "rank_id": rank,
    }
    val_set = mnist.create_eval_dataset(dataset_path, **shared)
    if only_evaluate:
        return None, val_set, _DIGITS
    train_set = mnist.create_dataset(dataset_path, config.batch_size, usage="train", **shared)
    return train_set, val_set, _DIGITS


def training_images(
    config: AccumulationConfig, dataset_path: str | Path | None
) -> tuple[int, int, str]:
    """Return (images, classes, source of these numbers); for None those of MNIST."""
    if dataset_path is None:
        return _MNIST, len(_DIGITS), "MNIST, since no data_path is given"
    from labkit.data import mnist

    words = f"counted in {dataset_path}"
    return mnist.count_images(dataset_path, "train"), len(_DIGITS), words


def image_shape(config: AccumulationConfig) -> tuple[int, int, int]:
    """Return the shape of the network's input, without the batch."""
    from labkit.data.mnist import SIDE

    return 1, SIDE, SIDE


def network_name(config: AccumulationConfig) -> str:
    """Return the name of the network in printed lines."""
    return "LeNet-5"


def build_network(config: AccumulationConfig) -> nn.Cell:
    """Return the network with its initial weights, the same on every rank right after ``start``."""
    from labkit.nets.lenet import LeNet5

    assert config.class_num is not None  # see with_classes
    return LeNet5(config.class_num)


def image(config: AccumulationConfig, path: Path) -> np.ndarray:
    """Return the network's input (1, 32, 32) for an image file, preprocessed as for evaluation.

    MNIST's digits are white on black, 28 x 28 pixels.
    """
    import numpy as np
    from PIL import Image

    from labkit.data import imagefiles, mnist

    imagefiles.check_image(path)
    with Image.open(path) as opened:
        pixels = np.asarray(opened.convert("L"))[..., None]
    if pixels.shape[:2] != mnist.PIXELS:
        raise InputError(f"{path} is {pixels.shape[1]} x {pixels.shape[0]}; expected 28 x 28")
    for operation in mnist.image_operations(config.rescale):
        pixels = operation(pixels)
    return pixels
