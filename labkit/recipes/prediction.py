"""Predict the classes of images with a checkpoint, print them and draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import runtime
from labkit.base.arguments import integer, wrong
from labkit.base.files import whole_file
from labkit.errors import InputError
from labkit.recipes import run_folder

if TYPE_CHECKING:
    import numpy as np

    from labkit.recipes.config import TrainingConfig
    from labkit.recipes.recipe import Recipe

_AT_ONCE = 32  # images in a batch
_COLUMNS = 4


def predict(
    recipe: Recipe,
    config: TrainingConfig,
    checkpoint_path: str | Path,
    images: Sequence[str | Path],
    *,
    device: str = "auto",
    top: int = 5,
    picture: str | Path | None = None,
) -> list[list[tuple[str, float]]]:
    """Print a line with the likeliest classes and probabilities of each image, and return them.

    Classes are named after the folders of the training, from classes.json beside the checkpoint;
    without that file they are numbered.

    Args:
        recipe: recipe of the checkpoint.
        config: its settings.
        checkpoint_path: checkpoint of ``Recipe.train``, or of the network alone.
        images: image files; of any size for a ResNet, 28 x 28 pixels for LeNet-5.
        device: as for ``labkit.start``.
        top: number of classes shown for each image.
        picture: PNG file to draw the images into, with the likeliest class of each.

    Returns:
        For each image its ``top`` classes as pairs (class, probability), the likeliest first.

    Raises:
        InputError: for a checkpoint of another network, and for a file that is not an image.
    """
    top = integer("top", top)
    if not images:
        raise wrong("images", images, "at least one file")
    if picture is not None:
        _check_picture(Path(picture))
    runtime.start(device, config.seed)
    path = run_folder.beside(checkpoint_path, run_folder.CLASSES)
    names = run_folder.read_classes(path) or []
    config = replace(config, class_num=config.class_num or len(names) or None)
    if config.class_num is None:
        raise InputError(f"{checkpoint_path} has no classes.json beside it; expected --class_num")
    # A network may have more outputs than the data had classes: 1001 for ImageNet's 1000.
    names += map(str, range(len(names), config.class_num))
    probabilities = _probabilities(recipe, config, checkpoint_path, images)
    likeliest = [_likeliest(row, names, top) for row in probabilities]
    for image, classes in zip(images, likeliest, strict=True):
        print(f"{image}: " + ", ".join(f"{name} {share:.3f}" for name, share in classes))
    if picture is not None:
        _draw(Path(picture), images, likeliest)
        print(f"labkit: drawn in {picture}", flush=True)
    return likeliest


def _probabilities(
    recipe: Recipe, config: TrainingConfig, checkpoint_path: str | Path, images: Sequence[Any]
) -> np.ndarray:
    """Return the softmax of the network's logits: (images, classes), float64."""
    import numpy as np
    from mindspore import Tensor
    from scipy.special import softmax

    from labkit.recipes.resnet50_parts import load_network

    parts = recipe.parts(config)
    network = parts.build_network(config)
    load_network(network, checkpoint_path)
    network.set_train(False)
    inputs = [parts.image(config, Path(image)) for image in images]
    logits = [
        network(Tensor(np.stack(inputs[begin : begin + _AT_ONCE]))).asnumpy()
        for begin in range(0, len(inputs), _AT_ONCE)
    ]
    return softmax(np.concatenate(logits).astype(np.float64), axis=1)


def _likeliest(row: np.ndarray, names: list[str], top: int) -> list[tuple[str, float]]:
    order = row.argsort(kind="stable")[::-1][:top]
    return [(names[k], float(row[k])) for k in order]


def _check_picture(path: Path) -> None:
    if path.suffix != ".png" or not path.absolute().parent.is_dir():
        raise wrong("picture", str(path), "the name of a .png file in a folder")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise InputError("--picture needs matplotlib, of the extra labs") from None


def _draw(path: Path, images: Sequence[Any], likeliest: list[list[tuple[str, float]]]) -> None:
    """Draw each image with its class and probability above it."""
    from matplotlib.figure import Figure
    from PIL import Image

    columns = min(_COLUMNS, len(images))
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(2.4 * columns, 2.7 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for place in axes:
        place.axis("off")
    for place, image, classes in zip(axes, images, likeliest, strict=False):
        with Image.open(image) as opened:
            place.imshow(opened.convert("RGB"))
        name, share = classes[0]
        place.set_title(f"{name[:20]}\np = {share:.3f}", fontsize=9)
    with whole_file(path, "the picture") as temporary:
        figure.savefig(temporary, dpi=150)
