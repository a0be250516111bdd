"""`make clean` and `make distclean`, in a copy, remove what the project made and nothing else.

The checkout has a space in its name, and the bundled MNIST is a stand-in of four short files.
"""

import gzip
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.make_commands import needs_make, run_make

ROOT = Path(__file__).parents[2]
MNIST = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
GOES = [
    "runs/01-smoke-1/results.json",
    "build/lib/x.py",
    "dist/mindspore_labs-0.1.0.tar.gz",
    "mindspore_labs.egg-info/PKG-INFO",
    "labkit.egg-info/PKG-INFO",
    ".pytest_cache/x",
    ".ruff_cache/x",
    ".mypy_cache/x",
    ".hypothesis/x",
    "kernel_meta/x",
    "labkit/__pycache__/run.pyc",
    "labkit/nets/__pycache__/lenet.pyc",
    "notebooks/.ipynb_checkpoints/01.ipynb",
    "notebooks/kernel_meta/x",
    "rank_0/om/analyze_fail.ir",
    "notebooks/rank_12/om/analyze_fail.ir",
    "datasets/color_digits_32px_60_10/train/3/00017.jpg",
    "datasets/color_digits_32px_60_10/val/3/00007.jpg",
    "datasets/color_digits_32px_60_10/manifest.json",
    *(f"datasets/MNIST_Data/{split}/{name}" for split, names in MNIST.items() for name in names),
]
STAYS = [
    "labkit/labs/run.py",
    "notebooks/01_lab.ipynb",
    "work/01_lab.ipynb",
    "work/rank_0/om/analyze_fail.ir",
    "work/__pycache__/mine.pyc",
    "work/.ipynb_checkpoints/01.ipynb",
    "rank_0_results/om/mine.ir",
    "rank_1/weights.npz",
    "rank_2/om/mine.txt",
    "mine/rank_0/om/analyze_fail.ir",
    "mine/__pycache__/x.pyc",
    "mine/runs/results.json",
    "examples/env/pyvenv.cfg",
    "examples/env/lib/__pycache__/x.pyc",
    ".venv-other/lib/__pycache__/x.pyc",
    "datasets/ImageNet/train/n01440764/1.JPEG",
    "datasets/CIFAR10/train/0/1.png",
    "datasets/Fashion_MNIST/train/train-images-idx3-ubyte",
    "datasets/MNIST_Data/train/mine.txt",
    "datasets/color_digits_64px_60_10/train/3/00017.jpg",  # no manifest: incomplete, or not ours
    "datasets/color_digits_32px_90_10/manifest.json",
    "datasets/color_digits_32px_90_10/train/3/mine.jpg",
]
FAKE = """#!/bin/sh
case "$*" in
*sys.version_info*) echo 3.11.7 ;;
"-m venv "*) mkdir -p "$3/bin" "$3/lib/python3/site-packages"
    : >"$3/pyvenv.cfg" && cp "$0" "$3/bin/python" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "my check out"
    (folder / "scripts").mkdir(parents=True)
    for name in ("Makefile", "scripts/clean.sh", "scripts/environment.sh"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "pyproject.toml").write_text("[project]\n")
    (folder / "constraints.txt").write_text("numpy==1.26.4\n")
    bundled = folder / "data_scripts" / "bundled" / "mnist"
    bundled.mkdir(parents=True)
    for name in (name for names in MNIST.values() for name in names):
        (bundled / f"{name}.gz").write_bytes(gzip.compress(name.encode()))
    for name in (*GOES, *STAYS, "../check/photo.png", "../my/photo.png", "../out/photo.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(Path(name).name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(FAKE)
    (tmp_path / "bin" / "python3").chmod(0o755)
    return folder


def make(checkout, *arguments, code=0, **environment):
    path = f"{checkout.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = run_make(checkout, *arguments, PATH=path, **environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def environment(checkout, venv):
    subprocess.run(
        ["sh", "scripts/environment.sh", "base"],
        cwd=checkout,
        env=os.environ | {"VENV": venv, "PYTHON": str(checkout.parent / "bin" / "python3")},
        check=True,
        capture_output=True,
    )


def assert_cleaned(checkout):
    assert [name for name in GOES if (checkout / name).exists()] == []
    assert [name for name in STAYS if not (checkout / name).exists()] == []
    for name in ("check", "my", "out"):
        assert (checkout.parent / name / "photo.png").exists()
    assert (checkout / "data_scripts/bundled/mnist/train-images-idx3-ubyte.gz").exists()


@needs_make
def test_clean_takes_what_the_project_made_and_nothing_else(checkout):
    environment(checkout, ".venv")
    make(checkout, "clean")
    assert_cleaned(checkout)
    gone = ["datasets/color_digits_32px_60_10", "notebooks/rank_12", "rank_0", "runs"]
    assert [name for name in gone if (checkout / name).exists()] == []
    assert (checkout / ".venv" / "pyvenv.cfg").exists()
    make(checkout, "clean")
    assert_cleaned(checkout)


@needs_make
def test_digits_of_ones_own_stay(checkout):
    mine = checkout / "datasets/MNIST_Data/test/t10k-labels-idx1-ubyte"
    mine.write_text("other digits")
    make(checkout, "clean")
    assert mine.read_text() == "other digits"
    assert not (checkout / "datasets/MNIST_Data/test/t10k-images-idx3-ubyte").exists()


@needs_make
@pytest.mark.parametrize("name", ["runs", "datasets", "notebooks", "datasets/MNIST_Data", "rank_0"])
def test_nothing_behind_a_link_goes(checkout, name):
    elsewhere = checkout.parent / "big disk"
    (checkout / name).rename(elsewhere)
    (checkout / name).symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    make(checkout, "clean")
    assert (checkout / name).is_symlink() and sorted(elsewhere.rglob("*")) == before


@needs_make
@pytest.mark.parametrize("venv", ["", 'it\'s "mine"', "-rf"])
def test_distclean_takes_the_environment_that_was_made(checkout, venv):
    """VENV is an environment variable first, then, for a new environment, an argument of make."""
    place = checkout / (venv or ".venv")
    for arguments, variables in (((), {"VENV": venv}), ((f"VENV={venv}",), {})):
        environment(checkout, venv)
        assert (place / "pyvenv.cfg").exists()
        make(checkout, "distclean", *arguments, **variables)
        assert not place.exists()
        assert_cleaned(checkout)


@needs_make
def test_distclean_leaves_what_somebody_else_made_and_cleans(checkout, tmp_path):
    """scripts/environment.sh decides what stays; test_environment_script.py tests it."""
    theirs = tmp_path / "home" / "my envs" / "lab"
    for place in (theirs, tmp_path / "home" / "my", checkout / ".venv"):
        place.mkdir(parents=True)
        (place / "pyvenv.cfg").touch()
    before = sorted((tmp_path / "home").rglob("*"))
    said = make(checkout, "distclean", VENV=str(theirs), code=2)
    assert "was not made by this script for this checkout, and stays" in said
    assert_cleaned(checkout)
    assert sorted((tmp_path / "home").rglob("*")) == before
    assert (checkout / ".venv/pyvenv.cfg").exists()


@needs_make
def test_distclean_without_an_environment_is_clean(checkout):
    """A space in VENV once made `[` fail, and `rm -rf my envs/lab` was executed."""
    (checkout / "my").mkdir()
    make(checkout, "distclean", VENV="my envs/lab")
    assert_cleaned(checkout)
    assert (checkout / "my").is_dir()


@needs_make
def test_commands_are_found_in_an_environment_with_a_space(checkout):
    program = checkout / "my envs" / "lab" / "bin" / "labkit"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "called with $*"\n')
    program.chmod(0o755)
    said = make(checkout, "run", "ENVIRONMENT=true", VENV="my envs/lab")
    assert "called with run --preset lab" in said
