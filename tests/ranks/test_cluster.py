"""Ranks as one process sees them; recipes/test_on_ranks.py runs two of them."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from labkit import runtime
from labkit.errors import InputError
from labkit.ranks import cluster
from tests.support.trainings import network

NAMES = ("RANK_SIZE", "MS_WORKER_NUM", "OMPI_COMM_WORLD_SIZE")


@pytest.fixture(autouse=True)
def environment(monkeypatch, runtime):
    """An environment without the variables of ranks."""
    for name in (*NAMES, "DEVICE_ID", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 1),
        *(({name: "8"}, 8) for name in NAMES),
        ({"RANK_SIZE": "", "MS_WORKER_NUM": "2"}, 2),
        ({"RANK_SIZE": "4", "MS_WORKER_NUM": "2"}, 4),
    ],
)
def test_the_environment_says_how_many(environment, variables, expected):
    for name, text in variables.items():
        environment.setenv(name, text)
    assert cluster.ranks_started() == expected
    for text in ("0", "-1", "two", "1.5", "²"):
        environment.setenv("RANK_SIZE", text)
        with pytest.raises(InputError, match="RANK_SIZE="):
            cluster.ranks_started()


def test_one_rank_holds_its_own():
    assert cluster.rank_and_size() == (0, 1) and not cluster.joined()
    np.testing.assert_array_equal(cluster.gather([1.5, -0.0]), [[1.5, -0.0]])


def test_a_digest_tells_one_bit_and_one_name():
    cells = [network() for _ in range(4)]
    weight = cells[1].trainable_params()[0]
    values = weight.asnumpy().copy()
    values.flat[0] = np.nextafter(values.flat[0], np.float32(9))
    ms.ops.assign(weight, ms.Tensor(values))
    cells[2].trainable_params()[0].name += "_"  # keeps its place in the order
    first, bit, name, same = map(cluster.digest, cells)
    assert len({first, bit, name}) == 3 and same == first


class TestStart:
    def test_alone_and_in_another_parallel_mode_it_refuses_to_distribute(self, environment):
        with pytest.raises(InputError, match="was started alone: RANK_SIZE is not"):
            runtime.start("CPU", distribute=True)
        environment.setenv("RANK_SIZE", "2")
        ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
        try:
            with pytest.raises(InputError, match="semi_auto_parallel; expected stand_alone"):
                runtime.start("CPU", distribute=True)
        finally:
            ms.reset_auto_parallel_context()

    @pytest.mark.parametrize(
        ("ranks", "rank", "expected"),
        [
            (2, 1, (3, 4)),
            (3, 0, (1,)),
            (8, 5, (3,)),
            (1, 0, ()),  # no other rank to share the cores with
            (5, 2, ()),  # two ranks would share a core, and the others would wait for them
            (2, "", ()),
            ("", 1, ()),
        ],
    )
    def test_a_rank_of_several_keeps_to_its_cores(self, environment, capsys, ranks, rank, expected):
        kept = []
        environment.setattr("os.sched_getaffinity", lambda process: {1, 2, 3, 4})
        environment.setattr("os.sched_setaffinity", lambda thread, cores: kept.append(cores))
        environment.setattr("mindspore.communication.init", lambda: None)
        environment.setattr(cluster, "rank_and_size", lambda: (1, 2))
        environment.setenv("RANK_SIZE", "2")
        environment.setenv("LOCAL_WORLD_SIZE", str(ranks))
        environment.setenv("DEVICE_ID", str(rank))
        started = runtime.start("CPU", distribute=True)
        assert (started.rank, started.ranks, started.cores) == (1, 2, expected)
        assert set(map(tuple, kept)) == {expected} - {()}
        said = f" on core {', '.join(map(str, expected))}" if expected else ""
        assert capsys.readouterr().out.endswith(f", rank 1 of 2{said}\n")
        environment.setattr(cluster, "joined", lambda: True)  # a rank's share is not divided again
        assert runtime.start("CPU", distribute=True).cores == ()

    @pytest.mark.parametrize(
        ("device", "number", "expected"),
        [("Ascend", "3", ("Ascend", 3)), ("Ascend", "", ("Ascend",)), ("CPU", "3", ("CPU",))],
    )
    def test_the_number_of_the_device(self, environment, device, number, expected):
        calls = []
        environment.setenv("DEVICE_ID", number)
        environment.setattr(runtime, "available_devices", lambda: ("Ascend", "CPU"))
        environment.setattr("mindspore.set_device", lambda *given: calls.append(given))
        runtime.start(device)
        assert calls == [expected]
        environment.setenv("DEVICE_ID", "first")
        with pytest.raises(InputError, match="DEVICE_ID='first'"):
            runtime.start("Ascend")


def test_what_the_first_rank_holds_is_taken_in_its_own_type(monkeypatch, runtime):
    """BatchNorm of ``mint`` counts its batches in int64; float32 ends at 2**24."""

    def parameters(mean, count):
        values = Tensor(np.array(mean, np.float32)), Tensor(count, ms.int64)
        return [Parameter(value, name=str(place)) for place, value in enumerate(values)]

    theirs, own = parameters([0.1, 0.2], 2**24 + 1), parameters([7.0, 8.0], 3)
    values = iter([value.asnumpy().ravel() for value in theirs])
    monkeypatch.setattr(cluster, "rank_and_size", lambda: (1, 2))
    monkeypatch.setattr(cluster, "gather", lambda sent: np.stack([next(values), sent]))
    cluster.take_from_first(own)
    for actual, expected in zip(own, theirs, strict=True):
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        np.testing.assert_array_equal(actual.asnumpy(), expected.asnumpy())
