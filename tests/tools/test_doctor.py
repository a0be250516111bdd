"""`labkit doctor`: each cause planted in turn is found, and named with its remedy."""

import gzip
import json
import os
from pathlib import Path

import pytest

from labkit.base import machine
from labkit.base.arguments import fit_workers
from labkit.tools import doctor
from labkit.tools.doctor import CHECKS
from labkit.tools.run import jobs_of


@pytest.mark.parametrize("name", CHECKS)
def test_this_machine_passes(root, name):
    """Memory and disk are those of a machine that runs the tests, which need more."""
    ok, found, _ = CHECKS[name](root)
    assert ok, found
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert name != "convolution" or found.endswith(f"ONEDNN_MAX_CPU_ISA={isa}")


NUMPY_2 = {"numpy": "2.1.0", "mindspore": "2.10", "sum": 2.0}


@pytest.mark.parametrize(
    ("name", "answers", "found"),
    [
        ("numpy", {"arithmetic": NUMPY_2}, "2.1.0"),
        ("numpy", {"arithmetic": NUMPY_2 | {"numpy": "1.26", "sum": 3.0}}, "= 3"),
        ("device", {"devices": []}, "none"),
        ("device", {"end": "no answer within 120 s"}, "no answer within 120 s"),
        ("convolution", {"convolution": {"ratio": 11.0, "instructions": None}}, "11.0 times an"),
    ],
)
def test_a_wrong_measurement_fails(monkeypatch, name, answers, found):
    monkeypatch.setattr(doctor, "_measure", lambda: answers)
    monkeypatch.setattr(doctor, "CHECKS", {name: CHECKS[name]})
    (check,) = doctor.run()
    assert not check.ok and found in check.found and check.remedy


def test_planted_variables_and_another_kernel_fail(monkeypatch, tmp_path):
    kernel = tmp_path / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text('{"argv": ["/other/python"], "display_name": "x", "language": "python"}')
    for name, value in {"GLOG_v": "9", "MPLBACKEND": "Agg", "JUPYTER_PATH": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    ok, found, remedy = CHECKS["environment"](tmp_path)
    assert not ok and "GLOG_v=9: MindSpore refuses" in found
    assert remedy == "unset MPLBACKEND GLOG_v"
    ok, found, remedy = CHECKS["kernel"](tmp_path)
    assert not ok and found == "python3 starts /other/python" and f"'{kernel.parent}'" in remedy
    monkeypatch.setenv("MPLBACKEND", "module://x")
    monkeypatch.setenv("GLOG_v", "")
    assert CHECKS["environment"](tmp_path)[0]


def test_another_labkit_and_a_package_at_another_version_or_missing_fail(tmp_path):
    assert CHECKS["packages"](tmp_path)[:2] == (True, "not compared: there is no checkout here")
    (tmp_path / "labkit").mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["numpy", "nothing_at_all"]\n'
        '[project.optional-dependencies]\nlabs = ["typer"]\n'
    )
    (tmp_path / "constraints.txt").write_text(
        "# a comment\nnumpy==0.1\nnothing-at-all==1.0\ntorch-of-tests==2\n"
        'typer==0.0; python_version < "3"\n'
    )
    ok, found, _ = CHECKS["packages"](tmp_path)
    expected = "numpy 1.26.4, expected numpy==0.1; nothing-at-all is missing, expected nothing-"
    assert not ok and found == f"{expected}at-all==1.0"
    ok, found, _ = CHECKS["labkit"](tmp_path)
    assert not ok and f"belong to {tmp_path / 'labkit'}" in found


def test_damaged_data_fails(tmp_path):
    bundled = tmp_path / "data_scripts" / "bundled" / "mnist"
    bundled.mkdir(parents=True)
    for number in range(4):
        (bundled / f"{number}.gz").write_bytes(gzip.compress(b"digits"))
    copy = tmp_path / "datasets" / "MNIST_Data" / "train" / "1"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"digits")
    assert CHECKS["data"](tmp_path)[0]
    copy.write_bytes(b"digit")
    assert "labs prepare it again" in CHECKS["data"](tmp_path)[2]
    (bundled / "0.gz").write_bytes(gzip.compress(b"digits")[:-9])
    assert "0.gz is damaged" in CHECKS["data"](tmp_path)[1]


V2 = "0::/a/b\n"
V1 = "4:memory:/a/b\n3:cpu,cpuacct:/a/b\n2:name=systemd:/c\n0::/\n"


