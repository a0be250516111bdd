r"""Make an image folder of colour digits from the bundled MNIST: RGB JPEG files, no network.

    python data_scripts/color_digits.py                                6000 + 1000 images of 32 px
    python data_scripts/color_digits.py --size 64 --train 2000 --val 500
    python data_scripts/color_digits.py --seed 2 --out my_digits

Each image shows one MNIST digit, in one colour on a textured ground of another:

    image = (1 - m) (ground + coarse + fine) + m (ink + fine')

m       (size, size), 0 .. 1: the digit at 80 to 100 % of the side, anywhere it fits
ground, ink   colours that differ by at least CONTRAST in luminance, drawn independently of the
        digit, and so of the class; either may be the brighter one
coarse  up to COARSE grey levels per channel, smooth over a quarter of the side; fine, fine' up to
        FINE per pixel and channel. Nothing is clipped, so every ground pixel stays at least
        CONTRAST - COARSE - 2 FINE = 48 grey levels of luminance away from every ink pixel.

Files are `train/CLASS/ROW.jpg` and `val/CLASS/ROW.jpg`: ROW is the digit's number in MNIST's
training set (train) or test set (val). All classes have the same number of images. An image depends
only on the seed, its set, its row and the size; its file also on Pillow's JPEG encoder. The folder
is created whole or not at all, and other data is never overwritten.
"""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from _common import ADVICE, PROJECT, Say, parser, run, staging
from PIL import Image, features
from PIL import __version__ as PILLOW

from labkit.base.arguments import integer, wrong
from labkit.base.arguments import seed as checked_seed
from labkit.data import idx
from labkit.data.prepare import color_digits_folder
from labkit.errors import InputError

MANIFEST = "manifest.json"
MNIST = PROJECT / "data_scripts" / "bundled" / "mnist"
SETS = {"train": "train", "val": "t10k"}
CLASSES = 10
SIZES = (16, 512)
QUALITY = 90
CONTRAST, COARSE, FINE = 88.0, 24.0, 8.0
LUMINANCE = np.array([0.299, 0.587, 0.114])
# Ten times MNIST's rarest class, 5: 5421 images in the training set and 892 in the test set.
MOST = {"train": 54210, "val": 8920}
_VERSION = 1  # of the drawing: raise it when an image changes
_GRID = 5


