"""Every check of the doctor passes where things are right and fails where they are not."""

import errno
import shutil
import socket
from pathlib import Path

import psutil
import pytest

from labkit import doctor, probes
from labkit.runtime import needs_onednn_workaround

FAST = {"convolution": 0.02, "matmul": 0.02, "backward": 0.1, "onednn": "AVX2"}
FAKE = {"scalar_arithmetic": 2.0, "devices": ["CPU"], "convolution": FAST}


def test_every_check_names_what_it_found_and_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "in_child", lambda probe, *_, **__: FAKE[probe])
    found = doctor.run(tmp_path)
    assert len({check.name for check in found}) == len(found) == 10
    assert all(check.found and check.remedy for check in found)
    assert not any(tmp_path.iterdir())


def test_only_the_pythons_of_mindspore_pass():
    assert [doctor.python((3, minor, 1)).ok for minor in (10, 11, 12, 13)] == [0, 1, 1, 0]
    assert "3.13.1" in doctor.python((3, 13, 1)).found


def test_disk_and_memory_have_a_limit():
    assert doctor.disk(Path("/"), 2.1).ok and not doctor.disk(Path("/"), 1.9).ok
    assert doctor.memory(2.1).ok and not doctor.memory(1.9).ok
    free = shutil.disk_usage("/").free / 2**30
    assert float(doctor.disk(Path("/")).found.split()[0]) == pytest.approx(free, rel=0.05)
    assert 0 < float(doctor.memory().found.split()[0]) <= psutil.virtual_memory().total / 2**30


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    assert doctor.writable(tmp_path).ok
    (tmp_path / "runs").write_text("in the way")
    check = doctor.writable(tmp_path)
    assert not check.ok
    assert f"{tmp_path / 'runs'} is not a folder" in check.found
    assert str(tmp_path / "datasets") not in check.found
    # Permissions alone would let root write there.
    assert doctor.refuses(Path("/proc/labkit")).endswith("in /proc")


def test_a_taken_port_is_seen():
    assert doctor.port().ok
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        check = doctor.msrun_port(number)
        assert not check.ok
        assert f"than {number}" in check.remedy
    assert doctor.msrun_port(number).ok


def test_a_machine_without_loopback_is_seen(monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(doctor.socket, "socket", refuse)
    assert not doctor.port().ok
    assert "Operation not permitted" in doctor.port().found


def test_msrun_is_found_beside_python_or_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert not doctor.msrun(tmp_path).ok
    program = tmp_path / "msrun"
    program.touch(mode=0o755)
    assert doctor.msrun(tmp_path).found == str(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.msrun(tmp_path / "elsewhere").found == str(program)


def test_numpy_2_fails_even_if_the_addition_works(monkeypatch):
    monkeypatch.setattr(doctor, "in_child", lambda *_: 2.0)
    assert doctor.numpy().ok
    monkeypatch.setattr(doctor, "installed_version", lambda _: "2.2.6")
    assert not doctor.numpy().ok


@pytest.mark.parametrize("check", [doctor.numpy, doctor.devices, doctor.convolution])
def test_a_crash_in_a_child_is_a_failed_check(monkeypatch, check):
    def crash(*_, **__):
        raise RuntimeError("SystemError: returned a result with an exception set")

    monkeypatch.setattr(doctor, "in_child", crash)
    assert not check().ok
    assert "SystemError" in check().found


@pytest.mark.parametrize(("seconds", "ok"), [(0.02, True), (0.19, True), (0.21, False)])
def test_the_convolution_is_judged_by_its_ratio(monkeypatch, seconds, ok):
    measured = {True: {**FAST, "convolution": seconds}, False: {**FAST, "convolution": 2.0}}
    monkeypatch.setattr(doctor, "in_child", lambda _, start, **__: measured[start])
    check = doctor.convolution()
    assert check.ok is ok
    assert "ratio 100.0: this machine needs the workaround" in check.found


def test_a_child_that_dies_or_hangs_is_told_apart():
    with pytest.raises(RuntimeError, match="exit code -6"):
        probes.in_child("os.abort")
    with pytest.raises(RuntimeError, match="^FileNotFoundError: .*'/nowhere'$"):
        probes.in_child("os.listdir", "/nowhere")
    with pytest.raises(RuntimeError, match="no answer within 1 s"):
        probes.in_child("time.sleep", 100, timeout=1)


def test_a_child_sees_the_variables_it_is_given(monkeypatch):
    monkeypatch.setenv("LABKIT_A", "1")
    assert probes.in_child("os.getenv", "LABKIT_A") == "1"
    assert probes.in_child("os.getenv", "LABKIT_A", LABKIT_A="2") == "2"
    assert probes.in_child("os.getenv", "LABKIT_A", LABKIT_A=None) is None


@pytest.mark.slow
def test_this_machine_is_healthy(monkeypatch):
    """Real measurements: the pinned packages add, and convolve at the speed of a product."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    for check in (doctor.numpy(), doctor.devices(), doctor.convolution()):
        assert check.ok, check
    assert "libmindspore_ops_cpu.so" in doctor.plugins()


@pytest.mark.slow
def test_a_users_bad_setting_is_respected_and_found(monkeypatch):
    if not needs_onednn_workaround(doctor.installed_version("mindspore")):
        pytest.skip("this CPU has no AVX-512, so convolutions are fast at every setting")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "ALL")
    check = doctor.convolution()
    assert not check.ok
    assert "ONEDNN_MAX_CPU_ISA=ALL" in check.found
    assert "take ONEDNN_MAX_CPU_ISA out of the environment" in check.remedy


def test_the_folders_are_those_of_the_project_around(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "labkit"\n')
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setattr(doctor, "in_child", lambda probe, *_, **__: FAKE[probe])
    found = {check.name: check.found for check in doctor.run()}
    assert found["Disk"].endswith(f"free at {tmp_path}")
    assert str(tmp_path / "runs") in found["Folders"]
