"""Access to the programs of benchmarks/, which is not a package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
