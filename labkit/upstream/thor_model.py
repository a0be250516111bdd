"""``ConvertModelUtils``: MindSpore's conversion of a Model to one that trains with THOR.

Source: ``mindspore.train.ConvertModelUtils`` and ``ModelThor`` (2.10.0), whose train and eval raise
``TypeError`` in releases 2.7.0 to 2.10.0. Departures: the returned Model trains, also with
evaluation between epochs, and its callbacks see every step (upstream's see 2 of every ``frequency``
on a GPU); dataset sink mode is off and refused; BatchNorm's Parameters stay in float32; settings
that would fail in the middle of a training are refused before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from mindspore import nn
from mindspore.dataset import Dataset
from mindspore.train import Callback, Model, RunContext

from labkit.algorithms.thor.update import ThorUpdate
from labkit.base.arguments import choice, flag, integer, names_checked
from labkit.errors import InputError, warn
from labkit.steps.losses import LossNet
from labkit.steps.options import PRECISION
from labkit.steps.plain import PlainStep
from labkit.steps.state import set_state
from labkit.steps.step import Step
from labkit.training.fit import EndOfEpoch
from labkit.upstream.thor_arguments import OfUpdate, Scale, at_update, loss_scale_of
from labkit.upstream.thor_optimizer import ThorOptimizer, ThorSettings

Callbacks: TypeAlias = Callback | Sequence[Callback] | None


class ConvertModelUtils:
    """MindSpore's class for the one function below, to be called on it or on an instance."""

    @staticmethod
    @names_checked
    def convert_to_thor_model(
        model: Model | None,
        network: nn.Cell,
        loss_fn: Any = None,
        optimizer: ThorOptimizer | None = None,
        metrics: dict | set | None = None,
        amp_level: str = "O0",
        loss_scale_manager: Any = None,
        keep_batchnorm_fp32: bool = False,
    ) -> ThorModel:
        """Return a ``ThorModel`` that trains ``network`` with THOR and evaluates it.

        This adds taps to the network's layers; outputs and names of Parameters are unchanged.

        Args:
            model: the ``mindspore.train.Model`` so far, or None; it is not used, as in upstream.
            network: inputs -> logits: the network that was given to ``thor``.
            loss_fn: (logits, labels) -> mean over rows of each row's loss: a loss such as
                SoftmaxCrossEntropyWithLogits or CrossEntropySmooth with reduction='mean'; with
                ``thor(..., loss="sample mean")`` any loss, which is not checked.
            optimizer: optimizer returned by ``labkit.thor``.
            metrics: dict or set of metrics for ``eval`` and ``fit``, or None.
            amp_level: O0, or O2: float16 inside the network, loss and factors in float32. O3 is O2
                with keep_batchnorm_fp32=False.
            loss_scale_manager: None, FixedLossScaleManager or DynamicLossScaleManager. Gradients
                are divided by the loss scale once. With drop_overflow_update=False nothing is
                checked; otherwise a batch that is not finite makes no update.
            keep_batchnorm_fp32: True: with O2, BatchNorm computes in float32. Its Parameters and
                running statistics are float32 in either case.

        Raises:
            InputError: if the arguments do not fit together; the network is then unchanged.
        """
        optimizer = _checked(model, network, loss_fn, optimizer)
        choice("amp_level", amp_level, PRECISION)
        flag("keep_batchnorm_fp32", keep_batchnorm_fp32)
        scaling = loss_scale_of(loss_scale_manager, optimizer.thor.loss_scale)
        evaluation: dict[str, Any] = {}
        if metrics is not None:
            cell = nn.WithEvalCell(network, loss_fn, amp_level != "O0")
            evaluation = {"metrics": metrics, "eval_network": cell, "eval_indexes": [0, 1, 2]}
        # Invalid metrics raise here, before the network is changed.
        Model(network, **evaluation)
        if amp_level == "O2" and not keep_batchnorm_fp32:
            amp_level = "O3"
        step = _build_step(LossNet(network, loss_fn), optimizer, amp_level, *scaling)
        optimizer.converted = True
        return ThorModel(step, network, optimizer.thor, evaluation)


