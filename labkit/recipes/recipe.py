"""A full training program: what all recipes share, around a step of their own.

The module of a recipe defines what differs: its settings, its step, and what it prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from labkit import runtime
from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.recipes import command, documents, out_of_memory, resnet50_parts, run_folder, settings
from labkit.recipes.config import TrainingConfig

if TYPE_CHECKING:
    from mindspore import nn
    from mindspore.dataset import Dataset
    from mindspore.train import Callback

    from labkit.steps.step import Step
    from labkit.training.records import Records

_TOP = (1, 5)


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
    from labkit.steps.step import running_statistics
    from labkit.training.evaluation import evaluate

    cluster.take_from_first(running_statistics(network))
    loss = resnet50_parts.build_evaluation_loss(config)
    result = evaluate(network, loss, val_set, top=_TOP, over_ranks=ranks > 1)
    return {name: result[name] for name in (*(f"top_{k}_accuracy" for k in _TOP), "loss")}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training program on an image folder.

    Attributes:
        name: name of the recipe's module.
        description: text for ``--help``: the module's docstring.
        named: settings by name; without ``--settings`` the first are used.
        build_step: (settings, network, micro-batches in an epoch) -> step cell.
        parts: settings -> module of data and network: ``resnet50_parts``, or one that has the same
            ``datasets``, ``build_network``, ``network_name``, ``image``, ``image_shape`` and
            ``training_images``.
        data: description of the data folder, for ``--help``.
        callbacks: (settings, network, micro-batches in an epoch, whether it resumes) -> callbacks
            of the first rank, which replace its progress display; None: keep the display.
        evaluation: called like the function ``evaluation``, on every rank.
        check_classes: (settings, class names), called before training; may raise ``InputError``.
        say: (evaluation, checkpoint): prints more about a checkpoint's evaluation, on the first
            rank.
        folder_of_rank: whether each of several ranks writes its own records and checkpoints, into
            rank_<n>/ of the run folder; for a step whose values differ between ranks.
        updates: (settings, micro-batches of a rank in an epoch, ranks) -> updates in an epoch.
        devices: number of devices in the source's training, the default of ``labkit plan``.
    """

    name: str
    description: str | None
    named: Mapping[str, TrainingConfig]
    build_step: Callable[[Any, nn.Cell, int], Step]
    parts: Callable[[Any], ModuleType] = lambda config: resnet50_parts
    data: str = "train/ and val/ (or ilsvrc/ and ilsvrc_eval/), or one folder a class"
    callbacks: Callable[[Any, nn.Cell, int, bool], list[Callback]] | None = None
    evaluation: Callable[[Any, nn.Cell, Dataset, int], dict[str, float]] = evaluation
    check_classes: Callable[[Any, Sequence[str]], None] | None = None
    say: Callable[[dict[str, float], str | Path], None] | None = None
    folder_of_rank: bool = False
    updates: Callable[[Any, int, int], int] = resnet50_parts.updates_in_epoch
    devices: int = 8

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

        Each rank trains on its part of the images; the first writes (see ``folder_of_rank``).

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
        train_set, val_set, classes = self.parts(config).datasets(
            config, dataset_path, started.rank, started.ranks
        )
        config = resnet50_parts.with_classes(config, classes)
        training = _Training(self, config, classes, started.rank, started.ranks, resume)
        return training.run(train_set, val_set)

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
            dataset_path: as for ``train``.
            checkpoint_path: checkpoint of ``train``, or of the network alone, such as one of
                ``labkit.migration``.
            device: as for ``train``.
            distribute: as for ``train``.
            device_num: as for ``train``.

        Raises:
            InputError: as for ``train``, and for a checkpoint of another network or other classes.
        """
        started = start(config, device, distribute, device_num)
        _, val_set, classes = self.parts(config).datasets(
            config, dataset_path, started.rank, started.ranks, only_evaluate=True
        )
        run_folder.check_classes(classes, run_folder.beside(checkpoint_path, run_folder.CLASSES))
        config = resnet50_parts.with_classes(config, classes)
        network = self.parts(config).build_network(config)
        resnet50_parts.load_network(network, checkpoint_path)
        cluster.agree(config=config, classes=classes, weights=cluster.digest(network))
        with out_of_memory.advice(config.batch_size, config.micro_steps):
            result = self.evaluation(config, network, val_set, started.ranks)
        if started.rank == 0:
            print(f"labkit: {summary(result)}, checkpoint {checkpoint_path}", flush=True)
            if self.say is not None:
                self.say(result, checkpoint_path)
        return result

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the command and return its exit code, as ``command.run`` does."""
        return command.run(self, arguments)


