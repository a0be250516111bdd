"""Two optimizers as one: each updates its own Parameters, at its own rates."""

from collections import Counter
from collections.abc import Iterable

from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.steps.state import at, parameters_in


class Both(nn.Optimizer):
    """One optimizer of two, for a network's matrices and for the rest of it, say.

    Args:
        params: all Parameters, in the order in which a step sees them.
        first, second: the optimizers, each made of its own part of ``params``, also in groups.

    The schedules of both follow this optimizer's ``global_step``. Their Parameters are renamed, so
    that a checkpoint can hold both: ``learning_rate`` becomes ``first.learning_rate``.

    Raises:
        InputError: naming a Parameter that is in neither or in both of the optimizers, or not in
            ``params``; or if one is no optimizer, has a ``loss_scale``, or is ``nn.LARS``.

    >>> weights = network.trainable_params()
    >>> matrices = [weight for weight in weights if weight.name.endswith("kernel")]
    >>> rest = [weight for weight in weights if not weight.name.endswith("kernel")]
    >>> optimizer = Both(weights, Muon(matrices, 0.02), AdamW(rest, 0.005))
    """

    learning_rate: ParameterTuple | nn.CellList

    def __init__(self, params: Iterable[Parameter], first: nn.Optimizer, second: nn.Optimizer):
        super().__init__(0.0, params := list(params))
        for each in (first, second):
            if not isinstance(each, nn.Optimizer) or isinstance(each, nn.LARS):
                raise wrong("Both", type(each).__name__, "an nn.Optimizer, other than nn.LARS")
            if each.loss_scale != 1:
                raise wrong("Both", each.loss_scale, "loss_scale 1: give it to the step")
        places = {id(parameter): place for place, parameter in enumerate(params)}
        owned, rates = Counter(id(p) for each in (first, second) for p in each.parameters), {}
        for parameter in (*params, *first.parameters, *second.parameters):
            if id(parameter) not in places or owned[id(parameter)] != 1:
                raise InputError(
                    f"Both: expected {parameter.name} in params and in one of the optimizers, got "
                    f"it {'not ' * (id(parameter) not in places)}in params and in "
                    f"{owned[id(parameter)]} of the optimizers"
                )
        for prefix, each in (("first", first), ("second", second)):
            for i, parameter in enumerate(each.parameters):
                rate = each.learning_rate[i] if each.is_group_lr else each.learning_rate
                rates[places[id(parameter)]] = rate
            held = {id(own): own for own in parameters_in([each, list(vars(each).values())])}
            for key in held.keys() - places:
                held[key].name = f"{prefix}.{held[key].name}"
        self.first, self.of_first = first, tuple(places[id(p)] for p in first.parameters)
        self.second, self.of_second = second, tuple(places[id(p)] for p in second.parameters)
        self.is_group_lr, self.dynamic_lr = True, first.dynamic_lr or second.dynamic_lr
        del self.learning_rate  # a Parameter, in whose place no Cell can come
        ordered = [rates[place] for place in range(len(params))]
        if self.dynamic_lr:
            cells = {id(r): r if isinstance(r, nn.Cell) else _Constant(r) for r in ordered}
            self.learning_rate = nn.CellList([cells[id(r)] for r in ordered], auto_prefix=False)
        else:
            self.learning_rate = ParameterTuple(ordered)

    def construct(self, gradients: tuple[Tensor, ...]) -> object:
        """Send each gradient to its optimizer."""
        ops.assign(self.first.global_step, self.global_step)
        ops.assign(self.second.global_step, self.global_step)
        pick = ops.partial(at, gradients)
        done = (
            self.first(self.hyper_map(pick, self.of_first)),
            self.second(self.hyper_map(pick, self.of_second)),
        )
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        return ops.depend(True, done)


class _Constant(LearningRateSchedule):
    """A rate beside schedules; in MindSpore's own Cell for it a rate of 1e-5 is off by 0.1 %."""

    def __init__(self, learning_rate: Parameter):
        super().__init__()
        self.learning_rate = learning_rate

    def construct(self, global_step: Tensor) -> Tensor:
        return self.learning_rate * 1.0
