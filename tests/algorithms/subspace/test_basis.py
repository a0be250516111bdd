"""The basis of a folder of snapshots: made, saved, loaded, made again; and what is refused."""

import mindspore as ms
import numpy as np
import pytest

from labkit.algorithms.subspace.basis import Basis, Shard, basis_from
from labkit.errors import InputError
from labkit.reference import principal_components
from tests.support.snapshots import SHAPES, SIZE, with_spectrum, write
from tests.support.tolerances import TOLERANCE

N, K = 10, 6
PAIRS = tuple(SHAPES.items())


@pytest.fixture
def rows():
    return with_spectrum(N, SIZE, 3.0 ** -np.arange(N - 1))


@pytest.fixture
def folder(tmp_path, rows):
    write(tmp_path / "snapshots", rows)
    return tmp_path / "snapshots"


@pytest.fixture(params=["safetensors", "npy"])
def saved(request, tmp_path, folder):
    """The path of a saved basis: all of it, or its matrix alone, as MindSpore writes it."""
    path = tmp_path / f"pca_mat.{request.param}"
    Basis.of(folder, PAIRS, K).save(path)
    return path


def assert_same(basis, expected):
    np.testing.assert_array_equal(basis.matrix, expected.matrix)
    assert (basis.names, basis.shapes) == (expected.names, expected.shapes)
    assert basis.checksum == expected.checksum


