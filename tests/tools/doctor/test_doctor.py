"""Every check of the doctor passes when things are right and fails when they are not."""

import errno
import gzip
import hashlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from labkit.errors import InputError
from labkit.runtime import needs_onednn_workaround
from labkit.tools import doctor
from labkit.tools.doctor import installed, machine, measured
from tests.support.command import labkit

GIB = 2**30
CONVOLVED = {"convolution": 0.02, "matmul": 0.02, "backward": 0.1, "onednn": "AVX2"}
ANSWERS = {
    measured.ARITHMETIC: {
        "sum": 2.0, "numpy": "1.26.4", "mindspore": "2.10.0", "place": "/site-packages",
    },
    measured.DEVICES: ["CPU"],
    measured.CONVOLUTION: CONVOLVED,
    measured.WITHOUT_START: CONVOLVED,
}  # fmt: skip


@pytest.fixture
def answers(monkeypatch):
    """The answers of the measuring processes, without any process; a test may change them."""
    changed = {call: {"answer": answer} for call, answer in ANSWERS.items()}
    monkeypatch.setattr(measured, "ask", lambda calls, _: {call: changed[call] for call in calls})
    monkeypatch.setattr(measured, "installed_version", lambda _: "1.26.4")
    return changed


def look(name, root=None):
    (check,) = doctor.checks(root, [name])
    return check()


def test_every_check_names_what_it_found_and_a_remedy(answers, tmp_path):
    results = doctor.run(tmp_path)
    assert len({check.name for check in results}) == len(results) == len(doctor.known()) == 18
    assert all(check.found and check.remedy for check in results)
    assert [check.name.lower().replace(" ", "-") for check in results] == doctor.known()
    assert max(len(check.name) for check in results) <= 12
    assert not any(tmp_path.iterdir())


def test_only_what_is_asked_for_is_checked(tmp_path):
    chosen = doctor.checks(tmp_path, ["msrun", "disk"])
    assert [check().name for check in chosen] == ["msrun", "Disk"]
    with pytest.raises(InputError, match="unknown check 'kernal'.*Did you mean 'kernel'"):
        doctor.checks(tmp_path, ["kernal"])


def test_two_processes_answer_all_before_anybody_waits_for_them(monkeypatch, tmp_path):
    asked = threading.Barrier(3)  # both measure at the same time, before any check is called

    def ask(calls, without):
        asked.wait(30)
        return {call: {"answer": (tuple(calls), without)} for call in calls}

    monkeypatch.setattr(measured, "ask", ask)
    answer = measured.start(list(ANSWERS))
    asked.wait(30)
    first = ((measured.DEVICES, measured.ARITHMETIC, measured.CONVOLUTION), ())
    assert [answer(call) for call in first[0]] == [first] * 3
    assert answer(measured.WITHOUT_START)[1] == ("ONEDNN_MAX_CPU_ISA",)
    monkeypatch.setattr(
        measured, "ask", lambda calls, _: {call: {"answer": [*calls]} for call in calls}
    )
    assert measured.start([measured.DEVICES])(measured.DEVICES) == [measured.DEVICES]


