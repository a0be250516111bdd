"""Convert the keys of the models repository's YAML files (official/cv/resnet/config) to settings.

Most are settings of the same name, and others are mapped to settings here. Keys that request
nothing, and keys that the command line covers, are left out. Any other key of these files is
refused, with its meaning.
"""

from collections.abc import Container, Mapping
from typing import Any

from labkit.base.arguments import wrong
from labkit.errors import InputError

_DEPTHS = {f"resnet{depth}": depth for depth in (18, 34, 50, 101, 152)}
# conv_init, dense_init -> scheme of labkit.nets.initialisers.
# HeUniform is the layers' default, which train.py does not change.
_SCHEMES = {
    ("XavierUniform", "TruncatedNormal"): "seed",
    ("HeUniform", "HeUniform"): "pytorch",
}
# Keys that in labkit the command line, the run folder or the machine determines.
_ELSEWHERE = frozenset(
    "data_url train_url checkpoint_url data_path output_path load_path device_target device_num "
    "device_id run_distribute checkpoint_path checkpoint_file_path save_checkpoint_path net_name "
    "width height file_name file_format ckpt_file network_dataset result_path label_path "
    "save_graphs_path eval_dataset_path eval_start_epoch eval_interval mode_name infer_label "
    "eval_data_path result_dir dataset_path lars_epsilon lars_coefficient".split()
)
# key -> (the value that requests nothing, meaning of the key in the repository).
_OFF: Mapping[str, tuple[Any, str]] = {
    "enable_modelarts": (False, "training on Huawei's ModelArts service"),
    "enable_profiling": (False, "MindSpore's profiler"),
    "pretrain_epoch_size": (0, "epochs trained before: --resume knows them"),
    "has_trained_epoch": (0, "epochs trained before: --resume knows them"),
    "has_trained_step": (0, "steps trained before: --resume knows them"),
    "pre_trained": ("", "a checkpoint to start from: labkit train has --resume"),
    "filter_weight": (False, "leaves the last layer's weights out of pre_trained"),
    "run_eval": (False, "evaluation while training; here after it"),
    "save_best_ckpt": (None, "with run_eval: keeps the best checkpoint"),
    "parameter_server": (False, "training with parameter servers"),
    "boost_mode": ("O0", "mindspore.boost: labkit.boost_step takes its levels"),
    "save_graphs": (False, "writes the compiled graphs"),
    "first_stride": (2, "stride of the first convolution"),
    "bn_init_mode": ("adam", "how BatchNorm begins; here with factors of 1"),
}


def translated(content: Mapping[Any, Any], known: Container[str]) -> dict[Any, Any]:
    """Return settings for the keys of a file; keep ``known`` settings and unknown keys as they are.

    Raises:
        InputError: if a key of the models repository requests what the recipe does not have, or
            keys contradict each other.
    """
    content = _without_cache(content)
    given = {key: value for key, value in content.items() if key in known}
    rest = {key: value for key, value in content.items() if key not in known}
    made = _image_size(rest) | _depth(rest) | _initialiser(rest) | _loss(rest)
    _check_optimizer(rest, known)
    for key, (off, meaning) in _OFF.items():
        value = rest.pop(key, off)
        if off is not None and value != off:
            raise InputError(f"{key} is {value!r}: {meaning}. Expected {off!r}, or no {key}")
    kept = {key: value for key, value in rest.items() if key not in _ELSEWHERE}
    for key, value in made.items():
        if key in given and given[key] != value:
            raise InputError(f"{key} is {given[key]!r}, and other keys of the file say {value!r}")
    return made | given | kept


def _image_size(rest: dict[Any, Any]) -> dict[str, Any]:
    sizes = [rest.pop(key) for key in ("train_image_size", "eval_image_size") if key in rest]
    if any(size != sizes[0] for size in sizes):
        raise wrong("train_image_size and eval_image_size", sizes, "the same size twice")
    return {"image_size": sizes[0]} if sizes else {}


def _depth(rest: Mapping[Any, Any]) -> dict[str, Any]:
    name = str(rest.get("net_name", "resnet50"))
    if name not in _DEPTHS:
        raise wrong("net_name", name, f"one of {', '.join(_DEPTHS)}")
    return {"depth": _DEPTHS[name]} if "net_name" in rest else {}


def _initialiser(rest: dict[Any, Any]) -> dict[str, Any]:
    named = tuple(str(rest.pop(key)) for key in ("conv_init", "dense_init") if key in rest)
    if not named:
        return {}
    if named not in _SCHEMES:
        raise InputError(
            "conv_init and dense_init: expected XavierUniform and TruncatedNormal, twice "
            f"HeUniform, or the setting initialiser, got {', '.join(named)}"
        )
    return {"initialiser": _SCHEMES[named]}


def _without_cache(content: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the keys without enable_cache; if it is False, also without cache_session_id."""
    rest = dict(content)
    enabled = rest.pop("enable_cache", None)
    if enabled is False:
        rest.pop("cache_session_id", None)
    elif enabled and rest.get("cache_session_id") in (None, ""):
        raise InputError("enable_cache is True; expected cache_session_id, a session's number")
    return rest


def _loss(rest: dict[Any, Any]) -> dict[str, Any]:
    """Return the setting for use_label_smooth, for recipes without a setting of this name."""
    return {"label_smooth_factor": 0.0} if rest.pop("use_label_smooth", True) is False else {}


def _check_optimizer(rest: dict[Any, Any], known: Container[str]) -> None:
    # Only THOR has a damping; only stage two of the subspace has no momentum.
    own = "Thor" if "damping_init" in known else "Momentum" if "momentum" in known else "SGD"
    name = rest.pop("optimizer", own)
    if name != own:
        raise wrong("optimizer", name, f"{own}, this recipe's")
