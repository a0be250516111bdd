"""Really planted faults: the doctor names each, and its remedy makes the check pass again."""

import contextlib
import json
import os
import re
import shutil
import site
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest

from labkit.runtime import needs_onednn_workaround

pytestmark = pytest.mark.long  # test_doctor.py tests most of them one by one, quickly

ROOT = Path(__file__).resolve().parents[3]
SLOW_CPU = needs_onednn_workaround(version("mindspore"))
VARIABLES = {
    "PYTHONOPTIMIZE": "1",
    "MPLBACKEND": "agg",
    "GLOG_v": "9",
    "MINDSPORE_DUMP_CONFIG": "/nowhere/dump.json",
    "MS_SIMULATION_LEVEL": "0",
}
# What the doctor must report for each fault: the check, what it found, and its remedy.
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


def packages(prefix):
    """Return the site-packages folder of an environment."""
    own = Path(site.getsitepackages()[0])
    return own if prefix == Path(sys.prefix) else prefix / own.relative_to(sys.prefix)


def make_environment(folder):
    """Make a virtual environment with this one's packages, each a link; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    for entry in packages(Path(sys.prefix)).iterdir():
        (packages(folder) / entry.name).symlink_to(entry)
    (folder / "bin/msrun").symlink_to(Path(sys.executable).parent / "msrun")
    return folder / "bin/python"


def take_away(prefix, *names):
    """Uninstall packages from an environment of links: each package and its metadata for pip."""
    for name in names:
        for entry in (name, f"{name}-{version(name)}.dist-info"):
            (packages(prefix) / entry).unlink()


def put_back(prefix, *names):
    """Install packages again, as `pip install -c constraints.txt` does."""
    for name in names:
        for other in packages(prefix).glob(f"{name}-*.dist-info"):
            other.unlink() if other.is_symlink() else shutil.rmtree(other)
        for entry in (name, f"{name}-{version(name)}.dist-info"):
            place = packages(prefix) / entry
            shutil.rmtree(place, ignore_errors=True)
            place.unlink(missing_ok=True)
            place.symlink_to(packages(Path(sys.prefix)) / entry)


def another_version(prefix, name, stated):
    """Change the version of ``name`` in an environment's metadata to ``stated``."""
    old = packages(prefix) / f"{name}-{version(name)}.dist-info"
    text = (old / "METADATA").read_text(encoding="utf-8")
    assert f"\nVersion: {version(name)}\n" in text
    old.unlink()
    new = packages(prefix) / f"{name}-{stated}.dist-info"
    new.mkdir()
    text = text.replace(f"\nVersion: {version(name)}\n", f"\nVersion: {stated}\n", 1)
    (new / "METADATA").write_text(text, encoding="utf-8")


def numpy_2(prefix):
    """Make an otherwise unchanged numpy say 2.2.6, in its metadata and when imported."""
    another_version(prefix, "numpy", "2.2.6")
    place = packages(prefix) / "numpy"
    real = place.resolve()
    place.unlink()
    place.mkdir()
    for entry in real.iterdir():
        (place / entry.name).symlink_to(entry)
    text = (real / "__init__.py").read_text(encoding="utf-8")
    (place / "__init__.py").unlink()
    (place / "__init__.py").write_text(text + '\n__version__ = "2.2.6"\n', encoding="utf-8")


