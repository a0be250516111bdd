"""``boost_step``: MindSpore's ``boost_level`` and ``boost_config_dict``, with the steps of labkit.

    less_bn            the last Dense normalised, BatchNorms removed, before the step is built
    grad_freeze        GradFreezeUpdate instead of the optimizer alone; with adasum in each worker
    adasum             AdasumStep; a server's ``device_number`` ranks are averaged first
    grad_accumulation  AccumulatedStep; with adasum or dim_reduce, their step's own micro-batches
    dim_reduce         SubspaceStep in the basis of the weights in ``weight_load_dir``

Source: as for ``labkit.upstream.boost_config``. Departures, besides those listed there:
- the caller's optimizer is kept (for dim_reduce MindSpore silently replaces it by an SGD of rate 1
  without weight decay), except with less_bn, which changes the parameters to train: an optimizer
  with the same arguments is made for them, and is ``step.optimizer``;
- grad_freeze groups the parameters that less_bn has left (in MindSpore also those of BatchNorms
  that are not in the graph);
- trainings with the same seed, that of ``labkit.start``, have the same schedule of grad_freeze;
- gradients are unscaled once, losses averaged as floats, the line search leaves BatchNorm alone,
  and failed searches are counted: see ``labkit.algorithms.subspace``;
- an epoch's last micro-batches are applied (in MindSpore they wait for the next epoch's).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from mindspore import get_seed, nn

from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.grad_freeze import GradFreezeUpdate, freeze_schedule
from labkit.algorithms.less_bn import fit_to, less_bn
from labkit.algorithms.subspace import Basis, SubspaceStep
from labkit.base.arguments import names_checked, wrong
from labkit.errors import InputError, warn
from labkit.ranks import cluster
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.plain import PlainStep
from labkit.steps.precision import DynamicLossScale
from labkit.steps.step import Step, check_optimizer
from labkit.upstream.basis import basis_from
from labkit.upstream.boost_config import Boost, read_boost

_FREEZE = ("param_groups", "freeze_type", "freeze_p", "total_steps")
# MindSpore's number: in MindSpore, fewer than two servers of 8 have no Adasum.
_DEVICES = 8
# Options of every step, and function -> options that its step accepts and a plain step does not.
_OPTIONS = "precision loss_scale nonfinite reduction clip_norm".split()
_OWN_OPTIONS = {
    "adasum": ("workers", "on", "scope", "tail"),
    "dim_reduce": ("trials", "curvature", "start", "failure", "tail"),
    "grad_accumulation": ("tail",),
}


@names_checked
def boost_step(
    loss_net: nn.Cell,
    optimizer: nn.Optimizer,
    boost_level: str = "O0",
    boost_config_dict: Mapping[str, Mapping[str, Any]] | str | None = None,
    *,
    missing: str = "refuse",
    basis: Basis | None = None,
    precision: str | None = None,
    loss_scale: float | DynamicLossScale | None = None,
    nonfinite: str | None = None,
    reduction: str | None = None,
    clip_norm: float | None = None,
    tail: str | None = None,
    workers: int | None = None,
    on: str | None = None,
    scope: str | None = None,
    trials: int | None = None,
    curvature: float | None = None,
    start: str | None = None,
    failure: str | None = None,
) -> Step:
    """Return the step that a level and a dictionary ask for, and print what is turned on.

    less_bn changes the network in place. The optimizer is then made again, and is
    ``step.optimizer``, unless ``less_bn(network)`` was called before it was made.

    >>> step = boost_step(loss_net, optimizer, "O1", {"boost": {"mode": "manual", "adasum": True}})
    >>> Model(step).train(90, dataset, callbacks=[EndOfEpoch(step)], dataset_sink_mode=False)

    One notice says what differs and what has no effect. None leaves an option at its default.

    Args:
        loss_net: batch -> mean loss.
        optimizer: any ``nn.Optimizer``, which is kept except with less_bn; for dim_reduce
            MindSpore uses ``nn.SGD(..., learning_rate=1)``.
        boost_level: as for ``read_boost``.
        boost_config_dict: as for ``read_boost``.
        missing: as for ``read_boost``.
        basis: for dim_reduce, in place of pca_mat_path and weight_load_dir.
        precision: option of every step, like the next six.
        loss_scale: number or ``DynamicLossScale``.
        nonfinite: what happens to a batch that is not finite.
        reduction: how gradients, or Adasum's workers, are combined.
        clip_norm: largest norm of the gradient.
        tail: what happens to an epoch's last micro-batches.
        workers: option of AdasumStep.
        on: option of AdasumStep.
        scope: option of AdasumStep.
        trials: option of SubspaceStep; MindSpore uses 2.
        curvature: option of SubspaceStep.
        start: option of SubspaceStep.
        failure: option of SubspaceStep.

    Raises:
        InputError: as ``read_boost`` and the step do, and for an option of a function that is off.
    """
    known = {*_OPTIONS, *itertools.chain(*_OWN_OPTIONS.values())}
    options = {n: value for n, value in locals().items() if n in known and value is not None}
    check_optimizer(optimizer)
    boost = read_boost(boost_level, boost_config_dict, missing=missing)
    _refuse_options(boost, options)
    if basis is not None:
        _check_basis(basis, boost, boost_config_dict)
    step, used = _build(boost, loss_net, optimizer, basis, options)
    notes = [*boost.notes, *_notes_on_optimizer(boost, optimizer, step)]
    if notes:
        warn(f"boost_step: {'; '.join(notes)}")
    print(f"labkit: boost_level {boost.level}, mode {boost.mode}: {_text(boost, used)}", flush=True)
    return step


def _refuse_options(boost: Boost, options: Mapping[str, Any]) -> None:
    """Refuse options of a step that is not built."""
    right = {name for function in boost.on for name in _OWN_OPTIONS.get(function, ())}
    for name, value in options.items():
        owners = [function for function, own in _OWN_OPTIONS.items() if name in own]
        if owners and name not in right:
            verb = "is" if len(owners) == 1 else "are"
            raise wrong(name, value, f"none where {' and '.join(owners)} {verb} off")


def _build(
    boost: Boost,
    loss_net: nn.Cell,
    optimizer: nn.Optimizer,
    basis: Basis | None,
    options: Mapping[str, Any],
) -> tuple[Step, dict[str, Any]]:
    """Return (step, values that it uses)."""
    micro_steps = boost.values.get("grad_accumulation_step")
    used = {} if micro_steps is None else {"micro_steps": micro_steps}
    if "dim_reduce" in boost.on:
        basis = _basis(boost, basis, optimizer)
        used |= {name: boost.values[name] for name in ("rho", "sigma", "gamma", "alpha")}
        step = SubspaceStep(loss_net, optimizer, basis, **used, **options)
        more = {"n_components": len(basis.matrix), "trials": step.update.constants.trials}
        return step, used | more
    if "less_bn" in boost.on:
        print(f"labkit: {less_bn(loss_net, fn_flag=boost.values['fn_flag']).text()}", flush=True)
        optimizer = fit_to(optimizer, loss_net)
    freeze, frozen = None, {}
    if "grad_freeze" in boost.on:
        words = {name: boost.values[name] for name in _FREEZE if name in boost.values}
        schedule = freeze_schedule(loss_net, **words, seed=get_seed() or 0)
        freeze = GradFreezeUpdate(optimizer, schedule)
        frozen = {name: schedule.settings[name] for name in _FREEZE}
    if "adasum" in boost.on:
        used["node_size"] = _node_size(boost)
        step = AdasumStep(loss_net, optimizer, freeze=freeze, **used, **options)
    elif "grad_accumulation" in boost.on:
        step = AccumulatedStep(loss_net, optimizer, update=freeze, **used, **options)
    else:
        step = PlainStep(loss_net, optimizer, update=freeze, **options)
    return step, used | frozen


def _check_basis(basis: Basis, boost: Boost, dictionary: Any) -> None:
    """Refuse a basis that contradicts the dictionary."""
    kind = type(basis).__name__
    if "dim_reduce" not in boost.on:
        raise InputError(f"basis: expected None where dim_reduce is off, got a {kind}")
    for name in ("pca_mat_path", "weight_load_dir"):
        if boost.values[name] is not None:
            raise InputError(f"basis: expected None where {name} is said, got a {kind}")
    # ``boost.values`` has MindSpore's default of 32 if the dictionary gives no number.
    said = {"n_components", "n_component"} & dict(dictionary.get("dim_reduce", {})).keys()
    components, rows = boost.values["n_components"], len(basis.matrix)
    if said and components != rows:
        raise wrong("n_components", components, f"{rows}, the number in the basis")


def _basis(boost: Boost, basis: Basis | None, optimizer: nn.Optimizer) -> Basis:
    if basis is not None:
        return basis
    path, folder = boost.values["pca_mat_path"], boost.values["weight_load_dir"]
    return basis_from(path, folder, optimizer.parameters, boost.values["n_components"])


def _node_size(boost: Boost) -> int:
    """Return how many ranks, those of a server, are averaged before Adasum."""
    ranks = cluster.rank_and_size()[1]
    default = _DEVICES if ranks >= 2 * _DEVICES and ranks % _DEVICES == 0 else 1
    return int(boost.values.get("device_number", default))


def _notes_on_optimizer(boost: Boost, optimizer: nn.Optimizer, step: Step) -> list[str]:
    """Return notes on what a caller may not expect to happen, or not, to the optimizer."""
    if step.optimizer is not optimizer:
        before, now = len(optimizer.parameters), len(step.optimizer.parameters)
        return [
            f"less_bn has replaced your {type(optimizer).__name__} by one for {now} parameters "
            f"instead of {before}: step.optimizer is the one that trains"
        ]
    same = isinstance(optimizer, nn.SGD) and not optimizer.dynamic_lr and not optimizer.is_group_lr
    if "dim_reduce" not in boost.on or same and float(optimizer.learning_rate.asnumpy()) == 1:
        return []
    return [
        f"the optimizer stays your {type(optimizer).__name__}; for dim_reduce MindSpore puts "
        "SGD(learning_rate=1) in its place"
    ]


def _text(boost: Boost, used: Mapping[str, Any]) -> str:
    """Return what is turned on, with its values, in one line."""
    if not boost.on:
        return "nothing is turned on, a plain step"
    values = ", ".join(f"{name} {value}" for name, value in used.items())
    return f"{' and '.join(boost.on)}" + (f" ({values})" if values else "")
