"""Where there is no Chromium it is installed, or the tests are skipped with the reason."""

import subprocess

import pytest

from tests.browser import chromium


@pytest.fixture
def machine(monkeypatch):
    """A machine without Chromium: ``machine(root, result)``; returns the commands it ran."""

    def made(root, result=None, there=()):
        commands, known = [], {"apt-get": "/usr/bin/apt-get"}

        def run(command, **options):
            commands.append(command)
            assert options["timeout"] <= chromium.INSTALL_SECONDS
            if isinstance(result, Exception):
                raise result
            if "install" in command:
                known.update(there)
            return result

        monkeypatch.setattr(chromium.shutil, "which", known.get)
        monkeypatch.setattr(chromium.os, "geteuid", lambda: 0 if root else 1000)
        monkeypatch.setattr(chromium.subprocess, "run", run)
        return commands

    return made


def test_root_installs_it(machine):
    done = subprocess.CompletedProcess([], 0, "", "")
    commands = machine(True, done, {"chromium": "/usr/bin/chromium"})
    assert chromium.find() == ("/usr/bin/chromium", "")
    assert [command[1] for command in commands] == ["update", "install"]
    assert "--no-sandbox" in chromium.arguments()


def test_another_user_is_told_how(machine):
    commands = machine(False)
    path, why = chromium.find()
    assert path is None and "apt-get install chromium" in why and commands == []
    assert "--no-sandbox" not in chromium.arguments()


def test_an_installation_that_fails_or_hangs_is_said(machine):
    machine(True, subprocess.CompletedProcess([], 100, "", "E: first\nE: no such package\n"))
    assert chromium.find() == (None, "`apt-get install chromium` failed: E: no such package")
    machine(True, subprocess.TimeoutExpired("apt-get", 240))
    assert chromium.find() == (None, "`apt-get update` took longer than 240 s")
