"""A training needs nothing that only Linux has; that stands in one module."""

import math
import re
import shutil
import sys

import pytest

from labkit.base import files, machine
from labkit.errors import InputError
from labkit.ranks.launch import launch
from labkit.tools import run
from tests.support.programs import run_code

# What macOS or Windows lacks. psutil and MindSpore, which use it on Linux, have other means there.
HIDE = """
import builtins, io, os, signal, sys

def caller():
    return sys._getframe(2).f_globals["__name__"].partition(".")[0]

def hidden(call):
    def refuse(path=".", *rest, **options):
        if str(path).startswith(("/proc", "/sys/fs")) and caller() not in ("psutil", "mindspore"):
            raise FileNotFoundError(2, "hidden", str(path))
        return call(path, *rest, **options)
    return refuse

def importing(name, *rest, true=__import__, **options):
    if name in ("fcntl", "resource") and caller() in ("labkit", "filelock"):
        raise ImportError(f"{name} is hidden")
    return true(name, *rest, **options)

builtins.__import__ = importing
for module, names in ((builtins, ["open"]), (io, ["open"]), (os, ["listdir", "open", "stat"])):
    for name in names:
        setattr(module, name, hidden(getattr(module, name)))
del os.sched_getaffinity, os.sched_setaffinity, os.setsid, os.killpg, signal.SIGALRM
"""
IMPORT = """
import importlib, inspect, pkgutil
import labkit
inspect.getmembers(labkit)  # imports every public name
for module in pkgutil.walk_packages(labkit.__path__, "labkit."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
TRAIN = """
import tempfile
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset
from labkit.ranks.cluster import digest
from tests.support.step_cells import STEPS, momentum, regression, rows, tensors

def step_of(name):
    network, loss_net = regression()
    return STEPS[name](loss_net, momentum(network)), loss_net

labkit.start("CPU")
for name in ("plain", "accumulated", "thor", "adasum", "subspace"):
    step, _ = step_of(name)
    losses = [float(step(*tensors(*rows(4, seed)))).hex() for seed in range(2)]
    assert int(step.updates.asnumpy()) >= 1
    print(name, losses, digest(step))
data = NumpySlicesDataset(rows(12), ["inputs", "targets"]).batch(4)
with tempfile.TemporaryDirectory() as folder:
    labkit.fit(step_of("plain")[0], data, 1, folder=folder, progress=None)
    step, loss_net = step_of("plain")
    records = labkit.fit(step, data, 2, folder=folder, resume=True, progress=None)
print(records.column("loss"), digest(step), labkit.evaluate(loss_net, data))
print(records.column("peak_memory_mb"))
"""
LINUX_ONLY = re.compile(
    r"\b(?:fcntl|resource|ctypes|sched_[gs]etaffinity|preexec_fn|start_new_session|SIGALRM"
    r"|setitimer|O_DIRECTORY|geteuid|getuid)\b|/proc/|/sys/"
)


def test_a_training_with_what_linux_alone_has_hidden_is_the_same_to_the_bit():
    shown, hidden = (run_code(code + IMPORT + TRAIN) for code in ("", HIDE))
    assert (shown.returncode, hidden.returncode) == (0, 0), shown.stderr + hidden.stderr
    *same, peaks = shown.stdout.splitlines()
    *others, unknown = hidden.stdout.splitlines()
    assert others == same and "resumed after micro-batch 3" in hidden.stdout
    assert "nan" not in peaks and set(re.findall(r"\w+", unknown)) == {"nan"}


@pytest.mark.parametrize("line", ["import resource", "open('/proc/cpuinfo').close()"])
def test_a_module_that_needs_linux_is_noticed(root, tmp_path, line):
    shutil.copytree(root / "labkit", tmp_path / "labkit")
    module = tmp_path / "labkit/training/records.py"
    module.write_text(module.read_text().replace("import csv", f"import csv\n{line}", 1))
    path = {"PYTHONPATH": str(tmp_path)}
    assert run_code(IMPORT, env=path).returncode == 0
    done = run_code(HIDE + IMPORT, env=path)
    assert done.returncode == 1 and re.search(f"records.py.*\n +{re.escape(line)}", done.stderr)


def test_one_module_has_what_linux_alone_has(root):
    paths = [
        path for path in (root / "labkit").rglob("*.py") if LINUX_ONLY.search(path.read_text())
    ]
    assert paths == [root / "labkit/base/machine.py"]


def test_elsewhere_programs_of_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    for call, name in (
        (lambda: launch("train.py", workers=2, timeout=9), "launch"),
        (lambda: run.tasks(["01"], {}), "the labs"),
    ):
        with pytest.raises(InputError, match=f"{name}: expected Linux, got win32; on Windows, use"):
            call()
    assert math.isnan(machine.peak_memory())


def test_a_folder_works_where_open_files_stay_and_nothing_is_synced(monkeypatch, tmp_path):
    """As on Windows; in some file systems no folder is synced, but a file must be."""

    def refuse(*_, **__):
        raise PermissionError(13, "in use")

    monkeypatch.setattr("os.fsync", refuse)
    machine.sync(tmp_path)
    with pytest.raises(InputError, match="cannot write the file .*in use"):
        files.write_text(tmp_path / "a.txt", "text", "the file")
    monkeypatch.setattr(sys, "platform", "win32")
    files.write_text(tmp_path / "a.txt", "text", "the file")
    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    for _ in range(2):
        with files.locked(tmp_path, "a test"):
            assert (tmp_path / ".lock").exists()
