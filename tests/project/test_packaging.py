"""pyproject.toml, constraints.txt, environment.yml and the installed packages agree on versions."""

import importlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import labkit
from tests.support.programs import run_code
from tests.support.texts import committed_files

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The CUDA build of PyTorch fixes the versions of these itself.
CUDA = ("nvidia-", "cuda-", "triton")


def constraints(**environment):
    """Return name -> version of the pins that hold here, or in another environment."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    held = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment or None)]
    return {pin.name: str(pin.specifier).removeprefix("==") for pin in held}


def required(*extras):
    """Return the requirements of pyproject.toml, and those of ``extras``."""
    texts = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][each] for each in extras)]
    return [Requirement(text) for part in texts for text in part]


def test_the_lowest_python_that_is_allowed_takes_every_pin():
    """A pin for the lowest Python alone is judged by its marker: it is installed nowhere else."""
    allowed = SpecifierSet(PROJECT["requires-python"])
    lowest = min(bound.version for bound in allowed if bound.operator == ">=") + ".0"
    here = constraints()
    pins = constraints(python_full_version=lowest, python_version=lowest[:4])
    assert set(pins) == set(here)
    for name, version in pins.items():
        if here[name] == version and (found := next(metadata.distributions(name=name), None)):
            needed = found.metadata.get("Requires-Python") or ""
            assert SpecifierSet(needed).contains(lowest), f"{name} {version} needs Python {needed}"


def test_the_conda_environment_has_the_same_pins():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda_lines, pip = conda["dependencies"]
    # constraints.txt pins the dependencies of the named packages too.
    named = sorted(canonicalize_name(each.name) for each in required("labs"))
    pins = [f"{name}=={constraints()[name]}" for name in named]
    assert pip["pip"] == ["-c constraints.txt", "-e .[labs]", *pins]
    python = next(line for line in conda_lines if line.startswith("python="))
    assert SpecifierSet(PROJECT["requires-python"]).contains(python.partition("=")[2])


def brought_by(*extras):
    """Return the names of all that labkit with these extras installs here."""
    seen, waiting = set(), required(*extras)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or name.startswith(CUDA):
            continue
        seen.add(name)
        for needed in map(Requirement, metadata.requires(name) or ()):
            extras, marker = requirement.extras or {""}, needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return seen


def test_what_is_installed_is_what_is_pinned():
    pins, seen = constraints(), brought_by("labs", "docs", "test")
    for name in seen:
        assert metadata.version(name).partition("+")[0] == pins[name], name
    assert {"mindspore", "torch", "tornado", "furo"} <= seen


def test_a_training_needs_few_packages():
    """Twenty with labkit itself, pip and setuptools; 130 with the labs."""
    assert len(brought_by()) <= 17 < len(brought_by("labs"))
    assert "pydantic" not in brought_by()


@pytest.mark.slow
def test_a_lock_has_the_pinned_versions(tmp_path):
    """The pins of every Python; what they leave out may be there besides."""
    if shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    for name in ("pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("scripts/pins.sh", "labkit/__init__.py"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    done = subprocess.run(["make", "lock"], cwd=tmp_path, capture_output=True, text=True)
    if "Failed to fetch" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    packages = tomllib.loads((tmp_path / "uv.lock").read_text(encoding="utf-8"))["package"]
    locked = {(package["name"], package.get("version")) for package in packages}
    names = {name for name, _ in locked}
    pins = [*constraints().items(), *constraints(python_full_version="3.11.0").items()]
    assert {pin for pin in pins if pin[0] in names} <= locked and {"mindspore", "torch"} < names


def test_every_public_name_is_there_and_known_to_editors():
    """Each import under TYPE_CHECKING, which labkit's ``__getattr__`` and editors both read."""
    block = Path(labkit.__file__).read_text(encoding="utf-8").partition("_CHECKING:")[2]
    assert block.count("    from labkit.") == len(labkit._HOME) > len(labkit.__all__) > 30
    for name, module in labkit._HOME.items():
        assert getattr(labkit, name) is getattr(importlib.import_module(module), name)


def test_a_checkout_that_is_not_installed_says_its_own_version(tmp_path):
    """As on clusters, where labkit is only on PYTHONPATH; -S hides site-packages."""
    other = tmp_path / "site" / "mindspore_labs-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: mindspore-labs\nVersion: 9.9.9\n")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "labkit", tmp_path / "labkit", ignore=ignored)
    own = PROJECT["version"]
    assert f"## [{own}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {own}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    # A checkout, and a copy of the package, as in a wheel; without and with metadata.
    for path, first, second in ((ROOT, own, own), (tmp_path, "unknown", "9.9.9")):
        for more, version in (("", first), (f":{other.parent}", second)):
            command = [sys.executable, "-S", "-P", "-c", "import labkit; print(labkit.__version__)"]
            variables = os.environ | {"PYTHONPATH": f"{path}{more}"}
            done = subprocess.run(command, cwd=other, env=variables, capture_output=True, text=True)
            assert done.stdout == f"{version}\n", done.stderr


def test_the_sdist_is_the_checkout_and_the_wheel_holds_the_labs(tmp_path):
    """Nothing is installed to build them."""
    committed = {str(path.relative_to(ROOT)) for path in committed_files(ROOT)}
    for name in committed:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    code = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    with tarfile.open(next((tmp_path / "dist").glob("*.tar.gz"))) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert committed - held <= {".gitattributes", ".gitignore"}
    assert {"CHANGELOG.md", "examples/own_network.py", "notebooks/00_start_here.ipynb"} <= held
    with zipfile.ZipFile(next((tmp_path / "dist").glob("*.whl"))) as wheel:
        held = set(wheel.namelist())
    labs = [
        name for name in committed if name.startswith(("notebooks/", "locale/", "data_scripts/"))
    ]
    assert {"labkit/__init__.py", "labkit/project/.mindspore-labs"} <= held
    assert len(labs) > 50 and {f"labkit/project/{name}" for name in labs} <= held


def test_labkit_can_be_imported_where_torch_is_not():
    done = run_code(
        "import importlib, pkgutil, sys, labkit\n"
        "sys.modules['torch'] = None  # an import of it raises\n"
        "for module in pkgutil.walk_packages(labkit.__path__, 'labkit.'):\n"
        "    if not module.name.endswith('.torch_trace'):  # PyTorch's half of the comparison\n"
        "        importlib.import_module(module.name)\n"
    )
    assert done.returncode == 0, done.stderr


def test_no_committed_file_names_this_machine_or_a_package_index():
    # Written in two halves, because this file is searched too.
    unwanted = [f"{ROOT}/", "python" + "hosted", "index" + "-url", "find" + "-links"]
    for path in committed_files(ROOT):
        content = path.read_bytes()
        assert [text for text in unwanted if text.encode() in content] == [], path


@pytest.mark.parametrize(
    "command",
    ["mypy --no-incremental", "ruff check --no-cache .", "ruff format --check --no-cache ."],
)
def test_types_lint_and_layout(command):
    command = [sys.executable, "-m", *command.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
