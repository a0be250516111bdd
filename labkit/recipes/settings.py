"""A recipe's settings: a frozen dataclass, filled from a YAML file and ``name=value`` texts.

``count``, ``rate`` and the like make its fields, each with a default, a meaning and a rule. A
subclass may change the default alone, ``batch_size: int = 32``, and inherits meaning and rule. The
settings that all recipes share follow, then the functions that read them. No MindSpore import.
"""

import argparse
import os
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from labkit import nets
from labkit.base import arguments
from labkit.base.arguments import parse, read_yaml, wrong
from labkit.errors import InputError, nearest
from labkit.steps import options as steps

Settings = TypeVar("Settings")


def _field(default: Any, meaning: str, expected: str, check: Callable[[str, Any], Any]) -> Any:
    """Return a field; ``check`` takes name and value and returns the value that is kept."""
    rule = {"meaning": meaning, "expected": expected, "check": check}
    return field(default=default, metadata=rule)


def count(default: int | None, meaning: str, at_least: int = 1) -> Any:
    """Return a field for integers >= ``at_least``."""
    expected = f"an integer >= {at_least}"
    return _field(default, meaning, expected, lambda n, v: arguments.integer(n, v, at_least))


def _numbers(expected: str, **bounds: float) -> Callable[[float, str], Any]:
    """Return a function (default, meaning) -> field for finite numbers within bounds."""

    def make(default: float, meaning: str) -> Any:
        return _field(default, meaning, expected, lambda n, v: arguments.number(n, v, **bounds))

    return make


positive = _numbers("a finite number > 0", above=0)
rate = _numbers("a finite number >= 0", at_least=0)
share = _numbers("a finite number >= 0 and < 1", at_least=0, below=1)
inside = _numbers("a finite number > 0 and < 1", above=0, below=1)


def one_of(default: Any, known: Iterable[Any], meaning: str) -> Any:
    """Return a field for one of the words, or one of the integers, that ``known`` holds."""
    known = tuple(known)
    expected = f"one of {', '.join(map(repr, known))}"

    def check(name: str, value: Any) -> Any:
        if isinstance(value, bool) or value not in known:
            raise wrong(name, value, expected, nearest(value, map(str, known)))
        return known[known.index(value)]

    return _field(default, meaning, expected, check)


def flag(default: bool, meaning: str) -> Any:
    """Return a field for True or False."""
    return _field(default, meaning, "True or False", arguments.flag)


def path(default: str | None, meaning: str, what: str = "the path of a folder") -> Any:
    """Return a field for non-empty texts."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise wrong(name, value, what)
        return value

    return _field(default, meaning, what, check)


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that determines a training in all recipes, except the data and the machine.

    Raises:
        InputError: if a value is invalid, or values do not fit together.
    """

    batch_size: int = count(256, "images in one micro-batch on one rank")
    class_num: int | None = count(
        1001, "width of the logits, at least the number of class folders; None: that number", 2
    )
    epoch_size: int = count(90, "epochs of the whole training")
    micro_steps: int = count(1, "micro-batches in one update; more than 1 accumulates gradients")
    weight_decay: float = rate(1e-4, "of weights; not of biases and normalisation layers")
    label_smooth_factor: float = share(0.1, "s of labkit.steps.losses.CrossEntropySmooth")
    save_checkpoint: bool = flag(True, "False: no checkpoint is written")
    save_checkpoint_epochs: int = count(
        1, "epochs between checkpoints; the last epoch has one anyway"
    )
    save_checkpoint_steps: int | None = count(
        None, "micro-batches between checkpoints within an epoch; None: no further ones"
    )
    keep_checkpoint_max: int = count(2, "checkpoints kept")
    save_checkpoint_path: str = path(
        "runs/training", "run folder: config.json, classes.json, records.csv, checkpoint/"
    )
    depth: int = one_of(50, nets.DEPTHS, "of the ResNet")
    image_size: int = count(224, "side of its square images", 32)
    initialiser: str = one_of("seed", nets.INITIALISERS, "scheme of labkit.nets.initialisers")
    augment: bool = flag(True, "random crops and flips in training")
    dataset: str = one_of(
        "imagenet2012",
        ("imagenet2012", "cifar10"),
        "the loss of an evaluation: of imagenet2012 that of the training, of others cross entropy "
        "against the labels as they are, as the tutorials have it",
    )
    cache_session_id: int | None = count(
        None, "session of MindSpore's dataset cache, for evaluation; None: no cache"
    )
    all_reduce_fusion_config: tuple[int, ...] | None = _field(
        None,
        "last gradient of each message between ranks, in the tutorials 85,160 for ResNet-50; None: "
        "a message for each gradient",
        steps.INDICES,
        steps.fusion_indices,
    )
    dataset_sink_mode: bool = flag(
        False,
        "the data set goes into the step's graph, and one call runs an epoch, as in the tutorials; "
        "not on CPU; only where the step is one graph",
    )
    num_parallel_workers: int = count(8, "of the data pipeline, fitted to the cores")
    seed: int = _field(
        1,
        "of weights, order and augmentation",
        f"an integer >= 0 and <= {arguments.MAX_SEED}",
        lambda name, value: arguments.seed(value, name),
    )

    def __post_init__(self) -> None:
        check(self)
        within = self.save_checkpoint_steps
        for name, value in {"save_checkpoint": False, "dataset_sink_mode": True}.items():
            if within and getattr(self, name) is value:
                raise wrong("save_checkpoint_steps", within, f"None with {name} {value}")

    def step_options(self) -> dict[str, Any]:
        """Return the arguments that these settings give to a step."""
        return {"all_reduce_fusion_config": self.all_reduce_fusion_config}


