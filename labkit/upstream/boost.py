"""``boost_step``: MindSpore's ``boost_level`` and ``boost_config_dict``, on the steps of labkit.

    adasum             AdasumStep; a server's ``device_number`` ranks are averaged first
    grad_accumulation  AccumulatedStep; with one of the others, its own micro-batches
    dim_reduce         SubspaceStep in the basis of the weights in ``weight_load_dir``

Source: as ``labkit.upstream.boost_config``. Departures, beside those listed there:
- the optimizer stays the caller's (for dim_reduce MindSpore puts an SGD of rate 1 without weight
  decay in its place, and says nothing);
- gradients are unscaled once, losses averaged as floats, BatchNorm left alone by the line search,
  a failed search is counted: see ``labkit.algorithms.subspace``;
- an epoch's last micro-batches are applied (there they wait for the next epoch's).
"""

import warnings
from pathlib import Path

from mindspore import nn

from labkit.algorithms.subspace.snapshot_folder import SUFFIX, SnapshotFolder
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.plain import PlainStep
from labkit.steps.step import Step, check_optimizer
from labkit.upstream.boost_config import Boost, read_boost

# Arguments of the steps that the dictionary has a word for.
_IN_DICTIONARY = {
    "rho": "rho",
    "sigma": "sigma",
    "gamma": "gamma",
    "alpha": "alpha",
    "micro_steps": "grad_accumulation_step",
    "node_size": "device_number",
}
# Beside the snapshots.
BASIS = "pca_mat.npy"
# MindSpore's: fewer than two servers of 8 have no Adasum there.
_DEVICES = 8


def boost_step(
    loss_net,
    optimizer,
    boost_level="O0",
    boost_config_dict=None,
    *,
    missing="refuse",
    basis=None,
    **options,
) -> Step:
    """Return the step that a level and a dictionary ask for, and print what is turned on.

    loss_net           see ``GradientStage``
    optimizer          any ``nn.Optimizer``, which stays in force; for dim_reduce MindSpore's is
                       ``nn.SGD(..., learning_rate=1)``
    boost_level, boost_config_dict, missing
                       of ``labkit.upstream.boost_config.read_boost``
    basis              for dim_reduce: a ``Basis`` in place of pca_mat_path and weight_load_dir
    options            of the step: ``workers`` of AdasumStep, ``trials`` of SubspaceStep (2 in
                       MindSpore), ``loss_scale``, ``precision`` and so on

    >>> step = boost_step(loss_net, optimizer, "O1", {"boost": {"mode": "manual", "adasum": True}})
    >>> Model(step).train(90, dataset, callbacks=[EndOfEpoch(step)], dataset_sink_mode=False)

    One notice says what differs and what has no effect. Raises ``InputError`` as ``read_boost``
    does, for an option that the dictionary has a word for, and as the step does.
    """
    check_optimizer(optimizer)
    boost = read_boost(boost_level, boost_config_dict, missing=missing)
    for name in options:
        if name in _IN_DICTIONARY:
            raise InputError(
                f"{name} came as an option; expected it in boost_config_dict, as "
                f"{_IN_DICTIONARY[name]}"
            )
    if options.get("method", "bfgs") != "bfgs":
        raise InputError(
            f"method is {options['method']!r}; dim_reduce is the search 'bfgs': expected no "
            "method, or SubspaceStep itself"
        )
    if basis is not None and "dim_reduce" not in boost.on:
        raise InputError("basis came, and dim_reduce is not turned on; expected both or neither")
    step, used = _build(boost, loss_net, optimizer, basis, options)
    notes = [*boost.notes, *_notes_on_optimizer(boost, optimizer)]
    if notes:
        warnings.warn(f"boost_step: {'; '.join(notes)}", stacklevel=2)
    print(f"labkit: boost_level {boost.level}, mode {boost.mode}: {_text(boost, used)}", flush=True)
    return step


def _build(boost, loss_net, optimizer, basis, options):
    """Return (step, values that it works with)."""
    micro_steps = boost.values.get("grad_accumulation_step")
    used = {} if micro_steps is None else {"micro_steps": micro_steps}
    if "dim_reduce" in boost.on:
        return _subspace_step(boost, loss_net, optimizer, basis, options, used)
    if "adasum" in boost.on:
        from labkit.algorithms.adasum import AdasumStep

        used["node_size"] = _node_size(boost)
        return AdasumStep(loss_net, optimizer, **used, **options), used
    if "grad_accumulation" in boost.on:
        return AccumulatedStep(loss_net, optimizer, **used, **options), used
    return PlainStep(loss_net, optimizer, **options), used


