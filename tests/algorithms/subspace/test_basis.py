"""The basis of a folder of snapshots: made, saved, loaded, made again; and what is refused."""

import json
import os
import shutil

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from labkit.algorithms.subspace import Basis, basis_of
from labkit.algorithms.subspace.shards import Shard
from labkit.algorithms.subspace.snapshot_folder import SnapshotFolder
from labkit.algorithms.subspace.snapshots import write_snapshot
from labkit.errors import InputError
from labkit.reference import principal_components, reconstruct
from labkit.upstream.basis import basis_from
from tests.support.programs import run_code
from tests.support.snapshots import SHAPES, size, split, with_spectrum, write
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
    Basis.of(folder, SHAPES.items(), K).save(tmp_path / "pca_mat.npy")
    return tmp_path / "pca_mat.npy"


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
        assert [snapshot["name"] for snapshot in basis.snapshots] == sorted(os.listdir(folder))

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

    def test_two_makings_have_the_same_bits(self, folder):
        assert_same(Basis.of(folder, None, K), Basis.of(SnapshotFolder(folder), None, K))

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


def put_header(path, kind, shape):
    """Write a .npy file that has this header and no numbers."""
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


class TestFiles:
    def test_what_was_saved_is_loaded_to_the_last_bit(self, folder, saved):
        basis = Basis.load(saved, SHAPES.items())
        assert_same(basis, Basis.of(folder, SHAPES.items(), K))
        assert isinstance(basis.matrix, np.memmap) and not basis.matrix.flags.writeable
        basis.save(saved)  # over the file that it is mapped from
        assert_same(Basis.load(saved), basis)
        assert sorted(os.listdir(saved.parent)) == ["pca_mat.json", "pca_mat.npy", "snapshots"]

    @pytest.mark.parametrize("kind", [np.float64, np.float32])
    def test_a_matrix_of_another_layout_is_saved_as_one_that_can_be_loaded(self, tmp_path, kind):
        """A matrix may be column-major or float64, as numpy.linalg returns it."""
        matrix = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0].T.astype(kind)
        Basis(matrix, [("a", (6,))], [2, 1], 3).save(tmp_path / "a.npy")
        loaded = Basis.load(tmp_path / "a.npy", [("a", (6,))])
        np.testing.assert_array_equal(loaded.matrix, matrix.astype(np.float32))

    def test_it_holds_no_pickle(self, saved):
        assert np.load(saved, allow_pickle=False).shape == (K, size())
        np.save(saved, np.array([{"a": 1}], object), allow_pickle=True)
        with pytest.raises(InputError, match="is object .* says float32"):
            Basis.load(saved)

    @pytest.mark.parametrize(
        ("kind", "shape"),
        [("|S0", (-1,)), ("|V0", (-1,)), ("<f4", (-1, size())), ("<f4", (2**63 - 1, 2))],
    )
    def test_a_header_is_refused_before_the_file_is_mapped(self, saved, kind, shape):
        """If they were mapped, the first two would end the process with SIGFPE."""
        put_header(saved, kind, shape)
        with pytest.raises(InputError, match="says float32"):
            Basis.load(saved)

    def test_an_empty_basis_is_refused(self, saved):
        put_header(saved, "<f4", (0, size()))
        about = saved.with_suffix(".json")
        empty = {"shape": [0, size()], "variance": []}
        about.write_text(json.dumps(json.loads(about.read_text()) | empty))
        with pytest.raises(InputError, match="is empty: .*expected a row and a weight"):
            Basis.load(saved)

    @pytest.mark.parametrize("missing", ["pca_mat.npy", "pca_mat.json"])
    def test_one_of_the_two_is_missing(self, saved, missing):
        (saved.parent / missing).unlink()
        with pytest.raises(InputError, match=f"no basis at .*pca_mat.npy: {missing} is missing"):
            Basis.load(saved)

    def test_another_file_name_is_refused(self, saved):
        for call in (Basis.load, Basis.load(saved).save):
            with pytest.raises(InputError, match="expected a .npy file, got .*pca_mat.bin"):
                call(saved.with_suffix(".bin"))

    def test_a_changed_number_is_found(self, saved):
        matrix = np.load(saved)
        matrix[2, 3] = np.nextafter(matrix[2, 3], np.float32(1))
        np.save(saved, matrix)
        with pytest.raises(InputError, match="is damaged, or of another .json: its SHA-256"):
            Basis.load(saved)

    @pytest.mark.parametrize(
        "change",
        [
            lambda matrix: matrix.astype(np.float64),
            lambda matrix: matrix[:-1],
            lambda matrix: matrix[:, :-1].copy(),
            lambda matrix: matrix.T.copy(),
            np.asfortranarray,
        ],
    )
    def test_another_type_or_shape_or_layout(self, saved, change):
        np.save(saved, change(np.load(saved)))
        with pytest.raises(InputError, match="says float32|is not one that labkit has"):
            Basis.load(saved)

    def test_truncated_at_any_length(self, saved):
        for path, words in ((saved, "damaged"), (saved.with_suffix(".json"), "damaged")):
            data = path.read_bytes()
            for length in [*range(0, 140, 7), len(data) // 2, len(data) - 2]:
                path.write_bytes(data[:length])
                with pytest.raises(InputError, match=words):
                    Basis.load(saved)
            path.write_bytes(data)
        Basis.load(saved)

    @pytest.mark.parametrize(
        ("field", "value"),
        [("format", "other"), ("variance", [1.0]), ("parameters", 3), ("shape", None)],
    )
    def test_a_json_that_says_otherwise(self, saved, field, value):
        about = saved.with_suffix(".json")
        about.write_text(json.dumps({**json.loads(about.read_text()), field: value}))
        with pytest.raises(InputError):
            Basis.load(saved)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda pairs: pairs[::-1], r"expected scale \(\), got conv.weight \(3, 2, 2\)"),
            (lambda pairs: pairs[:-1], "expected 3 parameters, got 4"),
            (lambda pairs: [*pairs, ("more", (1,))], "expected 5 parameters, got 4"),
            (
                lambda pairs: [("conv.weight", (12,)), *pairs[1:]],
                r"expected conv.weight \(12,\), got",
            ),
        ],
    )
    def test_of_another_network_or_order(self, saved, change, words):
        with pytest.raises(InputError, match=words):
            Basis.load(saved, change(list(SHAPES.items())))


