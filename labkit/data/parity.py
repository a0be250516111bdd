"""Differences between MindSpore's preprocessing and that of a PyTorch pipeline, stage by stage.

`pillow_preprocess` is torchvision's Resize, CenterCrop, ToTensor, Normalize on a PIL image, written
with Pillow and NumPy. The largest differences of the stages bound that of the whole:

    whole <= (decode + resize + crop) / (255 min std) + normalise

because both resizes average pixels and so do not enlarge a difference in their input (plus 1 grey
level for their rounding if decode is not 0). The resize causes nearly all of it: Pillow's bilinear
filter widens its triangle when it shrinks an image (antialiasing), MindSpore's always reads four
pixels. When enlarging, both use the same formula. The crop differs by one pixel if the rest (side
minus size) is 3 more than a multiple of 4: torchvision rounds rest / 2 to even, MindSpore cuts it.
Sources: torchvision 0.19 `transforms/functional.py`; Pillow `Resample.c`.
"""

import os
from collections.abc import Sequence

import numpy as np
from PIL import Image

from labkit.data.imagefolder import BACKENDS, MEAN, STD, plain_operations, resize_length
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


def exact_bilinear(pixels: np.ndarray, shape: tuple[int, ...], *, antialias: bool) -> np.ndarray:
    """Resize (H, W, 3) to (rows, columns) in float64, without rounding.

    Each axis is one matrix of triangle weights around (i + 1/2) H / rows - 1/2, edges repeated.
    The triangle reaches one pixel to each side or, with ``antialias``, H / rows if that is more.
    """
    resized = pixels.astype(np.float64)
    for axis, to in enumerate(shape):
        ratio = pixels.shape[axis] / to
        centres = (np.arange(to) + 0.5)[:, None] * ratio - 0.5
        reach = max(ratio, 1.0) if antialias else 1.0
        weights = np.clip(1 - np.abs(np.arange(pixels.shape[axis]) - centres) / reach, 0, None)
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
        resize and its three parts, and crop, in grey levels; of the crop's offset, in pixels; of
        normalise, whole, and whole with backend "pillow", in units of a normalised pixel.

    Raises:
        InputError: if there are no paths, a file is not an image, or an argument does not fit.
    """
    length = resize_length(image_size, resize)
    images = [_one_image(path, image_size, length) for path in paths]
    if not images:
        raise InputError("paths: expected the paths of image files, got none")
    return {stage: float(max(np.abs(i[stage]).max() for i in images)) for stage in images[0]}


def _one_image(path: str | os.PathLike, image_size: int, length: int | None) -> dict:
    """Return every stage's difference for one image, MindSpore's minus Pillow's."""
    try:
        content, decoded = np.fromfile(path, dtype=np.uint8), pillow_decode(path)
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{path} cannot be read as an image ({error})") from error
    plain, pillow = (plain_operations(image_size, length, name) for name in BACKENDS)
    decode, *resizes, crop, scale, transpose = plain
    resized = pillow_resize(decoded, length)
    shrunk = resizes[0](decoded) if resizes else decoded
    shape = resized.shape[:2]
    sharp = exact_bilinear(decoded, shape, antialias=False)
    smooth = exact_bilinear(decoded, shape, antialias=True)
    cropped = centre_crop(resized, image_size)
    # Rows and columns as pixels show from where a crop takes them.
    index = np.zeros((*shape, 3), dtype=np.float32)
    index[..., 0], index[..., 1] = np.indices(shape)
    offset = (crop(index) - centre_crop(index, image_size))[..., :2]
    expected = normalise(cropped)
    whole = pillows = content
    for operation in plain:
        whole = operation(whole)
    for operation in pillow:
        pillows = operation(pillows)
    return {
        "decode": decode(content).astype(np.int32) - decoded,
        "resize": shrunk.astype(np.int32) - resized,
        "resize: MindSpore's rounding": shrunk - sharp,
        "resize: antialiasing alone": sharp - smooth,
        "resize: Pillow's rounding": smooth - resized,
        "crop": crop(resized).astype(np.int32) - cropped,
        "crop: offset": offset.max(axis=(0, 1)),
        "normalise": transpose(scale(cropped)) - expected,
        "whole": whole - expected,
        'whole, backend="pillow"': pillows - expected,
    }
