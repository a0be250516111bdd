"""Fixtures that every test may ask for."""

import gc
import os
import signal
import sys
import tarfile
from collections import Counter
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.support import slow_tests

ROOT = Path(__file__).resolve().parent.parent
_ROOM = 2.5e9  # bytes that a process may hold before graphs are released
_STAY: set[int] = set()  # ids of the cells that are not: MindSpore keeps these for ever
_COMPILES: set[Path] = set()  # test files that use MindSpore here
_CORES = sorted(os.sched_getaffinity(0))
_OWN_CORE: set[int] = set()  # where this worker computes; empty: on all of them

# Of the 170 files that MindSpore writes for a graph with save_graphs on, support.compiled reads
# one kind: a step of Adasum took 3.3 s instead of 6 to 7.4. MindSpore reads the variable once.
os.environ.setdefault("MS_DEV_DUMP_IR_PASSES", "validate")
# PyTorch's threads wait for each other busily: where other processes compute as well, 200 backward
# passes of LeNet took 26 s instead of 5. Their number, which changes rounding, stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# On a busy machine an example took longer than Hypothesis's 200 ms, and the test failed.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
# A shell lets what it starts in the background, with all that this starts, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def runtime():
    """MindSpore started as every lab starts it, on CPU with seed 1."""
    from labkit.runtime import start

    os.sched_setaffinity(0, _OWN_CORE or _CORES)  # MindSpore's threads stay where they begin
    return start(device="CPU", seed=1)


@pytest.fixture
def eager(runtime):
    """Operator by operator, which compiles nothing: a graph takes seconds.

    That both modes agree is shown for every step in tests/steps/test_step.py.
    """
    from labkit.runtime import pynative

    with pynative():
        yield


@pytest.fixture(scope="module", autouse=True)
def _placed(request):
    """A worker has a core of its own for a module that computes here, and all for another one.

    MindSpore's calling thread spins while others compute, in another worker's time: six files on
    two cores took 167 s, and take 138.
    """
    here = "runtime" in request.fixturenames
    os.sched_setaffinity(0, here and _OWN_CORE or _CORES)
    yield
    os.sched_setaffinity(0, _CORES)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what tests/slow.txt lists; files with slow tests first, then those with many.

    A long one that begins last is waited for: pytest-xdist's own order, by number of tests alone,
    began the browser's 11 tests as the last.
    """
    listed = slow_tests.listed()
    for item in items:
        if "runtime" in getattr(item, "fixturenames", ()):
            _COMPILES.add(item.path)
        if slow_tests.is_slow(item.nodeid, listed) or item.get_closest_marker("long"):
            item.add_marker("slow")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -sizes[item.path], str(item.path)))


def pytest_collection_finish(session):
    """Leave out of garbage collection what has been imported: 575 000 objects.

    MindSpore collects before it compiles a graph. That was 0.2 to 0.3 s of a second and a half.
    """
    gc.collect()
    gc.freeze()
    worker = os.environ.get("PYTEST_XDIST_WORKER")  # gw0, gw1, ... where several run
    # Ranks compute on all cores, and their bits are compared with this process's: with one thread
    # the gradients of a convolution differed by 1.5e-8.
    if worker and not any(item.path.stem.endswith("on_ranks") for item in session.items):
        _OWN_CORE.add(_CORES[int(worker[2:]) % len(_CORES)])


@pytest.fixture(scope="module", autouse=True)
def _released(request):
    """Compiled graphs go with the module that made them, from a certain size of the process on.

    MindSpore keeps a cell that it has compiled, with its graphs, whoever has forgotten it: 30 MB
    for a small step of THOR, of which this gives half back. All kept, they came to 9 GB a process;
    all released, that took 350 s of 4900, since each release looks through all graphs there are.
    Where nothing is compiled, there is nothing to look for, which took 1 s a file.
    """
    yield
    if request.path not in _COMPILES:
        return
    if psutil.Process().memory_info().rss < _ROOM:
        gc.unfreeze()
        _STAY.update(id(cell) for cell in _compiled_cells())
        gc.collect()
        gc.freeze()
    else:
        _release_graphs(but=_STAY)


@pytest.fixture(scope="class")
def released(runtime):
    """The same for the graphs that a class of tests has compiled, where these are many.

    To release one takes a time that grows with the number of all there are. What ``once`` has
    compiled before the class stays.
    """
    gc.unfreeze()
    before = _STAY | {id(cell) for cell in _compiled_cells()}
    gc.freeze()
    yield
    _release_graphs(but=before)


def _release_graphs(but=frozenset()):
    gc.unfreeze()
    if "mindspore" in sys.modules:
        from mindspore.graph.api import _cell_graph_executor

        for cell in _compiled_cells():
            if id(cell) not in but:
                _cell_graph_executor.del_net_res(cell, cell.compile_cache)
                cell.compile_cache.clear()  # one that is still used is compiled again
    gc.collect()
    gc.freeze()


def _compiled_cells():
    from mindspore.nn import Cell

    # By type: a weak proxy among the objects may be one of nothing. A step that has refused its
    # arguments is a Cell without any attribute.
    cells = [o for o in gc.get_objects() if issubclass(type(o), Cell)]
    return [cell for cell in cells if getattr(cell, "compile_cache", None)]


@pytest.fixture(scope="module")
def once(runtime):
    """A module's ``tests.support.step_cells.Once``."""
    from tests.support.step_cells import Once

    return Once()


@pytest.fixture(scope="session")
def mnist(tmp_path_factory) -> Path:
    """The bundled MNIST, unpacked: a folder with train/ and test/."""
    from tests.support.data_archives import load

    return load("mnist").prepare(out=tmp_path_factory.mktemp("datasets") / "MNIST_Data")


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """A function of (training images, validation images) that draws colour digits of 32 pixels."""
    from tests.support.data_archives import load

    script = load("color_digits")

    def make(train, val):
        out = tmp_path_factory.mktemp("digits") / "colour"
        return script.prepare(32, train, val, out=out, say=lambda line: None)

    return make


@pytest.fixture(scope="session")
def cifar10_jpeg(tmp_path_factory) -> Path:
    """12 000 real CIFAR-10 JPEGs, train/CLASS/FILE and val/CLASS/FILE, where they are at hand.

    LABKIT_CIFAR10_JPEG names the archive or an unpacked folder; else it is looked for beside the
    project.
    """
    beside = ROOT.parent / "shared" / "data" / "cifar10" / "cifar10_jpeg_12k.tar.gz"
    source = Path(os.environ.get("LABKIT_CIFAR10_JPEG", beside))
    if not source.exists():
        pytest.skip("no CIFAR-10 JPEGs here: LABKIT_CIFAR10_JPEG may name the archive or folder")
    if source.is_dir():
        return source
    folder = tmp_path_factory.mktemp("cifar10_jpeg")
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    return folder
