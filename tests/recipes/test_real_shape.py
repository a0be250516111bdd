"""Every recipe at its own shape: ResNet-50, 1001 classes, 224 pixels, augmentation, float16.

Each recipe is trained by its command for two updates and evaluated, with its own settings except
those in ``OTHER``, whose batches fit into 10 GB: on CPU MindSpore took 1.2 GB plus 222 MB per image
in float16, and for THOR 6 GB plus 330 MB.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from PIL import Image
from safetensors.numpy import load_file

from labkit.data.imagefolder import plain_operations, resize_length
from labkit.migration.weights import state_dict
from labkit.recipes import recipe, training
from labkit.training.records import read_records
from tests.support.image_files import encode, picture, store
from tests.support.recipes import arrays, newest
from tests.twins import smoothed_cross_entropy

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("runtime")]

ROOT = Path(__file__).resolve().parents[2]
FREE = 11e9  # bytes of memory that a training needs
CLASSES = [f"n{number:08d}" for number in range(16)]  # folders with images, of 1001 classes
OTHER = {
    # 256 images per update, as on the document's 8 devices, which has no float16.
    "resnet50": {"batch_size": 32, "micro_steps": 8, "class_num": 1001},
    # One refresh, and one update that uses its inverses.
    "thor": {"batch_size": 12, "frequency": 2},
    # Two updates of 2 x 8 micro-batches would take 15 minutes. Warm-up begins at rate 0.
    "adasum": {"settings": "one_device", "batch_size": 32, "node_size": 2, "warmup_epochs": 0},
    # Three updates, the first at rate 0: three snapshots for a basis of two components.
    "subspace-1": {"batch_size": 32, "snapshots_per_epoch": 3},
    "subspace-2": {"batch_size": 24, "n_components": 2},
}
# At the start the logits z = W h + b of ResNet-50 have W ~ N(0, 0.01^2) and 2048 means h of sums
# of BatchNorm's outputs: h^2 is 1 after the first block's ReLU, and at most 1 more after each of
# the next two. So var z <= 0.01^2 * 2048 * 3 = 0.61, and the loss is log 1001 + var z / 2, up to
# the mean of z over the 16 labels: 0.9 sqrt(0.61 / 16) = 0.18. The bounds allow three times that.
LOWEST, HIGHEST = np.log(1001) - 3 * 0.18, np.log(1001) + 0.61 / 2 + 3 * 0.18


def command(verb, name, data, **settings):
    """Run a recipe's command in a separate process; return what it printed."""
    settings |= {"data_path": data, "device_target": "CPU"}
    words = [f"--{key}={value}" for key, value in settings.items()]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "labkit.recipes", verb, name, *words],
        cwd=data.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trained(name, folder, micro_batches, **settings):
    """Train a recipe for an epoch; evaluate its checkpoint in a new process."""
    free = psutil.virtual_memory().available
    if free < FREE:
        pytest.skip(f"{free / 1e9:.1f} GB of memory are free; this wants {FREE / 1e9:.0f}")
    folder.mkdir()
    data, run = folder / "data", folder / "run"
    images = micro_batches * OTHER[name]["batch_size"] + 5
    for place, first, count in (("train", 0, images), ("val", 10**6, len(CLASSES))):
        for number in range(first, first + count):
            image = Image.fromarray(picture(256, 256, seed=number))
            files = {f"{number}.JPEG": encode(image, "JPEG")}
            store(data / place / CLASSES[number % len(CLASSES)], files)
    settings |= OTHER[name] | {"epoch_size": 1, "save_checkpoint_path": run}
    said, path = command("train", name, data, **settings), newest(run)
    evaluated = command("eval", name, data, checkpoint_path=path)
    found = {"name": name, "folder": run, "data": data, "checkpoint": path}
    rows = read_records(run / "records.csv").rows
    return SimpleNamespace(said=said, evaluated=evaluated, rows=rows, **found)


def build_network(name):
    """Return the recipe's ResNet-50 with its initial weights."""
    config = next(iter(recipe(name).named.values()))
    return training.build_network(replace(config, class_num=1001))


def initial(name):
    """Return name -> initial weight, without the dense bias, which MindSpore draws at random."""
    weights = {p.name: p.asnumpy() for p in build_network(name).trainable_params()}
    return {name: weight for name, weight in weights.items() if name != "fc.bias"}


def figures(said):
    """Return (top-1, top-5, loss) of the one evaluation in what a command printed."""
    number = r"(\d+\.\d{4})"
    form = rf"^labkit: top_1_accuracy {number}, top_5_accuracy {number}, loss {number}, "
    (numbers,) = re.findall(form, said, re.M)
    return tuple(map(float, numbers))


