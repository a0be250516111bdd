"""The basis of a folder of snapshots: made, saved, loaded, made again; and what is refused."""

import json
import shutil

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from labkit.algorithms.subspace import Basis, basis_of
from labkit.algorithms.subspace.graphs import Shard
from labkit.algorithms.subspace.snapshots import SnapshotFolder
from labkit.errors import InputError
from labkit.reference import principal_components, reconstruct
from labkit.upstream.boost import basis_from
from tests.support.snapshots import SHAPES, size, with_spectrum, write
from tests.support.tolerances import TOLERANCE

N, K = 10, 6
SPECTRUM = 3.0 ** -np.arange(N - 1)


@pytest.fixture
def rows():
    return with_spectrum(N, size(), SPECTRUM)


@pytest.fixture
def folder(tmp_path, rows):
    write(tmp_path / "snapshots", rows)
    return tmp_path / "snapshots"


@pytest.fixture
def saved(tmp_path, folder):
    """The path of a saved basis."""
    Basis.of(folder, SHAPES.items(), K).save(tmp_path / "pca_mat.safetensors")
    return tmp_path / "pca_mat.safetensors"


def assert_same(basis, expected):
    np.testing.assert_array_equal(basis.matrix, expected.matrix)
    np.testing.assert_array_equal(basis.variance, expected.variance)
    np.testing.assert_array_equal(basis.total_variance, expected.total_variance)  # or both NaN
    for name in ("names", "shapes", "snapshots", "checksum"):
        assert getattr(basis, name) == getattr(expected, name), name


class TestMaking:
    def test_it_is_the_twins(self, folder, rows):
        basis = Basis.of(folder, SHAPES.items(), K)
        expected = principal_components(rows, K)
        np.testing.assert_allclose(basis.matrix, expected.matrix, **TOLERANCE["basis against SVD"])
        np.testing.assert_allclose(basis.variance, expected.variance, rtol=1e-9)
        explained = SPECTRUM[:K] ** 2 / (SPECTRUM**2).sum()
        np.testing.assert_allclose(basis.explained, explained, rtol=1e-5)
        assert basis.names == tuple(SHAPES) and basis.shapes == tuple(SHAPES.values())
        assert list(basis.snapshots) == sorted(path.name for path in folder.iterdir())

    def test_reconstruction_gets_better_as_the_spectrum_says(self, folder, rows):
        mean = rows.mean(axis=0, dtype=np.float64)
        errors = []
        for components in range(1, N - 1):
            basis = Basis.of(folder, SHAPES.items(), components)
            matrix = basis.matrix.astype(np.float64)
            errors.append(sum(((row - reconstruct(matrix, mean, row)) ** 2).sum() for row in rows))
            left = basis.total_variance * (1 - basis.explained.sum()) * (N - 1)
            assert errors[-1] == pytest.approx(left, rel=1e-4)
            assert errors[-1] == pytest.approx((SPECTRUM[components:] ** 2).sum(), rel=1e-4)
        assert (np.diff(errors) < 0).all()

    def test_of_a_network_in_the_order_of_its_parameters(self, tmp_path):
        net = nn.SequentialCell(nn.Dense(3, 2), nn.BatchNorm1d(2), nn.Dense(2, 2))
        shapes = {p.name: p.shape for p in net.trainable_params()}
        assert sorted(shapes) != list(shapes)
        rows = with_spectrum(5, size(shapes), np.array([4.0, 2.0, 1.0]))
        write(tmp_path, rows, shapes)
        expected = principal_components(rows, 3).matrix
        for parameters in (net, net.trainable_params(), list(shapes.items())):
            basis = Basis.of(tmp_path, parameters, 3)
            tolerance = TOLERANCE["basis against SVD"]
            np.testing.assert_allclose(basis.matrix, expected, **tolerance)
            basis.check(parameters)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({}, "components: expected at most 9, one less than the snapshots in .*, got 32"),
            ({"components": N}, "components: expected at most 9, .*, got 10"),
            ({"components": 0}, "components: expected an integer >= 1, got 0"),
        ],
    )
    def test_refusals(self, folder, options, words):
        with pytest.raises(InputError, match=words):
            Basis.of(folder, SHAPES.items(), **options)

    def test_refusals_of_what_the_snapshots_hold(self, folder, rows):
        write(folder, rows[[0, 1, 2, 3] + [3] * 6])
        with pytest.raises(InputError, match="components: expected at most 3, .* span, got 6"):
            Basis.of(folder, SHAPES.items(), K)
        rows[4, 20] = np.nan
        write(folder, rows)
        words = "000005.safetensors is not finite: dense.weight holds nan"
        with pytest.raises(InputError, match=words):
            Basis.of(folder, SHAPES.items(), K)

    def test_the_order_of_files_and_of_what_is_in_them_is_nothing(self, tmp_path, folder, rows):
        basis = Basis.of(folder, SHAPES.items(), K)
        shuffled = tmp_path / "shuffled"
        write(shuffled, rows, order=np.random.default_rng(2).permutation(N))
        assert_same(Basis.of(shuffled, SHAPES.items(), K), basis)
        names = sorted(SHAPES, reverse=True)
        for path in shuffled.iterdir():
            reorder(path, names)
        again = Basis.of(shuffled, SHAPES.items(), K)
        np.testing.assert_array_equal(again.matrix, basis.matrix)
        np.testing.assert_array_equal(again.variance, basis.variance)

    def test_another_order_of_parameters_moves_columns(self, folder):
        basis = Basis.of(folder, SHAPES.items(), K)
        other = Basis.of(folder, None, K)  # by name
        start, columns = 0, {}
        for name, shape in zip(basis.names, basis.shapes, strict=True):
            columns[name] = np.arange(start, start := start + int(np.prod(shape, dtype=int)))
        moved = basis.matrix[:, np.concatenate([columns[name] for name in other.names])]
        np.testing.assert_allclose(other.matrix, moved, atol=1e-6)


