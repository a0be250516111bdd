"""Image files of every kind that a class folder may hold, intact and broken, drawn by code."""

import io
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

ROWS, COLUMNS = 48, 64


def picture(rows=ROWS, columns=COLUMNS, seed=0) -> np.ndarray:
    """Return a smooth random picture: (rows, columns, 3) uint8."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((columns, rows), Image.Resampling.BICUBIC)
    return np.asarray(image)


def encode(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png16(pixels: np.ndarray) -> bytes:
    """Return a PNG of (H, W, 1 or 3) uint16, 16 bits per channel, which Pillow cannot write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    rows, columns, channels = pixels.shape
    head = struct.pack(">IIBBBBB", columns, rows, 16, {1: 0, 3: 2}[channels], 0, 0, 0)
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def usable() -> dict[str, bytes]:
    """Return, by name, a file of each kind that can be read as three channels."""
    colour = Image.fromarray(picture())
    alpha = colour.copy()
    alpha.putalpha(Image.fromarray(picture(seed=1)[..., 0]))
    cmyk = encode(Image.fromarray(np.dstack([picture(), picture(seed=2)[..., :1]]), "CMYK"), "JPEG")
    at = cmyk.index(b"Adobe") + 11
    turned = Image.Exif()
    turned[0x0112] = 6
    random = np.random.default_rng(3)
    return {
        "rgb.jpg": encode(colour, "JPEG", quality=95),
        "progressive.JPEG": encode(colour, "JPEG", progressive=True),
        "gray.jpg": encode(colour.convert("L"), "JPEG"),
        "cmyk.jpg": cmyk,
        "ycck.jpg": cmyk[:at] + b"\x02" + cmyk[at + 1 :],  # as its Adobe segment then says
        "turned.jpg": encode(colour, "JPEG", exif=turned),
        "more bytes after.jpg": encode(colour, "JPEG") + b"\0" * 9,
        "rgb.png": encode(colour, "PNG"),
        "gray.png": encode(colour.convert("L"), "PNG"),
        "black and white.png": encode(colour.convert("1"), "PNG"),
        "palette.png": encode(colour.convert("P"), "PNG"),
        "palette transparent.png": encode(colour.convert("P"), "PNG", transparency=0),
        "rgba.png": encode(alpha, "PNG"),
        "gray alpha.png": encode(alpha.convert("LA"), "PNG"),
        "more bytes after.png": encode(colour, "PNG") + b"\0" * 9,
        "a PNG.JPEG": encode(colour, "PNG"),
        "16 bits.png": png16(random.integers(0, 2**16, (ROWS, COLUMNS, 3), dtype=np.uint16)),
        "16 bits gray.png": png16(random.integers(0, 2**16, (ROWS, COLUMNS, 1), dtype=np.uint16)),
    }


def unusable() -> dict[str, tuple[bytes, str]]:
    """Return broken and foreign files by name, each with a pattern of its error message."""
    colour = Image.fromarray(picture())
    jpeg = encode(colour, "JPEG")
    cmyk = encode(colour.convert("CMYK"), "JPEG")
    at = cmyk.index(b"Adobe") - 4
    cmyk = cmyk[:at] + cmyk[at + 2 + int.from_bytes(cmyk[at + 2 : at + 4], "big") :]
    thumbnail = b"\xff\xe1\x00\x0cExif\0\0\xff\xd8\xff\xd9"
    return {
        "half.jpg": (jpeg[:-300], "is cut short: the end of the JPEG image"),
        "half with thumbnail.jpg": (jpeg[:2] + thumbnail + jpeg[2:-300], "is cut short"),
        "zero.jpg": (b"", "is not a readable JPEG or PNG"),
        "notes.txt": (b"cats and dogs", "is not a readable JPEG or PNG"),
        "moving.gif": (encode(colour, "GIF"), "is not a readable JPEG or PNG"),
        "cmyk.jpg": (cmyk, "is a CMYK JPEG without Adobe's marker"),
    }


def store(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_pictures(root: Path, classes: Sequence[str], each: int) -> Path:
    """Store ``each`` JPEGs of each class, no two alike."""
    for label, name in enumerate(classes):
        images = [Image.fromarray(picture(seed=n + 20 * label)) for n in range(each)]
        store(root / name, {f"{n}.jpg": encode(image, "JPEG") for n, image in enumerate(images)})
    return root


def batches(dataset, epochs=1) -> list[list[np.ndarray]]:
    """Return the batches of a pipeline over ``epochs`` of one iterator."""
    iterator = dataset.create_tuple_iterator(num_epochs=epochs, output_numpy=True)
    return [batch for _ in range(epochs) for batch in iterator]


def numbered(root: Path, counts: dict[str, int]) -> Path:
    """Store flat 16 x 16 PNGs whose grey level is their index in sorted order, from 0 on."""
    number = 0
    for name in sorted(counts):
        files = {}
        for index in range(counts[name]):
            flat = Image.fromarray(np.full((16, 16, 3), number, np.uint8))
            files[f"{index:04d}.png"] = encode(flat, "PNG")
            number += 1
        # Stored out of order, so that the file system does not supply the sorted order.
        store(root / name, dict(sorted(files.items(), key=lambda item: item[0][::-1])))
    return root
