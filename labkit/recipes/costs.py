"""What a recipe's step needs on a device: memory, traffic and files, by technique.

The step is the recipe's own; it is built and never called. The steps of Adasum and of the subspace
need ranks and the files of a first stage: for them, the step that they are derived from is built,
and the size of their own state is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from labkit.recipes.config import MixedConfig
from labkit.recipes.recipe import Recipe
from labkit.recipes.resnet50_parts import build_loss

if TYPE_CHECKING:
    from mindspore import Parameter, nn

    from labkit.steps.step import Step


@dataclass(frozen=True)
class Costs:
    """A step, and what its technique needs on a device, in bytes by name.

    Attributes:
        step: the step, built and never called.
        within: memory held in the step's Parameters.
        beside: memory held by the technique, but by no Parameter of ``step``.
        during: memory held only while an update is made.
        traffic: traffic of every update, besides the gradients' AllReduce.
        every: (n, traffic of one update in every n).
        ring: number of ranks that average gradients; None: all.
        averages: number of averages of gradients in an update.
        files: files on disk.
    """

    step: Step
    within: dict[str, int] = field(default_factory=dict)
    beside: dict[str, int] = field(default_factory=dict)
    during: dict[str, int] = field(default_factory=dict)
    traffic: dict[str, int] = field(default_factory=dict)
    every: tuple[int, dict[str, int]] = (1, {})
    ring: int | None = None
    averages: int = 1
    files: dict[str, int] = field(default_factory=dict)


def costs_of(
    recipe: Recipe, config: Any, network: nn.Cell, micro_batches: int, devices: int
) -> Costs:
    """Return what a training needs.

    Args:
        recipe: the recipe that is trained.
        config: its settings.
        network: a network built from these settings; it becomes a part of the step.
        micro_batches: micro-batches of a device in an epoch.
        devices: number of devices that train together.

    Raises:
        InputError: if the step refuses the settings.
    """
    return _COSTS.get(recipe.name, _plain)(recipe, config, network, micro_batches, devices)


def activations_of(step: Step, image: tuple[int, ...], batch: int) -> int:
    """Return the bytes of all layers' outputs for a batch, from a forward pass of a single image.

    The backward pass needs the inputs of most layers, which are other layers' outputs. A graph
    that reuses their memory, or recomputes them, needs less: with ResNet-50 at 224 pixels MindSpore
    on CPU took 101 MB per additional image, where this function returns 128 MB. In float16 it took
    222 MB, where this function returns 86 MB.

    Args:
        step: the step, whose network is called in PyNative mode.
        image: shape of the network's input without the batch.
        batch: images in a micro-batch.
    """
    import mindspore as ms

    from labkit.runtime import pynative

    network = step.gradient.loss_net.network
    sizes: list[int] = []
    layers = [cell for _, cell in network.cells_and_names() if not cell.name_cells()]
    handles = [
        layer.register_forward_hook(lambda cell, inputs, output: sizes.append(output.nbytes))
        for layer in layers
    ]
    network.set_train(False)  # running statistics stay as they are
    try:
        with pynative():
            network(ms.ops.zeros((1, *image)))
    finally:
        network.set_train()
        for handle in handles:
            handle.remove()
    return batch * sum(sizes)


def bytes_of(parameters: Iterable[Parameter]) -> int:
    """Return the bytes of Parameters, each counted once."""
    return sum({id(each): each.nbytes for each in parameters}.values())


def numbers_of(step: Step) -> int:
    """Return how many numbers the step trains."""
    return sum(parameter.size for parameter in step.optimizer.parameters)


def ring(devices: int, held: int) -> int:
    """Return the bytes that each device sends in a ring AllReduce of ``held`` bytes."""
    return round(2 * (devices - 1) * held / devices)


def nonzero(parts: dict[str, int]) -> dict[str, int]:
    """Return the parts that are not 0."""
    return {name: value for name, value in parts.items() if value}


def _plain(recipe: Recipe, config: Any, network: nn.Cell, micro_batches: int, _: int) -> Costs:
    return Costs(recipe.build_step(config, network, micro_batches))


def _thor(recipe: Recipe, config: Any, network: nn.Cell, micro_batches: int, n: int) -> Costs:
    step = recipe.build_step(config, network, micro_batches)
    layers = step.update.memory_usage()
    factors = sum(layer["factor_bytes"] for layer in layers)
    inverses = sum(layer["inverse_bytes"] for layer in layers)
    new = bytes_of(each for group in step.update.extras or () for each in group)
    seldom = {"factors, AllReduce": ring(n, new), "inverses, AllReduce": ring(n, inverses)}
    pending = bytes_of(step.update.pending_gradients)
    return Costs(
        step,
        within={"factors": factors, "inverses": inverses, "gradients that wait": pending},
        during={"new factors": new},
        every=(config.frequency, nonzero(seldom)),
    )


def _adasum(recipe: Recipe, config: Any, network: nn.Cell, micro_batches: int, n: int) -> Costs:
    from labkit.algorithms.adasum.team import TeamSize
    from labkit.algorithms.adasum.workers import NOTES, memory_usage
    from labkit.recipes.adasum import build_optimizer

    team = TeamSize(config.workers, config.node_size, n)
    optimizer = build_optimizer(config, network, recipe.updates(config, micro_batches, n))
    step = _accumulated(config, network, optimizer)
    gathered = team.bytes_received(numbers_of(step) + NOTES)
    return Costs(
        step,
        beside=memory_usage(optimizer, config.workers, config.on),
        during={"vectors of the other ranks": gathered},
        traffic={"workers' vectors, AllGather": gathered},
        ring=config.node_size if n > 1 else 1,
        averages=config.workers,
    )


def _stage_1(recipe: Recipe, config: Any, network: nn.Cell, micro_batches: int, _: int) -> Costs:
    step = recipe.build_step(config, network, micro_batches)
    epochs = config.epoch_size - config.snapshot_start_epoch + 1
    made = epochs * config.snapshots_per_epoch
    kept = made if config.snapshot_max is None else min(made, config.snapshot_max)
    return Costs(step, files={f"{kept} snapshots": kept * bytes_of(step.optimizer.parameters)})


def _stage_2(recipe: Recipe, config: Any, network: nn.Cell, _: int, n: int) -> Costs:
    from labkit.algorithms.subspace.shards import rows_of_rank
    from labkit.algorithms.subspace.update import memory_usage
    from labkit.recipes.subspace_stage_2 import build_optimizer

    step = _accumulated(config, network, build_optimizer(config, network))
    weights, components = 4 * numbers_of(step), config.n_components
    searches = config.method == "bfgs"
    # P^T P g, and with a search P^T d; memory also holds g and w.
    products = 2 if searches else 1
    projected = 4 * n * rows_of_rank(components, n)
    return Costs(
        step,
        beside=memory_usage(network, step.optimizer.parameters, components, n, config.method),
        during={"gradient, weights and moves as vectors": (2 + products) * weights},
        traffic={
            "P g, AllReduce": ring(n, projected),
            "moves in the subspace, AllReduce": ring(n, products * weights),
        },
        files={"basis": components * weights},
    )


_COSTS: dict[str, Callable[[Recipe, Any, nn.Cell, int, int], Costs]] = {
    "thor": _thor,
    "adasum": _adasum,
    "subspace_stage_1": _stage_1,
    "subspace_stage_2": _stage_2,
}


def _accumulated(config: MixedConfig, network: nn.Cell, optimizer: nn.Optimizer) -> Step:
    """Return the step that Adasum's and the subspace's derive from: it needs no ranks or files."""
    from labkit.steps.accumulation import AccumulatedStep
    from labkit.steps.losses import LossNet

    return AccumulatedStep(
        LossNet(network, build_loss(config)),
        optimizer,
        config.micro_steps,
        **config.step_options(),
    )
