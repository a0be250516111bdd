"""MindSpore's preprocessing against Pillow's: each stage's difference, and what explains it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labkit.data import parity
from labkit.data.imagefolder import MEAN, STD, create_dataset
from labkit.data.parity import exact_bilinear, pillow_preprocess, preprocessing_differences
from labkit.errors import InputError
from tests.support.image_files import batches, encode, picture, store


def photograph(rows, columns, seed=0) -> Image.Image:
    """Return a picture with fine detail, like a photograph, which a resize must handle."""
    random = np.random.default_rng(seed)
    smooth = picture(rows, columns, seed).astype(int)
    detail = random.integers(-40, 41, (rows, columns, 3))
    return Image.fromarray(np.clip(smooth + detail, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> list[Path]:
    """JPEGs that are shrunk; the crop of the second begins at half a pixel: 115 / 2 = 57.5."""
    root = tmp_path_factory.mktemp("large") / "all"
    sizes = [(375, 500), (256, 339), (600, 400), (256, 256)]
    images = {f"{n}.jpg": photograph(*size, seed=n) for n, size in enumerate(sizes)}
    store(root, {name: encode(image, "JPEG", quality=90) for name, image in images.items()})
    return sorted(root.iterdir())


# float32: (x - 255 m) / (255 s) and (x / 255 - m) / s, values up to 2.6.
NORMALISE_LIMIT = 2e-6
# Grey levels: fixed point of 11 bits per axis, truncated to quarters, then rounded: 0.78 measured.
ROUNDING = 1.0


def differences(paths, **options):
    """Return the largest difference of each stage, after comparing them with their bounds."""
    off = preprocessing_differences(paths, **options)
    assert off["resize: MindSpore's rounding"] <= ROUNDING
    assert max(off["normalise"], off['whole, backend="pillow"']) <= NORMALISE_LIMIT
    grey = off["decode"] + off["resize"] + off["crop"] + (off["decode"] > 0)
    assert off["whole"] <= grey / 255 / min(STD) + NORMALISE_LIMIT
    return off


# ---- the reference itself, against PyTorch


def test_exact_bilinear_is_pytorchs_without_antialiasing_and_pillows_is_the_other():
    torch = pytest.importorskip("torch")
    pixels = np.asarray(photograph(57, 83))
    tensor = torch.tensor(pixels).permute(2, 0, 1)[None].double()
    for shape in ((32, 46), (57, 83), (128, 90), (20, 200)):
        plain, smooth = (
            torch.nn.functional.interpolate(tensor, shape, mode="bilinear", antialias=antialias)
            for antialias in (False, True)
        )
        actual = exact_bilinear(pixels, shape)
        np.testing.assert_allclose(actual, plain[0].permute(1, 2, 0).numpy(), atol=1e-9)
        pillows = Image.fromarray(pixels).resize(shape[::-1], Image.Resampling.BILINEAR)
        # Pillow rounds by half a grey level per axis, and its weights to 22 bits.
        assert np.abs(np.asarray(pillows) - smooth[0].permute(1, 2, 0).numpy()).max() <= 1.01


@pytest.mark.parametrize(
    ("side", "top"), [(224, 0), (225, 0), (226, 1), (227, 2), (228, 2), (339, 58), (341, 58)]
)
def test_the_crop_begins_where_torchvisions_does(side, top):
    """round(rest / 2) rounds to even: 1.5 becomes 2 and 0.5 becomes 0."""
    pixels = np.arange(side)[:, None, None] * np.ones((1, 224, 3), int)
    assert parity.centre_crop(pixels, 224)[0, 0, 0] == top
    assert parity.centre_crop(pixels.transpose(1, 0, 2), 224)[0, 0, 0] == top


def test_pillow_preprocess_is_the_four_steps_of_pytorch_to_the_bit(large):
    torch = pytest.importorskip("torch")
    image = Image.open(large[0]).convert("RGB").resize((341, 256), Image.Resampling.BILINEAR)
    pixels = np.asarray(image.crop((58, 16, 58 + 224, 16 + 224))).transpose(2, 0, 1)
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    expected = torch.from_numpy(pixels.copy()).to(torch.float32).div(255).sub(mean).div(std)
    np.testing.assert_array_equal(pillow_preprocess(large[0]), expected.numpy())


# ---- the differences


def test_the_resize_differs_where_it_shrinks_by_antialiasing(tmp_path, large):
    off = differences(large)
    # MindSpore's rounding explains less than a grey level of the difference.
    assert off["decode"] == 0 and 10 < off["resize"] < 255
    assert off["crop"] > 0 and 0.1 < off["whole"]
    # Where nothing is shrunk the two roundings differ by one grey level at most.
    store(tmp_path, {"small.png": encode(photograph(60, 80), "PNG")})
    off = differences([tmp_path / "small.png"])
    assert 0 < off["resize"] <= 1 and off["whole"] <= 1 / 255 / min(STD) + NORMALISE_LIMIT
    # Without resize the two are equal but for float32, and for the crop's offset.
    off = differences(large, resize=None)
    assert off["resize"] == 0 and off["normalise"] > 0
    even = differences([large[3]], resize=None)
    assert even["crop"] == 0 and even["whole"] <= NORMALISE_LIMIT


@pytest.mark.parametrize("backend", ["mindspore", "pillow"])
def test_the_pipeline_has_the_differences_that_the_rows_say(large, backend):
    dataset = create_dataset(large[0].parents[1], 4, do_train=False, backend=backend)
    images = batches(dataset)[0][0]
    expected = np.stack([pillow_preprocess(path) for path in large])
    said = differences(large)["whole" if backend == "mindspore" else 'whole, backend="pillow"']
    assert np.abs(images - expected).max() == pytest.approx(said, abs=NORMALISE_LIMIT)


def test_what_cannot_be_compared_is_refused(tmp_path, large):
    for paths, options, message in (
        ([], {}, "paths: expected the paths of image files, got none"),
        ([tmp_path / "absent.jpg"], {}, "absent.jpg cannot be read as an image"),
        (large, {"image_size": 32, "resize": 10}, "resize: expected an integer >= "),
    ):
        with pytest.raises(InputError, match=message):
            preprocessing_differences(paths, **options)