def test_the_folders_are_those_of_the_project_around(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "labkit"\ndependencies = []\n')
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert look("disk").found.endswith(f"free at {tmp_path}")
    assert str(tmp_path / "runs") in look("folders").found


@pytest.mark.parametrize(("minor", "ok"), [(10, False), (11, True), (12, True), (13, False)])
def test_only_the_pythons_of_mindspore_pass(monkeypatch, minor, ok):
    monkeypatch.setattr(installed, "sys", SimpleNamespace(version_info=(3, minor, 1), executable=1))
    check = look("python")
    assert check.ok is ok and f"3.{minor}.1" in check.found


@pytest.mark.parametrize(
    ("system", "processor", "ok", "remedy"),
    [
        ("Linux", "x86_64", True, ""),
        ("Linux", "aarch64", True, ""),
        ("Linux", "ppc64le", False, "on such a machine"),
        ("Darwin", "arm64", False, "Linux container"),
        ("Windows", "AMD64", False, "WSL 2"),
    ],
)
def test_only_linux_is_supported(monkeypatch, system, processor, ok, remedy):
    monkeypatch.setattr(machine.system, "system", lambda: system)
    monkeypatch.setattr(machine.system, "machine", lambda: processor)
    check = look("platform")
    assert check.ok is ok and f"{system} on {processor}" in check.found
    assert ok == ("expected Linux on x86_64 or aarch64" not in check.found)
    assert remedy in check.remedy


def test_where_much_is_missing_the_doctor_still_says_so(root):
    """Windows lacks `resource` and `fcntl`; macOS and Windows lack sched_getaffinity."""
    program = (
        "import os, platform, sys\n"
        "for name in ('resource', 'fcntl', 'numpy', 'psutil'):\n"
        "    sys.modules[name] = None\n"
        "del os.sched_getaffinity, os.sched_setaffinity\n"
        "platform.system, platform.machine = lambda: 'Windows', lambda: 'AMD64'\n"
        "from labkit.tools.cli import app\n"
        "app(['doctor', 'platform', 'memory', 'data', 'disk', 'kernel', 'devices'])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "Windows on AMD64; expected Linux" in done.stdout and "WSL 2" in done.stdout
    assert "GiB free" in done.stdout and "pass  Kernel" in done.stdout
    for name in ("Memory", "Data", "Devices"):
        assert re.search(f"fail  {name} +cannot be looked at: ModuleNotFoundError", done.stdout)


@pytest.mark.parametrize(
    ("free", "left", "said", "ok"),
    [
        (2.1, None, "2.1 GiB free", True),
        (1.9, None, "1.9 GiB free", False),
        (9.0, 1 * GIB, "1.0 GiB are left of what this container may have", False),
        (9.0, 2**62, "9.0 GiB free", True),
    ],
)
def test_disk_and_memory_have_a_limit_and_so_has_a_container(monkeypatch, free, left, said, ok):
    import psutil

    room = SimpleNamespace(free=free * GIB, available=free * GIB)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: room)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: room)
    monkeypatch.setattr(machine, "left_in_container", lambda: left)
    check = look("memory")
    assert check.found == said and check.ok is ok
    assert look("disk").ok is (free > 2)


def test_a_shells_limit_of_memory_is_named(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (3_000_000 << 10, -1))
    check = look("memory")
    assert check.found == "the address space is limited to 2.9 GiB"
    assert "(ulimit -v unlimited)" in check.remedy and not check.ok


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    assert look("folders", tmp_path).ok
    (tmp_path / "runs").write_text("in the way")
    check = look("folders", tmp_path)
    assert not check.ok and f"{tmp_path / 'runs'} is not a folder" in check.found
    assert str(tmp_path / "datasets") not in check.found
    (tmp_path / "runs").unlink()
    (tmp_path / "runs").symlink_to("/nowhere/runs")
    assert "a link to /nowhere/runs, which is not there" in look("folders", tmp_path).found


def test_a_temporary_folder_that_does_not_work_is_named(monkeypatch, tmp_path):
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    assert look("temp-folder").ok
    monkeypatch.setenv("TEMP", "/proc")  # by its permissions alone, root could write there
    assert look("temp-folder").found.startswith("TEMP=/proc: ")
    assert "unset TEMP" in look("temp-folder").remedy
    monkeypatch.setenv("TEMP", str(tmp_path))
    assert look("temp-folder").ok


