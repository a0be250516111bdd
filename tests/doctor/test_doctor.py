"""Every check of the doctor passes where things are right and fails where they are not."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from labkit.errors import InputError
from labkit.runtime import needs_onednn_workaround
from labkit.tools import doctor
from labkit.tools.doctor import data, environment, installed, machine, measured, probes

FAST = {"convolution": 0.02, "matmul": 0.02, "backward": 0.1, "onednn": "AVX2"}
SUM = {"sum": 2.0, "numpy": "1.26.4", "mindspore": "2.10.0", "place": "/site-packages"}
FAKE = {"start": None, "start_bare": None, "arithmetic": SUM, "devices": ["CPU"]}


class FakeChild:
    """Answers at once, without a process; ``started`` counts."""

    started = 0

    def __init__(self, *probes, **environment):
        FakeChild.started += 1
        self.environment = environment

    def answer(self, probe):
        return {**FAKE, "convolution": FAST}[probe]


class Answers:
    """Measurements that are known: a value for each probe, or an error for all."""

    def __init__(self, error="", **answers):
        self.error, self.answers = error, answers

    def answer(self, probe, bare=False):
        if self.error:
            raise RuntimeError(self.error)
        return self.answers["bare" if bare else probe]


@pytest.fixture
def children(monkeypatch):
    monkeypatch.setattr(measured, "Child", FakeChild)
    monkeypatch.setattr(FakeChild, "started", 0)
    return FakeChild


def test_every_check_names_what_it_found_and_a_remedy(children, tmp_path):
    found = doctor.run(tmp_path)
    assert len({check.name for check in found}) == len(found) == len(doctor.known()) == 18
    assert all(check.found and (check.remedy or check.ok) for check in found)
    assert [check.name.lower().replace(" ", "-") for check in found] == doctor.known()
    assert max(len(check.name) for check in found) <= 12
    assert not any(tmp_path.iterdir())
    assert children.started == 2


def test_only_what_is_asked_for_is_checked_and_measured(children, tmp_path):
    assert [check().name for check in doctor.checks(tmp_path, ["msrun", "disk"])] == [
        "msrun",
        "Disk",
    ]
    assert children.started == 0
    doctor.checks(tmp_path, ["numpy"])
    assert children.started == 1
    with pytest.raises(InputError, match="unknown check 'kernal'.*Did you mean 'kernel'"):
        doctor.checks(tmp_path, ["kernal"])


def test_measurements_run_before_anybody_waits_for_them(children, tmp_path):
    doctor.checks(tmp_path)
    assert children.started == 2


def test_only_the_pythons_of_mindspore_pass():
    assert [installed.python((3, minor, 1)).ok for minor in (10, 11, 12, 13)] == [0, 1, 1, 0]
    assert "3.13.1" in installed.python((3, 13, 1)).found
    assert "make run PYTHON=" in installed.python((3, 13, 1)).remedy


@pytest.mark.parametrize(
    ("system", "processor", "ok", "remedy"),
    [
        ("Linux", "x86_64", True, ""),
        ("Linux", "aarch64", True, ""),
        ("Linux", "ppc64le", False, "on such a machine"),
        ("Darwin", "arm64", False, "Linux container"),
        ("Darwin", "x86_64", False, "Linux container"),
        ("Windows", "AMD64", False, "WSL 2"),
        ("FreeBSD", "amd64", False, "on such a machine"),
    ],
)
def test_only_linux_is_supported(system, processor, ok, remedy):
    check = machine.platform(system, processor)
    assert check.ok is ok and f"{system} on {processor}" in check.found
    assert ok == ("expected Linux on x86_64 or aarch64" not in check.found)
    assert remedy in check.remedy
    assert machine.platform().ok


def test_elsewhere_the_doctor_still_says_so(root, tmp_path):
    """Windows has no `resource` and no `fcntl`, macOS and Windows no sched_getaffinity."""
    program = (
        "import os, platform, sys\n"
        "sys.modules['resource'] = sys.modules['fcntl'] = None\n"
        "del os.sched_getaffinity, os.sched_setaffinity\n"
        "platform.system, platform.machine = lambda: 'Windows', lambda: 'AMD64'\n"
        "from labkit.tools.cli import app\n"
        "app(['doctor', 'platform', 'memory', 'disk'])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "Windows on AMD64; expected Linux" in done.stdout and "WSL 2" in done.stdout
    assert "cannot be looked at: ModuleNotFoundError" in done.stdout  # memory, by resource
    assert "GiB free" in done.stdout


def test_the_gpus_that_mindspore_serves_are_said():
    found = measured.devices(Answers(devices=["CPU"])).found
    assert "GPU plugins are for CUDA 11.1 and 11.6" in found
    versions = {name.partition("_gpu.so.")[2] for name in measured.plugins() if "_gpu.so" in name}
    assert versions == {"11.1", "11.6"}


def test_disk_and_memory_have_a_limit(monkeypatch):
    monkeypatch.setattr(machine, "_left_in_container", lambda: None)
    assert machine.disk(Path("/"), 2.1).ok and not machine.disk(Path("/"), 1.9).ok
    assert machine.memory(2.1).ok and not machine.memory(1.9).ok
    free = shutil.disk_usage("/").free / 2**30
    assert float(machine.disk(Path("/")).found.split()[0]) == pytest.approx(free, rel=0.05)
    assert 0 < float(machine.memory().found.split()[0]) <= psutil.virtual_memory().total / 2**30


def test_a_containers_own_limit_counts(monkeypatch, tmp_path):
    limit, used = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(machine, "_CGROUPS", (("/nowhere/a", "/nowhere/b"), (limit, used)))
    used.write_text(f"{3 * 2**30}\n")
    limit.write_text("max\n")
    assert machine.memory(9.0).found == "9.0 GiB free"
    limit.write_text(f"{4 * 2**30}\n")
    check = machine.memory(9.0)
    assert not check.ok and check.found.startswith("1.0 GiB are left of what this container")
    limit.write_text(f"{2**62}\n")  # control groups of version 1 write this for no limit
    assert machine.memory(9.0).found == "9.0 GiB free"


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    assert machine.folders(tmp_path).ok
    (tmp_path / "runs").write_text("in the way")
    check = machine.folders(tmp_path)
    assert not check.ok
    assert f"{tmp_path / 'runs'} is not a folder" in check.found
    assert str(tmp_path / "datasets") not in check.found
    (tmp_path / "runs").unlink()
    (tmp_path / "runs").symlink_to("/nowhere/runs")
    assert "a link to /nowhere/runs, which is not there" in machine.folders(tmp_path).found
    # Permissions alone would let root write there.
    assert machine.refuses(Path("/proc/labkit")).endswith("in /proc")


def test_a_temporary_folder_that_does_not_work_is_named(monkeypatch, tmp_path):
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    assert machine.temporary().ok
    monkeypatch.setenv("TEMP", "/proc")
    assert "TEMP=/proc: " in machine.temporary().found
    monkeypatch.setenv("TEMP", str(tmp_path))
    assert machine.temporary().ok


def test_a_taken_port_is_seen():
    assert machine.loopback().ok
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        check = machine.msrun_port(number)
        assert not check.ok
        assert f"than {number}" in check.remedy
        assert not machine.jupyter_port([number, number]).ok
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            free = other.getsockname()[1]
        assert machine.jupyter_port([number, free]).found.startswith(f"{free} is free")
    assert machine.msrun_port(number).ok


def test_a_machine_without_loopback_is_seen(monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(machine.socket, "create_connection", refuse)
    assert not machine.loopback().ok
    assert "Operation not permitted" in machine.loopback().found


def test_msrun_is_found_beside_python_or_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert not installed.msrun(tmp_path).ok
    program = tmp_path / "msrun"
    program.touch(mode=0o755)
    assert installed.msrun(tmp_path).found == str(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installed.msrun(tmp_path / "elsewhere").found == str(program)


def test_packages_are_compared_through_all_that_they_need(tmp_path, root):
    check = installed.packages(root)
    assert check.ok, check.found
    count = int(check.found.split()[0])
    assert count > 80  # jupyterlab alone needs as many
    text = (root / "constraints.txt").read_text()
    # tornado is needed by ipykernel and jupyter-server, and named by nobody here.
    assert "\ntornado==" in text
    old = text.replace("\ntornado==", "\ntornado==0.0.")
    (tmp_path / "constraints.txt").write_text(old)
    shutil.copy(root / "pyproject.toml", tmp_path)
    assert "tornado is " in installed.packages(tmp_path).found
    pyproject = (root / "pyproject.toml").read_text()
    wanting = pyproject.replace('"nbclient",', '"nbclient", "no-such-package",')
    (tmp_path / "pyproject.toml").write_text(wanting)
    (tmp_path / "constraints.txt").write_text(text)
    check = installed.packages(tmp_path)
    assert check.found == "no-such-package is not installed; expected any version"
    assert installed.packages(tmp_path / "elsewhere").ok


def test_the_labkit_of_the_checkout_is_the_one_imported(root, tmp_path, monkeypatch):
    assert installed.checkout(root).ok
    assert installed.checkout(tmp_path).ok  # no checkout: whichever is installed
    (tmp_path / "labkit").mkdir()
    (tmp_path / "labkit/__init__.py").touch()
    monkeypatch.delenv("PYTHONPATH", raising=False)
    check = installed.checkout(tmp_path)
    assert not check.ok and str(root / "labkit") in check.found
    assert f"in {tmp_path}: install" in check.remedy


def test_a_distribution_of_the_old_name_is_named(root, tmp_path, monkeypatch):
    """Both own the command labkit: uninstalling one takes it from the other."""
    old = tmp_path / "labkit-0.0.3.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: labkit\nVersion: 0.0.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    check = installed.checkout(root)
    assert not check.ok and "distribution labkit 0.0.3 is installed" in check.found
    assert "pip uninstall labkit" in check.remedy


def test_a_kernel_that_cannot_be_read_is_named(monkeypatch, tmp_path):
    place = tmp_path / "kernels/python3"
    place.mkdir(parents=True)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    for text in ("{", '{"argv": []}', '{"argv": ["python"], "display_name": "P"}'):
        (place / "kernel.json").write_text(text)
        check = installed.kernel()
        assert check.ok is ("python" in text), check
        assert check.ok or str(place) in check.found + check.remedy


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("PYTHONOPTIMIZE", "2", "0"),
        ("PYTHONIOENCODING", "ascii", "UTF-8:strict"),
        ("MPLBACKEND", "TkAgg", "module://matplotlib_inline.backend_inline"),
        ("GLOG_v", "high", "3"),
        ("GLOG_stderrthreshold", "5", "4"),
        ("MINDSPORE_DUMP_CONFIG", "/nowhere/x.json", __file__),
        ("MS_SIMULATION_LEVEL", "0", ""),
        ("MS_DEV_PRECOMPILE_ONLY", "1", "0"),
        ("LABKIT_PRESET", "smok", "smoke"),
    ],
)
def test_a_variable_that_breaks_something_is_named(name, bad, good, monkeypatch, children):
    assert [fault.variable for fault in environment.faults({name: bad, "HOME": "/"})] == [name]
    assert environment.faults({name: good}) == []
    monkeypatch.setenv(name, bad)
    check = environment.environment()
    assert not check.ok and f"{name}={bad}: " in check.found and name in check.remedy.split()
    # Its own check says it: what is measured is measured without it.
    child = measured.Measurements().begin()
    assert child.environment[name] is None


def test_data_files_are_compared_with_what_was_published(root, tmp_path):
    assert data.data(tmp_path).ok  # no checkout
    check = data.data(root)
    assert check.ok and int(check.found.split()[0]) >= 4
    shutil.copytree(root / "data_scripts", tmp_path / "data_scripts")
    file = tmp_path / "data_scripts/bundled/mnist/t10k-labels-idx1-ubyte.gz"
    whole = file.read_bytes()
    for content in (b"", whole[:1000], b"no gzip at all", whole[:99] + b"\0" + whole[100:]):
        file.write_bytes(content)
        assert f"{file} is damaged" in data.data(tmp_path).found
    file.unlink()
    assert f"{file} is missing" in data.data(tmp_path).found


@pytest.mark.parametrize(("version", "ok"), [("1.26.4", True), ("2.2.6", False)])
def test_numpy_2_fails_even_if_the_addition_works(monkeypatch, version, ok):
    monkeypatch.setattr(measured, "installed_version", lambda _: version)
    check = measured.numpy(Answers(arithmetic={**SUM, "numpy": version}))
    assert check.ok is ok
    assert "pip install -c constraints.txt" in check.remedy


def test_another_numpy_than_the_installed_one_is_named(monkeypatch):
    monkeypatch.setattr(measured, "installed_version", lambda _: "1.26.3")
    check = measured.numpy(Answers(arithmetic=SUM))
    assert not check.ok and "1.26.4 comes from /site-packages" in check.found
    assert "unset PYTHONPATH" in check.remedy


def test_a_wrong_sum_fails():
    assert not measured.numpy(Answers(arithmetic={**SUM, "sum": 3.0})).ok


@pytest.mark.parametrize("check", [measured.numpy, measured.devices, measured.convolution])
def test_a_crash_in_a_child_is_a_failed_check(check):
    found = check(Answers(error="SystemError: returned a result with an exception set"))
    assert not found.ok
    assert "SystemError" in found.found


@pytest.mark.parametrize(("seconds", "ok"), [(0.02, True), (0.19, True), (0.21, False)])
def test_the_convolution_is_judged_by_its_ratio(seconds, ok):
    slow = {**FAST, "convolution": 2.0}
    check = measured.convolution(Answers(convolution={**FAST, "convolution": seconds}, bare=slow))
    assert check.ok is ok
    assert "ratio 100.0: this machine needs the workaround" in check.found


def test_a_child_that_dies_or_hangs_is_told_apart():
    died = probes.Child(("os.getpid",), ("os.abort",), ("os.getcwd",))
    raised = probes.Child(("os.listdir", "/nowhere"), ("os.getpid",))
    hanging = probes.Child(("os.getpid",), ("time.sleep", 100), timeout=1)
    with pytest.raises(RuntimeError, match="exit code -6"):
        died.answer("os.abort")
    assert died.answer("os.getpid") > 0  # what was answered before stays
    with pytest.raises(RuntimeError, match="exit code -6"):
        died.answer("os.getcwd")
    with pytest.raises(RuntimeError, match="^FileNotFoundError: .*'/nowhere'$"):
        raised.answer("os.listdir")
    assert raised.answer("os.getpid") > 0
    with pytest.raises(RuntimeError, match="no answer within 1 s"):
        hanging.answer("time.sleep")
    with pytest.raises(ProcessLookupError):
        os.kill(hanging.answer("os.getpid"), 0)


def test_a_child_sees_the_variables_it_is_given(monkeypatch):
    monkeypatch.setenv("LABKIT_A", "1")
    ask = ("os.getenv", "LABKIT_A")
    ours, theirs, none = (probes.Child(ask, **given) for given in ({}, A("2"), A(None)))
    assert [child.answer("os.getenv") for child in (ours, theirs, none)] == ["1", "2", None]


def A(value):
    return {"LABKIT_A": value}


@pytest.mark.slow
def test_this_machine_is_healthy(monkeypatch):
    """Real measurements: the pinned packages add, and convolve at the speed of a product."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    for check in doctor.checks(names=["numpy", "devices", "convolution"]):
        found = check()
        assert found.ok, found
    needs = needs_onednn_workaround(SUM["mindspore"])
    assert f"this machine {'needs' if needs else 'does not need'} the workaround" in found.found
    assert "libmindspore_ops_cpu.so" in measured.plugins()


def test_the_folders_are_those_of_the_project_around(monkeypatch, tmp_path, children):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "labkit"\ndependencies = []\n')
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    found = {check.name: check.found for check in doctor.run()}
    assert found["Disk"].endswith(f"free at {tmp_path}")
    assert str(tmp_path / "runs") in found["Folders"]


def test_the_command_prints_lines_or_json(monkeypatch):
    from typer.testing import CliRunner

    from labkit.tools.cli import app

    good = doctor.Check("Disk", True, "[9] GiB", "buy one")
    bad = doctor.Check("msrun", False, "not found", "install it")
    monkeypatch.setattr(
        doctor, "checks", lambda names: [lambda: good, lambda: bad][: 2 - len(names)]
    )
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 1
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"name": "Disk", "ok": True, "found": "[9] GiB", "remedy": "buy one"},
        {"name": "msrun", "ok": False, "found": "not found", "remedy": "install it"},
    ]
    done = CliRunner().invoke(app, ["doctor", "disk"])
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "1 of 1 checks passed")