class TestFiles:
    def test_what_was_saved_is_loaded_to_the_last_bit(self, folder, saved):
        basis = Basis.load(saved, SHAPES.items())
        assert_same(basis, Basis.of(folder, SHAPES.items(), K))
        assert isinstance(basis.matrix, np.memmap) and not basis.matrix.flags.writeable
        basis.save(saved)  # over the file that it is mapped from
        assert_same(Basis.load(saved), basis)
        assert {path.name for path in saved.parent.iterdir()} == {saved.name, "snapshots"}

    @pytest.mark.parametrize("kind", [np.float64, np.float32])
    def test_a_matrix_of_another_layout_is_saved_as_one_that_can_be_loaded(self, tmp_path, kind):
        """A matrix may be column-major or float64, as numpy.linalg returns it."""
        matrix = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0].T.astype(kind)
        for name in ("a.npy", "a.safetensors"):
            Basis(matrix, [("a", (6,))], [2, 1], 3).save(tmp_path / name)
            loaded = Basis.load(tmp_path / name, [("a", (6,))])
            np.testing.assert_array_equal(loaded.matrix, matrix.astype(np.float32))

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

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda pairs: pairs[::-1], r"expected scale \(\), got conv.weight \(3, 2, 2\)"),
            (lambda pairs: pairs[:-1], "expected nothing more, got scale"),
            (
                lambda pairs: [("conv.weight", (12,)), *pairs[1:]],
                r"expected conv.weight \(12,\), got",
            ),
        ],
    )
    def test_of_another_network_or_order(self, saved, change, words):
        with pytest.raises(InputError, match=words):
            Basis.load(saved, change(list(SHAPES.items())))


class TestBasisOf:
    @pytest.fixture
    def call(self, tmp_path, folder, capsys):
        """Call ``basis_of`` on the folder; return the basis and the message."""

        def call(components=K):
            basis = basis_of(
                tmp_path / "pca_mat.safetensors", folder, SHAPES.items(), components, print
            )
            said = capsys.readouterr().out
            assert said.count("\n") == 1
            return basis, said

        return call

    def test_a_second_run_computes_nothing(self, call, folder, tmp_path, monkeypatch, capsys):
        first, said = call()
        assert f"basis of {K} components computed from {N} snapshots, 100.0% of their v" in said
        monkeypatch.setattr(Basis, "of", None)
        second, said = call()
        assert said.endswith("pca_mat.safetensors, nothing computed\n")
        assert_same(second, first)
        basis_of(tmp_path / "pca_mat.safetensors", folder, SHAPES.items(), K)
        assert capsys.readouterr() == ("", "")  # no ``report`` was given

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ("changed", "was made of another step-000000003.safetensors"),
            ("more", "was made without step-000000099.safetensors"),
            ("gone", "was made with step-000000001.safetensors, which is gone"),
        ],
    )
    def test_other_snapshots_are_noticed(self, call, folder, rows, change, words):
        first, _ = call()
        if change == "changed":
            rows[2, 5] += 0.1
            write(folder, rows)
        elif change == "more":
            shutil.copy(next(folder.iterdir()), folder / "step-000000099.safetensors")
        else:
            (folder / "step-000000001.safetensors").unlink()
        second, said = call()
        assert words in said
        assert not np.array_equal(first.matrix, second.matrix)
        assert "nothing computed" in call()[1]

    def test_another_number_of_components_is_made(self, call):
        call()
        basis, said = call(4)
        assert "the one there had 6 components" in said and len(basis.matrix) == 4

    def test_beside_its_snapshots_it_is_none_of_them(self, folder):
        """In the tutorial's tree both are in one folder."""
        first = basis_of(folder / "pca_mat.safetensors", folder, SHAPES.items(), K)
        assert_same(basis_of(folder / "pca_mat.safetensors", folder, SHAPES.items(), K), first)
        assert len(SnapshotFolder(folder)) == N

    def test_one_of_another_network_stays(self, call, tmp_path, folder):
        call()
        path = tmp_path / "pca_mat.safetensors"
        before = path.read_bytes()
        with pytest.raises(InputError, match="the basis is of another network or order"):
            basis_of(path, folder, list(SHAPES.items())[::-1], K)
        assert path.read_bytes() == before


