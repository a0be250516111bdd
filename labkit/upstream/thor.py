"""``thor`` and ``ConvertModelUtils`` with MindSpore's argument lists, over labkit's own step.

    w <- w - lr v,   v <- momentum v + clip(U + weight_decay w)

U is the gradient preconditioned by ``labkit.algorithms.thor``.

Sources: ``mindspore.nn.thor``, and ``ConvertModelUtils`` and ``ModelThor`` of ``mindspore.train``
(2.10.0), whose train and eval raise ``TypeError`` in releases 2.7.0 to 2.10.0. Departures:
- the formulas are the published ones (``formulas="upstream_gpu"`` gives those of its GPU branch);
- learning rate and damping may be numbers, frequency may be 1, rows are counted in each batch;
- use_nesterov has effect on every device (upstream ignores it on Ascend, its kernel on CPU);
- the returned Model trains, also with evaluation between epochs, and its callbacks see every step
  (upstream's 2 of every ``frequency`` on a GPU); dataset sink mode is refused;
- BatchNorm's Parameters stay in float32; without conversion the optimizer refuses to train.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, amp, nn, ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule
from mindspore.train import Model

from labkit.algorithms.thor.update import ThorStep, by_update, thor_options
from labkit.base.arguments import choice, integer, number, wrong
from labkit.errors import InputError, warn
from labkit.steps.losses import LossNet
from labkit.steps.options import PRECISION, DynamicLossScale, Precision, fusion_indices


class thor(nn.Optimizer):  # MindSpore's name
    """Momentum over a network's trainable Parameters, for gradients that THOR has preconditioned.

    Called before ``convert_to_thor_model`` has taken it, it raises ``ValueError``. The arguments
    are those of ``mindspore.nn.thor``; here

    Args:
        net: network whose trainable Parameters are trained; unchanged until the conversion.
        learning_rate: number >= 0, one per update (updates,), or a LearningRateSchedule.
        damping: number > 0, or one per update (updates,).
        momentum: >= 0 and < 1; with ``use_nesterov`` Nesterov's.
        weight_decay: >= 0, for the Parameters that ``decay_filter`` selects, by default all.
        loss_scale: that of the FixedLossScaleManager, if there is one.
        batch_size: rows of a batch on one device. Data with another number warns, and is refused
            with ``formulas="upstream_gpu"``.
        split_indices: increasing indices of preconditioned layers, by which upstream fuses the
            AllReduce of factors; they are checked and not used.
        enable_clip_grad: limit the norm of each preconditioned gradient, weight decay included, to
            1 (each Parameter's separately, as in upstream).
        frequency: updates between two refreshes, 1 or more.
        **options: the others of ``labkit.algorithms.thor.ThorOptions``.

    Raises:
        InputError: if an argument has an invalid value; arrays that are shorter than the training
            are refused when it starts.
    """

    def __init__(
        self,
        net: nn.Cell,
        learning_rate: Any,
        damping: object,
        momentum: float,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        batch_size: int = 32,
        use_nesterov: bool = False,
        decay_filter: Callable[[Parameter], bool] = lambda x: x.name not in [],
        split_indices: Sequence[int] | None = None,
        enable_clip_grad: bool = False,
        frequency: int = 100,
        **options: Any,
    ) -> None:
        if not isinstance(net, nn.Cell) or not net.trainable_params():
            raise wrong("net", net, "a Cell with trainable Parameters")
        if split_indices is not None:
            cells = [c for _, c in net.cells_and_names() if isinstance(c, nn.Dense | nn.Conv2d)]
            layers = sum(cell.weight.requires_grad for cell in cells)
            if fusion_indices("split_indices", split_indices)[-1] >= layers:
                expected = f"integers below {layers}, the number of layers with factors"
                raise wrong("split_indices", split_indices, expected)
        given = thor_options(damping, {"frequency": frequency, **options})
        if not isinstance(learning_rate, LearningRateSchedule):
            learning_rate = by_update("learning_rate", learning_rate, at_least=0)
        if isinstance(learning_rate, np.ndarray):
            learning_rate = Tensor(learning_rate, ms.float32)
        decay = number("weight_decay", weight_decay, at_least=0)
        super().__init__(learning_rate, net.trainable_params(), decay)
        self.decay_flags = tuple(bool(decay_filter(each)) for each in self.parameters)
        # Not as a child: the network is not part of the optimizer's state.
        object.__setattr__(self, "net", net)
        self.options, self.converted = given, False
        self.given_loss_scale = number("loss_scale", loss_scale, above=0)
        self.batch_size = integer("batch_size", batch_size)
        self.use_nesterov, self.clips = bool(use_nesterov), bool(enable_clip_grad)
        factor = number("momentum", momentum, at_least=0, below=1)
        self.momentum = Parameter(Tensor(factor, ms.float32), name="momentum")
        self.moments = self.parameters.clone(prefix="moments", init="zeros")
        if given.formulas == "thor":
            warn(
                "unlike mindspore.nn.thor, this one computes the published formulas on every "
                "device (factors of every row and position of the batch, convolutions with their "
                "own padding, the bias as a coordinate of the input) and takes the number of rows "
                "from each batch: what was tuned for upstream's GPU branch may need another "
                "damping. formulas='upstream_gpu' computes as that branch does"
            )

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple:
        if not self.converted:
            raise ValueError(
                "this optimizer of labkit.thor was called without THOR: by itself it is plain "
                "momentum. Give the model to labkit.ConvertModelUtils.convert_to_thor_model and "
                "train what it returns"
            )
        gradients = self.decay_weight(gradients)
        if self.clips:
            gradients = self.map_(_clipped, gradients)
        rate = self.get_lr()
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        # Not ops.ApplyMomentum: its CPU kernel (2.10.0) ignores use_nesterov.
        move = ops.partial(_moved, self.use_nesterov, self.momentum, rate)
        return self.map_(move, gradients, self.parameters, self.moments)


def _moved(
    nesterov: bool, momentum: Tensor, rate: Tensor, gradient: Tensor, weight: Tensor, moment: Tensor
) -> Tensor:
    new = momentum * moment + gradient
    step = gradient + momentum * new if nesterov else new
    moved = ops.assign_sub(weight, ops.cast(rate * step, weight.dtype))
    return ops.depend(moved, ops.assign(moment, new))


def _clipped(gradient: Tensor) -> Tensor:
    norm = ops.sqrt(ops.reduce_sum(ops.square(gradient.reshape(-1))))
    return gradient * (1.0 / ops.maximum(norm, 1.0))


class ConvertModelUtils:
    """MindSpore's class for the one function below, to be called on it or on an instance."""

    @staticmethod
    def convert_to_thor_model(
        model: Model | None,
        network: nn.Cell,
        loss_fn: Any = None,
        optimizer: thor | None = None,
        metrics: dict | set | None = None,
        amp_level: Precision = "O0",
        loss_scale_manager: Any = None,
        keep_batchnorm_fp32: bool = False,
    ) -> ThorModel:
        """Return a ``ThorModel`` that trains ``network`` with THOR and evaluates it.

        This adds taps to the network's layers; outputs and names of Parameters are unchanged.

        Args:
            model: the ``mindspore.train.Model`` so far, or None; not used, as in upstream.
            network: inputs -> logits: the network that was given to ``thor``.
            loss_fn: (logits, labels) -> mean loss, one that ``LossNet`` knows what it is a mean
                over.
            optimizer: optimizer returned by ``labkit.thor``.
            metrics: dict or set of metrics for ``eval`` and ``fit``, or None.
            amp_level: O0, or O2: float16 inside the network, except in BatchNorm with
                ``keep_batchnorm_fp32``; loss and factors in float32. O3: in BatchNorm too.
            loss_scale_manager: None, FixedLossScaleManager or DynamicLossScaleManager. Unless
                drop_overflow_update is False, a batch that is not finite makes no update.

        Raises:
            InputError: if the arguments do not fit together; the network is then unchanged.
        """
        if not isinstance(optimizer, thor):
            raise InputError(
                f"optimizer: expected that of labkit.thor, got a {type(optimizer).__name__} "
                "(mindspore.nn.thor's has changed the network for operators of its own)"
            )
        if network is not optimizer.net:
            raise wrong("network", type(network).__name__, "the one that thor was given")
        if optimizer.converted:
            raise InputError("this optimizer belongs to a converted model; expected a new one")
        choice("amp_level", amp_level, PRECISION)
        if amp_level == "O2" and not keep_batchnorm_fp32:
            amp_level = "O3"
        manager, nonfinite = loss_scale_manager, "drop_micro"
        scale: Any = 1.0 if manager is None else float(manager.get_loss_scale())
        if isinstance(manager, amp.DynamicLossScaleManager):
            scale = DynamicLossScale(scale, float(manager.scale_factor), manager.scale_window)
        elif manager is not None and not manager.get_drop_overflow_update():
            nonfinite = "propagate"
        if optimizer.given_loss_scale not in (1.0, scale):
            expected = f"1.0, or {scale} as beside it in the manager"
            raise wrong("loss_scale of thor", optimizer.given_loss_scale, expected)
        evaluation: dict[str, Any] = {}
        if metrics is not None:
            cell = nn.WithEvalCell(network, loss_fn, amp_level != "O0")
            evaluation = {"metrics": metrics, "eval_network": cell, "eval_indexes": [0, 1, 2]}
        Model(network, **evaluation)  # refuses invalid metrics before the network is changed
        options: Any = {"precision": amp_level, "loss_scale": scale, "nonfinite": nonfinite}
        options |= vars(optimizer.options)
        step = ThorStep(LossNet(network, loss_fn), optimizer, **options)
        optimizer.converted = True
        return ThorModel(step, **evaluation)


class ThorModel(Model):
    """A ``Model`` that trains with THOR's step, ``step``.

    ``InputError`` is raised for dataset sink mode, and for fewer rates or dampings than updates.
    """

    def __init__(self, step: ThorStep, **evaluation: Any) -> None:
        super().__init__(step, **evaluation)
        self.step = step

    def train(self, *arguments: Any, **options: Any) -> None:
        """Train up to an epoch; see ``mindspore.train.Model.train``."""
        self._checked(super().train, *arguments, **options)

    def fit(self, *arguments: Any, **options: Any) -> None:
        """Train, and evaluate between epochs; see ``mindspore.train.Model.fit``."""
        self._checked(super().fit, *arguments, **options)

    def predict(self, *predict_data: Tensor, **options: Any) -> Any:
        """Return the network's outputs; see ``mindspore.train.Model.predict``."""
        network = self.step.optimizer.net
        phase = network.phase
        network.set_train(False)
        try:
            return Model(network).predict(*predict_data, **options)
        finally:
            self.step.set_train()
            network.phase = phase  # selects the graph that a call of the network runs

    def _checked(self, function: Callable, *arguments: Any, **options: Any) -> None:
        """Call ``function``, unless its arguments would stop the training in the middle."""
        bound = inspect.signature(function).bind(*arguments, **options)
        bound.apply_defaults()
        given = bound.arguments
        if given["dataset_sink_mode"]:
            raise wrong("dataset_sink_mode", True, "False: THOR inverts between graphs")
        dataset, epochs = given["train_dataset"], integer("epoch", given["epoch"])
        batches = dataset.get_dataset_size() * (epochs - given["initial_epoch"])
        self.step.check_length(max(batches, 0))
        rows, expected = dataset.get_batch_size(), self.step.optimizer.batch_size
        if rows != expected:
            text = f"batch_size is {expected} in thor, and the data comes in batches of {rows}"
            if self.step.optimizer.options.formulas == "upstream_gpu":
                raise InputError(f"{text}; expected the same where upstream's formulas are asked")
            warn(f"{text}: factors are means over the {rows}")
        function(*arguments, **options)
