"""Fixtures that every test may ask for."""

import functools
import gc
import inspect
import os
import signal
import weakref
from collections import Counter
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

import labkit
from labkit.runtime import pynative
from tests.support import slow_tests

ROOT = Path(__file__).resolve().parent.parent
_ROOM = 2.5e9  # bytes that a process may hold before graphs are released
_COMPILED: weakref.WeakSet = weakref.WeakSet()  # cells whose graphs may be released
_CORES = sorted(os.sched_getaffinity(0))
_OWN_CORE: set[int] = set()  # the core on which this worker computes; empty: all cores

# With save_graphs on, MindSpore writes 170 files for a graph; support.compiled reads one kind: 3.3
# s for a step of Adasum instead of 6 to 7.4. MindSpore reads the variable once.
os.environ.setdefault("MS_DEV_DUMP_IR_PASSES", "validate")
# PyTorch's threads busy-wait for each other: beside other computing processes, 200 backward passes
# of LeNet took 26 s instead of 5. The number of threads, which affects rounding, is unchanged.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# On a busy machine an example took longer than Hypothesis's 200 ms, and the test failed. The same
# examples in every run: a change is not refused for what chance finds in another place.
# --hypothesis-profile=default draws others.
settings.register_profile(
    "any machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
# A shell makes background processes, and all their children, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def runtime():
    """MindSpore started as every lab starts it, on CPU with seed 1."""
    os.sched_setaffinity(0, _OWN_CORE or _CORES)  # MindSpore's threads stay where they begin
    _record_compiled_cells()
    return labkit.start(device="CPU", seed=1)


@pytest.fixture
def eager(runtime):
    """Run in PyNative mode, which compiles nothing; tests/steps/test_step.py: both modes agree."""
    with pynative():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Begin each test with the same seed: its initial weights depend on no test before it."""
    if "runtime" in getattr(item, "fixturenames", ()):
        import mindspore
        from mindspore.common.api import _pynative_executor

        mindspore.set_seed(1)
        _pynative_executor.clear_res()  # see labkit.runtime.pynative


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests of slow.txt and long.txt; files that take long come first: all wait for them.

    A line of long.txt is a test that repeats, with other options, one that every run makes.
    """
    listed = set(slow_tests.LIST.read_text().splitlines())
    longer = set((ROOT / "tests" / "long.txt").read_text().splitlines())
    for item in items:
        if item.nodeid in longer:
            item.add_marker("long")
        if slow_tests.is_slow(item.nodeid, listed) or item.get_closest_marker("long"):
            item.add_marker("slow")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -sizes[item.path], str(item.path)))


def pytest_collection_finish(session):
    """Exclude what is imported from the garbage collections that MindSpore starts."""
    gc.collect()
    gc.freeze()
    worker = os.environ.get("PYTEST_XDIST_WORKER")  # gw0, gw1, ... if several run
    # Ranks compute on all cores, and their results are compared with this process's bit by bit:
    # with one thread the gradients of a convolution differed by 1.5e-8.
    if worker and not any(item.path.stem.endswith("on_ranks") for item in session.items):
        _OWN_CORE.add(_CORES[int(worker[2:]) % len(_CORES)])


@pytest.fixture(scope="module", autouse=True)
def _module(request):
    """Pin this worker to one core for a module that computes here; release its graphs at its end.

    MindSpore's calling thread spins, and it keeps every compiled cell: 9 GB per process. Releasing
    all took 350 s of 4900, so they are released once the process holds ``_ROOM`` bytes.
    """
    os.sched_setaffinity(0, "runtime" in request.fixturenames and _OWN_CORE or _CORES)
    yield
    os.sched_setaffinity(0, _CORES)
    if psutil.Process().memory_info().rss < _ROOM:
        _COMPILED.clear()
    else:
        _release(set(_COMPILED))
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="class")
def released(runtime):
    """Release the graphs that a class of tests has compiled, which are many; those before stay."""
    before = set(_COMPILED)
    yield
    _release(set(_COMPILED) - before)


def _record_compiled_cells():
    from mindspore.common.api import _CellGraphExecutor

    # MindSpore splits the source of every method into tokens anew for every graph.
    block_of = functools.cache(lambda lines: getblock(list(lines)))
    getblock, inspect.getblock = inspect.getblock, lambda lines: list(block_of(tuple(lines)))

    def recorded(executor, cell, *args, **options):
        compiled = compile_cell(executor, cell, *args, **options)
        _COMPILED.add(cell)
        return compiled

    compile_cell, _CellGraphExecutor.compile = _CellGraphExecutor.compile, recorded


def _release(cells):
    from mindspore.common.api import _cell_graph_executor

    for cell in cells:
        _cell_graph_executor.del_net_res(cell, cell.compile_cache)
        cell.compile_cache.clear()  # a cell still in use is compiled again
        _COMPILED.discard(cell)


@pytest.fixture(scope="module")
def once(runtime):
    from tests.support.step_cells import Once

    return Once()


@pytest.fixture(scope="session")
def mnist(tmp_path_factory) -> Path:
    """The bundled MNIST, unpacked: a folder with train/ and test/."""
    from tests.support.data_archives import load

    return load("mnist").prepare(out=tmp_path_factory.mktemp("datasets") / "MNIST_Data")


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """A function (number of training, of validation images) that draws 32-pixel colour digits."""
    from tests.support.data_archives import load

    script = load("color_digits")

    def make(train, val):
        out = tmp_path_factory.mktemp("digits") / "colour"
        return script.prepare(32, train, val, out=out, say=lambda line: None)

    return make