def test_snapshots_of_a_training_and_their_basis(runtime, tmp_path):
    """From ``fit`` to the basis; the final weights are on the positive side of each component."""
    from labkit.algorithms.subspace.snapshots import Snapshots
    from labkit.steps.losses import LossNet
    from labkit.steps.step import PlainStep
    from labkit.training.fit import fit
    from tests.support.trainings import dataset, loss_fn, network

    net = network()
    step = PlainStep(LossNet(net, loss_fn()), nn.SGD(net.trainable_params(), 0.05))
    saving = Snapshots(net, tmp_path / "snapshots", saves_per_epoch=5)
    fit(step, dataset(), 2, progress=None, callbacks=[saving])
    basis = basis_of(tmp_path / "pca_mat.safetensors", tmp_path / "snapshots", net, 4)
    with SnapshotFolder(tmp_path / "snapshots", net) as snapshots:
        rows = np.empty((10, snapshots.size), np.float32)
        snapshots.read(0, rows)
    last = np.concatenate([p.asnumpy().ravel() for p in net.trainable_params()])
    np.testing.assert_array_equal(rows[-1], last)
    assert (basis.matrix @ (last - rows.mean(axis=0)) > 0).all()
    assert basis.snapshots == SnapshotFolder(tmp_path / "snapshots").identities()
    assert ms.get_context("mode") == ms.GRAPH_MODE


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
        basis = basis_from(bare, None, SHAPES.items(), K, said.append)
        np.testing.assert_array_equal(basis.matrix, expected)
        assert basis.matrix.dtype == np.float32 and basis.names == tuple(SHAPES)
        assert np.isnan(basis.variance).all()
        assert said == [f"labkit: basis loaded from {bare}, nothing computed"]
        basis.save(bare.with_name("kept.safetensors"))
        assert_same(Basis.load(bare.with_name("kept.safetensors")), basis)

    def test_of_mindspores_own_making(self, tmp_path, rows):
        from mindspore.boost.base import _compute_pca_mat

        path = tmp_path / "pca_mat_temp.npy"
        np.save(path, _compute_pca_mat(rows.copy(), K))
        assert Basis.load(path, SHAPES.items()).matrix.shape == (K, size())

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda p: p[:, 1:], rf"is float32 \({K}, {size() - 1}\); expected \(K, {size()}\)"),
            (lambda p: p * 1.01, "rows of .* are not orthonormal: P P.T differs from I by 0.02"),
            (lambda p: np.where(p == p[0, 0], np.nan, p), "differs from I by nan"),
            (lambda p: p[0], "expected .K, "),
            (lambda p: p[:0], "expected .K, "),
            (lambda p: np.array([{"a": 1}], object), "is damaged and cannot be read"),
        ],
    )
    def test_another_matrix_is_refused(self, bare, change, words):
        np.save(bare, change(np.load(bare)))
        with pytest.raises(InputError, match=words):
            Basis.load(bare, SHAPES.items())

    def test_cut_or_of_another_number_of_components(self, bare):
        message = f"n_components: expected {K}, the number in the basis .*, got {K - 1}"
        with pytest.raises(InputError, match=message):
            basis_from(bare, None, SHAPES.items(), K - 1)
        bare.write_bytes(bare.read_bytes()[:-4])
        with pytest.raises(InputError, match="is damaged and cannot be read"):
            Basis.load(bare, SHAPES.items())


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


def reorder(path, names):
    """Write a snapshot again with its tensors in a different order within the file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    entries, parts, place = {}, [], 0
    for name in names:
        start, end = header[name]["data_offsets"]
        entries[name] = {**header[name], "data_offsets": [place, place + end - start]}
        parts.append(body[start:end])
        place += end - start
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