def by_pytorch(run):
    """Return the figures of a checkpoint by PyTorch's ResNet-50, with the loss in float64."""
    torch = pytest.importorskip("torch")
    from tests.support import torch_resnet

    network = build_network(run.name)
    training.load(network, run.checkpoint, CLASSES)
    module = torch_resnet.resnet(50, 1001).eval()
    module.load_state_dict({k: torch.from_numpy(v) for k, v in state_dict(network).items()})
    images = [np.fromfile(path, np.uint8) for path in sorted(run.data.glob("val/*/*"))]
    for operation in plain_operations(224, resize_length(224, "auto")):
        images = [operation(image) for image in images]
    with torch.no_grad():
        logits = module(torch.from_numpy(np.stack(images))).numpy().astype(np.float64)
    labels = np.arange(len(CLASSES))
    better = (logits > logits[labels, labels][:, None]).sum(1)
    loss, _ = smoothed_cross_entropy(logits, labels, 0.9, 0.1 / 1000)
    return np.mean(better < 1), np.mean(better < 5), loss


def check(run, images, before=None, updates=2):
    """Check output, records, weights and evaluations, which every recipe has, of an epoch.

    ``images`` are those in an update, ``before`` the weights that it starts from, by name; None:
    ResNet-50's initial ones, and the loss before the first update is theirs.
    """
    if before is None:
        before = initial(run.name)
        assert LOWEST < run.rows[0]["loss"] < HIGHEST
    assert f"\nlabkit: ResNet-50 into {run.folder}, {images} images in an update\n" in run.said
    shown = dict(re.findall(r"^  (\w+) +(\S+)$", run.said, re.M))
    shape = {"depth": "50", "class_num": "1001", "image_size": "224", "augment": "True"}
    assert shown | shape == shown
    assert shown["precision"] == ("O0" if run.name == "resnet50" else "O2")
    assert [row["images"] for row in run.rows] == [images] * updates
    for row in run.rows:
        assert np.isfinite(row["loss"]) and 0 < row["gradient_norm"] < np.inf
    after = arrays(run.checkpoint)
    for name, weight in before.items():
        assert after[name].dtype == np.float32 and np.isfinite(after[name]).all(), name
        assert not np.array_equal(after[name], weight), name
    assert figures(run.evaluated) == figures(run.said)
    *accuracies, loss = by_pytorch(run)
    assert figures(run.said)[:2] == tuple(accuracies)
    # Four decimals are printed; 50 layers in float32, with unfitted statistics, add 1e-7.
    assert figures(run.said)[2] == pytest.approx(loss, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize(("name", "batches"), [("resnet50", 8), ("adasum", 4)])
def test_several_micro_batches_an_update(tmp_path, name, batches):
    """Adasum has two workers, each with its own moments."""
    run = trained(name, tmp_path / name, 2 * batches)
    check(run, batches * 32)


def test_thor(tmp_path):
    """One refresh, with blocks of at most 128 and the positions of images of 224 pixels."""
    run = trained("thor", tmp_path / "thor", 2)
    check(run, 12)
    state = arrays(run.checkpoint)
    assert state["step.thor.last_refresh"] == 0 and (state["step.thor.refreshes"] == [1] * 54).all()
    assert state["step.thor.held"] == 0
    held = {name: value for name, value in state.items() if name.endswith(("factor", "inverse"))}
    assert len(held) == 4 * 54 and max(max(value.shape[1:]) for value in held.values()) == 128
    for name, value in held.items():
        assert np.isfinite(value).all() and value.any(axis=(1, 2)).all(), name
    positions = {"conv1": 112 * 112, "layer1.0.conv2": 56 * 56, "layer4.2.conv2": 7 * 7, "fc": 1}
    for layer, count in positions.items():
        np.testing.assert_allclose(state[f"thor.{layer}.positions"], count)


@pytest.fixture(scope="module")
def stage_1(tmp_path_factory):
    """The first stage of dimension reduction, trained for three updates."""
    return trained("subspace-1", tmp_path_factory.mktemp("subspace") / "stage_1", 3)


def test_subspace_1(stage_1):
    check(stage_1, 32, updates=3)
    names = sorted(path.name for path in stage_1.folder.glob("*/*/checkpoint_pca/step-*"))
    assert names == [f"step-{update:09d}.safetensors" for update in (1, 2, 3)]


def test_subspace_2(stage_1, tmp_path):
    run = trained("subspace-2", tmp_path / "stage_2", 2, stage_1=stage_1.folder)
    assert f"\nlabkit: starts from {stage_1.checkpoint}\n" in run.said
    start, names = arrays(stage_1.checkpoint), initial("subspace-2")
    check(run, 24, {name: start[name] for name in names})
    (path,) = stage_1.folder.glob("*/*/checkpoint_pca/pca_mat.safetensors")
    matrix = load_file(path)["matrix"]
    assert matrix.shape == (2, sum(weight.size for weight in names.values()) + 1001)
    assert all(row["trials"] >= 1 for row in run.rows)
    assert run.rows[-1]["failed_searches"] == 0
