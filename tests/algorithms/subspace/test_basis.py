"""The basis of a folder of snapshots: made, saved, loaded, made again; and what is refused."""

import shutil

import mindspore as ms
import numpy as np
import pytest

from labkit.algorithms.subspace import Basis, basis_from
from labkit.algorithms.subspace.graphs import Shard
from labkit.errors import InputError
from labkit.reference import principal_components, reconstruct
from tests.support.snapshots import SHAPES, SIZE, with_spectrum, write
from tests.support.tolerances import TOLERANCE

N, K = 10, 6
PAIRS = tuple(SHAPES.items())
SPECTRUM = 3.0 ** -np.arange(N - 1)


@pytest.fixture
def rows():
    return with_spectrum(N, SIZE, SPECTRUM)


@pytest.fixture
def folder(tmp_path, rows):
    write(tmp_path / "snapshots", rows)
    return tmp_path / "snapshots"


@pytest.fixture
def saved(tmp_path, folder):
    """The path of a saved basis."""
    Basis.of(folder, PAIRS, K).save(tmp_path / "pca_mat.safetensors")
    return tmp_path / "pca_mat.safetensors"


def assert_same(basis, expected):
    np.testing.assert_array_equal(basis.matrix, expected.matrix)
    np.testing.assert_array_equal(basis.variance, expected.variance)
    np.testing.assert_array_equal(basis.total_variance, expected.total_variance)  # or both NaN
    for name in ("names", "shapes", "snapshots", "checksum"):
        assert getattr(basis, name) == getattr(expected, name), name


