"""Differences between MindSpore's preprocessing and that of a PyTorch pipeline, stage by stage.

`pillow_preprocess` is torchvision's Resize, CenterCrop, ToTensor, Normalize on a PIL image, written
with Pillow and NumPy. `preprocessing_differences` compares each stage alone, on the same input, and
then the whole pipeline. The largest differences of the stages bound that of the whole:

    whole <= (decode + resize + crop) / (255 min std) + normalise

because both resizes average pixels and so do not enlarge a difference in their input (plus 1 grey
level for their rounding if decode is not 0). The resize causes nearly all of it: Pillow's bilinear
filter widens its triangle when it shrinks an image (antialiasing), MindSpore's always reads four
pixels. When enlarging, both use the same formula. The crop differs by one pixel if the rest (side
minus size) is 3 more than a multiple of 4: torchvision rounds rest / 2 to even, MindSpore cuts it.
Sources: torchvision 0.19 `transforms/functional.py`; Pillow `Resample.c`.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from labkit.base.arguments import integer, names_checked, wrong
from labkit.data.imagefolder import MEAN, STD, plain_operations, resize_length, three_numbers
from labkit.errors import InputError

GREY, NORMALISED, PIXELS = "grey levels", "normalised", "pixels"


@dataclass(frozen=True)
class Difference:
    """One stage's absolute difference over all images.

    Attributes:
        stage: name of the row.
        largest: the largest difference.
        mean: the mean difference.
        unit: unit of ``largest`` and ``mean``.
        limit: an upper bound of ``largest`` for any image; None if it depends on the image.
    """

    stage: str
    largest: float
    mean: float
    unit: str
    limit: float | None

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" (at most {self.limit:.3g})"
        return f"{self.stage:<42} {self.largest:9.3g}{limit:<20} mean {self.mean:8.3g}  {self.unit}"


@names_checked
def pillow_preprocess(
    path: str | os.PathLike,
    image_size: int = 224,
    resize: int | str | None = "auto",
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> np.ndarray:
    """Return the image at ``path`` as torchvision would: (3, image_size, image_size) float32."""
    pixels = pillow_decode(path)
    pixels = pillow_resize(pixels, resize_length(image_size, resize))
    return normalise(centre_crop(pixels, image_size), mean, std)


def pillow_decode(path: str | os.PathLike) -> np.ndarray:
    """Return ``Image.open(path).convert("RGB")``: (H, W, 3) uint8."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def pillow_resize(pixels: np.ndarray, length: int | None) -> np.ndarray:
    """Resize (H, W, 3) uint8 so that the shorter side is ``length``; None: no resize."""
    rows, columns = pixels.shape[:2]
    rows, columns = resized_shape(rows, columns, length)
    image = Image.fromarray(pixels).resize((columns, rows), Image.Resampling.BILINEAR)
    return np.asarray(image)


def resized_shape(rows: int, columns: int, length: int | None) -> tuple[int, int]:
    """Return (rows, columns) with the shorter side ``length`` and the longer side rounded down."""
    if length is None:
        return rows, columns
    if rows <= columns:
        return length, int(length * columns / rows)
    return int(length * rows / columns), length