class ThorModel(Model):
    """A ``Model`` that trains with THOR's step; made by ``ConvertModelUtils``.

    ``step`` is that step: ``step.update.layers``, ``step.last_update`` and so on. ``train``,
    ``fit``, ``eval`` and ``predict`` are those of ``Model``, without dataset sink mode.
    """

    def __init__(
        self, step: Step, network: nn.Cell, settings: ThorSettings, evaluation: dict[str, Any]
    ) -> None:
        super().__init__(step, **evaluation)
        self.step = step
        self._settings = settings
        self._predictor = Model(network)

    @names_checked
    def train(
        self,
        epoch: int,
        train_dataset: Dataset,
        callbacks: Callbacks = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
    ) -> None:
        """Train up to epoch ``epoch``; see ``mindspore.train.Model.train``.

        Raises:
            InputError: if sink mode is asked for, or there are fewer learning rates or dampings
                than updates.
        """
        _refuse_sink_mode(dataset_sink_mode)
        self._check(train_dataset, epoch, initial_epoch)
        callbacks = self._callbacks(callbacks)
        super().train(epoch, train_dataset, callbacks, False, sink_size, initial_epoch)

    @names_checked
    def fit(
        self,
        epoch: int,
        train_dataset: Dataset,
        valid_dataset: Dataset | None = None,
        valid_frequency: int | Sequence[int] = 1,
        callbacks: Callbacks = None,
        dataset_sink_mode: bool = False,
        valid_dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
    ) -> None:
        """Train, and evaluate between epochs; see ``mindspore.train.Model.fit``."""
        _refuse_sink_mode(dataset_sink_mode or valid_dataset_sink_mode)
        self._check(train_dataset, epoch, initial_epoch)
        super().fit(
            epoch,
            train_dataset,
            valid_dataset,
            valid_frequency,
            self._callbacks(callbacks),
            False,
            False,
            sink_size,
            initial_epoch,
        )

    @names_checked
    def eval(
        self, valid_dataset: Dataset, callbacks: Callbacks = None, dataset_sink_mode: bool = False
    ) -> dict[str, Any]:
        """Return the metrics over a dataset; see ``mindspore.train.Model.eval``."""
        _refuse_sink_mode(dataset_sink_mode)
        return super().eval(valid_dataset, callbacks, False)

    @names_checked
    def predict(
        self, *predict_data: Any, backend: str | None = None, config: dict | None = None
    ) -> Any:
        """Return the network's outputs; see ``mindspore.train.Model.predict``."""
        # A Model sets the mode once and then relies on it, even if a second Model has changed it.
        network = self.step.gradient.loss_net.network
        kept = [(c, c.get_flags().get("training")) for _, c in network.cells_and_names()]
        phase = network.phase
        network.set_train(False)
        try:
            return self._predictor.predict(*predict_data, backend=backend, config=config)
        finally:
            for cell, mode in kept:
                cell.add_flags(training=bool(mode))
                if mode is None:
                    cell.get_flags().pop("training")
            network.phase = phase  # selects the graph that a call runs

    def _callbacks(self, callbacks: Callbacks) -> list[Callback]:
        callbacks = [] if callbacks is None else callbacks
        own = [EndOfEpoch(self.step)]
        if self._settings.rate is not None:
            own.append(_FollowRate(self.step, self._settings.rate))
        return [*own, *(callbacks if isinstance(callbacks, list | tuple) else [callbacks])]

    def _check(self, dataset: Dataset, epoch: int, initial_epoch: int) -> None:
        """Refuse arguments that would stop the training in the middle."""
        integer("epoch", epoch)
        batches = dataset.get_dataset_size() * max(epoch - initial_epoch, 0)
        updates = int(self.step.updates.asnumpy()) + batches
        damping = self._settings.damping
        lengths = {"learning_rate": self._settings.rates}
        lengths["damping"] = len(damping) if hasattr(damping, "__len__") else None
        for name, length in lengths.items():
            if length is not None and length < updates:
                raise InputError(
                    f"{name} has {length} values for {updates} updates; expected at least as many"
                )
        self._check_batch_size(dataset.get_batch_size())

    def _check_batch_size(self, rows: int) -> None:
        expected = self._settings.batch_size
        if rows == expected:
            return
        text = f"batch_size is {expected} in thor, and the data comes in batches of {rows}"
        if self._settings.options.formulas != "thor":
            raise InputError(f"{text}; expected the same where upstream's formulas are asked for")
        warn(f"{text}: factors are means over the {rows}")


class _FollowRate(Callback):
    """Set the optimizer's learning rate to a function's value before each update."""

    def __init__(self, step: Step, rate: OfUpdate) -> None:
        super().__init__()
        self._step, self._rate = step, rate

    def on_train_step_begin(self, run_context: RunContext) -> None:
        update = int(self._step.updates.asnumpy())
        set_state(self._step.optimizer.learning_rate, at_update(self._rate, update))


def _checked(model: object, network: object, loss_fn: object, optimizer: object) -> ThorOptimizer:
    """Return the optimizer; raise ``InputError`` if the parts do not belong together."""
    if not (model is None or isinstance(model, Model)):
        raise InputError(f"model: expected a Model, or None, got a {type(model).__name__}")
    if not isinstance(optimizer, ThorOptimizer):
        raise InputError(
            f"optimizer: expected that of labkit.thor, got a {type(optimizer).__name__} "
            "(mindspore.nn.thor's has changed the network for operators of its own)"
        )
    if network is not optimizer.net:
        raise InputError(
            f"network: expected the one that thor was given, a {type(optimizer.net).__name__}, got "
            f"a {type(network).__name__}"
        )
    if optimizer.converted:
        raise InputError("this optimizer belongs to a converted model; expected a new one")
    if not callable(loss_fn):
        raise InputError(f"loss_fn: expected a loss function, such as nn.LossBase, got {loss_fn!r}")
    return optimizer


def _build_step(
    loss_net: LossNet, optimizer: ThorOptimizer, precision: str, loss_scale: Scale, nonfinite: str
) -> PlainStep:
    """Return THOR's step; if it is refused, remove the network's taps again."""
    settings = optimizer.thor
    update = ThorUpdate(loss_net, optimizer, settings.damping, **vars(settings.options))
    options: Any = {"precision": precision, "loss_scale": loss_scale, "nonfinite": nonfinite}
    try:
        return PlainStep(loss_net, optimizer, update=update, **options)
    except InputError:
        update.release()
        raise


def _refuse_sink_mode(asked: bool) -> None:
    if asked:
        raise InputError(
            "dataset_sink_mode: expected False, the default here, got True: which of THOR's two "
            "graphs runs is chosen before each step, on the host"
        )
