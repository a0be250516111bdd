"""What pyproject.toml cannot say: a wheel holds the labs and their data, in labkit/project."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
HELD = ("notebooks", "docs", "locale", "data_scripts", "examples", "benchmarks")
HELD += ("README.md", "README_zh.md", "CHANGELOG.md", "CONTRIBUTING.md")
HELD += ("labkit/steps/README.md", "labkit/labs/results/README.md")  # pages link to them
GENERATED = ("__pycache__", ".ipynb_checkpoints", "kernel_meta", "rank_*")


class BuildWithLabs(build_py):
    """Copies the labs beside the modules; an editable installation finds them in the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "labkit" / "project"
        shutil.rmtree(target, ignore_errors=True)
        for name in HELD:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=shutil.ignore_patterns(*GENERATED))
            else:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target / name)
        version = f"{self.distribution.get_version()}\n"
        (target / ".mindspore-labs").write_text(version, encoding="utf-8")


setup(cmdclass={"build_py": BuildWithLabs})
