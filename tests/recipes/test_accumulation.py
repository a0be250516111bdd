"""The accumulation recipe on MNIST with the tutorial's LeNet-5."""

import re
from pathlib import Path

import pytest
from PIL import Image

from labkit.data import idx
from labkit.errors import InputError
from labkit.recipes import accumulation
from labkit.recipes.accumulation_config import AccumulationConfig
from labkit.recipes.lenet_parts import build_network, datasets
from labkit.recipes.prediction import predict
from tests.support.idx_files import write_idx

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
    assert accumulation.main([*given, *OPTIONS.split()]) == 0
    return folder


def checkpoint(run):
    return str(next((run / "checkpoint").iterdir()))


def test_it_trains_and_is_evaluated(run, small, capsys):
    rows = (run / "records.csv").read_text().splitlines()
    assert len(rows) == 1 + 30
    given = ["eval", "--data_path", str(small), "--checkpoint_path", checkpoint(run)]
    assert accumulation.main([*given, "--device_target", "CPU"]) == 0
    shown = re.search(r"top_1_accuracy ([\d.]+), .* loss ([\d.]+), ch", capsys.readouterr().out)
    # The most frequent digit is 0.126 of the images; the loss of an untrained network is 2.3026.
    assert float(shown[1]) >= 0.126 and float(shown[2]) < 2.3026


def test_images_are_predicted_by_name_and_drawn(run, mnist, tmp_path, capsys):
    (images,) = (mnist / "test").glob("*images*")
    files = []
    for number, pixels in enumerate(idx.read_images(images)[:5]):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        files.append(str(tmp_path / f"{number}.png"))
    given = ["predict", "--checkpoint_path", checkpoint(run), "--top", "10", *files]
    picture = tmp_path / "picture.png"
    assert accumulation.main([*given, "--picture", str(picture), "--device_target", "CPU"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith(files[0])]
    shown = re.findall(r"(\d) (0\.\d{3})", line.partition(": ")[2])
    assert sorted(name for name, _ in shown) == list("0123456789")
    shares = [float(share) for _, share in shown]
    assert sum(shares) == pytest.approx(1, abs=0.006) and shares == sorted(shares, reverse=True)
    with Image.open(picture) as drawn:
        assert drawn.width > drawn.height > 300


@pytest.mark.parametrize(
    ("image", "options", "message"),
    [
        ("large.png", [], "is 32 x 32; expected 28 x 28"),
        ("text.png", [], "is not a readable image"),
        ("none.png", [], "cannot be read"),
        ("large.png", ["--picture", "x.pdf"], "expected the name of a .png file"),
        ("large.png", ["--top", "0"], "top: expected an integer >= 1, got 0"),
    ],
)
def test_what_cannot_be_predicted(run, tmp_path, capsys, image, options, message):
    Image.new("L", (32, 32)).save(tmp_path / "large.png")
    (tmp_path / "text.png").write_text("no image")
    given = ["predict", "--checkpoint_path", checkpoint(run), str(tmp_path / image), *options]
    assert accumulation.main([*given, "--device_target", "CPU"]) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1


@pytest.mark.parametrize("content", ['"abc"', '{"a": 1}', "7", "[1, 2]", '["a'])
def test_a_damaged_list_of_classes_is_named(tmp_path, capsys, content):
    (tmp_path / "classes.json").write_text(content)
    given = ["predict", "--checkpoint_path", str(tmp_path / "checkpoint/x.ckpt"), "x.png"]
    assert accumulation.main([*given, "--device_target", "CPU"]) == 2
    assert str(tmp_path / "classes.json") in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_leaves_the_one_before(run, tmp_path, monkeypatch):
    image, picture = tmp_path / "image.png", tmp_path / "picture.png"
    for path in (image, picture):
        Image.new("L", (28, 28)).save(path)
    before = picture.read_bytes()

    def full(self, path, **options):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    given = ["predict", "--checkpoint_path", checkpoint(run), str(image)]
    assert accumulation.main([*given, "--picture", str(picture), "--device_target", "CPU"]) == 2
    assert picture.read_bytes() == before


def test_no_images_are_refused(run):
    with pytest.raises(InputError, match=r"images: expected at least one file, got \[\]"):
        predict(accumulation.RECIPE, AccumulationConfig(), checkpoint(run), [], device="CPU")


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
    with pytest.raises(InputError, match="rescale: expected one of 'correct', 'seed', got 'wrong'"):
        AccumulationConfig(rescale="wrong")
