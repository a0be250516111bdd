"""``python -m labkit.recipes train|eval RECIPE ...``: the same as ``labkit``."""

import sys

from labkit.recipes.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "python -m labkit.recipes"))