# What a resumed training may change: where and how often it writes, what is fitted to the machine
# anyway, in which messages gradients are sent, and how batches reach the step.
MAY_CHANGE = frozenset(
    "save_checkpoint save_checkpoint_epochs save_checkpoint_steps keep_checkpoint_max "
    "save_checkpoint_path num_parallel_workers cache_session_id all_reduce_fusion_config "
    "dataset_sink_mode".split()
)


@dataclass(frozen=True)
class MixedConfig(TrainingConfig):
    """The settings of recipes that can train in float16."""

    precision: str = one_of(
        "O2",
        steps.PRECISION,
        "O0 float32, O2 float16 inside the network but for BatchNorm, O3 with it",
    )
    keep_batchnorm_fp32: bool = flag(True, "False makes O3 of O2, as the tutorials have it")
    loss_scale: float = positive(1024.0, "of the loss, divided out of the gradients")
    drop_overflow_update: bool = flag(
        True, "drop a micro-batch that is not finite; False: it goes into the weights, as in r1.6"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precision == "O2" and not self.keep_batchnorm_fp32:
            object.__setattr__(self, "precision", "O3")

    @property
    def nonfinite(self) -> str:
        """The value of a step's option ``nonfinite`` for ``drop_overflow_update``."""
        return "drop_micro" if self.drop_overflow_update else "propagate"

    def step_options(self) -> dict[str, Any]:
        """Return the arguments that these settings give to a step."""
        names = ("precision", "nonfinite", "loss_scale")
        return super().step_options() | {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class WarmUpConfig(MixedConfig):
    """The settings of recipes whose learning rates ``labkit.steps.schedules.get_lr`` returns."""

    lr_init: float = rate(0.0, "learning rate at the beginning")
    lr_end: float = rate(0.0, "learning rate at the end of the schedule")
    lr_max: float = positive(0.8, "largest learning rate")
    warmup_epochs: int = count(5, "epochs until the largest rate is reached", 0)
    lr_decay_mode: str = one_of("linear", steps.LR_DECAY_MODES, "how the rate falls after them")
    momentum: float = share(0.9, "of nn.Momentum")

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.lr_init, self.lr_end) > self.lr_max:
            raise InputError(
                f"lr_init is {self.lr_init}, lr_end {self.lr_end} and lr_max {self.lr_max}; "
                "expected none above lr_max"
            )


def refuse_sink(config: TrainingConfig, reason: str) -> None:
    """Raise ``InputError`` if dataset_sink_mode is on; for recipes whose step is not one graph."""
    if config.dataset_sink_mode:
        raise InputError(f"dataset_sink_mode: expected False, got True: {reason}")


def at_most(config: TrainingConfig, name: str, other: str) -> None:
    """Raise ``InputError`` if a setting is greater than a second setting."""
    value, most = getattr(config, name), getattr(config, other)
    if value > most:
        raise InputError(f"{name} is {value} and {other} {most}; expected at most as many epochs")


def check(settings: Any) -> None:
    """Check every setting and convert it to a plain Python value; raise ``InputError``."""
    for each in _fields(type(settings)):
        value, rule = getattr(settings, each.name), _rule(type(settings), each.name)
        if value is None and _is_optional(each):
            continue
        try:
            object.__setattr__(settings, each.name, rule["check"](each.name, value))
        except InputError:
            if not _is_optional(each):
                raise
            raise wrong(each.name, value, f"{rule['expected']} or None") from None


def read(
    kind: type[Settings],
    path: str | os.PathLike | None = None,
    assignments: Iterable[str] = (),
    base: Settings | None = None,
) -> Settings:
    """Return ``base`` or the defaults, changed by the file and then by the assignments.

    Args:
        kind: the dataclass.
        path: YAML file (JSON is YAML too) with a mapping of names to values, or None. Only its
            first document is read: in the models repository the others are help texts. The keys of
            that repository are accepted too, see ``translated``.
        assignments: texts ``name=value``; the last one for a name counts.
        base: settings to start from; None for the defaults.

    Returns:
        The settings. Texts are converted to the field's type: ``1e-4`` is a number, ``None`` None.

    Raises:
        InputError: if the file cannot be read, a name is unknown (the message has the nearest one),
            or a value is invalid.
    """
    values = {} if base is None else asdict(base)  # type: ignore[call-overload]
    known = {each.name: each for each in _fields(kind)}
    content = {} if path is None else read_yaml(path, first=True) or {}
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected name: value lines, got a {type(content).__name__}")
    changes = [(*item, f" in {path}") for item in translated(content, known).items()]
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set: expected name=value, got {text}")
        changes.append((name.strip(), value.strip(), ""))
    for name, value, where in changes:
        if name not in known:
            hint = f"{nearest(name, known)} The settings are: {', '.join(known)}"
            raise InputError(f"unknown setting {name!r}{where}.{hint}")
        values[name] = _from_text(known[name], value) if isinstance(value, str) else value
    return kind(**values)


def _from_text(each: Field, text: str) -> Any:
    """Convert a text to its field's type; if it has another, keep it for ``check`` to report."""
    kind, value = _kind(each), parse(text)
    if kind is str and not (value is None and _is_optional(each)):
        return text
    if get_origin(kind) is tuple and isinstance(value, str):
        return parse(f"[{text.strip('()')}]")
    return value


# The keys of the models repository's YAML files (official/cv/resnet/config) that are no settings
# here. In labkit the command line, the run folder or the machine determines these:
_ELSEWHERE = frozenset(
    "data_url train_url checkpoint_url data_path output_path load_path device_target device_num "
    "device_id run_distribute checkpoint_path checkpoint_file_path save_checkpoint_path net_name "
    "width height file_name file_format ckpt_file network_dataset result_path label_path "
    "save_graphs_path eval_dataset_path eval_start_epoch eval_interval mode_name infer_label "
    "eval_data_path result_dir dataset_path lars_epsilon lars_coefficient save_best_ckpt".split()
)
# and these may have one value alone, which requests nothing: key -> (it, meaning of the key).
_OFF: Mapping[str, tuple[Any, str]] = {
    "enable_modelarts": (False, "training on Huawei's ModelArts service"),
    "enable_profiling": (False, "MindSpore's profiler"),
    "pretrain_epoch_size": (0, "epochs trained before: --resume knows them"),
    "has_trained_epoch": (0, "epochs trained before: --resume knows them"),
    "has_trained_step": (0, "steps trained before: --resume knows them"),
    "pre_trained": ("", "a checkpoint to start from: labkit train has --resume"),
    "filter_weight": (False, "leaves the last layer's weights out of pre_trained"),
    "run_eval": (False, "evaluation while training; here after it"),
    "parameter_server": (False, "training with parameter servers"),
    "boost_mode": ("O0", "mindspore.boost: labkit.boost_step takes its levels"),
    "save_graphs": (False, "writes the compiled graphs"),
    "first_stride": (2, "stride of the first convolution"),
    "bn_init_mode": ("adam", "how BatchNorm begins; here with factors of 1"),
}
_DEPTHS = {f"resnet{depth}": depth for depth in nets.DEPTHS}
# conv_init, dense_init -> scheme of labkit.nets.initialisers. HeUniform is the layers' default,
# which the repository's train.py does not change.
_SCHEMES = {
    ("XavierUniform", "TruncatedNormal"): "seed",
    ("HeUniform", "HeUniform"): "pytorch",
}


def translated(content: Mapping[Any, Any], known: Container[str]) -> dict[Any, Any]:
    """Return settings for the keys of a file of the models repository.

    Keys that are ``known`` settings stay as they are, and so do unknown ones, for ``read`` to name.

    Raises:
        InputError: if a key requests what the recipe does not have, or keys contradict each other.
    """
    rest, made = dict(content), {}
    cached = rest.pop("enable_cache", None)
    if cached is False:
        rest.pop("cache_session_id", None)
    elif cached and rest.get("cache_session_id") in (None, ""):
        raise InputError("enable_cache is True; expected cache_session_id, a session's number")
    given = {key: rest.pop(key) for key in list(rest) if key in known}
    sizes = [rest.pop(key) for key in ("train_image_size", "eval_image_size") if key in rest]
    if sizes:
        if sizes[0] != sizes[-1]:
            raise wrong("train_image_size and eval_image_size", sizes, "the same size twice")
        made["image_size"] = sizes[0]
    if "net_name" in rest:
        name = str(rest["net_name"])
        if name not in _DEPTHS:
            raise wrong("net_name", name, f"one of {', '.join(_DEPTHS)}")
        made["depth"] = _DEPTHS[name]
    if inits := tuple(str(rest.pop(key)) for key in ("conv_init", "dense_init") if key in rest):
        if inits not in _SCHEMES:
            raise InputError(
                "conv_init and dense_init: expected XavierUniform and TruncatedNormal, twice "
                f"HeUniform, or the setting initialiser, got {', '.join(inits)}"
            )
        made["initialiser"] = _SCHEMES[inits]
    if rest.pop("use_label_smooth", True) is False:  # of recipes without such a setting
        made["label_smooth_factor"] = 0.0
    # Only THOR has a damping; only stage two of the subspace has no momentum.
    own = "Thor" if "damping_init" in known else "Momentum" if "momentum" in known else "SGD"
    if (name := rest.pop("optimizer", own)) != own:
        raise wrong("optimizer", name, f"{own}, this recipe's")
    for key, (off, meaning) in _OFF.items():
        if (value := rest.pop(key, off)) != off:
            raise InputError(f"{key} is {value!r}: {meaning}. Expected {off!r}, or no {key}")
    for key, value in made.items():
        if key in given and given[key] != value:
            raise InputError(f"{key} is {given[key]!r}, and other keys of the file say {value!r}")
    return made | given | {key: value for key, value in rest.items() if key not in _ELSEWHERE}


def add_options(parser: argparse.ArgumentParser, named: Mapping[str, Any]) -> None:
    """Add an option for each setting, equivalent to ``--set NAME=VALUE``.

    Args:
        parser: parser with an option ``--set`` that appends.
        named: settings by name; the first are the defaults.
    """
    base = next(iter(named.values()))
    group = parser.add_argument_group("settings")
    for each in _fields(type(base)):
        rule, default = _rule(type(base), each.name), getattr(base, each.name)
        values = {name: getattr(settings, each.name) for name, settings in named.items()}
        others = "".join(f"; {name}: {v}" for name, v in values.items() if v != default)
        expected = rule["expected"] + (" or None" if _is_optional(each) else "")
        words = f"{rule['meaning']} ({default}{others}; {expected})".replace("%", "%%")
        several = get_origin(_kind(each)) is tuple
        metavar = "INT,INT,..." if several else _kind(each).__name__.upper()
        group.add_argument(
            f"--{each.name}", action=_Assign, dest="set", metavar=metavar, help=words
        )


class _Assign(argparse.Action):
    """Appends ``name=value`` to the values of ``--set``: the last one for a name counts."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        given = [*getattr(namespace, self.dest), f"{(option or '').lstrip('-')}={values}"]
        setattr(namespace, self.dest, given)


def _rule(kind: type, name: str) -> Mapping[str, Any]:
    """Return the rule of a setting, from the nearest class that states one."""
    of_classes = (getattr(base, "__dataclass_fields__", {}).get(name) for base in kind.__mro__)
    return next(each.metadata for each in of_classes if each and each.metadata)


def _fields(kind: Any) -> tuple[Field, ...]:
    """Return the fields of settings with their types, not the texts of annotations."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        each.type = hints[each.name]
    return fields(kind)


def _is_optional(each: Field) -> bool:
    return NoneType in get_args(each.type)


def _kind(each: Field) -> Any:
    return get_args(each.type)[0] if _is_optional(each) else each.type