def prepare(
    size: int = 32,
    train: int = 6000,
    val: int = 1000,
    seed: int = 1,
    out: str | os.PathLike | None = None,
    say: Say = print,
) -> Path:
    """Put the image folder into ``out``; return ``out``. 6000 + 1000 images of 32 px take 3 s.

    An existing folder is verified by its manifest (0.3 s).

    Args:
        size: side of an image in pixels, 16 .. 512.
        train: number of training images, a multiple of 10.
        val: number of validation images, a multiple of 10.
        seed: seed of colours, texture and places.
        out: default: a folder named after the parameters, under `datasets` of the project.
        say: called with each line of the report.

    Raises:
        InputError: if a value is out of range, ``out`` holds other or damaged data, or it cannot be
            written.
    """
    wanted = _parameters(size, train, val, seed)
    if out is None:
        out = PROJECT / "datasets" / color_digits_folder(size, train, val, seed)
    out = Path(out)
    if _is_there(out, wanted):
        say(f"colour digits are in {out} already, verified:")
    else:
        with staging(out.parent) as work:
            tree = work / "tree"
            _draw_all(tree, wanted)
            encoder = f"Pillow {PILLOW}, libjpeg {features.version('jpg')}"
            count, digest = _digest(tree)
            manifest = wanted | {"encoder": encoder, "files": count, "sha256": digest}
            (tree / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            os.rename(tree, out)
        say(f"colour digits are in {out}, drawn:")
    say(f"  {train} + {val} JPEG files of {size} x {size}  SHA-256 {_digest(out)[1]}")
    return out


def draw(digit: np.ndarray, size: int, random: np.random.Generator) -> np.ndarray:
    """Return one image, (size, size, 3) uint8, of a digit, (28, 28) uint8 with white ink."""
    ground, ink = colours(random)
    coarse = random.uniform(-COARSE, COARSE, (_GRID, _GRID, 3))
    smooth = _weights(size, _GRID, 0.0, float(size))
    smooth /= smooth.sum(axis=1, keepdims=True)
    coarse = np.tensordot(smooth, np.tensordot(smooth, coarse, axes=(1, 0)), axes=(1, 1))
    fine = random.uniform(-FINE, FINE, (2, size, size, 3))
    mask = place(digit, size, random)[..., None]
    image = (1 - mask) * (ground + coarse + fine[0]) + mask * (ink + fine[1])
    return np.rint(image).astype(np.uint8)


def place(digit: np.ndarray, size: int, random: np.random.Generator) -> np.ndarray:
    """Return the mask m, (size, size) from 0 to 1: the digit at a random scale and place."""
    side = size * random.uniform(0.8, 1.0)
    top, left = random.uniform(0.0, size - side, 2)
    rows, columns = (_weights(size, 28, begin, side) for begin in (top, left))
    return np.clip(rows @ (digit / 255.0) @ columns.T, 0.0, 1.0)


def colours(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the colours of ground and ink, (3,) each, at least CONTRAST apart in luminance.

    They keep COARSE + FINE away from 0 and 255, so that the texture is never clipped.
    """
    margin = COARSE + FINE
    while True:  # one pair in eleven will do: 64 at a time nearly always suffice
        pairs = random.uniform(margin, 255.0 - margin, (64, 2, 3))
        apart = np.abs((pairs[:, 0] - pairs[:, 1]) @ LUMINANCE) >= CONTRAST
        if apart.any():
            return tuple(pairs[np.argmax(apart)])


def generator(seed: int, usage: str, row: int) -> np.random.Generator:
    """Return the random generator of one image: set ``usage`` of SETS, MNIST's row ``row``."""
    return np.random.default_rng([seed, list(SETS).index(usage), row])


def _weights(size: int, of: int, begin: float, side: float) -> np.ndarray:
    """Return bilinear weights (size, of): ``of`` samples over ``side`` pixels from ``begin`` on.

    The triangle is wider if samples are closer than pixels. Outside ``side`` there are no samples:
    rows there sum to less than 1.
    """
    step = of / side
    centres = (np.arange(size)[:, None] + 0.5 - begin) * step - 0.5
    reach = max(step, 1.0)
    return np.clip(1 - np.abs(np.arange(of)[None] - centres) / reach, 0, None) / reach


def _parameters(size: int, train: int, val: int, seed: int) -> dict:
    """Check the parameters; return them as the manifest holds them."""
    images = {"train": train, "val": val}
    for name, value in images.items():
        if integer(name, value, CLASSES, MOST[name]) % CLASSES:
            raise wrong(name, value, f"a multiple of {CLASSES}, as many images of each digit")
    return {
        "data": "color-digits",
        "version": _VERSION,
        "size": integer("size", size, *SIZES),
        **images,
        "seed": checked_seed(seed),
        "quality": QUALITY,
    }


def _draw_all(tree: Path, wanted: dict) -> None:
    for usage, prefix in SETS.items():
        digits, labels = idx.read_pair(
            MNIST / f"{prefix}-images-idx3-ubyte.gz", MNIST / f"{prefix}-labels-idx1-ubyte.gz"
        )
        for label in range(CLASSES):
            folder = tree / usage / str(label)
            folder.mkdir(parents=True)
            for row in np.flatnonzero(labels == label)[: wanted[usage] // CLASSES].tolist():
                random = generator(wanted["seed"], usage, row)
                image = Image.fromarray(draw(digits[row], wanted["size"], random))
                image.save(folder / f"{row:05d}.jpg", quality=QUALITY)


def _digest(tree: Path) -> tuple[int, str]:
    """Return the number of files below ``tree``, except the manifest, and one SHA-256 over all."""
    whole = hashlib.sha256()
    names = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
    names = [name for name in names if name != MANIFEST]
    for name in names:
        content = hashlib.sha256((tree / name).read_bytes()).hexdigest()
        whole.update(f"{name}\0{content}\n".encode())
    return len(names), whole.hexdigest()


def _is_there(out: Path, wanted: dict) -> bool:
    """Return whether ``out`` holds these images; raise ``InputError`` if it holds others."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        known = json.loads((out / MANIFEST).read_text("utf-8"))
        named = {name: known.get(name) for name in wanted}
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"{out} holds other data than colour digits ({error}). {ADVICE}"
        ) from error
    if named != wanted:
        raise InputError(f"{out} holds colour digits of {named}; expected {wanted}. {ADVICE}")
    if _digest(out) != (known.get("files"), known.get("sha256")):
        raise InputError(f"{out} is damaged: its files are not those of its {MANIFEST}. {ADVICE}")
    return True


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 for bad input with its message on stderr."""
    options = parser(__doc__)
    options.add_argument("--size", type=int, default=32, help="side of an image in pixels")
    options.add_argument("--train", type=int, default=6000, help="training images")
    options.add_argument("--val", type=int, default=1000, help="validation images")
    options.add_argument("--seed", type=int, default=1, help="of colours, texture and places")
    return run(prepare, options, words)


if __name__ == "__main__":
    sys.exit(main())
