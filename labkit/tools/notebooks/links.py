"""Relative links of a notebook that is put elsewhere."""

import os
import re
from pathlib import Path

# A relative link of markdown; never an address, a place on the same page or an absolute path.
_LINK = re.compile(r"(\]\()(?![a-z]+:|#|/)([^)\s#]+)")


def relinked(text: str, source: Path, folder: Path, *, with_labs: bool) -> str:
    """Return markdown of a notebook with its relative links as they are from another folder.

    Args:
        text: markdown
        source: folder of the notebook
        folder: where the text is put
        with_labs: the notebooks beside it are put there as well: links to them stay
    """

    def moved(match: re.Match) -> str:
        target = (source / match[2]).resolve()
        if with_labs and target.parent == source.resolve() and target.suffix == ".ipynb":
            return match[0]
        return match[1] + Path(os.path.relpath(target, folder.resolve())).as_posix()

    return _LINK.sub(moved, text)
