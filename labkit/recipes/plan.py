"""The cost of a recipe's training, before it is started: ``labkit plan RECIPE``.

    steps     in an epoch, from the data pipeline's sampler; updates, from the recipe's function
    memory    of one device: the Parameters of the recipe's step, which is built and not run, and
              what an update holds in addition, with the outputs of all layers for a batch
    network   in a ring AllReduce of b bytes over n devices each sends and receives 2 (n - 1) / n b,
              in an AllGather it receives (n - 1) b. Everything exchanged is float32
    hours     steps times seconds per step, or updates times seconds per update of a short training

The plan is computed; nothing is trained. It does not include ``LEFT_OUT``.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import runtime
from labkit.base.arguments import integer, number
from labkit.errors import InputError
from labkit.recipes import run_folder
from labkit.recipes.config import TrainingConfig
from labkit.recipes.costs import (
    Costs,
    activations_of,
    bytes_of,
    costs_of,
    nonzero,
    numbers_of,
    ring,
)
from labkit.recipes.recipe import Recipe, check_ranks
from labkit.recipes.resnet50_parts import with_classes

if TYPE_CHECKING:
    from mindspore import nn

LEFT_OUT = (
    "batches, workspaces and MindSpore itself; of the network, single numbers, what "
    "checks and evaluations exchange, and Adasum's second AllGather, where it needs one; of the "
    "hours, evaluation and compilation"
)
_MB = 1e6


def make(
    recipe: Recipe,
    config: TrainingConfig,
    devices: int,
    *,
    dataset_path: str | Path | None = None,
    images: int | None = None,
    step_time: float | None = None,
    measured: str | Path | None = None,
) -> dict[str, Any]:
    """Return the plan of a training, as plain values: bytes, counts, hours.

    Builds the network and the step on the CPU; for ``subspace-2`` no first stage is needed.

    Args:
        recipe: the recipe that would be trained.
        config: its settings.
        devices: number of devices that would train together, one rank each.
        dataset_path: as for ``Recipe.train``: its images are counted. None: the source's data set.
        images: number of training images, instead of counting them.
        step_time: seconds of one micro-batch, or None.
        measured: run folder of a short training with these settings, whose seconds per update are
            used.

    Raises:
        InputError: for settings, devices or images that the training would refuse, for a run folder
            of another training, and if both ``dataset_path`` and ``images``, or both ``step_time``
            and ``measured``, are given.
    """
    if images is not None and dataset_path is not None:
        raise InputError("got --images and --data_path; expected one of them")
    integer("devices", devices)
    check_ranks(config, devices)
    if step_time is not None:
        number("step-time", step_time, above=0)
    if step_time is not None and measured is not None:
        raise InputError("got --step-time and --measured; expected one of them")
    runtime.start("CPU", config.seed)  # before MindSpore is imported
    parts = recipe.parts(config)
    count, classes, source = parts.training_images(config, dataset_path)
    if images is not None:
        count, source = integer("images", images), "as given"
    if dataset_path is not None or config.class_num is None:
        config = with_classes(config, range(classes))
    steps = _steps(recipe, config, count, Path(dataset_path or "the plan"), devices)
    network = parts.build_network(config)
    taken = costs_of(recipe, config, network, steps["in_an_epoch"], devices)
    return {
        "recipe": recipe.name,
        "settings": _settings(recipe, config, devices),
        "images": {"count": count, "source": source},
        "steps": steps,
        "memory": _memory(taken, network, parts.image_shape(config), config.batch_size),
        "network": _network(taken, devices),
        "files": taken.files,
        "hours": _hours(steps, step_time, measured, config),
        "left_out": LEFT_OUT,
    }


def _steps(
    recipe: Recipe, config: TrainingConfig, count: int, path: Path, devices: int
) -> dict[str, int]:
    from labkit.data.shards import batches_in_epoch

    steps = batches_in_epoch(count, path, config.batch_size, devices)
    updates = recipe.updates(config, steps, devices)
    return {
        "in_an_epoch": steps,
        "in_all": steps * config.epoch_size,
        "updates_in_an_epoch": updates,
        "updates_in_all": updates * config.epoch_size,
    }


def _hours(
    steps: dict[str, int],
    step_time: float | None,
    measured: str | Path | None,
    config: TrainingConfig,
) -> float | None:
    if measured is not None:
        return steps["updates_in_all"] * run_folder.seconds_of_update(measured, config) / 3600
    return None if step_time is None else steps["in_all"] * step_time / 3600


def _settings(recipe: Recipe, config: TrainingConfig, devices: int) -> dict[str, Any]:
    node_size, parts = getattr(config, "node_size", None), recipe.parts(config)
    return {
        "network": parts.network_name(config),
        "classes": config.class_num,
        "image_size": parts.image_shape(config)[-1],
        "batch_per_device": config.batch_size,
        "micro_steps": config.micro_steps,
        "devices": devices,
        "nodes": None if node_size is None else max(devices // node_size, 1),
        "precision": getattr(config, "precision", "O0"),
        "epochs": config.epoch_size,
    }


def _memory(costs: Costs, network: nn.Cell, image: tuple[int, ...], batch: int) -> dict[str, Any]:
    step = costs.step
    weights = step.optimizer.parameters
    known = {id(weight) for weight in weights}
    others = [each for each in network.get_parameters() if id(each) not in known]
    held = {
        "weights": bytes_of(weights),
        "running statistics": bytes_of(others),
        "optimizer state": bytes_of(step.optimizer.get_parameters()) - bytes_of(weights),
        "accumulated gradients": bytes_of(getattr(step, "extended_sum", ())),
        **costs.within,
    }
    held["other state of the step"] = bytes_of(step.get_parameters()) - sum(held.values())
    held |= costs.beside
    halves = {
        id(each): 2 * each.size
        for _, cell in step.gradient.loss_net.cells_and_names()
        if getattr(cell, "fp16", False)
        for each in cell.get_parameters(expand=False)
        if id(each) in known
    }
    during = {
        "gradients, float32": 4 * numbers_of(step),
        "weights in float16": sum(halves.values()),
        "activations, outputs of the layers": activations_of(step, image, batch),
        **costs.during,
    }
    total = sum(held.values()) + sum(during.values())
    return {"held": nonzero(held), "during_an_update": nonzero(during), "total": total}


def _network(costs: Costs, devices: int) -> dict[str, Any]:
    average = devices if costs.ring is None else costs.ring
    gradients = costs.averages * ring(average, 4 * numbers_of(costs.step))
    each = {"gradients, AllReduce": gradients, **costs.traffic}
    frequency, seldom = costs.every
    mean = sum(each.values()) + round(sum(seldom.values()) / frequency)
    return {
        "each_update": nonzero(each),
        "every": {"updates": frequency, "bytes": seldom} if seldom else None,
        "mean_of_an_update": mean,
    }


# --- for people ----------------------------------------------------------------------------------


def text(plan: dict[str, Any]) -> str:
    """Return a plan as lines to read, with sizes in MB (10^6 bytes)."""
    steps, memory, network = plan["steps"], plan["memory"], plan["network"]
    rows = [("settings", "")]
    settings = {name: value for name, value in plan["settings"].items() if value is not None}
    rows += [(f"  {name.replace('_', ' ')}", str(value)) for name, value in settings.items()]
    rows += [("images", f"{plan['images']['count']:,} ({plan['images']['source']})")]
    rows += [("steps", "micro-batches of a device")]
    rows += [(f"  {name.replace('_', ' ')}", f"{value:,}") for name, value in steps.items()]
    rows += [("memory of a device", f"{memory['total'] / _MB:,.1f} MB"), *_rows(memory["held"])]
    rows += [("  during an update", ""), *_rows(memory["during_an_update"])]
    mean = network["mean_of_an_update"]
    rows += [("network, sent by a device", f"{mean / _MB:,.1f} MB an update")]
    rows += _rows(network["each_update"])
    if network["every"]:
        rows += [(f"  every {network['every']['updates']} updates", "")]
        rows += _rows(network["every"]["bytes"])
    if plan["files"]:
        rows += [("files", ""), *_rows(plan["files"])]
    hours = plan["hours"]
    said = "not estimated: give --step-time or --measured" if hours is None else f"{hours:,.2f}"
    rows += [("hours", said)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name.ljust(width)}  {value}".rstrip() for name, value in rows]
    return "\n".join([*lines, textwrap.fill(f"Not counted: {plan['left_out']}.", 80)])


def _rows(parts: dict[str, int]) -> list[tuple[str, str]]:
    return [(f"    {name}", f"{value / _MB:>12,.1f} MB") for name, value in parts.items()]