def _subspace_step(boost, loss_net, optimizer, basis, options, used):
    from labkit.algorithms.subspace import SubspaceStep

    values = boost.values
    if basis is None:
        names = ("pca_mat_path", "weight_load_dir")
        folders = (values[name] for name in names)
        basis = basis_from(*folders, optimizer.parameters, values["n_components"])
    elif values["pca_mat_path"] is not None or values["weight_load_dir"] is not None:
        raise InputError(
            "basis came, and pca_mat_path or weight_load_dir as well; expected one of them"
        )
    used |= {name: values[name] for name in ("rho", "sigma", "gamma", "alpha")}
    step = SubspaceStep(loss_net, optimizer, basis, **used, **options)
    more = {"n_components": len(basis.matrix), "trials": step.update.constants.trials}
    return step, used | more


def basis_from(pca_mat_path, weight_load_dir, parameters, n_components):
    """Return the ``Basis`` that two words of dim_reduce mean.

    pca_mat_path     a file that is there is loaded, and nothing computed: the snapshots need not be
                     there any more, and where others are, it is said. One that is not there
                     is made; None: ``pca_mat.npy`` beside the snapshots, made again where it is
                     not of them
    weight_load_dir  folder of snapshots, or None
    parameters, n_components
                     what the basis must be of, and its size

    Over ranks, the first one makes it. Raises ``InputError`` where there is nothing to load and
    nothing to make it of, for a basis of another network or size, and as ``basis_of`` does.
    """
    there = pca_mat_path is not None and Path(pca_mat_path).exists()
    # As the first rank sees it: a slower one may find the file that the first has just made, load
    # it, and leave the first waiting for it in basis_of.
    there = bool(cluster.gather([float(there)])[0, 0])
    if weight_load_dir is None and not there:
        raise InputError(
            f"dim_reduce needs weights to make its basis of: weight_load_dir is None, and "
            f"pca_mat_path {pca_mat_path} is no file; expected the folder of the first stage's "
            "snapshots, or a basis"
        )
    from labkit.algorithms.subspace.basis import Basis, basis_of

    if not there:
        path = pca_mat_path or Path(weight_load_dir) / BASIS
        return basis_of(path, weight_load_dir, parameters, n_components)
    basis = Basis.load(pca_mat_path, parameters)
    if len(basis.matrix) != n_components:
        raise InputError(
            f"n_components is {n_components}, and the basis in {pca_mat_path} has "
            f"{len(basis.matrix)}; expected the same number"
        )
    if cluster.rank_and_size()[0] == 0:
        others = _other_snapshots(basis, weight_load_dir, parameters)
        print(f"labkit: basis loaded from {pca_mat_path}, nothing computed{others}", flush=True)
    return basis


def _other_snapshots(basis, folder, parameters):
    """Return a remark where a folder holds snapshots that a loaded basis is not of, else ''."""
    if folder is None or not any(Path(folder).glob(f"*{SUFFIX}")):
        return ""
    try:
        difference = basis.difference(SnapshotFolder(folder, parameters))
    except InputError as error:
        difference = str(error)
    return f", though {folder} holds other snapshots ({difference})" if difference else ""


def _node_size(boost: Boost) -> int:
    """Return how many ranks, a server's, are averaged before Adasum."""
    ranks = cluster.rank_and_size()[1]
    default = _DEVICES if ranks >= 2 * _DEVICES and ranks % _DEVICES == 0 else 1
    return int(boost.values.get("device_number", default))


def _notes_on_optimizer(boost, optimizer):
    """Return what differs from MindSpore's silent change of the optimizer, where it does."""
    same = isinstance(optimizer, nn.SGD) and not optimizer.dynamic_lr and not optimizer.is_group_lr
    if "dim_reduce" not in boost.on or same and float(optimizer.learning_rate.asnumpy()) == 1:
        return []
    return [
        f"the optimizer stays your {type(optimizer).__name__}; for dim_reduce MindSpore puts "
        "SGD(learning_rate=1) in its place"
    ]


def _text(boost, used):
    """Return what is turned on, with its values, in one line."""
    if not boost.on:
        return "nothing is turned on, a plain step"
    values = ", ".join(f"{name} {value}" for name, value in used.items())
    return f"{' and '.join(boost.on)}" + (f" ({values})" if values else "")
