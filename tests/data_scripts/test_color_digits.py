"""Colour digits: the drawings, and a folder that is whole or absent."""

import hashlib
import json
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labkit.data import idx
from labkit.data import prepare as prepare_module
from labkit.data.imagefolder import create_datasets
from labkit.data.prepare import color_digits_folder
from labkit.errors import InputError
from tests.support.data_archives import SCRIPTS, load
from tests.support.data_archives import tree_sums as tree

TRAIN, VAL = 200, 50


@pytest.fixture(scope="module")
def script():
    return load("color_digits")


@pytest.fixture(scope="module")
def folder(script, tmp_path_factory) -> Path:
    return make(script, tmp_path_factory.mktemp("digits") / "out", train=TRAIN, val=VAL)


@pytest.fixture(scope="module")
def few(script, tmp_path_factory) -> Path:
    """A folder of 20 training and 10 validation images."""
    return make(script, tmp_path_factory.mktemp("few") / "out")


@cache
def mnist_set(prefix):
    """Return images and labels of a bundled set."""
    names = [f"{prefix}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    return idx.read_pair(*(SCRIPTS / "bundled" / "mnist" / name for name in names))


@pytest.fixture
def mnist_pair():
    return mnist_set("train")


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "JPEG" and image.mode == "RGB"
        return np.asarray(image)


def make(script, out, **options):
    return script.prepare(
        **({"train": 20, "val": 10, "out": out, "say": lambda line: None} | options)
    )


# ---- what is drawn


def test_the_files_are_the_drawings_of_mnists_rows(script, folder):
    """Each digit occurs equally often, named by its row in its set; JPEG blurs it a little."""
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "train", "val"]
    for usage, count in (("train", TRAIN), ("val", VAL)):
        digits, labels = mnist_set(script.SETS[usage])
        assert np.bincount(labels).min() * 10 == script.MOST[usage]
        paths = sorted((folder / usage).rglob("*"))
        paths = [path for path in paths if path.is_file()]
        shown = [int(path.parent.name) for path in paths]
        assert [labels[int(path.stem)] for path in paths] == shown
        assert np.bincount(shown).tolist() == [count // 10] * 10
        for path in paths:
            row = int(path.stem)
            drawn = script.draw(digits[row], 32, script.generator(1, usage, row)).astype(int)
            assert pixels(path).shape == (32, 32, 3)
            assert np.abs(pixels(path) - drawn).mean() < 10  # 21 for a different row


@pytest.mark.parametrize("size", [16, 32, 97])
def test_the_digit_is_mnists_digit(script, mnist_pair, size):
    """Its mask, shrunk back, is the MNIST digit at some place and scale."""
    for row in range(12):
        digit = mnist_pair[0][row]
        mask = script.place(digit, size, np.random.default_rng(row))
        assert mask.shape == (size, size) and 0 <= mask.min() and mask.max() <= 1
        mass = mask.sum() / size**2 / (digit.sum() / 255 / 28**2)
        assert 0.8**2 * 0.97 <= mass <= 1.03
        # The mask's extent, by second moments in units of 1/28 of the side, is 80 to 100 % of the
        # digit's, widened by the triangle of the interpolation (variance reach^2 / 6).
        reach = max(28 / (0.8 * size), 1)
        for axis in (0, 1):
            spread, own = moment(mask, axis) * 28 / size, moment(digit.astype(float), axis)
            assert 0.78 * own <= spread <= 1.03 * np.sqrt(own**2 + reach**2 / 6)


def moment(image, axis):
    weights = image.sum(axis=1 - axis) / image.sum()
    places = np.arange(len(weights))
    return np.sqrt(weights @ (places - weights @ places) ** 2)


def test_places_and_scales_vary_and_the_box_stays_inside(script):
    full = np.full((28, 28), 255, np.uint8)
    masks = [script.place(full, 64, np.random.default_rng(seed)) > 0.5 for seed in range(200)]
    tops = {int(np.flatnonzero(mask.any(axis=1))[0]) for mask in masks}
    lefts = {int(np.flatnonzero(mask.any(axis=0))[0]) for mask in masks}
    heights = [mask.any(axis=1).sum() for mask in masks]
    assert min(heights) in (51, 52) and max(heights) in (63, 64)
    assert tops >= set(range(9)) and lefts >= set(range(9)) and max(tops | lefts) <= 13


def test_ink_and_ground_are_apart_in_every_pixel(script, mnist_pair):
    """The least contrast is 48 grey levels of luminance, in either direction.

    Both colours are drawn before the digit is read, so they say nothing about the class.
    """
    brighter = []
    for row in range(300):
        digit = mnist_pair[0][row]
        pixels = script.draw(digit, 64, np.random.default_rng(row)).astype(int)
        random = np.random.default_rng(row)
        # The mask is drawn last, after the same random numbers.
        colours = script.colours(random)
        random.uniform(size=(5, 5, 3))
        random.uniform(size=(2, 64, 64, 3))
        mask = script.place(digit, 64, random)
        parts = mask < 1e-9, mask > 0.98
        if not parts[1].any():
            continue
        # Texture, and in the ink 2 % of the ground, which is 191 away at most.
        for part, colour, most in zip(parts, colours, (24 + 8, 8 + 4), strict=True):
            assert np.abs(pixels[part] - colour).max() <= most + 0.5
        ground, ink = (pixels[part] @ script.LUMINANCE for part in parts)
        gap = ink.min() - ground.max() if ink.mean() > ground.mean() else ground.min() - ink.max()
        # Rounding to whole grey levels, and in the ink 2 % of the ground, 191 away at most.
        assert gap >= 48 - 1 - 4
        brighter.append(ink.mean() > ground.mean())
    assert len(brighter) > 250 and 0.35 < np.mean(brighter) < 0.65


def test_colours_are_88_grey_levels_of_luminance_apart(script):
    random = np.random.default_rng(0)
    pairs = np.array([script.colours(random) for _ in range(2000)])
    apart = np.abs((pairs[:, 0] - pairs[:, 1]) @ [0.299, 0.587, 0.114])
    assert 88 <= apart.min() < 88.5
    # Both colours use all of the range that the texture leaves, and every hue.
    for colours in (pairs[:, 0], pairs[:, 1]):
        assert (colours.min(axis=0) < 35).all() and (colours.max(axis=0) > 220).all()
        assert np.bincount(colours.argmax(axis=1)).min() > 400


def test_the_ground_is_textured_and_nothing_is_clipped(script):
    blank = np.zeros((28, 28), np.uint8)
    for seed in range(50):
        image = script.draw(blank, 32, np.random.default_rng(seed)).astype(int)
        assert image.min() >= 0 and image.max() <= 255
        ground, ink = script.colours(np.random.default_rng(seed))
        assert np.abs(image - ground).max() <= script.COARSE + script.FINE + 0.5
        assert image.std(axis=(0, 1)).min() > 4
        # The texture is smooth and coarse besides the noise: quarters of the image differ.
        quarters = image.reshape(2, 16, 2, 16, 3).mean(axis=(1, 3))
        assert np.ptp(quarters, axis=(0, 1)).max() > 2
        margin = script.COARSE + script.FINE
        for colour in (ground, ink):
            assert colour.min() >= margin and colour.max() <= 255 - margin


# ---- reproducibility


def test_pixels_are_a_function_of_seed_set_row_and_size(script, mnist_pair):
    digit = mnist_pair[0][0]
    # The total of version 1 of the drawing; processors may round a pixel or two differently.
    total = script.draw(digit, 32, script.generator(1, "train", 0)).astype(int).sum()
    assert abs(total - 515742) <= 3 and script._VERSION == 1
    keys = [(1, "train", 0), (2, "train", 0), (1, "val", 0), (1, "train", 1)]
    drawn = [script.draw(digit, 32, script.generator(*key)).tobytes() for key in keys]
    assert len(set(drawn)) == 4
    assert script.draw(digit, 32, script.generator(1, "train", 0)).tobytes() == drawn[0]
    # The digit affects neither the colours nor the ground.
    other = script.draw(mnist_pair[0][1], 32, script.generator(1, "train", 0))
    digit = script.draw(digit, 32, script.generator(1, "train", 0))
    assert (other[::31, ::31] == digit[::31, ::31]).all() and (other != digit).any()


def test_the_same_parameters_give_the_same_bytes_and_others_others(script, few, tmp_path):
    again = tree(make(script, tmp_path / "again"))
    assert again == tree(few) and len(again) == 31
    assert not tree(make(script, tmp_path / "a", seed=2)).items() & again.items()
    larger = make(script, tmp_path / "b", size=48)
    assert pixels(next((larger / "val").rglob("*.jpg"))).shape == (48, 48, 3)


# ---- the folder


def test_the_manifest_says_what_the_folder_holds(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    files = tree(folder)
    del files["manifest.json"]
    lines = "".join(f"{name}\0{files[name]}\n" for name in sorted(files))
    assert manifest.pop("encoder").startswith("Pillow ")
    assert manifest == {
        "data": "color-digits",
        "version": 1,
        "size": 32,
        "train": TRAIN,
        "val": VAL,
        "seed": 1,
        "quality": 90,
        "files": TRAIN + VAL,
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
    }


def test_damaged_and_other_folders_are_left_alone(script, few, tmp_path):
    item, known = "train/3/00007.jpg", "manifest.json"
    spoiled = (
        (lambda out: (out / item).unlink(), "is damaged"),
        (lambda out: (out / item).write_bytes(b"x"), "is damaged"),
        (lambda out: (out / "val" / "mine.txt").write_text("x"), "is damaged"),
        (lambda out: (out / known).unlink(), "holds other data than colour digits"),
        (lambda out: (out / known).write_text("[]"), "holds other data than colour digits"),
    )
    for number, (spoil, message) in enumerate(spoiled):
        out = shutil.copytree(few, tmp_path / str(number))
        spoil(out)
        before = tree(out)
        with pytest.raises(InputError, match=f"{out} .*{message}.*Remove it, or choose"):
            make(script, out)
        assert tree(out) == before
    with pytest.raises(InputError, match="holds colour digits of .*'train': 20.*; expected .* 30"):
        make(script, few, train=30)


def test_it_runs_as_a_program_and_killed_it_leaves_nothing(script, few, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, script.__file__, "--train", "20", "--val", "10", "--out", out]
    slow = "import time, runpy, sys, os; os.rename = lambda *_: time.sleep(60); sys.argv = sys.argv"
    slow += "[1:]; sys.path.insert(0, os.path.dirname(sys.argv[0])); runpy.run_path(sys.argv[0], "
    with subprocess.Popen([sys.executable, "-c", f"{slow}run_name='__main__')", *command[1:]]) as p:
        until = time.monotonic() + 60
        while not list(tmp_path.rglob("manifest.json")) and time.monotonic() < until:
            time.sleep(0.05)
        p.kill()
    assert not out.exists() and list(tmp_path.glob(".part-*"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert tree(out) == tree(few) and [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 15}, "size: expected an integer >= 16 and <= 512, got 15"),
        ({"train": 25}, "train: expected a multiple of 10"),
        ({"val": 8930}, "val: expected an integer >= 10 and <= 8920, got 8930"),
        ({"seed": -1}, "seed: expected an integer >= 0"),
    ],
)
def test_values_out_of_range_are_refused(script, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        make(script, tmp_path / "new" / "out", **options)
    assert not (tmp_path / "new").exists()


# ---- the command, and prepare


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A separate project with copies of this project's scripts."""
    place = tmp_path / "project"
    place.mkdir()
    shutil.copytree(SCRIPTS, place / "data_scripts")
    monkeypatch.setattr(prepare_module, "own_checkout", lambda: place)
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS.parent))
    return place


def test_prepare_makes_each_choice_once_side_by_side(project):
    first = prepare_module.prepare("color-digits", train=20, val=10)
    assert color_digits_folder() == "color_digits_32px_6000_1000"
    second = prepare_module.prepare("color-digits", train=20, val=10, seed=2, size=20)
    assert first == project / "datasets" / "color_digits_32px_20_10"
    assert second == project / "datasets" / "color_digits_20px_20_10_seed2"
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    assert prepare_module.prepare("color-digits", train=20, val=10) == first
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == before
    train, val, names = create_datasets(first, 5, image_size=32)
    assert names == tuple("0123456789")
    assert (train.get_dataset_size(), val.get_dataset_size()) == (4, 2)


def test_prepare_refuses_with_the_nearest_name_or_the_scripts_words(project):
    with pytest.raises(InputError, match="unknown data set 'colour-digits'.*'color-digits'"):
        prepare_module.prepare("colour-digits")
    with pytest.raises(InputError, match="unknown option of mnist 'size'; expected one of: none"):
        prepare_module.prepare("mnist", size=32)
    with pytest.raises(InputError, match="color_digits.py: train: expected an integer >= 10"):
        prepare_module.prepare("color-digits", train=7)
    assert not (project / "datasets").exists()
