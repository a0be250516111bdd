"""How a run folder describes its training: config.json and classes.json beside the checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.base.files import write_json
from labkit.base.input_files import read_json
from labkit.errors import InputError
from labkit.recipes import settings
from labkit.recipes.config import MAY_CHANGE, TrainingConfig

if TYPE_CHECKING:
    from mindspore.train import Callback, RunContext

CONFIG, CLASSES = "config.json", "classes.json"
# Settings that decide how long an update takes.
_DECIDE_TIME = frozenset(
    "batch_size micro_steps depth network image_size class_num precision augment frequency split "
    "workers node_size on n_components trials method dataset_sink_mode".split()
)


def description(config: TrainingConfig, classes: Sequence[str], folder: Path) -> Callback:
    """Return a callback that writes both files when the training begins.

    Not earlier: ``fit`` refuses a folder of another training, whose files must not change.
    """
    from mindspore.train import Callback

    class Describe(Callback):
        def on_train_begin(self, run_context: RunContext) -> None:
            settings.write(config, folder / CONFIG)
            write_json(folder / CLASSES, list(classes), "the classes")

    return Describe()


def check_resume(config: TrainingConfig, classes: Sequence[str], folder: Path) -> None:
    """Raise ``InputError`` if ``config`` would not continue the training in ``folder``."""
    before = _json(folder / CONFIG, dict, "names and values")
    if before is None:
        return
    check_classes(classes, folder / CLASSES)
    # A training from before a setting existed had the value that is now its default.
    before = {each.name: each.default for each in fields(config)} | before
    for name, value in asdict(config).items():
        if name not in MAY_CHANGE and value != before[name]:
            raise InputError(
                f"cannot resume: {name}: expected {before[name]}, as in {folder}, got {value}"
            )


def read_classes(path: Path | None) -> list[str] | None:
    """Return the class names in a run folder's file, or None if there is no file."""
    return _json(path, list, "a list of names")


def check_classes(classes: Sequence[str], path: Path | None) -> None:
    """Raise ``InputError`` if ``classes`` are not those in ``path``; without a file, accept any.

    One class more or fewer would shift the labels of all that follow.
    """
    known = read_classes(path)
    if known is None or list(classes) == known:
        return
    differ = []
    for where, names in (("here", set(classes) - set(known)), ("there", set(known) - set(classes))):
        if names:
            few = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            differ.append(f"only {where}: {few}")
    raise InputError(
        f"the data has {len(classes)} classes and the training had {len(known)} ({path}); expected "
        f"the same. {'; '.join(differ)}"
    )


def seconds_of_update(folder: str | Path, config: TrainingConfig) -> float:
    """Return the mean seconds per update of a training with these settings.

    The first two updates are left out: they compile.

    Args:
        folder: the run folder.
        config: settings of the same kind; lengths, rates and paths may differ.

    Raises:
        InputError: if there is no such training, or its records are damaged or fewer than five.
    """
    from labkit.training.records import RECORDS, read_records

    folder = Path(folder)
    if (folder / "rank_0").is_dir():  # each rank has a folder of its own
        folder /= "rank_0"
    before = _json(folder / CONFIG, dict, "names and values")
    if before is None:
        raise InputError(f"expected the run folder of a recipe, got {folder}: it has no {CONFIG}")
    for name in sorted(_DECIDE_TIME & asdict(config).keys()):
        if name in before and getattr(config, name) != before[name]:
            raise InputError(
                f"{name} is {before[name]} in {folder} and {getattr(config, name)} in the plan; "
                "expected a training of the same"
            )
    rows = read_records(folder / RECORDS).rows
    if len(rows) < 5:
        raise InputError(
            f"expected a training of at least 5 rows in {RECORDS}, got {len(rows)} in {folder}"
        )
    first, last = rows[1], rows[-1]
    if not {"update", "seconds"} <= first.keys() or first["update"] >= last["update"]:
        raise InputError(
            f"{folder / RECORDS} is damaged; expected seconds and a growing update in each row"
        )
    # In dataset sink mode there is one row per epoch.
    return (last["seconds"] - first["seconds"]) / (last["update"] - first["update"])


def beside(checkpoint_path: str | Path, name: str) -> Path | None:
    """Return RUN/name for a checkpoint that a training wrote into its run folder, else None.

    The checkpoint is RUN/checkpoint/FILE; if the training in RUN had ``layout="documents"``, it may
    also be the tutorial's RUN/FILE or RUN/FOLDER/FOLDER/FILE.
    """
    path = Path(checkpoint_path).absolute()
    for folder in path.parents[:3]:
        ours = folder == path.parent.parent or _holds_documents(folder)
        if ours and (folder / name).is_file():
            return folder / name
    return None


def _holds_documents(folder: Path) -> bool:
    try:
        return read_json(folder / CONFIG)["layout"] == "documents"
    except (OSError, InputError, KeyError, TypeError):  # no file, or not one of a recipe
        return False


def newest(folder: Path) -> str | None:
    """Return the name of the newest checkpoint in the run folder, or None."""
    from labkit.training.checkpoint import CHECKPOINTS, checkpoints

    paths = checkpoints(folder / CHECKPOINTS)
    return paths[-1].name if paths else None


def _json(path: Path | None, kind: type[list] | type[dict], expected: str) -> Any:
    """Return the list of texts or the dict with texts as keys in a file, or None without one."""
    if path is None or not path.is_file():
        return None
    try:
        known = read_json(path)
    except (OSError, InputError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(known, kind) or not all(isinstance(name, str) for name in known):
        raise InputError(f"{path} is damaged; expected {expected}")
    return known