def make_project(folder):
    """Make a checkout: labkit's code, its pins, and the bundled data, committed to git."""
    caches = shutil.ignore_patterns("__pycache__", "kernel_meta", "rank_[0-9]*")
    for name in ("labkit", "data_scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=caches)
    (folder / "notebooks").mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    author = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "data_scripts"], [*author, "commit", "-qm", "Data"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


@dataclass
class Shell:
    """A user's shell: its working folder, its Python and its environment."""

    python: Path
    folder: Path
    labkit: Path = ROOT
    variables: dict[str, str] = field(default_factory=dict)
    before: str = "true"

    def doctor(self, *names, wrapped=()):
        """Run `labkit doctor --json NAMES`, wrapped by a command such as unshare.

        Return its exit code and its reports, by name of the check.
        """
        foreign = ("ONEDNN", "MS_", "PYTEST", "GLOG", "JUPYTER", "LABKIT")
        inherited = {n: value for n, value in os.environ.items() if not n.startswith(foreign)}
        # -P: labkit comes from PYTHONPATH, like an installed one, and not from this folder.
        call = f"{self.before} && exec '{self.python}' -P -m labkit.tools.cli doctor --json"
        done = subprocess.run(
            [*wrapped, "bash", "-c", f"{call} {' '.join(names)}"],
            cwd=self.folder,
            env={**inherited, "PYTHONPATH": str(self.labkit), **self.variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines, done.stderr
        return done.returncode, {line["name"]: line for line in lines}


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A healthy environment and checkout, whose labkit is imported."""
    place = tmp_path_factory.mktemp("doctor")
    python = make_environment(place / "environment")
    checkout = make_project(place / "project")
    return Shell(python, checkout, labkit=checkout)


@pytest.fixture(scope="module")
def looked(shell):
    """Results of the doctor with all faults planted at once, then after all remedies."""
    with taken(8118, *range(8888, 8893)) as sockets:
        plant(shell)
        ill = shell.doctor()
        for held in sockets:
            held.close()
    remedy(shell, ill[1])
    return ill, shell.doctor()


def plant(shell):
    prefix = shell.python.parents[1]
    another_version(prefix, "nbclient", "0.5.0")
    another_version(prefix, "mindspore", "2.9.0")
    take_away(prefix, "ipykernel")
    (prefix / "bin/msrun").unlink()
    shell.labkit = ROOT
    shell.variables.update(VARIABLES, TMPDIR="/nowhere/tmp", ONEDNN_MAX_CPU_ISA="ALL")
    shell.variables["PATH"] = "/usr/bin:/bin"
    shell.before = "ulimit -v 3000000"
    (shell.folder / "runs").symlink_to("/proc")  # where not even root may write
    images = shell.folder / "data_scripts/bundled/mnist/train-images-idx3-ubyte.gz"
    content = bytearray(images.read_bytes())
    content[len(content) // 2] ^= 0xFF
    images.write_bytes(content)


def remedy(shell, ill):
    """Apply the doctor's remedies; commands and variables are read from its messages."""
    prefix = shell.python.parents[1]
    put_back(prefix, "nbclient", "mindspore", "ipykernel")
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
    (shell.folder / "runs").unlink()
    command = re.match(r"git checkout -- \S+", ill["Data"]["remedy"])[0]
    subprocess.run(command, shell=True, cwd=shell.folder, check=True)


@contextlib.contextmanager
def taken(*ports):
    """Hold these ports; a port that another program keeps holding counts as taken too."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for port in ports:
            place = stack.enter_context(socket.socket())
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # The doctor of another test takes a port for a moment, to see whether it is free.
            until = time.monotonic() + 10
            while time.monotonic() < until:
                with contextlib.suppress(OSError):
                    place.bind(("127.0.0.1", port))
                    place.listen()
                    sockets.append(place)
                    break
                time.sleep(0.05)
        yield sockets


@pytest.mark.parametrize("fault", SAID)
def test_a_fault_is_named_with_a_remedy_that_works(looked, fault):
    if fault == "a slow convolution" and not SLOW_CPU:
        pytest.skip("this CPU has no AVX-512, so convolutions are fast at every setting")
    (ill_code, ill), (_, well) = looked
    name, said, remedy = SAID[fault]
    assert ill_code == 1
    assert not ill[name]["ok"]
    assert re.search(said, ill[name]["found"]), ill[name]
    assert re.search(remedy, ill[name]["remedy"]), ill[name]
    if "port" in name and not well[name]["ok"]:
        pytest.skip("another program on this machine holds the port too")
    assert well[name]["ok"], well[name]


def test_what_is_healthy_passes_beside_the_faults(looked):
    """Each fault is reported by its own check only: MindSpore still computes for the others."""
    (_, ill), (code, well) = looked
    for name, value in VARIABLES.items():
        assert f"{name}={value}: " in ill["Environment"]["found"]
        assert name in ill["Environment"]["remedy"].split()
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


def test_numpy_2_and_a_missing_mindspore_are_named(shell, tmp_path):
    prefix = tmp_path / "environment"
    here = Shell(make_environment(prefix), shell.folder, ROOT)
    numpy_2(prefix)
    code, ill = here.doctor("numpy", "packages")
    assert code == 1
    assert "numpy is 2.2.6; expected 1.26.4" in ill["Packages"]["found"]
    assert re.match(r"numpy 2\.2\.6 .*Tensor\(1\.0\) \+ 1 fails: \w+Error", ill["NumPy"]["found"])
    assert "pip install -c constraints.txt -e '.[labs]'" in ill["NumPy"]["remedy"]
    put_back(prefix, "numpy")
    assert here.doctor("numpy", "packages")[0] == 0
    take_away(prefix, "mindspore")
    code, ill = here.doctor("packages", "numpy", "devices", "convolution")
    assert code == 1
    assert "mindspore is not installed; expected 2.10.0" in ill["Packages"]["found"]
    for name in ("NumPy", "Devices", "Convolution"):
        assert "No module named 'mindspore'" in ill[name]["found"]
        assert "pip install -c constraints.txt -e '.[labs]'" in ill[name]["remedy"]


def test_a_machine_without_loopback_and_a_full_disk_are_named(tmp_path):
    """A project in separate namespaces lies on a file system of 64 MiB, then of 3 GiB."""
    own = ("unshare", "-r", "-n", "-m")
    if not shutil.which("unshare") or subprocess.run([*own, "true"], check=False).returncode:
        pytest.skip("this machine lets nobody have a namespace of their own (unshare)")
    mount = f"mount -t tmpfs -o size=SIZE none '{tmp_path}' && cd '{tmp_path}' && "
    mount += "printf '[project]\\nname = \"labkit\"\\n' > pyproject.toml"
    here = Shell(sys.executable, tmp_path, ROOT, before=mount.replace("SIZE", "64m"))
    code, ill = here.doctor("loopback", "disk", wrapped=own)
    assert code == 1
    assert "Network is unreachable" in ill["Loopback"]["found"]
    assert ill["Disk"]["found"] == f"0.1 GiB free at {tmp_path}"
    assert "free some space" in ill["Disk"]["remedy"]
    command = re.search(r"\((ip link set lo up)\)", ill["Loopback"]["remedy"])[1]
    here.before = mount.replace("SIZE", "3g")
    if shutil.which("ip"):
        here.before += f" && {command}"
    _, well = here.doctor("loopback", "disk", wrapped=own)
    assert well["Disk"]["ok"] and well["Loopback"]["ok"] == bool(shutil.which("ip"))