def test_a_taken_port_is_seen(monkeypatch):
    with socket.socket() as taken, socket.socket() as other:
        taken.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        taken.listen()
        number, free = taken.getsockname()[1], other.getsockname()[1]
        other.close()
        monkeypatch.setattr(machine, "MSRUN_PORT", number)
        monkeypatch.setattr(machine, "JUPYTER_PORTS", [number, number])
        assert look("msrun-port").found.startswith(f"{number} cannot be used")
        assert not look("msrun-port").ok and not look("jupyter-port").ok
        monkeypatch.setattr(machine, "JUPYTER_PORTS", [number, free])
        assert look("jupyter-port").found.startswith(f"{free} is free")
    assert look("msrun-port").ok


def test_a_machine_without_loopback_is_seen(monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    assert look("loopback").ok
    monkeypatch.setattr(machine.socket, "create_connection", refuse)
    assert not look("loopback").ok and "Operation not permitted" in look("loopback").found


def test_msrun_is_found_beside_python_or_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(installed, "sys", SimpleNamespace(executable=f"{tmp_path}/bin/python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not look("msrun").ok
    for place in (tmp_path / "msrun", tmp_path / "bin" / "msrun"):
        place.parent.mkdir(exist_ok=True)
        place.touch(mode=0o755)
        assert look("msrun").found == str(place)


def test_packages_are_compared_through_all_that_they_need(tmp_path, root):
    check = look("packages", root)
    assert check.ok, check.found
    assert int(check.found.split()[0]) > 80  # jupyterlab alone needs that many
    assert look("packages", tmp_path).ok  # nothing to compare with
    pins = (root / "constraints.txt").read_text()
    # ipykernel and jupyter-server need tornado; pyproject.toml does not name it.
    assert "\ntornado==" in pins
    (tmp_path / "constraints.txt").write_text(pins.replace("\ntornado==", "\ntornado==0.0."))
    pyproject = (root / "pyproject.toml").read_text()
    wanting = pyproject.replace('"nbclient",', '"nbclient", "no-such-package",')
    (tmp_path / "pyproject.toml").write_text(wanting)
    check = look("packages", tmp_path)
    assert "tornado is " in check.found
    assert "no-such-package is not installed; expected any version" in check.found


def test_the_labkit_of_the_checkout_is_the_one_imported(root, tmp_path, monkeypatch):
    assert look("labkit", root).ok
    assert look("labkit", tmp_path).ok  # no checkout: any installed labkit is right
    (tmp_path / "labkit").mkdir()
    (tmp_path / "labkit/__init__.py").touch()
    monkeypatch.delenv("PYTHONPATH", raising=False)
    check = look("labkit", tmp_path)
    assert not check.ok and str(root / "labkit") in check.found
    assert f"in {tmp_path}: install" in check.remedy
    monkeypatch.setenv("PYTHONPATH", f"/nowhere{os.pathsep}{root}")
    check = look("labkit", tmp_path)
    assert not check.ok and check.remedy == f"take {root} out of PYTHONPATH (unset PYTHONPATH)"


def test_a_distribution_of_the_old_name_is_named(root, tmp_path, monkeypatch):
    """Both own the command labkit: uninstalling one removes the command of the other."""
    old = tmp_path / "labkit-0.0.3.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: labkit\nVersion: 0.0.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    check = look("labkit", root)
    assert not check.ok and "distribution labkit 0.0.3 is installed" in check.found
    assert "pip uninstall labkit" in check.remedy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "{place} cannot be read"),
        ('{"argv": []}', "{place} cannot be read"),
        ('{"argv": ["/opt/env/bin/python"]}', "python3 starts /opt/env/bin/python, another"),
        ('{"argv": ["python"], "display_name": "P"}', ""),
    ],
)
def test_a_kernel_of_another_environment_is_named(monkeypatch, tmp_path, text, said):
    place = tmp_path / "kernels/python3"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(text)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    check = look("kernel")
    assert check.ok is not bool(said) and check.found.startswith(said.format(place=place))
    if said:
        subprocess.run(re.search(r"rm -r '\S+'", check.remedy)[0], shell=True, check=True)
        assert not place.exists()
    assert look("kernel").found == f"python3 starts {sys.executable}"
    monkeypatch.setattr(installed.util, "find_spec", lambda name: name != "ipykernel" or None)
    check = look("kernel")
    assert check.found == "ipykernel cannot be imported" and "pip install" in check.remedy


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
def test_a_variable_that_breaks_something_is_named(name, bad, good, monkeypatch):
    for other in installed.faults():
        monkeypatch.delenv(other)
    monkeypatch.setenv(name, good)
    assert look("environment").ok
    monkeypatch.setenv(name, bad)
    check = look("environment")
    assert check.found.startswith(f"{name}={bad}: ") and check.remedy == f"unset {name}"