@pytest.mark.parametrize(
    ("own", "group", "at"),
    [(V2, "", ""), (V2, "/a/b", "/a/b"), (V2, "/a/b", "/a"), (V1, "/a/b", "/a"), (V1, "", "")],
)
def test_the_limits_of_a_container_count(monkeypatch, tmp_path, root, own, group, at):
    """Those of its own group and of the groups around it; cached files give way.

    Of the groups that the machine sees, a container may see its own alone, as the outermost.
    """
    memory, cpu = (tmp_path / (name if own == V1 else "") for name in ("memory", "cpu"))
    for folder in {memory, cpu}:
        Path(f"{folder}{group}").mkdir(parents=True, exist_ok=True)
    memory, cpu = Path(f"{memory}{at}"), Path(f"{cpu}{at}")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(machine, "_OWN", tmp_path / "own")
    monkeypatch.setattr(machine, "_MOUNTED", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8))

    def set_limits(most, quota):
        files = {memory / "memory.stat": f"anon 1\n{'total_' * (own == V1)}inactive_file {2**29}"}
        if own == V1:
            files[memory / "memory.limit_in_bytes"] = 2**63 - 4096 if most == "max" else most
            files[memory / "memory.usage_in_bytes"] = 2**31
            files[cpu / "cpu.cfs_quota_us"] = -1 if quota == "max" else quota
            files[cpu / "cpu.cfs_period_us"] = 100000
        else:
            files |= {memory / "memory.max": most, memory / "memory.current": 2**31}
            files[cpu / "cpu.max"] = f"{quota} 100000"
        for file, value in files.items():
            file.write_text(f"{value}\n")

    set_limits(3 * 2**30, 50000)
    found = "1.5 GiB left of what this container may have"
    assert CHECKS["memory"](root)[:2] == (False, found)
    assert CHECKS["cores"](root)[:2] == (False, "0.5 may be used")
    (memory / "memory.stat").unlink()
    assert CHECKS["memory"](root)[1] == found.replace("1.5", "1.0")
    set_limits("max", 50000)
    assert jobs_of(None, "lab", "CPU", 9) == fit_workers(4) == 1
    set_limits("max", 150000)
    assert jobs_of(None, "lab", "CPU", 9) == fit_workers(4) == 2
    set_limits("max", "max")
    assert CHECKS["memory"](root)[1].endswith(" free")
    assert CHECKS["cores"](root)[:2] == (True, "8 may be used")


def unreachable(*_, **__):
    raise OSError(101, "Network is unreachable")


@pytest.mark.parametrize(
    ("name", "plant", "found", "remedy"),
    [
        ("loopback", ("socket.create_connection", unreachable), "Network is unreach", "ip link"),
        ("home", ("os.path.expanduser", lambda path: path), "HOME is not set", "export HOME="),
    ],
)
def test_what_stops_every_kernel_is_said_before_one_is_waited_for(
    monkeypatch, call, tmp_path, project, name, plant, found, remedy
):
    monkeypatch.setattr(*plant)
    monkeypatch.setattr("os.execve", lambda *_: pytest.fail("JupyterLab was started"))
    ok, said, mend = CHECKS[name](tmp_path)
    assert not ok and found in said and remedy in mend
    for words in ("run 01", "sweep 01 -p rate=1", "lab 01 --no-browser"):
        code, _, err = call(*words.split())
        assert code == 2 and err == f"labkit: {said}; remedy: {mend}\n"
    assert not (project / "runs").exists()


def test_modules_of_pythonpath_and_scripts_of_another_folder(monkeypatch, tmp_path, root):
    for name in ("numpy.py", "mine.py", "json/notes.py"):  # the last two replace nothing
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setenv("PYTHONPATH", f"{root}:{tmp_path}")
    assert CHECKS["pythonpath"](root)[:2] == (False, str(tmp_path / "numpy.py"))
    (tmp_path / "numpy.py").unlink()
    assert CHECKS["pythonpath"](root)[0]
    script = tmp_path / "bin d/msrun"
    script.parent.mkdir()
    monkeypatch.setattr("sys.executable", str(script.with_name("python")))
    for folder in (script.parent, "/elsewhere/bin"):
        for line in ("#!{0}/python", '#!/bin/sh\n\'\'\'exec\' "{0}/python" "$0" "$@"'):
            script.write_text(line.format(folder))
            script.chmod(0o755)
            ok, found, _ = CHECKS["msrun"](root)
            assert ok == (folder == script.parent) == ("starts the Python of" not in found)


def test_a_process_that_dies_fails_what_it_has_not_answered(monkeypatch, tmp_path):
    """A wrong variable has a check of its own, and is not blamed on the packages."""
    program, answer = tmp_path / "python", """'answer {"devices": ["CPU"]}'"""
    program.write_text(f'#!/bin/sh\necho {answer}\necho "GLOG_v is $GLOG_v" >&2\nkill -11 $$\n')
    program.chmod(0o755)
    monkeypatch.setenv("GLOG_v", "9")
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setattr(doctor, "_measure", doctor._measure.__wrapped__)
    monkeypatch.setattr(doctor, "CHECKS", {name: CHECKS[name] for name in ("device", "numpy")})
    device, numpy = doctor.run()
    assert device.ok and not numpy.ok and "exit code -11: GLOG_v is" in numpy.found


def test_the_command_says_what_failed_and_exits_with_1(call, monkeypatch):
    only = {"disk": lambda root: (False, "full", "make clean"), "msrun": CHECKS["msrun"]}
    monkeypatch.setattr(doctor, "CHECKS", only)
    code, out, _ = call("doctor")
    assert "FAIL  disk" in out and "remedy: make clean" in out
    assert code == 1 and out.endswith("1 of 2 checks passed\n")
    code, out, _ = call("doctor", "--json")
    found = {"name": "disk", "ok": False, "found": "full", "remedy": "make clean"}
    assert code == 1 and json.loads(out)["disk"] == found
    only.pop("disk")
    assert call("doctor")[0] == 0
