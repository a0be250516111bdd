"""Records of the binary version become the images that were put into them."""

import io
import zlib

import numpy as np
import pytest
from PIL import Image

from labkit.data.sources.archives import Member
from labkit.data.sources.cifar import MAX_PNG, as_png, check_image, read_batch
from labkit.errors import InputError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
LABELS = [2, 0, 2, 1, 0]


def member(content: bytes, name="folder/data_batch_3.bin") -> Member:
    return Member(name, lambda: io.BytesIO(content), len(content))


def records(labels=LABELS, label_bytes=1) -> bytes:
    """Write the records pixel by pixel, as the format is described."""
    content = bytearray()
    for label, image in zip(labels, IMAGES, strict=True):
        content += bytes([9] * (label_bytes - 1) + [label])
        for channel in range(3):
            for row in range(32):
                content += bytes(int(image[row, column, channel]) for column in range(32))
    return bytes(content)


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_labels_and_pixels_are_those_of_the_records(label_bytes):
    batch = read_batch(member(records(label_bytes=label_bytes)), 5, 3, label_bytes)
    assert batch.name == "data_batch_3"
    np.testing.assert_array_equal(batch.labels, LABELS)
    np.testing.assert_array_equal(batch.images, IMAGES)


def test_png_keeps_every_pixel_and_says_the_place():
    batches = [read_batch(member(records(), f"{name}.bin"), 5, 3) for name in "ab"]
    made = dict(as_png(batches, 2))
    assert list(made) == ["a_00000.png", "a_00002.png", "b_00000.png", "b_00002.png"]
    for name, packed in made.items():
        image = Image.open(io.BytesIO(packed))
        assert image.format == "PNG" and image.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(image), IMAGES[int(name[-5])])
        # Noise is the worst that PNG can meet.
        assert len(packed) <= MAX_PNG


@pytest.mark.parametrize("change", [-1, 1, -3073, 3073])
def test_another_length_is_refused(change):
    content = records()[:change] if change < 0 else records() + bytes(change)
    with pytest.raises(InputError, match=f"data_batch_3.bin: {5 * 3073 + change} bytes; expected"):
        read_batch(member(content), 5, 3)


def test_a_label_without_a_class_is_refused():
    with pytest.raises(InputError, match="label 3 at record 3; expected 0 to 2"):
        read_batch(member(records([2, 0, 2, 3, 0])), 5, 3)


def picture(mode="RGB", size=(32, 32), format="PNG") -> bytes:
    packed = io.BytesIO()
    Image.effect_noise(size, 50).convert(mode).save(packed, format)
    return packed.getvalue()


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_only_a_whole_image_of_the_right_shape_passes(format):
    whole = picture(format=format)
    check_image(whole, "x")
    for cut in (0, 10, len(whole) // 2, len(whole) - 40):
        with pytest.raises(InputError, match="^x is no whole JPEG or PNG"):
            check_image(whole[:cut], "x")
    with pytest.raises(InputError, match="^x is 32 x 32 L; expected 32 x 32 RGB"):
        check_image(picture("L", format=format), "x")
    with pytest.raises(InputError, match="^x is 31 x 33 RGB"):
        check_image(picture(size=(31, 33), format=format), "x")


@pytest.mark.parametrize("content", [b"<html>", picture(format="GIF", mode="P"), bytes(5000)])
def test_other_files_are_refused(content):
    with pytest.raises(InputError, match="^x is no whole JPEG or PNG"):
        check_image(content, "x")


def test_an_image_of_a_billion_pixels_is_not_decoded():
    header = bytearray(picture())
    header[16:24] = (50_000).to_bytes(4, "big") * 2
    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    with pytest.raises(InputError, match="^x is no whole JPEG or PNG .*decompression bomb"):
        check_image(bytes(header), "x")
