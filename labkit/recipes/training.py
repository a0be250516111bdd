"""A full training program: what all recipes share, around a step of their own.

The module of a recipe defines what differs: its settings, its step, and what it prints.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import runtime
from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.recipes.settings import MAY_CHANGE, TrainingConfig

if TYPE_CHECKING:
    from mindspore import nn
    from mindspore.dataset import Dataset
    from mindspore.train import Callback

    from labkit.steps.step import Step
    from labkit.training.records import Records

CONFIG, CLASSES = "config.json", "classes.json"  # in the run folder; they describe the training
TITLE = "============== Starting {} =============="
_TOP = (1, 5)


@dataclass(frozen=True)
class Tree:
    """Where a tutorial writes, inside the run folder, beside what ``fit`` writes there.

    The folder of a device also holds train.log, the output of its process, and env.log.
    Departures: a training resumes from ``fit``'s own checkpoints; env.log holds only the variables
    that identify the rank, since others may contain passwords; machines that share a run folder
    would share device{i}: give each machine its own.

    Attributes:
        device: folder of a device, "{}" for its number on its machine; "": the run folder, without
            logs.
        checkpoints: folder for checkpoints below ``device``, resnet-EPOCH_STEP.ckpt, or None.
        snapshots: folder for the trainable weights below ``checkpoints``, or None.
        every_device: whether every device writes checkpoints, or only the first one.
    """

    device: str
    checkpoints: str | None = None
    snapshots: str | None = None
    every_device: bool = False


TREES = {
    "accumulation": Tree(""),
    "resnet50": Tree("", ""),
    "thor": Tree("train_parallel{}", "ckpt_0", every_device=True),
    "adasum": Tree("device{}"),
    "subspace_stage_1": Tree("device{}_stage_1", "checkpoint_stage_1", "checkpoint_pca"),
    "subspace_stage_2": Tree("device{}_stage_2", "checkpoint_stage_2"),
}
_ON_GPU = {"thor": Tree("train_parallel", "ckpt_{rank}", every_device=True)}


def tree(recipe: str, device: str) -> Tree:
    """Return where the tutorial of a recipe writes on "CPU", "GPU" or "Ascend"."""
    return (_ON_GPU if device == "GPU" else {}).get(recipe, TREES[recipe])


@dataclass(frozen=True)
class Trained:
    """Result of ``train``: the run folder, one record per update, and the evaluation or None."""

    folder: Path
    records: Records
    evaluation: dict[str, float] | None


def evaluation(
    config: TrainingConfig, network: nn.Cell, val_set: Dataset, ranks: int
) -> dict[str, float]:
    """Return accuracies and mean loss over every image, combined across the ranks."""
    from labkit.recipes import parts
    from labkit.steps.step import running_statistics
    from labkit.training.evaluation import evaluate

    cluster.take_from_first(running_statistics(network))
    loss = parts.build_loss(config, evaluation=True)
    result = evaluate(network, loss, val_set, top=_TOP, over_ranks=ranks > 1)
    return {name: result[name] for name in (*(f"top_{k}_accuracy" for k in _TOP), "loss")}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training program on an image folder.

    Attributes:
        name: name of the recipe in ``TREES``.
        description: text for ``--help``: the module's docstring.
        named: settings by name; without ``--settings`` the first are used.
        build_step: (settings, network, micro-batches in an epoch) -> step cell.
        data: description of the data folder, for ``--help``.
        losses: title and words of the tutorial's printed losses, see ``parts.Losses``; None: a
            progress display.
        callbacks: (settings, network, whether it resumes) -> further callbacks of the first rank.
        evaluation: called like the function ``evaluation``, on every rank.
        check_classes: (settings, class names), called before training; may raise ``InputError``.
        say: (evaluation, checkpoint): prints more about a checkpoint's evaluation, on the first
            rank.
    """

    name: str
    description: str | None
    named: Mapping[str, TrainingConfig]
    build_step: Callable[[Any, nn.Cell, int], Step]
    data: str = "train/ and val/ (or ilsvrc/ and ilsvrc_eval/), or one folder a class"
    losses: tuple[str, str] | None = None
    callbacks: Callable[[Any, nn.Cell, bool], list[Callback]] | None = None
    evaluation: Callable[[Any, nn.Cell, Dataset, int], dict[str, float]] = evaluation
    check_classes: Callable[[Any, Sequence[str]], None] | None = None
    say: Callable[[dict[str, float], str | Path], None] | None = None

    def train(
        self,
        config: TrainingConfig,
        dataset_path: str | Path,
        *,
        device: str = "auto",
        distribute: bool = False,
        device_num: int | None = None,
        resume: bool = False,
    ) -> Trained:
        """Train on this device or as one rank of several; evaluate any evaluation set in float32.

        Each rank trains on its part of the images.

        Args:
            config: the recipe's settings.
            dataset_path: folder with train/ and val/, or with one folder per class.
            device: as for ``labkit.start``.
            distribute: as for ``labkit.start``.
            device_num: required number of ranks; None: as many as were started.
            resume: continue from the newest checkpoint in the run folder.

        Raises:
            InputError: if the folder, the number of ranks or an earlier training does not fit, or
                if ranks hold different weights, data or settings.
        """
        started = start(config, device, distribute, device_num)
        from labkit.recipes import parts
        from labkit.training.fit import fit

        data = parts.datasets(config, dataset_path, started.rank, started.ranks)
        train_set, val_set, classes = data
        config, first = parts.with_classes(config, classes), started.rank == 0
        if resume:
            check_resume(config, classes)
        if self.check_classes is not None:
            self.check_classes(config, classes)
        network, batches = parts.build_network(config), train_set.get_dataset_size()
        step = self.build_step(config, network, batches)
        weights = cluster.digest(network)
        cluster.agree(config=config, classes=classes, steps=batches, weights=weights)
        folder, name = Path(config.save_checkpoint_path), parts.network_name(config)
        if first:
            images = config.batch_size * step.micro_batches * started.ranks
            print(f"labkit: {name} into {folder}, {images} images in an update")
            print(lines(config), flush=True)
        with ExitStack() as held, _advice(config):
            own = [parts.Documents(config, self.name, classes, started.rank, held)]
            if first:
                own += self._shown(config, network, step, batches, resume)
            records = fit(
                step,
                train_set,
                config.epoch_size,
                folder=folder,
                resume=resume,
                checkpoint_every=config.save_checkpoint_steps,
                checkpoint_epochs=config.save_checkpoint_epochs if config.save_checkpoint else None,
                keep=config.keep_checkpoint_max,
                progress=name if first and self.losses is None else None,
                callbacks=own,
                dataset_sink_mode=config.dataset_sink_mode,
            )
            result = None
            if val_set is not None:
                network = parts.in_float32(config, network)
                result = self.evaluation(config, network, val_set, started.ranks)
                if first:
                    print(f"labkit: {summary(result)}", flush=True)
        return Trained(folder, records, result)

    def _shown(
        self, config: TrainingConfig, network: nn.Cell, step: Step, batches: int, resume: bool
    ) -> list[Callback]:
        """Return the callbacks of the first rank: the printed losses, and the recipe's own."""
        from mindspore.train import TimeMonitor

        from labkit.recipes import parts

        shown: list[Callback] = []
        if self.losses is not None:
            updates = step.updates_ahead([batches])
            shown += [parts.Losses(batches, updates, *self.losses), TimeMonitor(data_size=batches)]
        return shown + ([] if self.callbacks is None else self.callbacks(config, network, resume))

    def evaluate_checkpoint(
        self,
        config: TrainingConfig,
        dataset_path: str | Path,
        checkpoint_path: str | Path,
        *,
        device: str = "auto",
        distribute: bool = False,
        device_num: int | None = None,
    ) -> dict[str, float]:
        """Return accuracies and loss of a checkpoint over every image of the folder.

        Args:
            config: the recipe's settings.
            dataset_path: as for ``train``, as are all others.
            checkpoint_path: checkpoint of ``train``, or of the network alone, such as one of
                ``labkit.migration``.
            device: the device.
            distribute: whether this is one rank of several.
            device_num: their number.

        Raises:
            InputError: as for ``train``, and for a checkpoint of another network or other classes.
        """
        started = start(config, device, distribute, device_num)
        from labkit.recipes import parts

        rank, ranks = started.rank, started.ranks
        data = parts.datasets(config, dataset_path, rank, ranks, only_evaluate=True)
        _, val_set, classes = data
        check_classes(classes, beside(checkpoint_path, CLASSES))
        config = parts.with_classes(config, classes)
        network = parts.build_network(config)
        parts.load_network(network, checkpoint_path)
        cluster.agree(config=config, classes=classes, weights=cluster.digest(network))
        result = self.evaluation(config, network, val_set, ranks)
        if rank == 0:
            print(f"labkit: {summary(result)}, checkpoint {checkpoint_path}", flush=True)
            if self.say is not None:
                self.say(result, checkpoint_path)
        return result

    def steps(self, config: TrainingConfig, dataset_path: str | Path, ranks: int) -> str:
        """Return a line that says how many micro-batches each of ``ranks`` has in an epoch."""
        from labkit.recipes import parts

        count = parts.datasets(config, dataset_path, 0, ranks)[0].get_dataset_size()
        return f"# {count} micro-batches of {config.batch_size} an epoch on each of {ranks} ranks"


