"""Faults that are really there: the doctor names each, and its remedy makes it pass again."""

import contextlib
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.runtime import needs_onednn_workaround
from tests.tools.doctor import planting
from tests.tools.doctor.planting import ROOT, Shell

SLOW_CPU = needs_onednn_workaround(planting.installed("mindspore"))
VARIABLES = {
    "PYTHONOPTIMIZE": "1",
    "MPLBACKEND": "agg",
    "GLOG_v": "9",
    "MINDSPORE_DUMP_CONFIG": "/nowhere/dump.json",
    "MS_SIMULATION_LEVEL": "0",
}
# What the doctor has to say of each fault: the check, what it found, and its remedy.
SAID = {
    "a package's version": ("Packages", r"nbclient is 0\.5\.0; expected ", "pip install -c"),
    "MindSpore's version": ("Packages", r"mindspore is 2\.9\.0; expected 2\.10\.0", "pip install"),
    "msrun is missing": ("msrun", "not found", "comes with MindSpore: .*pip install"),
    "ipykernel is missing": ("Kernel", "ipykernel cannot be imported", "pip install"),
    "labkit of another checkout": ("labkit", "is imported; the notebooks here", "of PYTHONPATH"),
    "variables": ("Environment", "PYTHONOPTIMIZE=1: .*MPLBACKEND=agg: .*GLOG_v=9", "unset PYTHON"),
    "no write permission": ("Folders", r"not writable: .*/runs \(", "chmod"),
    "TMPDIR": ("Temp folder", "TMPDIR=/nowhere/tmp: ", "unset TMPDIR"),
    "little memory": ("Memory", r"address space is limited to 2\.9 GiB", "ulimit -v unlimited"),
    "msrun's port": ("msrun port", "8118 cannot be used: Address already in use", "stop the other"),
    "JupyterLab's ports": ("Jupyter port", "8888 to 8892 cannot be used", "jupyter server stop"),
    "a damaged file": ("Data", r"train-images-idx3-ubyte\.gz is damaged", "git checkout -- "),
    "a slow convolution": ("Convolution", "ONEDNN_MAX_CPU_ISA=ALL", "unset ONEDNN_MAX_CPU_ISA"),
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A healthy environment and checkout, whose labkit is imported."""
    place = tmp_path_factory.mktemp("doctor")
    python = planting.environment(place / "environment")
    checkout = planting.project(place / "project")
    return Shell(python, checkout, labkit=checkout)


@pytest.fixture(scope="module")
def found(shell):
    """All faults planted at once and looked for, then all remedies taken and looked again."""
    with taken(8118, *range(8888, 8893)) as sockets:
        plant(shell)
        ill = shell.doctor()
        for one in sockets:
            one.close()
    remedy(shell, ill[1])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    well = shell.doctor()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Wall time depends on who else computes here: 10 s of two cores are 20 s of work (8 measured).
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20
    return ill, well


def plant(shell):
    prefix = shell.python.parents[1]
    planting.another_version(prefix, "nbclient", "0.5.0")
    planting.another_version(prefix, "mindspore", "2.9.0")
    planting.take_away(prefix, "ipykernel")
    (prefix / "bin/msrun").unlink()
    shell.labkit = ROOT
    shell.variables.update(VARIABLES, TMPDIR="/nowhere/tmp", ONEDNN_MAX_CPU_ISA="ALL")
    shell.variables["PATH"] = "/usr/bin:/bin"
    shell.before = "ulimit -v 3000000"
    deny(shell.folder / "runs")
    damage(shell.folder / "data_scripts/bundled/mnist/train-images-idx3-ubyte.gz")


def remedy(shell, ill):
    """Do what the doctor says; where that is a command or a variable, read it from its words."""
    prefix = shell.python.parents[1]
    planting.put_back(prefix, "nbclient", "mindspore", "ipykernel")
    (prefix / "bin/msrun").symlink_to(Path(sys.executable).parent / "msrun")
    named = re.search(r"take (\S+) out of PYTHONPATH", ill["labkit"]["remedy"])[1]
    assert named == str(ROOT)
    shell.labkit = shell.folder
    for check in ("Environment", "Temp folder", "Convolution"):
        names = re.search(r"unset ([A-Za-z_ ]+)", ill[check]["remedy"])[1]
        for name in names.split():
            shell.variables.pop(name, None)
    assert shell.variables.keys() == {"PATH"}
    assert re.search(r"\((ulimit -v unlimited)\)", ill["Memory"]["remedy"])
    shell.before = "true"
    allow(shell.folder / "runs")
    command = re.match(r"git checkout -- \S+", ill["Data"]["remedy"])[0]
    subprocess.run(command, shell=True, cwd=shell.folder, check=True)


def deny(folder):
    """Make a folder that cannot be written to; root may write anywhere but in /proc."""
    if os.geteuid() == 0:
        folder.symlink_to("/proc")
    else:
        folder.mkdir(mode=0o555)


def allow(folder):
    if folder.is_symlink():
        folder.unlink()
    else:
        folder.chmod(0o755)


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@contextlib.contextmanager
def taken(*ports):
    """Hold these ports; one that somebody else holds for long is just as taken."""
    with contextlib.ExitStack() as held:
        sockets = []
        for port in ports:
            one = held.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Another test's doctor takes a port for a moment, to see whether it can be had.
            until = time.monotonic() + 10
            while time.monotonic() < until:
                try:
                    one.bind(("127.0.0.1", port))
                    one.listen()
                    sockets.append(one)
                    break
                except OSError:
                    time.sleep(0.05)
        yield sockets


@pytest.mark.parametrize("fault", SAID)
def test_a_fault_is_named_with_a_remedy_that_works(found, fault):
    if fault == "a slow convolution" and not SLOW_CPU:
        pytest.skip("this CPU has no AVX-512, so convolutions are fast at every setting")
    (ill_code, ill), (_, well) = found
    name, said, remedy = SAID[fault]
    assert ill_code == 1
    assert not ill[name]["ok"]
    assert re.search(said, ill[name]["found"]), ill[name]
    assert re.search(remedy, ill[name]["remedy"]), ill[name]
    if "port" in name and not well[name]["ok"]:
        pytest.skip("another program on this machine holds the port too")
    assert well[name]["ok"], well[name]


def test_every_variable_that_is_set_is_named(found):
    (_, ill), _ = found
    for name, value in VARIABLES.items():
        assert f"{name}={value}: " in ill["Environment"]["found"]
        assert name in ill["Environment"]["remedy"].split()


def test_what_is_healthy_passes_beside_the_faults(found):
    """A fault is said by the check whose fault it is: MindSpore computes for the others."""
    (_, ill), (code, well) = found
    assert {name for name, check in ill.items() if check["ok"]} == {
        "Platform",
        "Python",
        "Disk",
        "Loopback",
        "NumPy",
        "Devices",
    } | (set() if SLOW_CPU else {"Convolution"}), ill
    failed = {name for name, check in well.items() if not check["ok"]}
    assert failed <= {"msrun port", "Jupyter port"}, well
    assert code == bool(failed)
    assert len(well) == 18


def test_another_environments_kernel_is_named(shell, found, tmp_path):
    place = tmp_path / "kernels/python3"
    place.mkdir(parents=True)
    elsewhere = '{"argv": ["/opt/elsewhere/bin/python", "-m", "ipykernel_launcher"]}'
    (place / "kernel.json").write_text(elsewhere)
    shell = Shell(sys.executable, shell.folder, shell.folder, {"JUPYTER_PATH": str(tmp_path)})
    code, ill = shell.doctor("kernel")
    assert code == 1
    assert "python3 starts /opt/elsewhere/bin/python, another" in ill["Kernel"]["found"]
    command = re.search(r"rm -r '\S+'", ill["Kernel"]["remedy"])[0]
    subprocess.run(command, shell=True, check=True)
    code, well = shell.doctor("kernel")
    assert code == 0 and not place.exists()
    assert well["Kernel"]["found"] == f"python3 starts {sys.executable}"


def test_a_damaged_prepared_file_is_named(shell, found):
    place = shell.folder / "datasets/MNIST_Data/test/t10k-labels-idx1-ubyte"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"\0\0\x08\x01" + 10_004 * b"\0")
    well_shell = Shell(sys.executable, shell.folder, ROOT)
    code, ill = well_shell.doctor("data")
    assert code == 1 and f"{place} is damaged" in ill["Data"]["found"]
    command = re.match(r"rm -r '\S+'", ill["Data"]["remedy"])[0]
    subprocess.run(command, shell=True, check=True)
    assert well_shell.doctor("data")[0] == 0


def test_numpy_2_and_a_missing_mindspore_are_named(shell, tmp_path):
    prefix = tmp_path / "environment"
    here = Shell(planting.environment(prefix), shell.folder, ROOT)
    planting.numpy_2(prefix)
    code, ill = here.doctor("numpy", "packages")
    assert code == 1
    assert "numpy is 2.2.6; expected 1.26.4" in ill["Packages"]["found"]
    assert re.match(r"numpy 2\.2\.6 .*Tensor\(1\.0\) \+ 1 fails: \w+Error", ill["NumPy"]["found"])
    assert "pip install -c constraints.txt -e ." in ill["NumPy"]["remedy"]
    planting.put_back(prefix, "numpy")
    assert here.doctor("numpy", "packages")[0] == 0
    planting.take_away(prefix, "mindspore")
    code, ill = here.doctor("packages", "numpy", "devices", "convolution")
    assert code == 1
    assert "mindspore is not installed; expected 2.10.0" in ill["Packages"]["found"]
    for name in ("NumPy", "Devices", "Convolution"):
        assert "No module named 'mindspore'" in ill[name]["found"]
        assert "pip install -c constraints.txt -e ." in ill[name]["remedy"]
    # What the checks themselves need is missing: they say so, and the others go on.
    planting.take_away(prefix, "psutil", "numpy")
    code, ill = here.doctor("packages", "memory", "data", "kernel")
    assert code == 1
    assert "numpy is not installed" in ill["Packages"]["found"]
    assert "cannot be looked at: ModuleNotFoundError: No module" in ill["Memory"]["found"]
    assert "cannot be looked at: ModuleNotFoundError: No module" in ill["Data"]["found"]
    assert ill["Kernel"]["ok"]


def namespace(*kinds):
    """A command that runs others as root of a network or of mounts of their own."""
    command = ("unshare", "-r", *kinds)
    if shutil.which("unshare") and not subprocess.run([*command, "true"], check=False).returncode:
        return command
    pytest.skip("this machine lets nobody have a namespace of their own (unshare)")


def test_a_machine_without_loopback_is_named(shell):
    down = Shell(sys.executable, shell.folder, ROOT)
    code, ill = down.doctor("loopback", wrapped=namespace("-n"))
    assert code == 1
    assert "Network is unreachable" in ill["Loopback"]["found"]
    command = re.search(r"\((ip link set lo up)\)", ill["Loopback"]["remedy"])[1]
    if not shutil.which("ip"):
        pytest.skip("no ip program here")
    down.before = command
    assert down.doctor("loopback", wrapped=namespace("-n"))[0] == 0


def test_a_full_disk_is_named(tmp_path):
    """A project on a file system of 64 MiB, then of 3 GiB."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "labkit"\n')
    full = Shell(sys.executable, tmp_path, ROOT)
    copy = f"mount -t tmpfs -o size=SIZE none '{tmp_path}' && cd '{tmp_path}' && "
    copy += "printf '[project]\\nname = \"labkit\"\\n' > pyproject.toml"
    full.before = copy.replace("SIZE", "64m")
    code, ill = full.doctor("disk", wrapped=namespace("-m"))
    assert code == 1
    assert ill["Disk"]["found"] == f"0.1 GiB free at {tmp_path}"
    assert "free some space" in ill["Disk"]["remedy"]
    full.before = copy.replace("SIZE", "3g")
    assert full.doctor("disk", wrapped=namespace("-m"))[0] == 0
