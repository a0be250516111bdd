"""`labkit lab`: which notebook JupyterLab opens, in which folder, and with which settings."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from jupyter_core.paths import prefer_environment_over_user
from typer.testing import CliRunner

from labkit.tools import cli
from labkit.tools import jupyter as lab_server

ROOT = Path(cli.__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "labkit"\n')
    for name in ("00_start", "01_sums"):
        cell = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": f"# {name}"}
        notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (tmp_path / "notebooks" / f"{name}.ipynb").write_text(json.dumps(notebook))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABKIT_PRESET", raising=False)
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    """What `labkit lab` would have become: (options, other arguments, environment)."""
    found = []

    def become(path, command, environment):
        assert (path, command[1:4]) == (sys.executable, ["-P", "-m", "jupyterlab"])
        pairs = [part.removeprefix("--").split("=", 1) for part in command[4:] if "=" in part]
        found.append((dict(pairs), [one for one in command[4:] if "=" not in one], environment))

    monkeypatch.setattr(os, "execve", become)
    return found


def call(*arguments):
    return CliRunner().invoke(cli.app, ["lab", *arguments])


def test_it_makes_the_copies_and_opens_the_first(project, started):
    done = call()
    assert done.exit_code == 0, done.stderr
    copies = [project / "work" / f"{name}.ipynb" for name in ("00_start", "01_sums")]
    assert done.stdout.splitlines() == [f"{path}: your own copy, made now" for path in copies]
    copies[0].write_text("an answer")
    assert call().stdout == ""
    assert copies[0].read_text() == "an answer"
    for options, _, _ in started:
        assert options["LabApp.default_url"] == "/lab/tree/work/00_start.ipynb"
        assert options["ServerApp.root_dir"] == str(project)
        assert options["ServerApp.ip"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        (["1"], "work/01_sums.ipynb"),
        (["sums", "--folder", "mine"], "mine/01_sums.ipynb"),
        (["01", "--committed"], "notebooks/01_sums.ipynb"),
        (["notebooks/01_sums.ipynb"], "notebooks/01_sums.ipynb"),
    ],
)
def test_a_lab_or_a_notebook_is_opened(project, started, arguments, url):
    done = call(*arguments)
    assert done.exit_code == 0, done.stderr
    assert started[0][0]["LabApp.default_url"] == f"/lab/tree/{url}"
    assert (project / "work").exists() == url.startswith("work")


def test_a_notebook_outside_the_project_is_shown_in_its_own_folder(
    project, started, tmp_path_factory
):
    run = tmp_path_factory.mktemp("out") / "01_sums" / "01_sums.ipynb"
    run.parent.mkdir()
    run.write_bytes((project / "notebooks" / "01_sums.ipynb").read_bytes())
    assert call(str(run)).exit_code == 0
    options = started[0][0]
    assert options["ServerApp.root_dir"] == str(run.parent)
    assert options["LabApp.default_url"] == "/lab/tree/01_sums.ipynb"


def test_a_path_with_letters_that_mean_something_in_an_address(project, started):
    path = project / "notebooks" / "50 % #1? à.ipynb"
    path.write_bytes((project / "notebooks" / "01_sums.ipynb").read_bytes())
    assert call(f"notebooks/{path.name}").exit_code == 0
    url = started[0][0]["LabApp.default_url"]
    assert url == "/lab/tree/notebooks/50%20%25%20%231%3F%20%C3%A0.ipynb"
    assert urlsplit(url).path == url and unquote(url).endswith(path.name)


def test_options_for_jupyterlab_come_last_and_win(project, started):
    done = call("--no-browser", "--port", "9000", "1", "--", "--debug", "--ServerApp.port=9001")
    assert done.exit_code == 0, done.stderr
    options, others, _ = started[0]
    assert options["ServerApp.port"] == "9001" and others == ["--no-browser", "--debug"]


def test_the_kernels_get_nothing_of_a_headless_run(project, started, monkeypatch):
    for name in ("LABKIT_RUN", "LABKIT_HEADLESS", "MPLBACKEND"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LABKIT_PRESET", "smoke")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/of/the/user")
    call()
    environment = started[0][2]
    assert not {"LABKIT_RUN", "LABKIT_HEADLESS", "MPLBACKEND"} & environment.keys()
    assert environment["LABKIT_PRESET"] == "smoke"
    own, user = environment["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert user == "/of/the/user" and (Path(own) / "labconfig").is_dir()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sum"], "Did you mean 'sums'?"),
        (["0", "1"], "one lab or notebook is opened; came: 0 1"),
        (["0,1"], "one lab is opened; came: 0,1"),
        (["work/01_sums.ipynb"], "there is no notebook"),
        (["notebooks/01_sums.ipynb", "--committed"], "--committed choose a lab"),
        (["--folder", "notebooks"], "where the project writes"),
        (["--port", "0"], "--port"),
        (["--browsr"], "--browser"),
    ],
)
def test_bad_usage_is_exit_2_and_starts_nothing(project, started, arguments, said):
    done = call(*arguments)
    assert done.exit_code == 2 and said in done.stderr
    assert started == [] and not (project / "work").exists()


def test_an_unknown_preset_is_refused_before_a_notebook_finds_out(project, started, monkeypatch):
    monkeypatch.setenv("LABKIT_PRESET", "smoek")
    assert "Did you mean 'smoke'?" in call().stderr and started == []


def test_there_is_one_kernel_and_it_is_this_interpreter():
    from jupyter_client.kernelspec import NoSuchKernel

    manager = lab_server.OwnKernel(kernel_dirs=["/of/another"])
    spec = manager.get_kernel_spec("python3")
    assert spec.argv[0] == sys.executable and spec.display_name == "Python 3 (ipykernel)"
    assert list(manager.get_all_specs()) == ["python3"]
    with pytest.raises(NoSuchKernel):
        manager.get_kernel_spec("ir")


@pytest.mark.parametrize("given", ["", "chosen"])
def test_a_token_may_be_chosen_and_not_be_turned_off(given):
    from traitlets.config import Config

    identity = lab_server.AlwaysToken(config=Config({"IdentityProvider": {"token": given}}))
    assert identity.token == given or (len(identity.token) == 48 and identity.token_generated)
    assert identity.auth_enabled


def test_what_a_notebook_needs_is_found_from_any_folder(tmp_path):
    """A run's own folder, given by `--out`, may lie outside the project: a re-run works there."""
    program = (
        "import labkit\n"
        "from labkit import labs\n"
        "from labkit.data import prepare\n"
        "prepare.subprocess.run = lambda command, **options: print(command[1]) or Done\n"
        "class Done: returncode = 0\n"
        "print(labs.find_project())\n"
        "print(prepare.prepare('mnist'))\n"
        "print(labkit.Run.open('01', preset='smoke', parameters={}).folder)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "LABKIT_RUN": ""},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    project, script, data, folder = done.stdout.splitlines()
    assert project == str(ROOT) and script == str(ROOT / "data_scripts" / "mnist.py")
    assert data == str(ROOT / "datasets" / "MNIST_Data")
    assert Path(folder).parent == tmp_path / "runs"


@pytest.mark.parametrize(
    ("variables", "wins"),
    [
        # The user's folders win only where the environment is not their own.
        ({"JUPYTER_DATA_DIR": "{}"}, not prefer_environment_over_user()),
        ({"JUPYTER_DATA_DIR": "{}", "JUPYTER_PREFER_ENV_PATH": "0"}, True),
        ({"JUPYTER_PATH": "{}"}, True),
    ],
)
def test_where_another_kernel_wins_in_jupyter_and_not_here(tmp_path, variables, wins):
    """What the comments on kernels say of jupyter_core, and what tests/browser plants."""
    (tmp_path / "kernels" / "python3").mkdir(parents=True)
    (tmp_path / "kernels" / "python3" / "kernel.json").write_text(
        '{"argv": ["/bin/false"], "display_name": "Another", "language": "python"}'
    )
    program = (
        "from jupyter_client.kernelspec import KernelSpecManager\n"
        "from labkit.tools.jupyter import OwnKernel\n"
        "for manager in (KernelSpecManager(), OwnKernel()):\n"
        "    print(manager.get_kernel_spec('python3').argv[0] == '/bin/false')\n"
    )
    mine = {name: value.format(tmp_path) for name, value in variables.items()}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(ROOT), **mine},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(wins), "False"]
