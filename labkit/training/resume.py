"""Whether a checkpoint is this training's: what it must share with the step that resumes it."""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms

from labkit.base.printable import printable
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.steps.gradients import set_state
from labkit.steps.options import GradientOptions
from labkit.steps.step import Step
from labkit.training import optimizer_numbers
from labkit.training.number_differences import Differences, differences, not_compared
from labkit.training.position import Position

# Values of options that are not stated. A checkpoint holds all options, an older one only those
# that were given; a weight that is not stated was the number of rows.
_DEFAULTS = GradientOptions().settings(weighted=True) | {"normalise": "'samples'"}
del _DEFAULTS["nonfinite"]
_LONGEST = 1000  # characters of a setting that is a value
# Compared separately, or only taken over.
_OF_WEIGHTS = ("normalise", "derived", "elements_per_row")


def refuse_others(own: Position, then: Position) -> None:
    """Refuse a checkpoint whose settings, data, seed or ranks are not this training's."""
    if ms.dataset.config.get_fast_recovery():
        raise InputError("cannot resume: call labkit.start first, it sets the order of the data")
    names = ["settings", "epoch_size", "batch_size", "seed", "workers"]
    for name in names + ["ranks"] * (then.ranks is not None):
        here, before = getattr(own, name), getattr(then, name)
        if name == "settings":
            here, before = _differing_settings(own, then)
        if here != before:
            raise InputError(f"cannot resume: {_expected(name, here, before)}")


def _differing_settings(own: Position, then: Position) -> tuple[dict, dict]:
    here, before = own.settings, then.settings
    if all("damping" in (position.optimizer or {}) for position in (own, then)):
        # An array of damping may be longer: it is compared with the optimizer's numbers.
        here, before = here | {"damping": None}, before | {"damping": None}
    return differing(here, before)


def differing(own: dict, saved: dict) -> tuple[dict, dict]:
    """Return a step's settings that differ from a checkpoint's: (own, the checkpoint's).

    A default is the same whether stated or not. A step that derives its weights from the loss can
    resume from weights of its own kind, and from weights by rows that have been equal to them so
    far. If the rows were requested explicitly, it was not checked that they are equal, and a step
    with other weights does not resume from them; an older checkpoint does not say which it was.
    """
    older = "batch_axis" not in saved
    own, saved = _DEFAULTS | own, _DEFAULTS | saved
    names = [
        name
        for name in sorted((own.keys() | saved.keys()).difference(_OF_WEIGHTS))
        if _value(own.get(name)) != _value(saved.get(name))
    ]
    derived = own.get("derived")
    if saved["normalise"] not in (own["normalise"], derived):
        names.append("normalise")
    elif not older and derived and "derived" not in saved and derived != repr("unknown"):
        # An unknown loss is assumed to be a mean over rows.
        own["normalise"] = derived
        names.append("normalise")
    return {n: own.get(n) for n in names}, {n: saved.get(n) for n in names}


def take_over(step: Step, saved: dict) -> None:
    """Give a step what it cannot know about the interrupted training: the unit of its weights."""
    if "elements_per_row" in saved:
        step.gradient.objective.check.elements_per_row = _value(saved["elements_per_row"])


def _value(text: object) -> Any:
    """Return the value that a text represents, so that 1 equals 1.0, or else the text itself."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        return text
    try:
        return _of_node(ast.parse(text, mode="eval").body)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        # Deep nesting makes the parser raise MemoryError or RecursionError.
        return text


def _of_node(node: ast.expr) -> Any:
    """Return the value of a literal, or the name and arguments of a call (a dataclass's repr)."""
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    given = {keyword.arg: _of_node(keyword.value) for keyword in node.keywords}
    return ast.unparse(node.func), [_of_node(argument) for argument in node.args], given


def settle_numbers(
    step: Step, noted: dict[str, Any], then: dict[str, Any] | None, values: dict, take_new: bool
) -> None:
    """Refuse optimizer numbers that differ from the checkpoint's, or adopt them if ``take_new``.

    ``noted`` is the step's ``optimizer_numbers.noted`` and ``then`` the checkpoint's, or None.
    ``noted`` and ``values``, the checkpoint's values by name, become what the step continues with.
    """
    speaks = cluster.rank_and_size()[0] == 0
    if then is None and speaks:
        print(
            "labkit: the checkpoint does not say what the optimizer's numbers were, so they "
            "could not be compared: rate and momentum are the checkpoint's, weight decay and "
            "all that is no Parameter are this optimizer's",
            flush=True,
        )
    differ = differences(then, values, step)
    if differ and not take_new:
        raise InputError(
            f"cannot resume: {_in_words(differ, _expected)}; give the optimizer what "
            "it had, or resume='new settings' to go on with what it has now"
        )
    if differ and speaks:
        print(f"labkit: new settings: {_in_words(differ, _changed)}", flush=True)
    if speaks and (names := not_compared(then, step)):
        print(
            f"labkit: not compared with the checkpoint's: {', '.join(names)}; resumed as if "
            "they were the same",
            flush=True,
        )
    optimizer_numbers.keep_own(values, then, step.optimizer, differ)
    if then is not None:
        begun = {n: v for n, v in then["parameters"].items() if n not in differ}
        for name in noted["parameters"].keys() & begun.keys():
            noted["parameters"][name] = begun[name]


def _expected(name: str, own: object, theirs: object) -> str:
    return f"{name}: expected {theirs}, as in the checkpoint, got {own}"


def _changed(name: str, own: object, theirs: object) -> str:
    return f"{name} is {own}, was {theirs}"


def _in_words(differ: Differences, say: Callable[[str, object, object], str]) -> str:
    text = "; ".join(say(name, own, theirs) for name, (own, theirs) in differ.items())
    # The text is from a file that may be anybody's: make it safe for a terminal, in one line.
    return printable(text).replace("\n", "\\n")


@contextmanager
def counting_from(values: dict, step: Step) -> Iterator[None]:
    """Set a step's counters to a checkpoint's inside the block: the updates ahead depend on them.

    Raises:
        InputError: For a place in a group that is not within the group.
    """
    own = []
    try:
        for parameter in step.get_parameters():
            value = values.get(parameter.name)
            if parameter.size != 1 or parameter.dtype not in (ms.int32, ms.int64):
                continue
            # Another shape or type belongs to another network: reported when it is loaded.
            if value is None or getattr(value, "shape", None) != parameter.shape:
                continue
            if value.dtype == parameter.dtype:
                own.append((parameter, parameter.asnumpy().copy()))
                set_state(parameter, value)
        if hasattr(step, "group_size"):
            held, size = int(step.micro_step.asnumpy()), int(step.group_size.asnumpy())
            if not 0 <= held <= size or not size:
                raise InputError(
                    f"cannot resume: the checkpoint is after {held} of a group's {size} "
                    "micro-batches; expected a place within a group"
                )
        yield
    finally:
        for parameter, value in own:
            set_state(parameter, value)
