"""The twins stand on NumPy alone."""

import subprocess
import sys


def test_imports_neither_mindspore_nor_torch(root):
    program = (
        "import sys, labkit.reference as _;"
        "assert not {'mindspore', 'torch', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root)