@contextlib.contextmanager
def _advice(config: TrainingConfig) -> Iterator[None]:
    """Add to MindSpore's error what helps where memory is not enough."""
    try:
        yield
    except RuntimeError as error:
        if "alloc" in str(error).lower():
            error.add_note(
                f"labkit: memory was not enough for micro-batches of {config.batch_size} images; "
                "a smaller batch_size with as many more micro_steps makes the same update, but for "
                "BatchNorm"
            )
        raise


def start(
    config: TrainingConfig, device: str, distribute: bool, device_num: int | None
) -> runtime.Runtime:
    """Call ``labkit.start`` and check that the number of ranks is the requested one."""
    ranks = cluster.ranks_started()
    most = max(ranks, device_num or 1)
    if not distribute and most > 1:
        raise wrong("run_distribute", distribute, f"True with {most} ranks, or one rank")
    if device_num is not None and device_num != ranks:
        raise wrong("device_num", device_num, f"{ranks}, the number of ranks started")
    started = runtime.start(device, config.seed, distribute=distribute)
    if started.ranks != ranks:
        raise InputError(f"expected the environment's {ranks} ranks, got {started.ranks}")
    return started


def check_resume(config: TrainingConfig, classes: Sequence[str]) -> None:
    """Raise ``InputError`` if ``config`` would not continue the training in its run folder."""
    folder = Path(config.save_checkpoint_path)
    if not (folder / CONFIG).is_file():
        return
    before = _read(folder / CONFIG)
    check_classes(classes, folder / CLASSES)
    for name, value in json.loads(json.dumps(asdict(config))).items():
        if name not in MAY_CHANGE and value != before.get(name):
            raise InputError(
                f"cannot resume: {name}: expected {before.get(name)}, as in {folder}, got {value}"
            )


def check_classes(classes: Sequence[str], path: Path | None) -> None:
    """Raise ``InputError`` if ``classes`` are not those in ``path``; without a file, accept any.

    One class more or fewer would shift the labels of all that follow.
    """
    if path is None or not path.is_file() or (known := _read(path)) == list(classes):
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


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def beside(checkpoint_path: str | Path, name: str) -> Path | None:
    """Return RUN/name for a checkpoint that a training wrote into its run folder, else None."""
    path = Path(checkpoint_path).absolute()
    return next((f / name for f in path.parents[:4] if (f / name).is_file()), None)


def lines(config: TrainingConfig) -> str:
    """Return one line ``  name value`` for each setting, the values aligned."""
    values = asdict(config)
    width = max(map(len, values))
    return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in values.items())


def summary(result: dict[str, float]) -> str:
    """Return an evaluation as one line."""
    return ", ".join(f"{name} {value:.4f}" for name, value in result.items())
