"""ResNet-50 on an image folder: the migration document's whole training, and its evaluation.

    python -m labkit.recipes.resnet50 train --dataset_path FOLDER --set epoch_size=90
    python -m labkit.recipes.resnet50 eval --dataset_path FOLDER --checkpoint_path FILE

FOLDER holds train/ and val/, each with one folder a class, or is such a folder of classes itself
(the document's; there is no evaluation after training then). ``labkit.recipes.resnet50_config``
says what can be set, with its default. On several ranks, msrun or scripts/resnet50 start one such
command each, with --run_distribute True.

Source: "ResNet-50 migration", train.py and eval.py. Departures: a real warm-up, augmentation, exact
shards, no decay for biases whatever they are called, the network as torchvision builds it; the
document's own way can be had by name, but for its network.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import runtime
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.recipes import command, out_of_memory, run_folder, settings
from labkit.recipes.resnet50_config import Config
from labkit.recipes.resnet50_parts import (
    build_loss,
    build_network,
    build_step,
    datasets,
    load_network,
    with_classes,
)
from labkit.training.records import Records

# What a resumed training may change: where and how often it writes, and what is fitted anyway.
_MAY_CHANGE = (
    "save_checkpoint",
    "save_checkpoint_epochs",
    "save_checkpoint_steps",
    "keep_checkpoint_max",
    "save_checkpoint_path",
    "num_parallel_workers",
)
TOP = (1, 5)


@dataclass(frozen=True)
class Trained:
    """What ``train`` did: the run folder, one record per update, and the evaluation, or None."""

    folder: Path
    records: Records
    evaluation: dict[str, float] | None


def evaluation(config: Config, network, val_set, ranks: int) -> dict[str, float]:
    """Return accuracies and mean loss over every image, added up over the ranks."""
    from labkit.steps.step import running_statistics
    from labkit.training.evaluation import evaluate

    cluster.take_from_first(running_statistics(network))
    found = evaluate(network, build_loss(config), val_set, top=TOP, over_ranks=ranks > 1)
    return {name: found[name] for name in (*(f"top_{k}_accuracy" for k in TOP), "loss")}


def train(
    config: Config,
    dataset_path: str | Path,
    *,
    device: str = "auto",
    distribute: bool = False,
    device_num: int | None = None,
    resume: bool = False,
    make_step: Callable = build_step,
    callbacks: Callable[[Any, int], list] | None = None,
    folder_of_rank: bool = False,
    evaluate: Callable = evaluation,
) -> Trained:
    """Train on this device, or as one rank of several, and evaluate where there is a val/.

    device, distribute  as for ``labkit.start``
    device_num          how many ranks there must be; None: as many as were started
    resume              continue from the newest checkpoint in config.save_checkpoint_path
    make_step           (config, network, micro-batches in an epoch) -> step cell
    callbacks           (config, micro-batches in an epoch) -> what the first rank's training calls
                        and shows instead of the progress display
    folder_of_rank      True: of several ranks, each writes records and checkpoints of its own, into
                        rank_<n>/ of the run folder, for a step that holds other values on each
    evaluate            called as ``evaluation`` is, on every rank

    On several ranks, each trains on its part of the images; the first writes. Raises
    ``InputError`` for a folder, a number of ranks or an earlier training that does not fit, and
    where ranks hold different weights, data or settings.
    """
    started = start(config, device, distribute, device_num)
    train_set, val_set, classes = datasets(config, dataset_path, started.rank, started.ranks)
    config = with_classes(config, classes)
    first, folder = started.rank == 0, Path(config.save_checkpoint_path)
    folder_of_rank = folder_of_rank and started.ranks > 1
    if folder_of_rank:
        folder /= f"rank_{started.rank}"
    if resume:
        run_folder.check_resume(config, classes, folder, _MAY_CHANGE)
    network = build_network(config)
    epoch_size = train_set.get_dataset_size()
    step = make_step(config, network, epoch_size)
    cluster.agree(
        config=config,
        classes=classes,
        steps=epoch_size,
        weights=cluster.digest(network),
        checkpoint=run_folder.newest(folder) if resume else None,
    )
    if first:
        images = config.batch_size * step.micro_batches * started.ranks
        print(f"labkit: ResNet-{config.depth} into {folder}, {images} images in an update")
        print(settings.lines(config), flush=True)
    with out_of_memory.advice(config.batch_size, config.micro_steps):
        shown = None if callbacks is None else callbacks(config, epoch_size) if first else []
        records = _fit(
            config, step, train_set, classes, folder, resume, shown, first, first or folder_of_rank
        )
        found = None if val_set is None else evaluate(config, network, val_set, started.ranks)
    if first and found is not None:
        print(f"labkit: {summary(found)}", flush=True)
    return Trained(folder, records, found)


def evaluate_checkpoint(
    config: Config,
    dataset_path: str | Path,
    checkpoint_path: str | Path,
    *,
    device: str = "auto",
    distribute: bool = False,
    device_num: int | None = None,
    evaluate: Callable = evaluation,
) -> dict[str, float]:
    """Return accuracies and loss of a checkpoint over every image of the folder.

    checkpoint_path  of ``train``, or of the network alone, such as ``labkit.migration`` makes one
                     of PyTorch's weights
    evaluate         as for ``train``

    Raises ``InputError`` as ``train`` does, for a checkpoint of another network, and for classes
    other than those of the training.
    """
    started = start(config, device, distribute, device_num)
    _, val_set, classes = datasets(
        config, dataset_path, started.rank, started.ranks, only_evaluate=True
    )
    run_folder.check_classes(classes, run_folder.beside(checkpoint_path, run_folder.CLASSES))
    config = with_classes(config, classes)
    network = build_network(config)
    load_network(network, checkpoint_path)
    cluster.agree(config=config, classes=classes, weights=cluster.digest(network))
    with out_of_memory.advice(config.batch_size, config.micro_steps):
        found = evaluate(config, network, val_set, started.ranks)
    if started.rank == 0:
        print(f"labkit: {summary(found)}, checkpoint {checkpoint_path}", flush=True)
    return found


def start(config: Config, device: str, distribute: bool, device_num: int | None):
    """Call ``labkit.start`` and make sure that the ranks are as many as were asked for."""
    ranks = cluster.ranks_started()
    if not distribute and (ranks > 1 or (device_num or 1) > 1):
        raise InputError(
            f"{ranks} ranks were started and device_num is {device_num}, with run_distribute "
            "False; expected --run_distribute True, or one rank"
        )
    if device_num is not None and device_num != ranks:
        raise InputError(
            f"device_num is {device_num}, and {ranks} ranks were started; expected the same number"
        )
    if config.save_checkpoint_steps and config.micro_steps > 1 and ranks > 1:
        raise InputError(
            "save_checkpoint_steps came with micro_steps > 1 on several ranks: a checkpoint holds "
            "the gradients that one rank has gathered; expected save_checkpoint_epochs alone"
        )
    started = runtime.start(device, config.seed, distribute=distribute)
    if started.ranks != ranks:
        raise InputError(f"{started.ranks} ranks have met; the environment speaks of {ranks}")
    return started


def summary(found: dict[str, float]) -> str:
    """Return an evaluation as one line."""
    return ", ".join(f"{name} {value:.4f}" for name, value in found.items())


def _fit(config, step, train_set, classes, folder, resume, shown, first, write):
    from labkit.training.fit import fit

    own = [run_folder.description(config, classes, folder)] if write else []
    return fit(
        step,
        train_set,
        config.epoch_size,
        folder=folder,
        resume=resume,
        checkpoint_every=config.save_checkpoint_steps,
        checkpoint_epochs=config.save_checkpoint_epochs if config.save_checkpoint else None,
        keep=config.keep_checkpoint_max,
        write=write,
        progress=f"ResNet-{config.depth}" if first and shown is None else None,
        callbacks=own + (shown or []),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 for bad input with its message on stderr."""
    return command.run(
        arguments,
        name="resnet50",
        description=__doc__,
        named={"default": Config()},
        train=train,
        evaluate=evaluate_checkpoint,
    )


if __name__ == "__main__":
    sys.exit(main())
