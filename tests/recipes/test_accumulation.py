"""The accumulation recipe on MNIST with the tutorial's LeNet-5."""

import re

import pytest

from labkit.data import idx
from labkit.recipes import accumulation
from labkit.recipes.accumulation import AccumulationConfig
from labkit.recipes.parts import build_network, datasets
from tests.support.idx_files import write_idx
from tests.support.recipes import main

pytestmark = pytest.mark.usefixtures("runtime")

OPTIONS = "--device_target CPU --epoch_size 1 --batch_size 50 --learning_rate 0.1"


@pytest.fixture(scope="module")
def small(mnist, tmp_path_factory):
    """The first 6000 training images and the first 1000 test images of MNIST."""
    folder = tmp_path_factory.mktemp("small")
    for usage, rows in {"train": 6000, "test": 1000}.items():
        (folder / usage).mkdir()
        for path in (mnist / usage).iterdir():
            read = idx.read_images if "images" in path.name else idx.read_labels
            write_idx(folder / usage / path.name, read(path)[:rows])
    return folder


@pytest.fixture(scope="module")
def run(small, tmp_path_factory):
    """The run folder of a training by command line: 30 updates of 4 micro-batches of 50 images."""
    folder = tmp_path_factory.mktemp("accumulation") / "run"
    given = ["train", "--data_path", str(small), "--save_checkpoint_path", str(folder)]
    assert main("accumulation", [*given, *OPTIONS.split()]) == 0
    return folder


def checkpoint(run):
    return str(next((run / "checkpoint").iterdir()))


def test_it_trains_and_is_evaluated(run, small, capsys):
    rows = (run / "records.csv").read_text().splitlines()
    assert len(rows) == 1 + 30
    given = ["eval", "--data_path", str(small), "--checkpoint_path", checkpoint(run)]
    assert main("accumulation", [*given, "--device_target", "CPU"]) == 0
    shown = re.search(r"top_1_accuracy ([\d.]+), .* loss ([\d.]+), ch", capsys.readouterr().out)
    # The most frequent digit is 0.126 of the images; the loss of an untrained network is 2.3026.
    assert float(shown[1]) >= 0.126 and float(shown[2]) < 2.3026


def test_ranks_share_the_images(mnist):
    config, sizes, evaluated = AccumulationConfig(batch_size=500), [], 0
    for rank in range(3):
        train, val, names = datasets(config, mnist, rank, 3)
        sizes.append(train.get_dataset_size())
        evaluated += sum(len(labels) for _, labels in val.create_tuple_iterator(num_epochs=1))
    assert names == tuple("0123456789")
    assert sizes == [60000 // 3 // 500] * 3 and evaluated == 10000


def test_the_sources_own_way_can_be_had():
    config = AccumulationConfig(class_num=10, reduction="sum", tail="carry", rescale="seed")
    step = accumulation.build_step(config, build_network(config), 1875)
    assert step.micro_steps == 4 and step.tail == "carry"