@dataclass(frozen=True)
class _Training:
    """One training of a recipe, as one rank sees it."""

    recipe: Recipe
    config: TrainingConfig
    classes: Sequence[str]
    rank: int
    ranks: int
    resume: bool

    @property
    def folder(self) -> Path:
        """The folder of the run; ``fit`` writes a further rank's records and checkpoints in it."""
        return Path(self.config.save_checkpoint_path)

    @property
    def parts(self) -> ModuleType:
        """The module of data and network."""
        return self.recipe.parts(self.config)

    @property
    def name(self) -> str:
        """The network's name."""
        return self.parts.network_name(self.config)

    @property
    def writes(self) -> bool:
        """Whether this rank writes."""
        return self.rank == 0

    def run(self, train_set: Dataset, val_set: Dataset | None) -> Trained:
        """Train, and evaluate if there is an evaluation set."""
        config, recipe = self.config, self.recipe
        if self.resume:
            run_folder.check_resume(config, self.classes, self.folder)
        if recipe.check_classes is not None:
            recipe.check_classes(config, self.classes)
        network = self.parts.build_network(config)
        micro_batches = train_set.get_dataset_size()
        step = recipe.build_step(config, network, micro_batches)
        cluster.agree(
            config=config,
            classes=self.classes,
            steps=micro_batches,
            weights=cluster.digest(network),
            checkpoint=run_folder.newest(self.folder) if self.resume else None,
        )
        if self.rank == 0:
            images = config.batch_size * step.micro_batches * self.ranks
            print(f"labkit: {self.name} into {self.folder}, {images} images in an update")
            print(settings.lines(config), flush=True)
        log, callbacks = documents.of(config, recipe.name, self.rank)
        with log, out_of_memory.advice(config.batch_size, config.micro_steps):
            callbacks = [*callbacks, *self._callbacks(network, micro_batches)]
            records = self._fit(step, train_set, callbacks)
            result = None
            if val_set is not None:
                evaluated = resnet50_parts.in_float32(config, network, self.parts.build_network)
                result = recipe.evaluation(config, evaluated, val_set, self.ranks)
            if self.rank == 0 and result is not None:
                print(f"labkit: {summary(result)}", flush=True)
        return Trained(self.folder, records, result)

    def _callbacks(self, network: nn.Cell, micro_batches: int) -> list[Callback]:
        """Return the callbacks of the training; a rank that writes describes the run folder."""
        callbacks = []
        if self.writes:
            callbacks.append(run_folder.description(self.config, self.classes, self.folder))
        if self.rank == 0 and self.recipe.callbacks is not None:
            callbacks += self.recipe.callbacks(self.config, network, micro_batches, self.resume)
        return callbacks

    def _fit(self, step: Step, train_set: Dataset, callbacks: list[Callback]) -> Records:
        from labkit.training.fit import fit

        config = self.config
        displays = self.rank == 0 and self.recipe.callbacks is None
        return fit(
            step,
            train_set,
            config.epoch_size,
            folder=self.folder,
            resume=self.resume,
            checkpoint_every=config.save_checkpoint_steps,
            checkpoint_epochs=config.save_checkpoint_epochs if config.save_checkpoint else None,
            keep=config.keep_checkpoint_max,
            progress=self.name if displays else None,
            callbacks=callbacks,
            dataset_sink_mode=config.dataset_sink_mode,
        )


def start(
    config: TrainingConfig, device: str, distribute: bool, device_num: int | None
) -> runtime.Runtime:
    """Call ``labkit.start`` and check that the number of ranks is the requested one."""
    ranks = cluster.ranks_started()
    if not distribute and (ranks > 1 or (device_num or 1) > 1):
        raise wrong(
            "run_distribute",
            distribute,
            f"True with {max(ranks, device_num or 1)} ranks, or one rank",
        )
    if device_num is not None and device_num != ranks:
        raise wrong("device_num", device_num, f"{ranks}, the number of ranks started")
    check_ranks(config, ranks)
    started = runtime.start(device, config.seed, distribute=distribute)
    if started.ranks != ranks:
        raise InputError(f"expected the environment's {ranks} ranks, got {started.ranks}")
    return started


def check_ranks(config: TrainingConfig, ranks: int) -> None:
    """Raise ``InputError`` if the settings do not allow this number of ranks."""
    if config.save_checkpoint_steps and config.micro_steps > 1 and ranks > 1:
        raise InputError(
            "save_checkpoint_steps with micro_steps > 1 on several ranks: a checkpoint holds the "
            "gradients that one rank has gathered; expected save_checkpoint_epochs alone"
        )


def summary(result: dict[str, float]) -> str:
    """Return an evaluation as one line."""
    return ", ".join(f"{name} {value:.4f}" for name, value in result.items())
