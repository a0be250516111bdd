"""Differences between MindSpore's preprocessing and that of a PyTorch pipeline, stage by stage.

`pillow_preprocess` is torchvision's Resize, CenterCrop, ToTensor, Normalize on a PIL image, written
with Pillow and NumPy. The largest differences of the stages bound that of the whole:

    whole <= (decode + resize + crop) / (255 min std) + normalise

because both resizes average pixels (plus 1 grey level for their rounding if decode is not 0). The
resize causes nearly all of it: Pillow's bilinear filter widens its triangle when it shrinks an
image (antialiasing), MindSpore's always reads four pixels. The crop differs by one pixel if the
rest (side minus size) is 3 more than a multiple of 4: torchvision rounds rest / 2 to even,
MindSpore cuts it. Sources: torchvision 0.19 `transforms/functional.py`; Pillow `Resample.c`.
"""

import os
from collections.abc import Sequence

import numpy as np
from PIL import Image

from labkit.data.imagefolder import MEAN, STD, plain_operations, resize_length
from labkit.errors import InputError


def pillow_preprocess(
    path: str | os.PathLike, image_size: int = 224, resize: int | str | None = "auto"
) -> np.ndarray:
    """Return the image at ``path`` as torchvision would: (3, image_size, image_size) float32."""
    pixels = pillow_resize(pillow_decode(path), resize_length(image_size, resize))
    return normalise(centre_crop(pixels, image_size))


def pillow_decode(path: str | os.PathLike) -> np.ndarray:
    """Return ``Image.open(path).convert("RGB")``: (H, W, 3) uint8."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def pillow_resize(pixels: np.ndarray, length: int | None) -> np.ndarray:
    """Resize (H, W, 3) uint8: the shorter side to ``length``, the longer one rounded down."""
    if length is None:
        return pixels
    rows, columns = (int(length * side / min(pixels.shape[:2])) for side in pixels.shape[:2])
    return np.asarray(Image.fromarray(pixels).resize((columns, rows), Image.Resampling.BILINEAR))


def centre_crop(pixels: np.ndarray, size: int) -> np.ndarray:
    """Return the (size, size) centre of (H, W, 3), neither side of which is smaller."""
    top, left = (round((side - size) / 2) for side in pixels.shape[:2])
    return pixels[top : top + size, left : left + size]


def normalise(pixels: np.ndarray) -> np.ndarray:
    """Return ToTensor and Normalize of (H, W, 3) uint8: (3, H, W) float32, (x / 255 - m) / s."""
    scaled = pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    means, deviations = (np.asarray(values, np.float32)[:, None, None] for values in (MEAN, STD))
    return (scaled - means) / deviations


def exact_bilinear(pixels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Resize (H, W, 3) to (rows, columns) in float64, without antialiasing and without rounding.

    Each axis is one matrix of triangle weights around (i + 1/2) H / rows - 1/2, edges repeated.
    """
    resized = pixels.astype(np.float64)
    for axis, to in enumerate(shape):
        centres = (np.arange(to) + 0.5)[:, None] * (pixels.shape[axis] / to) - 0.5
        weights = np.clip(1 - np.abs(np.arange(pixels.shape[axis]) - centres), 0, None)
        weights /= weights.sum(axis=1, keepdims=True)
        resized = np.moveaxis(np.tensordot(weights, resized, axes=(1, axis)), 0, axis)
    return resized


def preprocessing_differences(
    paths: Sequence[str | os.PathLike],
    image_size: int = 224,
    resize: int | str | None = "auto",
) -> dict[str, float]:
    """Compare MindSpore's evaluation preprocessing with Pillow's on the files at ``paths``.

    Returns:
        The largest difference of each stage alone, on the same input, by its name: of decode,
        resize, its part that is MindSpore's rounding, and crop, in grey levels; of normalise,
        whole, and whole with backend "pillow", in units of a normalised pixel.

    Raises:
        InputError: if there are no paths, a file is not an image, or an argument does not fit.
    """
    length = resize_length(image_size, resize)
    if not (images := [_one_image(path, image_size, length) for path in paths]):
        raise InputError("paths: expected the paths of image files, got none")
    return {stage: float(max(np.abs(i[stage]).max() for i in images)) for stage in images[0]}


def _one_image(path: str | os.PathLike, image_size: int, length: int | None) -> dict:
    """Return every stage's difference for one image, MindSpore's minus Pillow's."""
    try:
        content, decoded = np.fromfile(path, dtype=np.uint8), pillow_decode(path)
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{path} cannot be read as an image ({error})") from error
    whole = pillows = content
    for operation in plain_operations(image_size, length, "pillow"):
        pillows = operation(pillows)
    plain = plain_operations(image_size, length)
    for operation in plain:
        whole = operation(whole)
    decode, *resizes, crop, scale, transpose = plain
    resized = pillow_resize(decoded, length)
    shrunk = resizes[0](decoded) if resizes else decoded
    cropped = centre_crop(resized, image_size)
    expected = normalise(cropped)
    return {
        "decode": decode(content).astype(np.int32) - decoded,
        "resize": shrunk.astype(np.int32) - resized,
        "resize: MindSpore's rounding": shrunk - exact_bilinear(decoded, resized.shape[:2]),
        "crop": crop(resized).astype(np.int32) - cropped,
        "normalise": transpose(scale(cropped)) - expected,
        "whole": whole - expected,
        'whole, backend="pillow"': pillows - expected,
    }
