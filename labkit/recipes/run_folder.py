"""What a run folder says of its training: config.json and classes.json beside the checkpoints."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.base.input_files import read_json
from labkit.errors import InputError
from labkit.recipes import settings

CONFIG, CLASSES = "config.json", "classes.json"


def description(config: Any, classes: Sequence[str], folder: Path):
    """Return a callback that writes both files once a training begins.

    Not before: ``fit`` refuses a folder of another training, whose files must stay.
    """
    from mindspore.train import Callback

    class Describe(Callback):
        def on_train_begin(self, run_context):
            settings.write(config, folder / CONFIG)
            settings.write_json(list(classes), folder / CLASSES)

    return Describe()


def check_resume(
    config: Any, classes: Sequence[str], folder: Path, may_change: Collection[str]
) -> None:
    """Raise ``InputError`` where ``config`` would not continue the training in ``folder``.

    may_change  names of settings that decide nothing about the weights
    """
    before = _json(folder / CONFIG, "names and values", lambda known: isinstance(known, dict))
    if before is None:
        return
    check_classes(classes, folder / CLASSES)
    for name, value in asdict(config).items():
        if name not in may_change and value != before.get(name):
            raise InputError(
                f"cannot resume: {name} is {value}, the training in {folder} has {before.get(name)}"
            )


def check_classes(classes: Sequence[str], path: Path | None) -> None:
    """Raise ``InputError`` unless ``classes`` are those in ``path``; without a file all are right.

    One class more or less would shift the labels of all that follow.
    """
    known = _json(path, "a list of names", _are_names)
    if known is None or list(classes) == known:
        return
    more, less = sorted(set(classes) - set(known)), sorted(set(known) - set(classes))
    differ = [
        f"only {where}: {_few(names)}"
        for where, names in (("here", more), ("there", less))
        if names
    ]
    raise InputError(
        f"the data has {len(classes)} classes and the training had {len(known)} ({path}); expected "
        f"the same. {'; '.join(differ)}"
    )


def beside(checkpoint_path, name: str) -> Path | None:
    """Return RUN/name for a checkpoint RUN/checkpoint/FILE that ``fit`` wrote, None for others."""
    path = Path(checkpoint_path).absolute().parent.parent / name
    return path if path.is_file() else None


def newest(folder: Path) -> str | None:
    """Return the name of the newest checkpoint in the run folder, or None."""
    from labkit.training.checkpoint import checkpoints
    from labkit.training.fit import CHECKPOINTS

    found = checkpoints(folder / CHECKPOINTS)
    return found[-1].name if found else None


def _are_names(known):
    return isinstance(known, list) and all(isinstance(name, str) for name in known)


def _few(names):
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _json(path, expected, is_right):
    if path is None or not path.is_file():
        return None
    try:
        known = read_json(path)
    except (OSError, InputError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not is_right(known):
        raise InputError(f"{path} is damaged; expected {expected}")
    return known