def test_damaged_data_files_are_named(root, tmp_path, monkeypatch):
    check = look("data", root)
    assert check.ok and int(check.found.split()[0]) >= 4
    assert look("data", tmp_path).ok  # no checkout
    dataset = SimpleNamespace(sha256={"labels": hashlib.sha256(b"whole").hexdigest()}, folder="M")
    small = {"DATASETS": {"mnist": dataset}, "FILES": {"labels": "test"}}
    monkeypatch.setattr(machine.runpy, "run_path", lambda program: small)
    file = tmp_path / "data_scripts/bundled/mnist/labels.gz"
    prepared = tmp_path / "datasets/M/test/labels"
    for place in (file, prepared):
        place.parent.mkdir(parents=True)
    whole = gzip.compress(b"whole")
    assert f"{file} is missing" in look("data", tmp_path).found
    for content in (b"", whole[:15], b"no gzip at all", whole[:12] + b"\0" + whole[13:]):
        file.write_bytes(content)
        check = look("data", tmp_path)
        assert f"{file} is damaged" in check.found
        assert check.remedy.startswith(f"git checkout -- {file.parent}")
    file.write_bytes(whole)
    prepared.write_bytes(b"other")
    check = look("data", tmp_path)
    assert f"{prepared} is damaged" in check.found
    assert check.remedy.startswith(f"rm -r '{tmp_path / 'datasets/M'}'")
    subprocess.run(re.search(r"rm -r '\S+'", check.remedy)[0], shell=True, check=True)
    assert not prepared.exists() and look("data", tmp_path).ok
    prepared.parent.mkdir(parents=True)
    prepared.write_bytes(b"whole")
    assert look("data", tmp_path).found == "2 files as published"


@pytest.mark.parametrize(
    ("call", "changed", "said", "remedy"),
    [
        (measured.ARITHMETIC, {"numpy": "2.2.6"}, "numpy 2.2.6, Mind", "pip install -c const"),
        (measured.ARITHMETIC, {"numpy": "1.26.3"}, "1.26.3 comes from /site", "unset PYTHONPATH"),
        (measured.ARITHMETIC, {"sum": 3.0}, "Tensor(1.0) + 1 = 3", "pip install"),
        (measured.CONVOLUTION, {"convolution": 0.21}, "ratio 10.5", "ONEDNN_MAX_CPU_ISA"),
    ],
)
def test_a_measurement_out_of_bounds_fails(answers, monkeypatch, call, changed, said, remedy):
    name = "numpy" if call == measured.ARITHMETIC else "convolution"
    assert look(name).ok
    if changed.get("numpy") == "2.2.6":  # if installed, it fails even if the addition works
        monkeypatch.setattr(measured, "installed_version", lambda _: "2.2.6")
    answers[call] = {"answer": ANSWERS[call] | changed}
    check = look(name)
    assert not check.ok and said in check.found and remedy in check.remedy


def test_the_workaround_is_needed_where_convolutions_are_slow_without_it(answers):
    assert "this machine does not need the workaround" in look("convolution").found
    answers[measured.WITHOUT_START] = {"answer": CONVOLVED | {"convolution": 2.0}}
    answers[measured.CONVOLUTION] = {"answer": CONVOLVED | {"convolution": 0.19}}
    check = look("convolution")
    assert check.ok and "ratio 100.0: this machine needs the workaround" in check.found


