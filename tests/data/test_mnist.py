"""The MNIST pipeline: values, and refusal of what does not fit."""

import numpy as np
import pytest

from labkit.data import idx
from labkit.data import mnist as pipeline
from labkit.data.parity import exact_bilinear
from labkit.errors import InputError
from tests.support.data_archives import write_set
from tests.support.image_files import batches

COUNT = 200
# MindSpore resizes uint8 in integers; the weights for 28 -> 32 are exact in 1/2048. It truncates
# the products of two rows to quarters (less than 2 x 1/4 grey level) and their inputs (less than
# 0.01), then rounds the sum to a whole grey level (1/4 down, 1/2 up): 0.76 at most.
GREY_LEVELS = 0.76
IN_NORMALISED_UNITS = GREY_LEVELS / 255 / 0.3081
FLOAT32 = 1e-6
pytestmark = pytest.mark.usefixtures("seeded")


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """A data set in which all pixels of image n have grey level n, so that they show its number."""
    root = tmp_path_factory.mktemp("numbered")
    grey = np.arange(COUNT, dtype=np.uint8)
    images = np.tile(grey[:, None, None], (28, 28))
    write_set(root / "train", "train", images, grey % 10)
    write_set(root / "test", "test", images[:57], grey[:57] % 10)
    return root


def numbers(dataset, epochs=1):
    """Return the row numbers of each batch, over ``epochs`` of one iterator."""
    rows = []
    for images, labels in batches(dataset, epochs):
        row = np.rint((images[:, 0, 16, 16] * 0.3081 + 0.1307) * 255).astype(int)
        np.testing.assert_array_equal(labels, row % 10)
        rows.append(row.tolist())
    return rows


# ---- shapes and values


def test_the_tutorials_call_gives_its_1875_batches(mnist):
    dataset = pipeline.create_dataset(f"{mnist}/train/", 32)
    assert dataset.get_dataset_size() == 1875
    images, labels = next(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True))
    assert images.shape == (32, 1, 32, 32) and images.dtype == np.float32
    assert labels.shape == (32,) and labels.dtype == np.int32


def test_evaluation_sees_all_10000_images_once_in_file_order(mnist):
    dataset = pipeline.create_eval_dataset(mnist)
    labels = [labels for _, labels in batches(dataset)]
    _, expected = idx.read_pair(*sorted((mnist / "test").iterdir()))
    np.testing.assert_array_equal(np.concatenate(labels), expected)
    assert {len(batch) for batch in labels} == {1000}


def test_images_are_bilinear_interpolations_of_the_files(mnist):
    images, labels = pipeline.load_arrays(mnist, "train", images=40)
    raw, expected_labels = idx.read_pair(*sorted((mnist / "train").iterdir()))
    exact = np.stack([exact_bilinear(i[..., None], (32, 32)) for i in raw[:40]])
    exact = (exact[..., 0] / 255 - 0.1307) / 0.3081
    assert images.shape == (40, 1, 32, 32) and labels.dtype == np.int32
    np.testing.assert_array_equal(labels, expected_labels[:40])
    difference = np.abs(images[:, 0] - exact).max()
    # Tight enough to distinguish conventions: with aligned corners it would be 0.25.
    assert 0 < difference <= IN_NORMALISED_UNITS + FLOAT32


@pytest.mark.parametrize(
    ("rescale", "black", "white"),
    [("correct", -0.424213, 2.821487), ("seed", -0.0016636, 3.2440364)],
)
def test_black_and_white_by_the_order_of_the_rescales(tmp_path, rescale, black, white):
    images = np.stack([np.zeros((28, 28), np.uint8), np.full((28, 28), 255, np.uint8)])
    write_set(tmp_path, "train", images, np.array([0, 1], np.uint8))
    values, _ = pipeline.load_arrays(tmp_path, "train", rescale=rescale)
    np.testing.assert_allclose(values[0], black, rtol=1e-4)
    np.testing.assert_allclose(values[1], white, rtol=1e-4)


# ---- which images; their order, and resuming, are in test_order.py


def test_images_takes_the_first_in_every_epoch_and_the_file_order_keeps_the_rest(numbered):
    shown = numbers(pipeline.create_dataset(numbered, 10, usage="test", images=50), epochs=2)
    for epoch in (shown[:5], shown[5:]):
        assert sorted(sum(epoch, [])) == list(range(50))
    dataset = pipeline.create_dataset(numbered / "test", 25, shuffle=False)
    assert numbers(dataset) == [list(range(25)), list(range(25, 50)), list(range(50, 57))]


# ---- what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 60, "images": 50}, "batch_size: expected at most 50, .* got 60"),
        ({"batch_size": 60, "rank_size": 4}, "batch_size: expected at most 50, the number of im"),
        ({"images": 50, "rank_size": 2}, "images: expected None with 2 ranks, got 50"),
        ({"images": 201}, "images: expected an integer >= 1 and <= 200, got 201"),
        ({"rescale": "corect"}, "rescale: expected .*Did you mean 'correct'?"),
        ({"usage": "test"}, "does not hold t10k-images-idx3-ubyte and its labels, unpacked"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(numbered, arguments, message):
    with pytest.raises(InputError, match=message):
        pipeline.create_dataset(numbered / "train", **({"batch_size": 10} | arguments))


def test_folders_that_hold_no_set_two_or_too_much_are_refused(tmp_path, numbered):
    """test_idx.py tests broken files, test_imagefiles.py paths that are not folders."""
    with pytest.raises(InputError, match="not hold train-images-idx3-ubyte or t10k-images"):
        pipeline.create_dataset(tmp_path)
    with pytest.raises(InputError, match='two sets; expected usage="train" or usage="test"'):
        pipeline.create_dataset(numbered)
    assert pipeline.create_dataset(numbered, 10, usage="train").get_dataset_size() == 20
    images = np.zeros((40, 28, 28), np.uint8)
    write_set(tmp_path, "train", images, np.zeros(40, np.uint8))
    assert pipeline.create_dataset(tmp_path).get_dataset_size() == 1
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"x")  # MindSpore would read it as well
    with pytest.raises(InputError, match="train-images-idx3-ubyte.gz lies beside"):
        pipeline.create_dataset(tmp_path)