class TestMaking:
    def test_it_is_the_twins(self, folder, rows):
        basis = Basis.of(folder, PAIRS, K)
        expected = principal_components(rows, K)
        np.testing.assert_allclose(basis.matrix, expected.matrix, **TOLERANCE["basis against SVD"])
        np.testing.assert_allclose(basis.variance, expected.variance, rtol=1e-9)
        explained = SPECTRUM[:K] ** 2 / (SPECTRUM**2).sum()
        np.testing.assert_allclose(basis.explained, explained, rtol=1e-5)
        assert basis.names == tuple(SHAPES) and basis.shapes == tuple(SHAPES.values())

    def test_reconstruction_gets_better_as_the_spectrum_says(self, folder, rows):
        mean = rows.mean(axis=0, dtype=np.float64)
        errors = []
        for components in range(1, N - 1):
            basis = Basis.of(folder, PAIRS, components)
            matrix = basis.matrix.astype(np.float64)
            errors.append(sum(((row - reconstruct(matrix, mean, row)) ** 2).sum() for row in rows))
            left = basis.total_variance * (1 - basis.explained.sum()) * (N - 1)
            assert errors[-1] == pytest.approx(left, rel=1e-4)
            assert errors[-1] == pytest.approx((SPECTRUM[components:] ** 2).sum(), rel=1e-4)
        assert (np.diff(errors) < 0).all()

    def test_refusals_of_what_the_snapshots_hold(self, folder, rows):
        write(folder, rows[[0, 1, 2, 3] + [3] * 6])
        with pytest.raises(InputError, match="components: expected at most 3, .* span, got 6"):
            Basis.of(folder, PAIRS, K)
        for row, bad in ((0, np.nan), (N // 2, np.inf), (N - 1, -np.inf)):
            spoilt = rows.copy()
            spoilt[row, 20] = bad
            write(folder, spoilt)
            with pytest.raises(InputError, match=f"{row + 1}.safetensors is not finite: see dense"):
                Basis.of(folder, PAIRS, K)

    def test_another_order_of_parameters_moves_columns(self, folder):
        parameters = [ms.Parameter(ms.Tensor(np.zeros(s), ms.float32), n) for n, s in PAIRS]
        basis, by_name = Basis.of(folder, parameters, K), Basis.of(folder, None, K)
        assert by_name.names == tuple(sorted(SHAPES)) != basis.names
        shares = [Shard(each, parameters).tensor.asnumpy() for each in (basis, by_name)]
        np.testing.assert_allclose(*shares, atol=1e-6)


class TestFiles:
    def test_what_was_saved_is_loaded_to_the_last_bit(self, folder, saved):
        basis = Basis.load(saved, PAIRS)
        assert_same(basis, Basis.of(folder, PAIRS, K))
        assert isinstance(basis.matrix, np.memmap) and not basis.matrix.flags.writeable
        basis.save(saved)  # over the file that it is mapped from
        assert_same(Basis.load(saved), basis)
        assert {path.name for path in saved.parent.iterdir()} == {saved.name, "snapshots"}

    def test_what_is_refused(self, saved, tmp_path):
        cut = tmp_path / "cut.safetensors"
        cut.write_bytes(saved.read_bytes()[:-4])
        for call, words in (
            (lambda: Basis.load(tmp_path / "none.npy"), "no basis at .*none.npy"),
            (lambda: Basis.load(tmp_path / "a.bin"), "expected a .safetensors or .npy file"),
            (lambda: Basis.load(saved).save(tmp_path / "a.bin"), "expected a .safetensors or .npy"),
            (lambda: Basis.load(cut), "cut.safetensors is damaged"),
            (
                lambda: Basis.load(saved.parent / "snapshots" / "step-000000001.safetensors"),
                "is no basis; expected a file that Basis.save has written",
            ),
        ):
            with pytest.raises(InputError, match=words):
                call()

    def test_of_another_network(self, saved):
        for own in (PAIRS[:-1], [*PAIRS, ("more", (2,))], [("bias", (5,))]):
            with pytest.raises(InputError, match="the basis is of another network: "):
                Basis.load(saved, own)


class TestBesideItsSnapshots:
    @pytest.fixture
    def call(self, folder):
        """Call ``basis_from`` on the folder, where the basis is kept; return it and the message."""

        def call(components=K, parameters=PAIRS):
            said = []
            basis = basis_from(None, folder, parameters, components, said.append)
            return basis, *said

        return call

    def test_a_second_run_computes_nothing(self, call, monkeypatch):
        first, said = call()
        assert f"basis of {K} components computed from" in said and "100.0%" in said
        monkeypatch.setattr(Basis, "of", None)
        second, said = call()
        assert said.endswith("pca_mat.safetensors, nothing computed")
        assert_same(second, first)

    @pytest.mark.parametrize("change", ["changed", "more", "gone"])
    def test_it_is_made_again_of_other_snapshots(self, call, folder, rows, change):
        first, _ = call()
        if change == "changed":
            rows[2, 5] += 0.1
            write(folder, rows)
        elif change == "more":
            shutil.copy(folder / "step-000000001.safetensors", folder / "step-9.safetensors")
        else:
            (folder / "step-000000001.safetensors").unlink()
        assert not np.array_equal(first.matrix, call()[0].matrix)
        assert "nothing computed" in call()[1]

    def test_it_is_made_again_with_other_components_and_kept_of_another_network(self, call, folder):
        call()
        assert len(call(4)[0].matrix) == 4
        before = (folder / "pca_mat.safetensors").read_bytes()
        with pytest.raises(InputError, match="the basis is of another network"):
            call(4, PAIRS[1:])
        assert (folder / "pca_mat.safetensors").read_bytes() == before


class TestBareMatrix:
    """A pca_mat.npy, as MindSpore's dim_reduce writes it."""

    @pytest.fixture
    def bare(self, saved):
        Basis.load(saved).save(saved.with_suffix(".npy"))
        return saved.with_suffix(".npy")

    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_it_is_the_basis(self, bare, dtype, order):
        expected = np.load(bare)
        np.save(bare, expected.astype(dtype, order))
        said = []
        basis = basis_from(bare, None, PAIRS, K, said.append)
        np.testing.assert_array_equal(basis.matrix, expected)
        assert basis.matrix.dtype == np.float32 and basis.names == tuple(SHAPES)
        assert np.isnan(basis.variance).all()
        assert said == [f"labkit: basis loaded from {bare}, nothing computed"]
        for name in ("kept.npy", "kept.safetensors"):
            basis.save(bare.with_name(name))
            assert_same(Basis.load(bare.with_name(name), PAIRS), basis)

    def test_of_mindspores_own_making(self, tmp_path, rows):
        from mindspore.boost.base import _compute_pca_mat

        path = tmp_path / "pca_mat_temp.npy"
        np.save(path, _compute_pca_mat(rows.copy(), K))
        assert Basis.load(path, PAIRS).matrix.shape == (K, SIZE)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda p: p[:, 1:], rf"expected an array \(K, {SIZE}\), .* got 'float32 \({K}, "),
            (lambda p: p[0], r"expected an array \(K, "),
            (lambda p: np.array([{"a": 1}], object), "is damaged and cannot be read"),
        ],
    )
    def test_another_matrix_is_refused(self, bare, change, words):
        np.save(bare, change(np.load(bare)))
        with pytest.raises(InputError, match=words):
            Basis.load(bare, PAIRS)

    def test_cut_or_of_another_number_of_components(self, bare):
        message = f"n_components: expected {K}, the number in the basis .*, got {K - 1}"
        with pytest.raises(InputError, match=message):
            basis_from(bare, None, PAIRS, K - 1)
        bare.write_bytes(bare.read_bytes()[:-4])
        with pytest.raises(InputError, match="is damaged and cannot be read"):
            Basis.load(bare, PAIRS)


def test_one_row_of_many_numbers_is_orthonormal():
    """Its square, summed in float32, is 1.004: few numbers are large, and 16 million small."""
    row = np.ones((1, 16_000_000), np.float32)
    row[0, :64] = np.sqrt(9 * row.size / 64)
    row = (row / np.linalg.norm(row.astype(np.float64))).astype(np.float32)
    parameter = ms.Parameter(ms.Tensor(np.zeros(row.size, np.float32)), name="weight")
    shard = Shard(Basis(row, [parameter], [1.0], 1.0), [parameter])
    assert shard.tensor.shape == row.shape
    with pytest.raises(InputError, match="not orthonormal: P P.T differs from I by 0.002"):
        Shard(Basis(row * np.float32(1.001), [parameter], [1.0], 1.0), [parameter])
