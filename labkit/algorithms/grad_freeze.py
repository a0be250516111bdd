r"""Gradient freezing: some updates leave the first layers as they are.

    w_g, s_g <- optimizer(w_g, s_g, grad_g)     for the groups g >= k(u) of update u
    w_g, s_g <- w_g, s_g                        for those before, which are frozen

with s_g the optimizer's state. The trained parameters, in forward order, make n groups; k(u) = 0
freezes nothing. A share ``freeze_p`` of all updates has k = 0, contrary to its name; in the others
k takes the values 1 .. n - 1: in order (``freeze_type`` 0: 0 0 .. 0 1 2 .. n-1, repeated), or
interleaved with zeros and drawn with P(k) = (n - k) / (1 + 2 + .. + (n - 1)) (``freeze_type`` 1:
0 3 0 1 0 0 2 ..).

Source: ``mindspore.boost.GradientFreeze`` and ``FreezeOpt`` (2.10.0). Departures:
- one optimizer, with one state and one count of steps; MindSpore makes an optimizer for each k, so
  that a layer's momentum is split into independent moments, n copies in memory, and a learning rate
  given as a Cell counts only the updates of its k;
- k(u) depends only on a seed and the number of updates, so that a resumed training continues it; in
  MindSpore it is drawn from NumPy's global generator, and counted by call;
- numbers that all parameters share, such as Adam's powers of beta, advance in every update;
- the whole gradient is computed, averaged and clipped: a frozen layer's update has no effect, but
  its time is not saved. MindSpore differentiates only with respect to the trained parameters;
- fewer pieces than groups are refused; in MindSpore every k then silently trains everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.base import arguments
from labkit.base.arguments import names_checked
from labkit.errors import InputError
from labkit.steps.state import copied
from labkit.steps.update import UpdateStage

GROUPS = 10  # MindSpore's default
CONTINUOUS, INTERVAL = 0, 1


@dataclass(frozen=True)
class FreezeSchedule:
    """Which parameters are frozen at which update.

    Attributes:
        groups: name of a parameter -> its group, 0 .. n - 1.
        first: k(u), the first group that update u trains, (length,) int32; then it repeats.
        settings: plain values, by name, that a resumed training must share.
    """

    groups: Mapping[str, int]
    first: np.ndarray
    settings: Mapping[str, object]


@names_checked
def freeze_schedule(
    network: nn.Cell,
    *,
    param_groups: int | None = None,
    freeze_type: int = INTERVAL,
    freeze_p: float = 0.7,
    total_steps: int = 65536,
    seed: int = 0,
) -> FreezeSchedule:
    """Return the schedule of a network.

    Args:
        network: its trainable parameters are frozen in the order in which it holds them.
        param_groups: n; None: 10, or the number of the network's pieces if that is smaller.
        freeze_type: 0 or 1, see above.
        freeze_p: share of the updates that freeze nothing, >= 0 and < 1.
        total_steps: number of updates; the schedule repeats after 1 % more.
        seed: seed of the values that ``freeze_type`` 1 draws.

    Raises:
        InputError: if an argument has an invalid value or the network fewer pieces than groups.
    """
    freeze_type = arguments.integer("freeze_type", freeze_type, 0, 1)
    freeze_p = arguments.number("freeze_p", freeze_p, at_least=0, below=1)
    total_steps = arguments.integer("total_steps", total_steps)
    seed = arguments.seed(seed)
    if not isinstance(network, nn.Cell):
        raise arguments.wrong("network", network, "an nn.Cell")
    names = [parameter.name for parameter in network.trainable_params()]
    parts = pieces(names)
    if len(parts) < 2:
        raise InputError(
            f"network: expected parameters for 2 pieces of 3 and more, got {len(names)} of them"
        )
    if param_groups is None:
        param_groups = min(GROUPS, len(parts))
    param_groups = arguments.integer("param_groups", param_groups, at_least=2)
    if param_groups > len(parts):
        raise InputError(
            f"param_groups: expected at most {len(parts)}, since the network's {len(names)} "
            f"parameters make so many pieces of 3 and more, got {param_groups}"
        )
    stride = len(parts) // param_groups
    groups = {
        name: min(number // stride, param_groups - 1)
        for number, part in enumerate(parts)
        for name in part
    }
    settings = {
        "param_groups": param_groups,
        "freeze_type": freeze_type,
        "freeze_p": freeze_p,
        "total_steps": total_steps,
        "freeze_seed": seed,
    }
    length = int(total_steps * 1.01)
    first = first_groups(param_groups, freeze_type, freeze_p, length, seed)
    return FreezeSchedule(groups, first, settings)


def pieces(names: list[str]) -> list[list[str]]:
    """Return names in runs of at least three; names that contain "bn" or "bias" extend a run.

    A convolution, its BatchNorm and its bias stay together: MindSpore's rule.

    Args:
        names: names of parameters, in forward order.
    """
    runs: list[list[str]] = [[]]
    for name in names:
        if len(runs[-1]) >= 3 and "bn" not in name and "bias" not in name:
            runs.append([])
        runs[-1].append(name)
    return runs


def first_groups(
    groups: int, freeze_type: int, freeze_p: float, length: int, seed: int
) -> np.ndarray:
    """Return k(u) for u = 0 .. length - 1, (length,) int32; arguments as ``freeze_schedule``'s."""
    if freeze_type == CONTINUOUS:
        zeros = min(length, int(freeze_p * (groups - 1) // (1 - freeze_p) + 0.5))
        period = np.r_[np.zeros(zeros, np.int32), np.arange(1, groups)]
        return np.resize(period, length).astype(np.int32)
    freezes, frozen = np.zeros(length, bool), 0
    for update in range(1, length):
        # Keep this form: 1 - freeze_p of the updates so far, rounded as MindSpore rounds it.
        freezes[update] = frozen / update < 1 - freeze_p
        frozen += int(freezes[update])
    # P(k) decreases with k. Drawn from PCG64 directly, not by ``choice``, whose stream may change.
    ends = np.cumsum(np.arange(groups - 1, 0, -1))
    draws = np.random.Generator(np.random.PCG64(seed)).random(frozen) * ends[-1]
    first = np.zeros(length, np.int32)
    first[freezes] = 1 + np.searchsorted(ends, draws, side="right")
    return first


class GradFreezeUpdate(UpdateStage):
    """Update stage: run the optimizer, then undo its changes to frozen parameters.

    Args:
        optimizer: any ``nn.Optimizer``.
        schedule: schedule returned by ``freeze_schedule``.

    Raises:
        InputError: if the optimizer has a parameter that is not in the schedule.

    It holds a second copy of all but the last group's parameters and of their optimizer states.

    >>> schedule = freeze_schedule(network, param_groups=4, total_steps=1000)
    >>> step = PlainStep(loss_net, optimizer, update=GradFreezeUpdate(optimizer, schedule))
    """

    def __init__(self, optimizer: nn.Optimizer, schedule: FreezeSchedule):
        super().__init__(optimizer)
        if not isinstance(schedule, FreezeSchedule):
            raise arguments.wrong("schedule", schedule, "a FreezeSchedule, of freeze_schedule()")
        names = [parameter.name for parameter in self.parameters]
        unknown = [name for name in names if name not in schedule.groups]
        if unknown:
            raise InputError(
                f"the optimizer's parameter {unknown[0]!r} is not in the freeze schedule; "
                "expected the schedule of the network that is trained"
            )
        self.settings = dict(schedule.settings)
        self.groups = tuple(schedule.groups[name] for name in names)
        self.first, self.length = Tensor(schedule.first, ms.int32), len(schedule.first)
        # held: weights that some update freezes, and their states; kept: their values before it.
        most = int(schedule.first.max())
        held = [
            (schedule.groups[name], parameter)
            for parameter in dict.fromkeys((*self.parameters, *optimizer.get_parameters()))
            if (name := owner(parameter.name, names)) and schedule.groups[name] < most
        ]
        self.held_groups = tuple(group for group, _ in held)
        self.held = ParameterTuple(parameter for _, parameter in held)
        # Bypasses Cell's own setattr: no checkpoint needs them.
        kept = ParameterTuple(copied(parameter, "grad_freeze") for parameter in self.held)
        object.__setattr__(self, "kept", kept)

    def description(self) -> str:
        share = np.mean(self.first.asnumpy() > 0)
        return f"{max(self.groups) + 1} groups of parameters, some frozen in {share:.0%} of updates"

    def first_trained(self) -> Tensor:
        """Return k of the current update, ()."""
        return ops.gather(self.first, ops.floor_mod(self.record.updates, self.length), 0)

    def masked(self, gradients: tuple) -> tuple:
        """Return the gradients with zeros for frozen parameters; arguments as in ``construct``."""
        return self.map(ops.partial(_masked, self.first_trained()), self.groups, gradients)

    def construct(self, gradients: tuple[Tensor, ...]) -> object:
        first = self.first_trained()
        kept = self.map(ops.assign, self.kept, self.held)
        done = self.optimizer(ops.depend(gradients, kept))
        held = ops.depend(self.held, done)
        values = self.map(ops.partial(_held, first), self.held_groups, self.kept, held)
        return ops.depend(True, self.map(ops.assign, self.held, values))


def owner(name: str, parameters: list[str]) -> str:
    """Return the parameter that a state ``moments.NAME`` belongs to; "" for none."""
    owners = [each for each in parameters if name == each or name.endswith(f".{each}")]
    return max(owners, key=len, default="")


def _masked(first: Tensor, group: int, gradient: Tensor) -> Tensor:
    return ops.select(first > group, ops.zeros_like(gradient), gradient)


def _held(first: Tensor, group: int, kept: Parameter, now: Parameter) -> Tensor:
    return ops.select(first > group, 1.0 * kept, 1.0 * now)
