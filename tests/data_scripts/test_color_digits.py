"""Colour digits: the drawings, and a folder that is whole or absent."""

import hashlib
import json
import shutil
import subprocess
import sys
from functools import cache

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
from tests.support.living import wait_until

SCRIPT = load("color_digits")
SMALL = {"train": 20, "val": 10}


@cache
def mnist_set(prefix):
    """Return images and labels of a bundled set."""
    names = [f"{prefix}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    return idx.read_pair(*(SCRIPTS / "bundled" / "mnist" / name for name in names))


def make(out, **options):
    return SCRIPT.prepare(out=out, **SMALL | options)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A folder of 20 training and 10 validation images."""
    return make(tmp_path_factory.mktemp("few") / "out")


def test_the_files_are_the_drawings_of_mnists_rows(few):
    """Each digit occurs equally often, named by its row in its set; JPEG blurs it a little."""
    assert sorted(path.name for path in few.iterdir()) == ["manifest.json", "train", "val"]
    for usage, count in SMALL.items():
        digits, labels = mnist_set(SCRIPT.SETS[usage])
        assert np.bincount(labels).min() * 10 == SCRIPT.MOST[usage]
        paths = sorted((few / usage).rglob("*.jpg"))
        shown = [int(path.parent.name) for path in paths]
        assert [labels[int(path.stem)] for path in paths] == shown
        assert np.bincount(shown).tolist() == [count // 10] * 10
        for path in paths:
            row = int(path.stem)
            drawn = SCRIPT.draw(digits[row], 32, SCRIPT.generator(1, usage, row)).astype(int)
            with Image.open(path) as image:
                assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (32, 32))
                assert np.abs(np.asarray(image) - drawn).mean() < 10  # 21 for a different row


@pytest.mark.parametrize("size", [16, 97])
def test_the_digit_is_mnists_digit(size):
    """Its mask, shrunk back, is the MNIST digit at some place and scale."""
    for row in range(12):
        digit = mnist_set("train")[0][row]
        mask = SCRIPT.place(digit, size, np.random.default_rng(row))
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


def test_ink_and_ground_are_apart_in_every_pixel():
    """The least contrast is 48 grey levels of luminance, in either direction.

    Both colours are drawn before the digit is read, so they say nothing about the class.
    """
    brighter = []
    for row in range(300):
        digit = mnist_set("train")[0][row]
        pixels = SCRIPT.draw(digit, 64, np.random.default_rng(row)).astype(int)
        random = np.random.default_rng(row)
        # The mask is drawn last, after the same random numbers.
        colours = SCRIPT.colours(random)
        random.uniform(size=(5, 5, 3))
        random.uniform(size=(2, 64, 64, 3))
        mask = SCRIPT.place(digit, 64, random)
        parts = mask < 1e-9, mask > 0.98
        if not parts[1].any():
            continue
        # Texture, and in the ink 2 % of the ground, which is 191 away at most.
        for part, colour, most in zip(parts, colours, (24 + 8, 8 + 4), strict=True):
            assert np.abs(pixels[part] - colour).max() <= most + 0.5
        ground, ink = (pixels[part] @ SCRIPT.LUMINANCE for part in parts)
        gap = ink.min() - ground.max() if ink.mean() > ground.mean() else ground.min() - ink.max()
        # Rounding to whole grey levels, and the 2 % again.
        assert gap >= 48 - 1 - 4
        brighter.append(ink.mean() > ground.mean())
    assert len(brighter) > 250 and 0.35 < np.mean(brighter) < 0.65


def test_pixels_are_a_function_of_seed_set_row_and_size():
    digits = mnist_set("train")[0]
    keys = [(1, "train", 0), (2, "train", 0), (1, "val", 0), (1, "train", 1)]
    drawn = [SCRIPT.draw(digits[0], 32, SCRIPT.generator(*key)) for key in keys]
    # The total of version 1 of the drawing; processors may round a pixel or two differently.
    assert abs(drawn[0].astype(int).sum() - 515742) <= 3 and SCRIPT._VERSION == 1
    assert len({pixels.tobytes() for pixels in drawn}) == 4
    assert (SCRIPT.draw(digits[0], 32, SCRIPT.generator(*keys[0])) == drawn[0]).all()
    # The digit affects neither the colours nor the ground.
    other = SCRIPT.draw(digits[1], 32, SCRIPT.generator(*keys[0]))
    assert (other[::31, ::31] == drawn[0][::31, ::31]).all() and (other != drawn[0]).any()


def test_the_manifest_says_what_the_folder_holds(few, tmp_path):
    """The same parameters give the same bytes (as the program does, below), another seed others."""
    files = tree(few)
    assert not tree(make(tmp_path / "other", seed=2)).items() & files.items()
    manifest = json.loads((few / "manifest.json").read_text())
    del files["manifest.json"]
    lines = "".join(f"{name}\0{files[name]}\n" for name in sorted(files))
    assert manifest["sha256"] == hashlib.sha256(lines.encode()).hexdigest()
    assert manifest.items() >= {"size": 32, "seed": 1, "files": 30, **SMALL}.items()


def test_damaged_and_other_folders_are_left_alone(few, tmp_path):
    spoiled = (
        (lambda out: (out / "train/3/00007.jpg").write_bytes(b"x"), "is damaged"),
        (lambda out: (out / "val" / "mine.txt").write_text("x"), "is damaged"),
        (lambda out: (out / "manifest.json").unlink(), "holds other data than colour digits"),
    )
    for number, (spoil, message) in enumerate(spoiled):
        out = shutil.copytree(few, tmp_path / str(number))
        spoil(out)
        before = tree(out)
        with pytest.raises(InputError, match=f"{out} .*{message}.*Remove it, or choose"):
            make(out)
        assert tree(out) == before
    with pytest.raises(InputError, match="holds colour digits of .*'train': 20.*; expected .* 30"):
        make(few, train=30)


def test_it_runs_as_a_program_and_killed_it_leaves_nothing(few, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, SCRIPT.__file__, "--train", "20", "--val", "10", "--out", out]
    slow = "import time, runpy, sys, os; os.rename = lambda *_: time.sleep(60); sys.argv = sys.argv"
    slow += "[1:]; sys.path.insert(0, os.path.dirname(sys.argv[0])); runpy.run_path(sys.argv[0], "
    with subprocess.Popen([sys.executable, "-c", f"{slow}run_name='__main__')", *command[1:]]) as p:
        wait_until(lambda: list(tmp_path.rglob("manifest.json")))
        p.kill()
    assert not out.exists() and list(tmp_path.glob(".part-*"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert tree(out) == tree(few) and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_prepare_makes_each_choice_once_side_by_side(tmp_path, monkeypatch):
    """In a project of its own, with copies of this project's scripts."""
    project = tmp_path / "project"
    shutil.copytree(SCRIPTS, project / "data_scripts")
    monkeypatch.setattr(prepare_module, "own_checkout", lambda: project)
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS.parent))
    assert color_digits_folder() == "color_digits_32px_6000_1000"
    first = prepare_module.prepare("color-digits", **SMALL)
    second = prepare_module.prepare("color-digits", **SMALL, seed=2, size=20)
    assert first == project / "datasets" / "color_digits_32px_20_10"
    assert second == project / "datasets" / "color_digits_20px_20_10_seed2"
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    assert prepare_module.prepare("color-digits", **SMALL) == first
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == before
    train, val, names = create_datasets(first, 5, image_size=32)
    assert (train.get_dataset_size(), val.get_dataset_size(), *names) == (4, 2, *"0123456789")
    for name, options, message in (
        ("colour-digits", {}, "unknown data set 'colour-digits'.*'color-digits'"),
        ("mnist", {"size": 32}, "unknown option of mnist 'size'; expected one of: none"),
        ("color-digits", {"train": 7}, "color_digits.py: train: expected an integer >= 10"),
    ):
        with pytest.raises(InputError, match=message):
            prepare_module.prepare(name, **options)
