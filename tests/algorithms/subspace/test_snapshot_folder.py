"""Reading snapshots by parts, and refusing those that are damaged or do not fit."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from labkit.algorithms.subspace.snapshots import SnapshotFolder
from labkit.errors import InputError
from tests.support.snapshots import SHAPES, size, split, write

COUNT = 5


@pytest.fixture
def rows():
    return np.random.default_rng(0).normal(size=(COUNT, size())).astype(np.float32)


@pytest.fixture
def folder(tmp_path, rows):
    write(tmp_path / "snapshots", rows)
    return tmp_path / "snapshots"


class TestReading:
    @given(start=st.integers(0, size()), count=st.integers(0, size()))
    @settings(max_examples=60, deadline=None)
    def test_any_part_is_that_part_of_every_row(self, tmp_path_factory, start, count):
        folder = tmp_path_factory.getbasetemp() / "parts"
        rows = np.arange(COUNT * size(), dtype=np.float32).reshape(COUNT, -1)
        if not folder.exists():
            write(folder, rows)
        count = min(count, size() - start)
        part = np.full((COUNT, count), np.nan, np.float32)
        with SnapshotFolder(folder, SHAPES.items()) as snapshots:
            snapshots.read(start, part)
        np.testing.assert_array_equal(part, rows[:, start : start + count])

    def test_columns_come_in_the_order_that_was_asked_for(self, folder, rows):
        other = sorted(SHAPES.items(), reverse=True)
        part = np.empty(rows.shape, np.float32)
        with SnapshotFolder(folder, other) as snapshots:
            snapshots.read(0, part)
        arrays = [split(row) for row in rows]
        expected = [np.concatenate([each[name].ravel() for name, _ in other]) for each in arrays]
        np.testing.assert_array_equal(part, expected)

    def test_files_come_by_the_numbers_in_their_names(self, tmp_path, rows):
        write(tmp_path, rows, name="net-{}_625.safetensors", order=[4, 0, 2, 1, 3])
        for number in (10, 9):
            os.rename(
                tmp_path / f"net-{number - 6}_625.safetensors",
                tmp_path / f"net-{number}_625.safetensors",
            )
        names = [path.name for path in SnapshotFolder(tmp_path).paths]
        assert names == [f"net-{number}_625.safetensors" for number in (1, 2, 5, 9, 10)]

    def test_empty_parameters_take_no_column(self, tmp_path):
        save_file({"a": np.ones(2, np.float32), "b": np.ones((0, 3), np.float32)}, tmp_path / NAME)
        with SnapshotFolder(tmp_path) as snapshots:
            part = np.zeros((1, 2), np.float32)
            snapshots.read(0, part)
        assert snapshots.size == 2 and (part == 1).all()


NAME = "step-000000009.safetensors"


class TestRefusals:
    def test_a_folder_that_is_not_there_or_empty(self, tmp_path):
        with pytest.raises(InputError, match="no folder of snapshots at"):
            SnapshotFolder(tmp_path / "none")
        with pytest.raises(InputError, match="holds no snapshot"):
            SnapshotFolder(tmp_path)
        (tmp_path / "a.ckpt").write_bytes(b"")
        with pytest.raises(InputError, match="a.ckpt is damaged and cannot be read"):
            SnapshotFolder(tmp_path)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"bias": None}, "it lacks bias"),
            ({"bias": np.zeros(3, np.float32)}, r"bias is F32 \(3,\); expected F32 \(4,\)"),
            ({"bias": np.zeros(4)}, r"bias is F64 \(4,\); expected F32 \(4,\)"),
            ({"more": np.zeros(4, np.float32)}, "it also holds more"),
        ],
    )
    def test_a_snapshot_of_another_network(self, folder, rows, change, words):
        arrays = {**{name: np.array(a) for name, a in split(rows[0]).items()}, **change}
        save_file({k: v for k, v in arrays.items() if v is not None}, folder / NAME)
        with pytest.raises(InputError, match=f"{NAME} is of another network: {words}"):
            SnapshotFolder(folder, SHAPES.items())

    def test_a_truncated_file(self, folder):
        path = folder / "step-000000002.safetensors"
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(InputError, match="step-000000002.* is damaged and cannot be read"):
            SnapshotFolder(folder, SHAPES.items())

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_a_number_that_is_not_finite(self, folder, rows, bad):
        rows[3, 18] = bad  # the third of dense.weight
        write(folder, rows)
        with SnapshotFolder(folder, SHAPES.items()) as snapshots:
            words = f"000004.safetensors is not finite: dense.weight holds {bad} .1 of 35"
            with pytest.raises(InputError, match=words):
                snapshots.refuse_nonfinite()

    def test_fewer_than_one_more_than_the_components(self, folder):
        snapshots = SnapshotFolder(folder)
        snapshots.need(COUNT - 1)
        with pytest.raises(InputError, match="expected at most 4, one less than the snap.*, got 5"):
            snapshots.need(COUNT)


def test_identities_see_any_change(folder, rows):
    before = SnapshotFolder(folder).identities()
    assert len(set(before.values())) == COUNT
    assert SnapshotFolder(folder).identities() == before
    rows[2, -1] += 1
    write(folder, rows)
    after = SnapshotFolder(folder).identities()
    assert [before[name] == after[name] for name in before] == [True, True, False, True, True]


class TestCheckpointsOfATutorial:
    """A folder of .ckpt files is read as it is: checkpoint_pca of the first stage."""

    @pytest.fixture
    def saved(self, tmp_path, rows):
        import mindspore as ms

        for number, row in enumerate(rows, 1):
            arrays = {"moving_mean": np.zeros(3, np.float32), **split(row)}
            values = [{"name": name, "data": ms.Tensor(a)} for name, a in arrays.items()]
            ms.save_checkpoint(values, str(tmp_path / f"resnet-{number}_625.ckpt"))
        return tmp_path

    def test_its_rows_are_those_of_snapshots(self, saved, folder, rows):
        part = np.empty(rows.shape, np.float32)
        with SnapshotFolder(saved, SHAPES.items()) as snapshots:
            snapshots.read(0, part)
            names = [path.name for path in snapshots.paths]
        np.testing.assert_array_equal(part, rows)
        assert names == [f"resnet-{number}_625.ckpt" for number in range(1, len(rows) + 1)]
        assert len(set(snapshots.identities().values())) == len(rows)

    def test_a_tutorials_names_are_taken_for_labkits(self, tmp_path):
        import mindspore as ms

        value = np.arange(6, dtype=np.float32).reshape(2, 3)
        tensors = [{"name": "end_point.weight", "data": ms.Tensor(value)}]
        ms.save_checkpoint(tensors, str(tmp_path / "resnet-1_2.ckpt"))
        folder = SnapshotFolder(tmp_path, [("fc.weight", (2, 3))])
        with folder:
            np.testing.assert_array_equal(folder.load(0)["fc.weight"], value)

    def test_damaged_or_of_another_network(self, saved):
        with pytest.raises(InputError, match="it lacks other"):
            SnapshotFolder(saved, [("other", (2,))])
        path = saved / "resnet-1_625.ckpt"
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(InputError, match="resnet-1_625.ckpt is damaged"):
            SnapshotFolder(saved, SHAPES.items())
