"""``boost_step``: MindSpore's ``boost_level`` and ``boost_config_dict``, with the steps of labkit.

    adasum             AdasumStep; a server's ``device_number`` ranks are averaged first
    grad_accumulation  AccumulatedStep; with adasum or dim_reduce, their step's own micro-batches
    dim_reduce         SubspaceStep in the basis of the weights in ``weight_load_dir``

Source: as for ``labkit.upstream.boost_config``. Departures, besides those listed there:
- the caller's optimizer is kept (for dim_reduce MindSpore silently replaces it by an SGD of rate 1
  without weight decay);
- gradients are unscaled once, losses averaged as floats, the line search leaves BatchNorm alone,
  and failed searches are counted: see ``labkit.algorithms.subspace``;
- an epoch's last micro-batches are applied (in MindSpore they wait for the next epoch's).
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mindspore import nn

from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.subspace import Basis, SubspaceStep
from labkit.base.arguments import wrong
from labkit.errors import InputError, refuse_unknown, warn
from labkit.ranks import cluster
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.options import GradientOptions
from labkit.steps.plain import PlainStep
from labkit.steps.step import Step, check_optimizer
from labkit.upstream.basis import basis_from
from labkit.upstream.boost_config import Boost, read_boost

# MindSpore's number: in MindSpore, fewer than two servers of 8 have no Adasum.
_DEVICES = 8
# Options that a step takes beside those of every step. What the dictionary says is none of them.
_OWN_OPTIONS: Mapping[type[Step], tuple[str, ...]] = {
    AdasumStep: ("workers", "on", "scope", "tail"),
    SubspaceStep: ("trials", "curvature", "start", "failure", "tail"),
    AccumulatedStep: ("tail",),
    PlainStep: (),
}


def boost_step(
    loss_net: nn.Cell,
    optimizer: nn.Optimizer,
    boost_level: str = "O0",
    boost_config_dict: Mapping[str, Mapping[str, Any]] | str | None = None,
    *,
    basis: Basis | None = None,
    **options: Any,
) -> Step:
    """Return the step that a level and a dictionary ask for, and print what is turned on.

    >>> step = boost_step(loss_net, optimizer, "O1", {"boost": {"mode": "manual", "adasum": True}})
    >>> Model(step).train(90, dataset, callbacks=[EndOfEpoch(step)], dataset_sink_mode=False)

    One notice says what differs and what has no effect.

    Args:
        loss_net: batch -> mean loss.
        optimizer: any ``nn.Optimizer``, which is kept; for dim_reduce MindSpore uses
            ``nn.SGD(..., learning_rate=1)``.
        boost_level: as for ``read_boost``.
        boost_config_dict: as for ``read_boost``.
        basis: for dim_reduce, in place of pca_mat_path and weight_load_dir.
        **options: ``GradientOptions``; of AdasumStep also workers, on, scope and tail; of
            SubspaceStep trials (MindSpore uses 2), curvature, start, failure and tail; of
            AccumulatedStep tail.

    Raises:
        InputError: as ``read_boost`` and the step do, and for an option that the step does not
            take, with the nearest that it does.
    """
    check_optimizer(optimizer)
    boost = read_boost(boost_level, boost_config_dict)
    kind = _kind(boost)
    known = [*_OWN_OPTIONS[kind], *(each.name for each in fields(GradientOptions))]
    for name in options:
        refuse_unknown(f"option of {kind.__name__}", name, known)
    if basis is not None:
        _check_basis(basis, boost, boost_config_dict)
    used = {}
    if "grad_accumulation" in boost.on:
        used["micro_steps"] = boost.values["grad_accumulation_step"]
    if kind is AdasumStep:
        used["node_size"] = _node_size(boost)
    if kind is SubspaceStep:
        used |= {name: boost.values[name] for name in ("rho", "sigma", "gamma", "alpha")}
        options["basis"] = basis or _basis(boost, optimizer)
    step: Any = kind(loss_net, optimizer, **used, **options)
    if kind is SubspaceStep:
        components = len(options["basis"].matrix)
        used |= {"n_components": components, "trials": step.update.constants.trials}
    _report(boost, used, _notes_on_optimizer(kind, optimizer))
    return step


def _kind(boost: Boost) -> Any:
    """Return the class of the step."""
    if "adasum" in boost.on:
        return AdasumStep
    if "dim_reduce" in boost.on:
        return SubspaceStep
    return AccumulatedStep if "grad_accumulation" in boost.on else PlainStep


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


def _basis(boost: Boost, optimizer: nn.Optimizer) -> Basis:
    path, folder = boost.values["pca_mat_path"], boost.values["weight_load_dir"]
    return basis_from(path, folder, optimizer.parameters, boost.values["n_components"])


def _node_size(boost: Boost) -> int:
    """Return how many ranks, those of a server, are averaged before Adasum."""
    ranks = cluster.rank_and_size()[1]
    default = _DEVICES if ranks >= 2 * _DEVICES and ranks % _DEVICES == 0 else 1
    return int(boost.values.get("device_number", default))


def _notes_on_optimizer(kind: Any, optimizer: nn.Optimizer) -> list[str]:
    """Return a note if MindSpore would train with another optimizer."""
    same = isinstance(optimizer, nn.SGD) and not optimizer.dynamic_lr and not optimizer.is_group_lr
    if kind is not SubspaceStep or same and float(optimizer.learning_rate.asnumpy()) == 1:
        return []
    return [
        f"the optimizer stays your {type(optimizer).__name__}; for dim_reduce MindSpore puts "
        "SGD(learning_rate=1) in its place"
    ]


def _report(boost: Boost, used: Mapping[str, Any], notes: list[str]) -> None:
    """Warn of what differs, and print what is turned on, with its values, in one line."""
    if boost.notes or notes:
        warn(f"boost_step: {'; '.join([*boost.notes, *notes])}")
    text = " and ".join(boost.on) or "nothing is turned on, a plain step"
    if used:
        text += f" ({', '.join(f'{name} {value}' for name, value in used.items())})"
    print(f"labkit: boost_level {boost.level}, mode {boost.mode}: {text}", flush=True)
