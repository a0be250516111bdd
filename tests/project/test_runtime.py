"""``start``: device, seeds, graph mode, the oneDNN workaround, and what it prints."""

import os
import random
import re

import numpy as np
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from labkit import runtime
from labkit.errors import InputError
from labkit.runtime import start
from tests.support.programs import run_code
from tests.support.trainings import ROOT

LINE = r"labkit: CPU \(.+\), MindSpore 2\.10\.0, graph mode, seed (\d+), oneDNN up to (\w+)"
FROZEN = """
import gc, os, labkit
assert gc.get_freeze_count() == 0
chosen = labkit.start("CPU")
first = gc.get_freeze_count()
kept = [[] for _ in range(100_000)]
labkit.start("CPU")
assert first > 50_000 and gc.get_freeze_count() <= first
assert os.environ["ONEDNN_MAX_CPU_ISA"] == chosen.onednn == "SSE41"
assert os.environ["GLOG_v"] == "2"
"""
DOUBLE = """
from mindspore import Tensor, nn

class Double(nn.Cell):
    def construct(self, x):
        if x.sum() > 0:
            x = x * 2
        return x

print(Double()(Tensor([1.0, 2.0])))
"""


@pytest.fixture
def mindspore(runtime):
    """MindSpore; it is started again afterwards for the tests that follow."""
    import mindspore

    yield mindspore
    start("CPU", seed=1)


def test_one_line_and_nothing_else():
    code = "import labkit; r = labkit.start(seed=5); assert r.device == 'CPU'"
    done = run_code(code, env={"ONEDNN_MAX_CPU_ISA": None, "GLOG_v": None})
    assert (done.returncode, done.stderr) == (0, "")
    seed, onednn = re.fullmatch(LINE, done.stdout.strip()).groups()
    assert seed == "5" and "(no Ascend or GPU that MindSpore can use)" in done.stdout
    assert onednn == "AVX2"


@pytest.mark.parametrize("module", ["steps.schedules", "labs.run", "reference", "tools.cli"])
def test_a_module_that_needs_no_mindspore_imports_none(module):
    """Neither PyTorch nor SciPy; the command starts without NumPy, for the doctor to miss it."""
    heavy = {"mindspore", "torch", "scipy"} | ({"numpy"} if module == "tools.cli" else set())
    done = run_code(f"import sys, labkit.{module}; print(*{heavy} & set(sys.modules))")
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_what_the_user_has_set_is_respected_and_garbage_is_frozen_once():
    done = run_code(FROZEN, env={"ONEDNN_MAX_CPU_ISA": "SSE41", "GLOG_v": "2"})
    assert done.returncode == 0, done.stderr
    assert "oneDNN up to SSE41" in done.stdout


def test_a_cell_defined_in_a_notebook_prints_no_errors(tmp_path):
    cells = [new_code_cell("import labkit\nlabkit.start();"), new_code_cell(DOUBLE)]
    notebook = new_notebook(cells=cells)
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    variables.pop("GLOG_v", None)
    options = {"timeout": 120, "kernel_name": "python3", "coalesce_streams": True}
    client = NotebookClient(notebook, **options)
    client.execute(cwd=str(tmp_path), env=variables)
    (start_line,), (answer,) = (cell.outputs for cell in notebook.cells)
    assert start_line.name == "stdout"
    assert (answer.name, answer.text) == ("stdout", "[2. 4.]\n")


def test_what_cannot_be_started_is_refused_and_changes_nothing(mindspore, monkeypatch):
    monkeypatch.setattr(runtime, "available_devices", lambda: ("CPU",))
    mindspore.set_seed(77)
    there = "was requested but is not available; this MindSpore can use: CPU"
    for device, seed, words in (
        ("cpu", 1, "unknown device 'cpu'; expected one of: auto, Ascend, .* Did you mean 'CPU'"),
        ("Ascend", 1, f"Ascend {there}"),
        ("GPU", 1, f"GPU {there}"),
        ("CPU", 2**32, "seed: expected an integer >= 0"),
    ):
        with pytest.raises(InputError, match=words):
            start(device, seed)
    assert mindspore.get_seed() == 77 and mindspore.get_context("device_target") == "CPU"


def test_auto_takes_the_best_device_and_says_why(monkeypatch, capsys):
    monkeypatch.setattr(runtime, "available_devices", lambda: ("GPU", "CPU"))
    monkeypatch.setattr(runtime, "_set_global_state", lambda device, seed: f"2.10.{device}")
    for device, said in {
        "auto": "GPU (first of GPU, CPU), MindSpore 2.10.GPU, graph mode, seed 1",
        "GPU": "GPU (asked for), MindSpore 2.10.GPU, graph mode, seed 1",
        "CPU": "CPU (asked for), MindSpore 2.10.CPU, graph mode, seed 1, oneDNN up to ",
    }.items():
        start(device)
        assert capsys.readouterr().out.startswith(f"labkit: {said}")


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, np.int64(7)])
def test_every_generator_is_seeded_in_graph_mode(mindspore, seed):
    """Without fast recovery, with which random augmentation differs after a resume."""
    drawn = []
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.dataset.config.set_fast_recovery(True)
    for _ in range(2):
        assert start("CPU", seed=seed).seed == seed
        assert mindspore.get_context("mode") == mindspore.GRAPH_MODE
        assert not mindspore.dataset.config.get_fast_recovery()
        assert mindspore.get_seed() == mindspore.dataset.config.get_seed() == seed
        data = mindspore.dataset.NumpySlicesDataset(list(range(50)), shuffle=True)
        order = [int(row[0].asnumpy()) for row in data.create_tuple_iterator(num_epochs=1)]
        weights = mindspore.common.initializer.initializer("normal", (5,)).init_data()
        drawn.append((order, weights.asnumpy().tolist(), np.random.random(), random.random()))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("version", "user", "expected"),
    [
        ("2.9.0", None, "AVX2"),
        ("2.10.0rc1", None, "AVX2"),
        ("2.10.0", "AVX512_CORE", "AVX512_CORE"),
        ("2.10.0", "SSE41", "SSE41"),
        ("2.8.0", None, "default"),
    ],
)
def test_the_slow_kernel_is_avoided_since_2_9(mindspore, monkeypatch, version, user, expected):
    monkeypatch.setattr(mindspore, "__version__", version)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", user or "")
    if user is None:
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert start("CPU").onednn == expected
    assert os.environ.get("ONEDNN_MAX_CPU_ISA", "default") == expected


def test_a_gradient_that_raises_leaves_later_ones_whole(mindspore):
    """MindSpore goes on recording it, and no later gradient could index a tensor."""

    def raises(x):
        raise ValueError("no shape fits")

    def last(x):
        first, second = x
        return (first * second).sum()

    x = mindspore.Tensor(np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match="no shape fits"), runtime.pynative():
        mindspore.value_and_grad(raises)(x)
    with runtime.pynative():
        assert float(mindspore.value_and_grad(last)(x)[0]) == 3
