"""What `labkit convert` does: which network is meant, and which way."""

import importlib
import re
import sys
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path

from labkit.errors import InputError

CHECKPOINT = ".ckpt"


def convert(
    source: Path,
    target: Path,
    network: str,
    classes: int = 1000,
    *,
    rename: Iterable[str] = (),
    entry: str | None = None,
    prefix: str = "",
) -> str:
    """Convert ``source`` into ``target``, one of them a ``.ckpt``; return what was done, in words.

    network  ``resnet50`` and the like (with ``classes``), or ``module:function`` of your own that
             returns a Cell; the module is also looked for in the working folder
    rename   ``MINDSPORE=PYTORCH`` parts of names
    entry, prefix  see ``weights.read_torch``

    Raises ``InputError`` for anything that does not fit; an existing target is not touched then.
    """
    if (source.suffix == CHECKPOINT) == (target.suffix == CHECKPOINT):
        raise InputError(
            f"{source.name} to {target.name}: expected one {CHECKPOINT} (MindSpore) and one .pth "
            "or .safetensors (PyTorch)"
        )
    if source.suffix == CHECKPOINT and (entry or prefix):
        raise InputError("entry and prefix are for reading PyTorch's file; a checkpoint came")
    if not target.parent.is_dir():
        raise InputError(f"{target.parent} is no folder; expected one to write {target.name} into")
    cell = build(network, classes)
    from labkit.migration import weights

    renames = dict(_rename(text) for text in rename)
    if source.suffix == CHECKPOINT:
        weights.convert_back(source, target, cell, renames)
        return f"{target}: written"
    found = weights.convert_file(source, target, cell, renames, entry=entry, prefix=prefix)
    return f"{target}: written; {found}"


def build(network: str, classes: int):
    """Return the Cell that ``network`` names."""
    if match := re.fullmatch(r"resnet(\d+)", network):
        from labkit.nets.resnet import resnet

        return resnet(int(match[1]), classes)
    module, colon, function = network.partition(":")
    if not colon:
        raise InputError(
            f"network is {network!r}; expected resnet18, 34, 50, 101, 152, or module:function"
        )
    with _working_folder():
        try:
            make = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise InputError(f"network {network}: {error}") from error
        return make()


@contextmanager
def _working_folder():
    """Let what is inside import from the working folder, after everything that is installed.

    The folder may be a downloaded one: first, or for longer, its torch.py would be PyTorch.
    """
    sys.path.append(folder := str(Path.cwd()))
    try:
        yield
    finally:
        if folder in sys.path:  # the module may have taken it away
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(folder)]


def _rename(text):
    here, equals, there = text.partition("=")
    if not (equals and here and there):
        raise InputError(f"rename is {text!r}; expected MINDSPORE=PYTORCH")
    return here, there