# Each moment has its own process and its own pair of files.
KILLED = """
import os, signal, sys
import numpy as np
from labkit.algorithms.subspace import Basis

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def saves_until(moment, path):
    renames = 0
    def replace(*two):
        nonlocal renames
        renames += 1
        if moment == f"before rename {renames}":
            die()
        rename(*two)
    def half(file, matrix, **options):
        save(file, matrix[: len(matrix) // 2], **options)
        die()
    rename, os.replace, save = os.replace, replace, np.save
    if moment == "in the matrix":
        np.save = half
    matrix = 2 * np.load(path)  # of the same shape and type
    Basis(matrix, [("w", matrix.shape[1:])], range(len(matrix)), 7.0).save(path)
    die()

for moment in sys.argv[2:]:
    child = os.fork()
    if not child:
        saves_until(moment, f"{sys.argv[1]}/{moment}/pca_mat.npy")
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""
MOMENTS = {
    "in the matrix": "old",
    "before rename 1": "old",
    "before rename 2": "none",
    "after": "new",
}


def test_killed_while_it_saves_it_leaves_no_wrong_pair(saved, folder, tmp_path, capsys):
    before = Basis.load(saved)
    for moment in MOMENTS:
        (tmp_path / moment).mkdir()
        for path in (saved, saved.with_suffix(".json")):
            shutil.copy(path, tmp_path / moment)
    done = run_code(KILLED, tmp_path, *MOMENTS)
    assert done.returncode == 0, done.stderr
    for moment, left in MOMENTS.items():
        path = tmp_path / moment / "pca_mat.npy"
        if left == "new":
            assert Basis.load(path).total_variance == 7.0
            continue
        if left == "old":
            assert_same(Basis.load(path), before)
        else:
            with pytest.raises(InputError, match="its SHA-256 is not the one"):
                Basis.load(path)
        assert_same(basis_of(path, folder, SHAPES.items(), K, print), before)
        assert ("nothing computed" in capsys.readouterr().out) == (left == "old")
        assert_same(Basis.load(path), before)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class Noted:
    """The part of a Parameter that ``write_snapshot`` needs."""

    def __init__(self, name, value):
        self.name, self.asnumpy = name, lambda: np.array(value)


class TestBasisOf:
    @pytest.fixture
    def call(self, tmp_path, folder, capsys):
        """Call ``basis_of`` on the folder; return the basis and the message."""

        def call(components=K):
            basis = basis_of(tmp_path / "pca_mat.npy", folder, SHAPES.items(), components, print)
            said = capsys.readouterr().out
            assert said.count("\n") == 1
            return basis, said

        return call

    def test_a_second_run_computes_nothing(self, call, folder, tmp_path, monkeypatch, capsys):
        first, said = call()
        assert f"basis of {K} components computed from {N} snapshots, 100.0% of their v" in said
        monkeypatch.setattr(Basis, "_of", None)
        second, said = call()
        assert said.endswith("pca_mat.npy, nothing computed\n")
        assert_same(second, first)
        basis_of(tmp_path / "pca_mat.npy", folder, SHAPES.items(), K)
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

    @pytest.mark.parametrize("there", [True, False])
    def test_a_damaged_snapshot_is_refused(self, call, tmp_path, folder, rows, there):
        """It is refused even if its basis exists: its weights do not match its SHA-256."""
        shutil.rmtree(folder)
        folder.mkdir()
        for number, row in enumerate(rows):
            values = [Noted(name, value) for name, value in split(row).items()]
            write_snapshot(folder / f"step-{number:09d}.safetensors", values, {"epoch": 1})
        if there:
            call()
        files = contents(tmp_path)
        path = folder / "step-000000003.safetensors"
        data = bytearray(path.read_bytes())
        for place in (-1, -4 * size()):  # in the last and the first number
            data[place] ^= 1
            path.write_bytes(data)
            data[place] ^= 1
            with pytest.raises(InputError, match="000003.safetensors is damaged: its weights have"):
                call()
            with pytest.raises(InputError, match="000003.safetensors is damaged: its weights have"):
                Basis.of(folder, SHAPES.items(), K)
            assert contents(tmp_path) == files
        path.write_bytes(data)
        assert ("nothing computed" in call()[1]) == there

    def test_another_number_of_components_is_made(self, call):
        call()
        basis, said = call(4)
        assert "the one there had 6 components" in said and len(basis.matrix) == 4

    def test_a_damaged_one_is_made_again(self, call, tmp_path):
        first, _ = call()
        (tmp_path / "pca_mat.npy").write_bytes(b"x")
        second, said = call()
        assert "is damaged and cannot be read" in said
        assert_same(second, first)

    def test_one_of_another_network_stays(self, call, tmp_path):
        call()
        before = (tmp_path / "pca_mat.npy").read_bytes()
        with pytest.raises(InputError, match="the basis is of another network or order"):
            basis_of(
                tmp_path / "pca_mat.npy", tmp_path / "snapshots", list(SHAPES.items())[::-1], K
            )
        assert (tmp_path / "pca_mat.npy").read_bytes() == before

    def test_refusals_leave_nothing(self, tmp_path, folder):
        with pytest.raises(InputError, match="components: expected at most 9"):
            basis_of(tmp_path / "b.npy", folder, None, N)
        with pytest.raises(InputError, match="expected a .npy file"):
            basis_of(tmp_path / "b.bin", folder, None, K)
        assert sorted(os.listdir(tmp_path)) == ["snapshots"]


def test_snapshots_of_a_training_and_their_basis(runtime, tmp_path):
    """From ``fit`` to the basis; the final weights are on the positive side of each component."""
    from labkit.algorithms.subspace.snapshots import Snapshots
    from labkit.steps.losses import LossNet
    from labkit.steps.plain import PlainStep
    from labkit.training.fit import fit
    from tests.support.trainings import dataset, loss_fn, network

    net = network()
    step = PlainStep(LossNet(net, loss_fn()), nn.SGD(net.trainable_params(), 0.05))
    saving = Snapshots(net, tmp_path / "snapshots", saves_per_epoch=5)
    fit(step, dataset(), 2, progress=None, callbacks=[saving])
    basis = basis_of(tmp_path / "pca_mat.npy", tmp_path / "snapshots", net, 4)
    with SnapshotFolder(tmp_path / "snapshots", net) as snapshots:
        rows = np.empty((10, snapshots.size), np.float32)
        snapshots.read(0, rows)
    last = np.concatenate([p.asnumpy().ravel() for p in net.trainable_params()])
    np.testing.assert_array_equal(rows[-1], last)
    assert (basis.matrix @ (last - rows.mean(axis=0)) > 0).all()
    # Their identities are computed from the weights, and equal those noted beside the weights.
    folder = SnapshotFolder(tmp_path / "snapshots")
    assert basis.snapshots == folder.identities()
    assert [snapshot["sha256"] for snapshot in basis.snapshots] == [
        note["sha256"] for note in folder.notes
    ]
    assert ms.get_context("mode") == ms.GRAPH_MODE


class TestBareMatrix:
    """A pca_mat.npy without a .json, as MindSpore's dim_reduce writes it."""

    @pytest.fixture
    def bare(self, saved):
        saved.with_suffix(".json").unlink()
        return saved

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
        (line,) = said
        assert line.endswith(
            "no .json describes it: its columns are taken in the parameters' order"
        )
        assert not bare.with_suffix(".json").exists()
        basis.save(bare.with_name("kept.npy"))
        assert_same(Basis.load(bare.with_name("kept.npy")), basis)

    def test_of_mindspores_own_making(self, tmp_path, rows):
        from mindspore.boost.base import _compute_pca_mat

        path = tmp_path / "pca_mat_temp.npy"
        np.save(path, _compute_pca_mat(rows.copy(), K))
        assert Basis.load(path, SHAPES.items()).matrix.shape == (K, size())

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda p: p[:, 1:], f"has {size() - 1} columns, and the network {size()} weights"),
            (lambda p: p * 1.01, "rows of .* are not orthonormal: P P.T differs from I by 0.02"),
            (lambda p: np.where(p == p[0, 0], np.nan, p), "differs from I by nan"),
            (lambda p: p.astype(np.float16), r"expected float32 \(K, M\), got float16"),
            (lambda p: p[0], "expected float32 .K, M."),
            (lambda p: p[:0], "is empty"),
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
