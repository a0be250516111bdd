"""Two optimizers as one: each updates its own Parameters, at its own rates."""

from collections.abc import Iterable

from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.steps.state import parameters_in


class Both(nn.Optimizer):
    """One optimizer of two, which share the Parameters of a network between them.

    Args:
        params: all Parameters, in the order in which the step sees them, such as
            ``network.trainable_params()``.
        first, second: the optimizers, each made of its own part of ``params``, also in groups.

    The schedules of both follow this optimizer's ``global_step``. Their Parameters are renamed, so
    that a checkpoint can hold both: ``learning_rate`` becomes ``first.learning_rate``.

    Raises:
        InputError: naming the Parameters that are in neither or in both of the optimizers, or not
            in ``params``; or if one has a ``loss_scale``, or is no optimizer or ``nn.LARS``.

    >>> weights = network.trainable_params()
    >>> matrices = [w for w in weights if "blocks" in w.name and w.ndim == 2]
    >>> rest = [w for w in weights if w not in matrices]
    >>> optimizer = Both(weights, Muon(matrices, 0.02), AdamW(rest, 0.005))
    """

    learning_rate: ParameterTuple | nn.CellList

    def __init__(self, params: Iterable[Parameter], first: nn.Optimizer, second: nn.Optimizer):
        super().__init__(0.0, params := list(params))
        for name, each in (("first", first), ("second", second)):
            if not isinstance(each, nn.Optimizer) or isinstance(each, nn.LARS):
                raise wrong(name, type(each).__name__, "an nn.Optimizer other than LARS")
            if each.loss_scale != 1:
                raise wrong(f"loss_scale of {name}", each.loss_scale, "1: give it to the step")
        places = self._places(params, (first, second))
        weights = {id(parameter) for parameter in params}
        for prefix, each in (("first", first), ("second", second)):
            found = {id(own): own for own in parameters_in([each, list(vars(each).values())])}
            for key in found.keys() - weights:
                found[key].name = f"{prefix}.{found[key].name}"
        self.first, self.second = first, second
        self.of_first, self.of_second = places
        self.is_group_lr, self.dynamic_lr = True, first.dynamic_lr or second.dynamic_lr
        self.dynamic_weight_decay = first.dynamic_weight_decay or second.dynamic_weight_decay
        del self.learning_rate  # a Parameter, in whose place a Cell may come
        self.learning_rate = self._rates()

    def _places(self, params: list, optimizers: tuple) -> tuple[tuple[int, ...], ...]:
        """Return where the Parameters of each optimizer are in ``params``."""
        ids, names = [id(p) for p in params], [p.name for p in params]
        owned = [id(p) for each in optimizers for p in each.parameters]
        others = [p.name for each in optimizers for p in each.parameters if id(p) not in ids]
        neither = [name for name, key in zip(names, ids, strict=True) if key not in owned]
        twice = [name for name, key in zip(names, ids, strict=True) if owned.count(key) > 1]
        for fault, found in (
            ("in neither", neither),
            ("in both", twice),
            ("not of params", others),
        ):
            if found:
                raise InputError(
                    f"Both: expected each of params in one of the optimizers, got {fault}: "
                    + ", ".join(found[:3])
                )
        return tuple(tuple(ids.index(id(p)) for p in each.parameters) for each in optimizers)

    def _rates(self) -> ParameterTuple | nn.CellList:
        """Return the rate of each Parameter, as groups of one optimizer would have them."""
        rates, cells = {}, {}
        for each, places in ((self.first, self.of_first), (self.second, self.of_second)):
            for i, place in enumerate(places):
                rates[place] = each.learning_rate[i] if each.is_group_lr else each.learning_rate
        if not self.dynamic_lr:
            return ParameterTuple(rates[place] for place in range(len(rates)))
        for rate in rates.values():
            if id(rate) not in cells:
                cells[id(rate)] = rate if isinstance(rate, nn.Cell) else _Constant(rate)
        return nn.CellList([cells[id(rates[i])] for i in range(len(rates))], auto_prefix=False)

    def construct(self, gradients: tuple[Tensor, ...]) -> object:
        """Send each gradient to its optimizer."""
        done: tuple = (
            ops.assign(self.first.global_step, self.global_step),
            ops.assign(self.second.global_step, self.global_step),
        )
        first: tuple = ()
        second: tuple = ()
        for i in self.of_first:
            first += (gradients[i],)
        for i in self.of_second:
            second += (gradients[i],)
        done += (self.first(first), self.second(second))
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        return ops.depend(True, done)


class _Constant(LearningRateSchedule):
    """A rate beside schedules. MindSpore's own of that purpose rounds it to 6e-8: 1e-5 by 0.1 %."""

    def __init__(self, learning_rate: Parameter):
        super().__init__()
        self.learning_rate = learning_rate

    def construct(self, global_step: Tensor) -> Tensor:
        return self.learning_rate * 1.0