def test_the_gpus_that_mindspore_serves_are_said(answers):
    assert "GPU plugins are for CUDA 11.1 and 11.6" in look("devices").found
    versions = {name.partition("_gpu.so.")[2] for name in measured.plugins() if "_gpu.so" in name}
    assert versions == {"11.1", "11.6"}
    answers[measured.DEVICES] = {"answer": []}
    assert not look("devices").ok


@pytest.mark.parametrize("name", ["numpy", "devices", "convolution"])
def test_a_crash_of_a_process_is_a_failed_check(answers, name):
    answers.update(dict.fromkeys(ANSWERS, {"error": "SystemError: with an exception set"}))
    check = look(name)
    assert not check.ok and "SystemError" in check.found and "pip install" in check.remedy


def test_a_process_that_dies_or_raises_says_which(monkeypatch):
    """Each call is answered as soon as it ends, so answers before a crash are kept."""
    for name in ("MS_SIMULATION_LEVEL", "LABKIT_A", "LABKIT_B"):
        monkeypatch.setenv(name, "1")
    # The environment check reports the first variable, which would break the measurement.
    variables = [f"os.getenv({name!r})" for name in ("MS_SIMULATION_LEVEL", "LABKIT_A", "LABKIT_B")]
    raising = "os.listdir('/nowhere')"
    replies = measured.ask([*variables, raising, "os.abort()", "devices()"], ["LABKIT_B"])
    assert [replies[call]["answer"] for call in variables] == [None, "1", None]
    assert replies[raising]["error"].startswith("FileNotFoundError: ")
    ended = {"error": "the process ended with exit code -6"}
    assert replies["os.abort()"] == replies["devices()"] == ended
    (reply,) = measured.ask(["os._exit(3)"]).values()
    assert reply == {"error": "the process ended with exit code 3"}


def test_a_process_that_hangs_says_so():
    """The answers before the hanging call are kept."""
    for seconds in (1, 2, 4, 8, 16):  # on a busy machine Python starts that slowly
        replies = measured.ask(["os.sep", "time.sleep(100)"], seconds=seconds)
        assert replies["time.sleep(100)"] == {"error": f"no answer within {seconds} s"}
        if "answer" in replies["os.sep"]:
            break
    assert replies["os.sep"] == {"answer": os.sep}


@pytest.mark.slow
def test_this_machine_is_healthy(monkeypatch):
    """In real measurements the pinned packages add, and convolve as fast as a matrix product."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for look_now in doctor.checks(names=["numpy", "devices", "convolution"]):
        check = look_now()
        assert check.ok, check
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Wall time depends on other load, so CPU time: 10 s of two cores are 20 s (7 measured).
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20
    needs = needs_onednn_workaround(ANSWERS[measured.ARITHMETIC]["mindspore"])
    assert f"this machine {'needs' if needs else 'does not need'} the workaround" in check.found
    assert "libmindspore_ops_cpu.so" in measured.plugins()


def test_the_command_prints_lines_or_json_and_exits_1_on_any_fail(monkeypatch):
    good = doctor.Check("Disk", True, "[9] GiB", "buy one")
    bad = doctor.Check("msrun", False, "not found", "install it")
    monkeypatch.setattr(
        doctor, "checks", lambda names: [lambda: good, lambda: bad][: 2 - len(names)]
    )
    done = labkit("doctor", "--json")
    assert done.exit_code == 1
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"name": "Disk", "ok": True, "found": "[9] GiB", "remedy": "buy one"},
        {"name": "msrun", "ok": False, "found": "not found", "remedy": "install it"},
    ]
    done = labkit("doctor")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "pass  Disk          [9] GiB",
        "fail  msrun         not found",
        "                    remedy: install it",
        "1 of 2 checks passed",
    ]
    done = labkit("doctor", "disk")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "1 of 1 checks passed")
