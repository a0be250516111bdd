r"""Gradient freezing: some updates leave the first layers as they are.

    w_g, s_g <- optimizer(w_g, s_g, grad_g)     for the groups g >= k(u) of update u
    w_g, s_g <- w_g, s_g                        for those before, which are frozen

with s_g the optimizer's state. The trained parameters, in forward order, make n groups; k(u) = 0
freezes nothing. The share ``freeze_p`` of all updates has k = 0, whatever its name says; in the
others k runs over 1 .. n - 1: one after the other (``freeze_type`` 0: 0 0 .. 0 1 2 .. n-1, again
and again), or alternating with zeros and drawn with P(k) = (n - k) / (1 + 2 + .. + (n - 1))
(``freeze_type`` 1: 0 3 0 1 0 0 2 ..).

Source: ``mindspore.boost.GradientFreeze`` and ``FreezeOpt`` (2.10.0). Departures:
- one optimizer, whose state and count of steps go on; MindSpore makes one for each k, so that a
  layer's momentum is as many moments that do not know of each other, n copies in memory, and each
  learning rate given as a Cell counts the updates of its k alone;
- k(u) depends on a seed and the number of updates alone, so that a resumed training goes on with
  it; there it is drawn from NumPy's global generator, and counted by call;
- numbers that all parameters share, Adam's powers of beta, go on in every update;
- the whole gradient is computed, averaged and clipped: what is saved is a frozen layer's update
  only in its effect, not in its time. MindSpore differentiates by what is trained alone;
- fewer pieces than groups are refused; there every k then trains all, silently.
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
        first: k(u), the first group that update u trains, (length,) int32; then from the start.
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
        param_groups: n; None: 10, or as many as the network has pieces.
        freeze_type: 0 or 1, see above.
        freeze_p: share of the updates that freeze nothing, >= 0 and < 1.
        total_steps: updates until the schedule begins again, less 1 %.
        seed: of what ``freeze_type`` 1 draws.

    Raises:
        InputError: for an argument with another value, and a network of fewer pieces than groups.
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
    """Return names in runs of three and more; a run goes on over all with "bn" or "bias" in them.

    A convolution, its BatchNorm and its bias are not torn apart: MindSpore's rule.

    Args:
        names: of parameters, in forward order.
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
        # In this form: 1 - freeze_p of the updates so far, rounded as MindSpore rounds it.
        freezes[update] = frozen / update < 1 - freeze_p
        frozen += int(freezes[update])
    # P(k) falls with k. Random numbers of PCG64 and no ``choice``, whose stream may change.
    ends = np.cumsum(np.arange(groups - 1, 0, -1))
    draws = np.random.Generator(np.random.PCG64(seed)).random(frozen) * ends[-1]
    first = np.zeros(length, np.int32)
    first[freezes] = 1 + np.searchsorted(ends, draws, side="right")
    return first


class GradFreezeUpdate(UpdateStage):
    """Update stage: the optimizer, and what it did to frozen parameters undone.

    Args:
        optimizer: any ``nn.Optimizer``.
        schedule: of ``freeze_schedule``.

    Raises:
        InputError: where the optimizer has a parameter that the schedule does not know.

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
        # held: what some update freezes, weights and their states; kept: as they were before it.
        most = int(schedule.first.max())
        held = [
            (schedule.groups[name], parameter)
            for parameter in dict.fromkeys((*self.parameters, *optimizer.get_parameters()))
            if (name := owner(parameter.name, names)) and schedule.groups[name] < most
        ]
        self.held_groups = tuple(group for group, _ in held)
        self.held = ParameterTuple(parameter for _, parameter in held)
        # Past Cell's own setattr: no checkpoint needs them.
        kept = ParameterTuple(copied(parameter, "grad_freeze") for parameter in self.held)
        object.__setattr__(self, "kept", kept)

    def description(self) -> str:
        share = np.mean(self.first.asnumpy() > 0)
        return f"{max(self.groups) + 1} groups of parameters, some frozen in {share:.0%} of updates"

    def first_trained(self) -> Tensor:
        """Return k of the update that is under way, ()."""
        return ops.gather(self.first, ops.floor_mod(self.record.updates, self.length), 0)

    def masked(self, gradients: tuple) -> tuple:
        """Return the gradients with zeros for what is frozen; arguments as in ``construct``."""
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
