"""`labkit lab`: which notebook JupyterLab opens, in which folder, and with which settings."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from traitlets.config import Config

from labkit.tools import jupyter
from tests.support.command import labkit
from tests.support.lab_projects import write_labs


@pytest.fixture
def project(tmp_path, monkeypatch):
    write_labs(tmp_path, {"00_start": [], "01_sums": []})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABKIT_PRESET", raising=False)
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    """What `labkit lab` would execute, as (options, other arguments, environment)."""
    calls = []

    def become(path, command, environment):
        assert (path, command[1:4]) == (sys.executable, ["-P", "-m", "jupyterlab"])
        pairs = [part.removeprefix("--").split("=", 1) for part in command[4:] if "=" in part]
        calls.append((dict(pairs), [part for part in command[4:] if "=" not in part], environment))

    monkeypatch.setattr(os, "execve", become)
    return calls


def test_it_makes_the_copies_and_opens_the_first(project, started):
    done = labkit("lab")
    assert done.exit_code == 0, done.stderr
    copies = [project / "work" / f"{name}.ipynb" for name in ("00_start", "01_sums")]
    assert done.stdout.splitlines() == [f"{path}: your own copy, made now" for path in copies]
    copies[0].write_text("an answer")
    assert labkit("lab").stdout == ""
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
    done = labkit("lab", *arguments)
    assert done.exit_code == 0, done.stderr
    assert started[0][0]["LabApp.default_url"] == f"/lab/tree/{url}"
    assert (project / "work").exists() == url.startswith("work")


def test_a_notebook_outside_the_project_is_shown_in_its_own_folder(
    project, started, tmp_path_factory
):
    """Its name may hold characters that have a meaning in an address."""
    path = tmp_path_factory.mktemp("out") / "50 % #1? à.ipynb"
    path.write_bytes((project / "notebooks" / "01_sums.ipynb").read_bytes())
    assert labkit("lab", str(path)).exit_code == 0
    options = started[0][0]
    assert options["ServerApp.root_dir"] == str(path.parent)
    url = options["LabApp.default_url"]
    assert url == "/lab/tree/50%20%25%20%231%3F%20%C3%A0.ipynb"
    assert urlsplit(url).path == url and unquote(url).endswith(path.name)


def test_options_for_jupyterlab_come_last_and_win(project, started):
    done = labkit(
        "lab", "--no-browser", "--port", "9000", "1", "--", "--debug", "--ServerApp.port=9001"
    )
    assert done.exit_code == 0, done.stderr
    options, others, _ = started[0]
    assert options["ServerApp.port"] == "9001" and others == ["--no-browser", "--debug"]
    assert labkit("lab", "1", "--", "--port", "9002").exit_code == 0
    assert started[1][1][-2:] == ["--port", "9002"]


def test_the_kernels_get_nothing_of_a_headless_run(project, started, monkeypatch):
    for name in ("LABKIT_RUN", "LABKIT_HEADLESS", "MPLBACKEND"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LABKIT_PRESET", "smoke")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/of/the/user")
    labkit("lab")
    environment = started[0][2]
    assert not {"LABKIT_RUN", "LABKIT_HEADLESS", "MPLBACKEND"} & environment.keys()
    assert environment["LABKIT_PRESET"] == "smoke"
    own, user = environment["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert user == "/of/the/user" and (Path(own) / "labconfig").is_dir()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sum"], "Did you mean 'sums'?"),
        (["0", "1"], "LAB: expected one lab or notebook, got '0 1'"),
        (["0,1"], "LAB: expected one lab, got '0,1'"),
        (["work/01_sums.ipynb"], "NOTEBOOK: expected a file that is there, got"),
        (
            ["notebooks/01_sums.ipynb", "--committed"],
            "LAB: expected a number or name beside --folder or --committed",
        ),
        (["01", "--committed", "--folder", "x"], "--folder: expected none beside --committed"),
        (["--folder", "notebooks"], "--folder: expected a folder of your own"),
        (["--port", "0"], "--port"),
        (["--browsr"], "--browser"),
        ([], "Did you mean 'smoke'?"),
    ],
)
def test_bad_usage_is_exit_2_and_starts_nothing(project, started, monkeypatch, arguments, said):
    if not arguments:
        monkeypatch.setenv("LABKIT_PRESET", "smoek")
    done = labkit("lab", *arguments)
    assert done.exit_code == 2 and said in done.stderr
    assert started == [] and not (project / "work").exists()


@pytest.mark.parametrize("given", ["", "chosen"])
def test_a_token_may_be_chosen_and_not_be_turned_off(given):
    identity = jupyter.AlwaysToken(config=Config({"IdentityProvider": {"token": given}}))
    assert identity.token == given or (len(identity.token) == 48 and identity.token_generated)
    assert identity.auth_enabled


@pytest.fixture
def other_kernel(tmp_path):
    """A folder with another kernel "python3", which does not start."""
    place = tmp_path / "other" / "kernels" / "python3"
    place.mkdir(parents=True)
    spec = {"argv": ["/bin/false"], "display_name": "Another", "language": "python"}
    (place / "kernel.json").write_text(json.dumps(spec))
    return place.parents[1]


@pytest.mark.parametrize(
    "variables",
    [{"JUPYTER_DATA_DIR": "{}", "JUPYTER_PREFER_ENV_PATH": "0"}, {"JUPYTER_PATH": "{}"}],
)
def test_another_kernel_of_the_user_wins_in_jupyter_and_not_here(other_kernel, variables):
    program = (
        "from jupyter_client import KernelManager\n"
        "print(KernelManager(kernel_name='python3').format_kernel_cmd()[0])"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    theirs = kept | {name: text.format(other_kernel) for name, text in variables.items()}

    def kernel(environment):
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
        return done.stdout.strip()

    assert kernel(theirs) == "/bin/false"
    assert kernel(jupyter.environment(theirs)) == sys.executable


def test_what_a_notebook_needs_is_found_from_any_folder(tmp_path, root):
    """A run's own folder, given by `--out`, may lie outside the project; a re-run works in it."""
    program = (
        "import labkit\n"
        "from labkit.base.project import find_project\n"
        "from labkit.data import prepare\n"
        "prepare.subprocess.run = lambda command, **options: print(command[1]) or Done\n"
        "class Done: returncode = 0\n"
        "print(find_project())\n"
        "print(prepare.prepare('mnist'))\n"
        "print(labkit.Run.open('01', preset='smoke', parameters={}).folder)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root), "LABKIT_RUN": ""},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    project, script, data, folder = done.stdout.splitlines()
    assert project == str(root) and script == str(root / "data_scripts" / "mnist.py")
    assert data == str(root / "datasets" / "MNIST_Data")
    assert Path(folder).parent == tmp_path / "runs"