def centre_crop(pixels: np.ndarray, size: int) -> np.ndarray:
    """Return the (size, size) centre of (H, W, 3); a smaller image is framed in black."""
    missing = [max(size - side, 0) for side in pixels.shape[:2]]
    if any(missing):
        frame = [(rest // 2, (rest + 1) // 2) for rest in missing]
        pixels = np.pad(pixels, [*frame, (0, 0)])
    top, left = (int(round((side - size) / 2.0)) for side in pixels.shape[:2])
    return pixels[top : top + size, left : left + size]


def normalise(pixels: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """Return ToTensor and Normalize of (H, W, 3) uint8: (3, H, W) float32, (x / 255 - m) / s."""
    by_channel = three_numbers("mean", mean), three_numbers("std", std)
    scaled = pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    means, deviations = (np.asarray(value, np.float32)[:, None, None] for value in by_channel)
    return (scaled - means) / deviations


def exact_bilinear(pixels: np.ndarray, shape: tuple[int, int], *, antialias: bool) -> np.ndarray:
    """Resize (H, W, 3) to (rows, columns) in float64, without rounding.

    Each axis is one matrix of triangle weights around (i + 1/2) H / rows - 1/2, edges repeated.
    The triangle reaches one pixel to each side or, with ``antialias``, H / rows if that is more.
    """
    rows, columns = (
        _triangles(of, to, antialias) for of, to in zip(pixels.shape[:2], shape, strict=True)
    )
    wide = np.tensordot(rows, pixels.astype(np.float64), axes=(1, 0))
    return np.tensordot(columns, wide, axes=(1, 1)).transpose(1, 0, 2)


def _triangles(size: int, to: int, antialias: bool) -> np.ndarray:
    """Return the (to, size) weights of one axis."""
    ratio = size / to
    centres = (np.arange(to) + 0.5)[:, None] * ratio - 0.5
    reach = max(ratio, 1.0) if antialias else 1.0
    weights = np.clip(1 - np.abs(np.arange(size)[None] - centres) / reach, 0, None)
    return weights / weights.sum(axis=1, keepdims=True)


@names_checked
def preprocessing_differences(
    paths: Sequence[str | os.PathLike],
    image_size: int = 224,
    resize: int | str | None = "auto",
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> list[Difference]:
    """Compare MindSpore's evaluation preprocessing with Pillow's on the files at ``paths``.

    Returns:
        The rows decode, resize and its three parts, crop and its offset, normalise, whole, and
        whole with backend "pillow".

    Raises:
        InputError: if there are no paths, a file is not an image, or an argument does not fit.
    """
    # A single path as text would be iterated letter by letter.
    several = isinstance(paths, Iterable) and not isinstance(paths, str | bytes | os.PathLike)
    files = list(paths) if several else []
    if not files:
        raise wrong("paths", paths, "the paths of image files, in a list")
    image_size, length = integer("image_size", image_size), resize_length(image_size, resize)
    by_stage: dict[str, list[np.ndarray]] = {}
    for path in files:
        for stage, difference in _one_image(path, image_size, length, mean, std).items():
            by_stage.setdefault(stage, []).append(np.abs(difference).ravel())
    differences = {stage: np.concatenate(images) for stage, images in by_stage.items()}
    largest = {stage: float(values.max()) for stage, values in differences.items()}
    return [
        Difference(stage, largest[stage], float(differences[stage].mean()), unit, limit)
        for stage, unit, limit in _stages(largest, std)
    ]


def _stages(largest: dict[str, float], std: Sequence[float]) -> list[tuple[str, str, float | None]]:
    """Return name, unit and upper bound of each stage, given the ``largest`` differences."""
    decode = largest["decode"] + (largest["decode"] > 0)
    pixels = decode + largest["resize"] + largest["crop"]
    return [
        ("decode", GREY, None),
        ("resize", GREY, None),
        # Fixed point of 11 bits per axis, truncated to quarters, then rounded: 0.78 measured.
        ("resize: MindSpore's rounding", GREY, 1.0),
        ("resize: antialiasing alone", GREY, None),
        # Half a grey level per axis, and weights of 22 bits: 0.99 measured.
        ("resize: Pillow's rounding", GREY, 1.01),
        ("crop", GREY, None),
        ("crop: offset", PIXELS, 1.0),
        ("normalise", NORMALISED, NORMALISE_LIMIT),
        ("whole", NORMALISED, pixels / 255 / min(std) + NORMALISE_LIMIT),
        ('whole, backend="pillow"', NORMALISED, NORMALISE_LIMIT),
    ]


# float32: (x - 255 m) / (255 s) and (x / 255 - m) / s, values up to 2.6, a few roundings each.
NORMALISE_LIMIT = 2e-6


def _one_image(
    path: str | os.PathLike,
    image_size: int,
    length: int | None,
    mean: Sequence[float],
    std: Sequence[float],
) -> dict[str, np.ndarray]:
    """Return every stage's difference for one image, MindSpore's minus Pillow's."""
    try:
        content = np.fromfile(path, dtype=np.uint8)
        decoded = pillow_decode(path)
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{path} cannot be read as an image ({error})") from error
    plain = plain_operations(image_size, length, mean, std)
    decode, *resizes, crop, scale, transpose = plain
    resized, shrunk = pillow_resize(decoded, length), decoded
    for resize in resizes:
        shrunk = resize(decoded)
    rows, columns = resized.shape[:2]
    shape = (rows, columns)
    sharp = exact_bilinear(decoded, shape, antialias=False)
    smooth = exact_bilinear(decoded, shape, antialias=True)
    cropped = centre_crop(resized, image_size)
    expected = normalise(cropped, mean, std)
    pillow = plain_operations(image_size, length, mean, std, "pillow")
    return {
        "decode": _minus(decode(content), decoded),
        "resize": _minus(shrunk, resized),
        "resize: MindSpore's rounding": shrunk - sharp,
        "resize: antialiasing alone": sharp - smooth,
        "resize: Pillow's rounding": smooth - resized,
        "crop": _minus(crop(resized), cropped),
        "crop: offset": _offset(crop, shape, image_size),
        "normalise": transpose(scale(cropped)) - expected,
        "whole": _run(plain, content) - expected,
        'whole, backend="pillow"': _run(pillow, content) - expected,
    }


def _offset(crop: Callable, shape: tuple[int, int], image_size: int) -> np.ndarray:
    """Return the offset of MindSpore's crop minus that of torchvision's: rows, columns."""
    index = np.zeros((*shape, 3), dtype=np.float32)
    index[..., 0], index[..., 1] = np.indices(shape)
    return (crop(index) - centre_crop(index, image_size))[..., :2].max(axis=(0, 1))


def _run(operations: list, content: np.ndarray) -> np.ndarray:
    for operation in operations:
        content = operation(content)
    return np.asarray(content)


def _minus(pixels: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return pixels.astype(np.int32) - expected