class TestMaking:
    def test_it_is_the_twins(self, folder, rows):
        basis = Basis.of(folder, PAIRS, K)
        expected = principal_components(rows, K)
        np.testing.assert_allclose(basis.matrix, expected.matrix, **TOLERANCE["basis against SVD"])
        np.testing.assert_allclose(basis.variance, expected.variance, rtol=1e-9)
        explained = expected.variance / expected.total_variance
        np.testing.assert_allclose(basis.explained, explained, rtol=1e-9)
        assert basis.names == tuple(SHAPES) and basis.shapes == tuple(SHAPES.values())

    def test_snapshots_that_are_not_finite(self, folder, rows):
        for row, bad in ((0, np.nan), (N // 2, np.inf), (N - 1, -np.inf)):
            spoilt = rows.copy()
            spoilt[row, 20] = bad
            write(folder, spoilt)
            with pytest.raises(InputError, match=f"{row + 1}.safetensors is not finite: see dense"):
                Basis.of(folder, PAIRS, K)

    def test_another_order_of_parameters_moves_columns(self, folder):
        parameters = [ms.Parameter(ms.Tensor(np.zeros(s), ms.float32), n) for n, s in PAIRS]
        bases = [Basis.of(folder, order, K) for order in (parameters, PAIRS[::-1])]
        assert bases[0].names != bases[1].names
        shares = [Shard(each, parameters).tensor.asnumpy() for each in bases]
        np.testing.assert_allclose(*shares, atol=1e-6)


class TestFiles:
    def test_what_was_saved_is_loaded_to_the_last_bit(self, folder, saved):
        basis, made = Basis.load(saved, PAIRS), Basis.of(folder, PAIRS, K)
        assert_same(basis, made)
        if saved.suffix == ".npy":
            assert np.isnan(basis.variance).all()
        else:
            np.testing.assert_array_equal(basis.variance, made.variance)
            about = basis.total_variance, basis.snapshots
            assert about == (made.total_variance, made.snapshots)
        assert isinstance(basis.matrix, np.memmap) and not basis.matrix.flags.writeable
        basis.save(saved)  # over the file that it is mapped from
        assert_same(Basis.load(saved, PAIRS), basis)
        assert {path.name for path in saved.parent.iterdir()} == {saved.name, "snapshots"}

    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_a_matrix_of_another_type_or_order(self, tmp_path, rows, dtype, order):
        matrix = principal_components(rows, K).matrix.astype(np.float32)
        np.save(tmp_path / "a.npy", matrix.astype(dtype, order))
        basis = Basis.load(tmp_path / "a.npy", PAIRS)
        np.testing.assert_array_equal(basis.matrix, matrix)
        assert basis.matrix.dtype == np.float32

    def test_what_is_refused(self, saved, tmp_path):
        cut = saved.with_stem("cut")
        cut.write_bytes(saved.read_bytes()[:-4])
        np.save(tmp_path / "row.npy", np.zeros(SIZE, np.float32))
        np.save(tmp_path / "objects.npy", np.array([{"a": 1}], object))
        for path, words in (
            (saved.with_stem("none"), "none.* cannot be read: .*No such file"),
            (tmp_path / "a.bin", "expected a .safetensors or .npy file"),
            (cut, "cut.* cannot be read: "),
            (tmp_path / "row.npy", r"expected an array \(K, "),
            (tmp_path / "objects.npy", "cannot be read: "),
            (tmp_path / "snapshots" / "step-000000001.safetensors", "is no basis; expected"),
        ):
            with pytest.raises(InputError, match=words):
                Basis.load(path, PAIRS)
        with pytest.raises(InputError, match="expected a .safetensors or .npy file"):
            Basis.load(saved, PAIRS).save(tmp_path / "a.bin")

    def test_of_another_network(self, saved):
        matrix = saved.suffix == ".npy"
        words = rf"an array \(K, \d+\), .*got .*\({K}, " if matrix else "is of another network: "
        for own in (PAIRS[:-1], [*PAIRS, ("more", (2,))], [("bias", (5,))]):
            with pytest.raises(InputError, match=words):
                Basis.load(saved, own)


class TestOfTwoSettings:
    @pytest.fixture
    def call(self, folder):
        """Call ``basis_from``, on the folder by default; return the basis and the message."""

        def call(path=None, folder=folder, components=K, parameters=PAIRS):
            said = []
            basis = basis_from(path, folder, parameters, components, said.append)
            return basis, *said

        return call

    @pytest.mark.parametrize("name", [None, "own.npy", "own.safetensors"])
    def test_a_second_run_computes_nothing(self, call, tmp_path, monkeypatch, name):
        path = name and tmp_path / name
        first, said = call(path)
        assert f"basis of {K} components computed from" in said and "100.0%" in said
        monkeypatch.setattr(Basis, "of", None)
        for given in ({}, {"folder": None})[: 2 if name else 1]:
            second, said = call(path, **given)
            assert said.endswith(f"{name or 'pca_mat.safetensors'}, nothing computed")
            assert_same(second, first)

    @pytest.mark.parametrize("change", ["changed", "more", "gone"])
    def test_it_is_made_again_of_other_snapshots(self, call, folder, rows, change):
        first, _ = call()
        others = {
            "changed": rows * np.linspace(1, 2, N)[:, None],
            "more": [*rows, rows[0]],
            "gone": rows[:-1],
        }[change]
        (folder / f"step-{N:09d}.safetensors").unlink()
        write(folder, others)
        assert not np.array_equal(first.matrix, call()[0].matrix)
        assert "nothing computed" in call()[1]

    def test_other_components_and_another_network(self, call, folder, tmp_path):
        call()
        assert len(call(components=4)[0].matrix) == 4
        before = (folder / "pca_mat.safetensors").read_bytes()
        with pytest.raises(InputError, match="the basis is of another network"):
            call(parameters=PAIRS[1:])
        assert (folder / "pca_mat.safetensors").read_bytes() == before
        own = tmp_path / "own.npy"
        call(own)
        words = f"n_components: expected {K}, the number in the basis .*, got {K - 1}"
        with pytest.raises(InputError, match=words):
            call(own, components=K - 1)
        with pytest.raises(InputError, match="weight_load_dir is None, and pca_mat_path .*none"):
            call(tmp_path / "none.npy", folder=None)


def test_one_row_of_many_numbers_is_orthonormal():
    """Its square, summed in float32, is 1.004: few numbers are large, and 16 million small."""
    row = np.ones((1, 16_000_000), np.float32)
    row[0, :64] = np.sqrt(9 * row.size / 64)
    row = (row / np.linalg.norm(row.astype(np.float64))).astype(np.float32)
    parameter = ms.Parameter(ms.Tensor(np.zeros(row.size, np.float32)), name="weight")
    shard = Shard(Basis(row, [parameter], [1.0], 1.0), [parameter])
    assert shard.tensor.shape == row.shape
    with pytest.raises(InputError, match="expected orthonormal, got P P.T - I up to 0.002"):
        Shard(Basis(row * np.float32(1.001), [parameter], [1.0], 1.0), [parameter])
