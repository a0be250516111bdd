"""Docstrings of the public names in Google form: parameters, exceptions, shapes and units."""

import ast
import builtins
import importlib
import inspect
import operator
import re
import textwrap
from dataclasses import is_dataclass

import pytest
from mindspore import nn

import labkit
from labkit import errors
from labkit.base.arguments import UnknownName

HEADER = re.compile(r"^(Args|Attributes|Returns|Raises):$")
ENTRY = re.compile(r"^    (\*?\w[\w.]*): \S")
SHAPE = re.compile(r"(?<!\w)\((\w+,|\w+(, [^()]+)+)?\)|shaped|scalar")
IN_SECONDS = ("timeout", "cluster_timeout", "every", "started", "seconds")


def sections(documentation):
    """Return the sections of a docstring, as section -> {entry: its text}."""
    parsed, section, entry = {}, None, None
    for line in inspect.cleandoc(documentation or "").splitlines():
        if header := HEADER.match(line):
            section, entry = header[1], None
            parsed[section] = {}
        elif section and (start := ENTRY.match(line)):
            entry = start[1].lstrip("*")
            parsed[section][entry] = line.strip()
        elif section and entry and line.startswith("        "):
            parsed[section][entry] += " " + line.strip()
        elif section and line and not line.startswith("    "):
            section = None
    return parsed


def parameters(function):
    """Return the parameters that a caller of a class or function passes."""
    signature = inspect.signature(function).parameters
    return {name: own for name, own in signature.items() if name not in ("self", "cls")}


def overridden(owner, name):
    """Return the definitions of method ``name`` in a class and its bases, nearest first."""
    return [vars(base)[name] for base in inspect.getmro(owner) if name in vars(base)]


def methods(owner):
    """Return the public methods of a labkit class, without those that override MindSpore's."""
    own = [base for base in inspect.getmro(owner) if base.__module__.startswith("labkit.")]
    names = {n for base in own for n in vars(base) if not n.startswith("_")}
    return {
        name: method
        for name in sorted(names)
        if inspect.isfunction(method := inspect.getattr_static(owner, name))
        and overridden(owner, name)[-1].__module__.startswith("labkit.")
    }


def documented(owner, name, function):
    """Return argument -> its description, for all documented arguments of a function or method.

    A description in one method of a class holds for its other methods, and one in a class holds
    for its subclasses.
    """
    texts = [function.__doc__]
    if inspect.isclass(function):
        bases = inspect.getmro(function)
        texts += [base.__doc__ for base in bases if base.__module__.startswith("labkit.")]
    if owner is not None:
        texts += [m.__doc__ for n in methods(owner) for m in overridden(owner, n) if n != name]
        texts += [method.__doc__ for method in overridden(owner, name)]
    known = {}
    for text in texts:
        parsed = sections(text)
        known = parsed.get("Attributes", {}) | parsed.get("Args", {}) | known
    return known


NAMES = [name for name in labkit.__all__ if name != "attach"]  # it needs the extra "labs"
PUBLIC = {name: (None, name, getattr(labkit, name)) for name in NAMES}
for class_name in [name for name in NAMES if inspect.isclass(getattr(labkit, name))]:
    for method_name, method in methods(getattr(labkit, class_name)).items():
        PUBLIC[f"{class_name}.{method_name}"] = (getattr(labkit, class_name), method_name, method)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_parameter_is_typed_and_documented(name):
    own, known = parameters(PUBLIC[name][2]), documented(*PUBLIC[name])
    # ``choose`` takes arbitrary keywords, because the notebook of a lab defines its settings.
    keywords = {p for p, parameter in own.items() if parameter.kind == parameter.VAR_KEYWORD}
    assert keywords == ({"named"} if name == "choose" else set())
    own = {p: parameter for p, parameter in own.items() if p not in keywords}
    assert [p for p in own if p not in known] == []
    said = sections(PUBLIC[name][2].__doc__).get("Args", {})
    assert [p for p in said if p not in own] == []
    assert [p for p, parameter in own.items() if parameter.annotation is parameter.empty] == []


@pytest.mark.parametrize("name", PUBLIC)
def test_arrays_have_a_shape_and_times_a_unit(name):
    known = documented(*PUBLIC[name])
    for parameter, own in parameters(PUBLIC[name][2]).items():
        if re.search("Tensor|NDArray|ndarray|ArrayLike", str(own.annotation)):
            assert SHAPE.search(known[parameter]), known[parameter]
        if parameter in IN_SECONDS:
            assert "second" in known[parameter], known[parameter]


# Other names that the README calls, and names next to them in their modules.
OF_ROOMS = {
    "algorithms.grad_freeze": ("GradFreezeUpdate", "freeze_schedule"),
    "algorithms.less_bn": ("less_bn", "fit_to"),
    "algorithms.subspace": ("Basis", "Basis.of", "Basis.load", "Constants", "basis_of"),
    "algorithms.subspace.snapshots": ("Snapshots", "load_snapshot", "write_snapshot"),
    "algorithms.thor": ("Options",),
    "data.dataset2": ("create_dataset2",),
    "data.imagefolder": ("create_dataset", "create_datasets", "load_image"),
    "data.mnist": ("create_dataset", "create_eval_dataset", "load_arrays"),
    "data.parity": ("pillow_preprocess", "preprocessing_differences"),
    "data.prepare": ("prepare",),
    "labs.compare": ("restarted",),
    "labs.figures.interactive": ("Slider",),
    "labs.lab": ("OpenLab.compare_guess", "OpenLab.finish", "OpenLab.show", "OpenLab.value"),
    "labs.memory": ("peak_memory_mb", "sweep"),
    "labs.profiling": ("calls_per_second", "operator_times"),
    "labs.results": ("compare",),
    "labs.run": ("Run.figure", "Run.finish", "Run.open", "Run.path", "Run.records"),
    "migration": (
        *("compare_step", "convert_back", "convert_file", "load", "match", "pairs"),
        *("read_torch", "state_dict", "trace", "write_torch"),
    ),
    "nets.initialisers": ("initialise",),
    "nets.resnet": ("resnet",),
    "nets.small": ("NextToken", "NormNet"),
    "ranks.rank_table": ("make",),
    "recipes.accumulation_config": ("AccumulationConfig",),
    "recipes.adasum_config": ("AdasumConfig",),
    "recipes.resnet50_config": ("Config",),
    "recipes.subspace_config": ("StageOneConfig", "StageTwoConfig"),
    "recipes.thor_config": ("ThorConfig",),
    "reference": ("Thor", "kronecker_factors", "per_sample_gradients", "thor_direction"),
    "steps.options": ("GradientOptions",),
    "steps.schedules": ("cosine", "get_lr"),
    "training.checkpoint": ("load", "load_latest", "save"),
    "training.evaluation": ("MeanLoss", "TopK"),
    "training.records": ("read_records",),
    "upstream.accumulation": ("GradientAccumulation.train_process",),
    "upstream.basis": ("basis_from",),
    "upstream.boost_config": ("read_boost",),
    "upstream.thor_model": (
        *("ConvertModelUtils.convert_to_thor_model", "ThorModel.eval", "ThorModel.fit"),
        *("ThorModel.predict", "ThorModel.train"),
    ),
}
EXCEPTIONS = ("InputError", "WorkerFailed", "WorkersTimedOut")
# ``choose`` takes the parameters of a lab and refuses other names itself.
CALLED = [("labkit", name) for name in NAMES if name not in (*EXCEPTIONS, "choose")]
CALLED += [(f"labkit.{room}", name) for room, names in OF_ROOMS.items() for name in names]


@pytest.mark.parametrize("module, name", CALLED)
def test_a_misspelled_name_is_refused_with_the_nearest(module, name):
    function = operator.attrgetter(name)(importlib.import_module(module))
    names = [n for n, own in parameters(function).items() if own.kind != own.VAR_POSITIONAL]
    assert names or name == "ConvertModelUtils"
    for right in names:
        with pytest.raises(UnknownName, match=f"Did you mean '{right}'"):
            function(**{right + "s": None})


CELLS = [n for n in NAMES if inspect.isclass(PUBLIC[n][2]) and issubclass(PUBLIC[n][2], nn.Cell)]
CELLS = [name for name in CELLS if parameters(PUBLIC[name][2].construct)]


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_says_the_shapes_that_it_is_called_with(name):
    owner = PUBLIC[name][2]
    own = [base for base in inspect.getmro(owner) if base.__module__.startswith("labkit.")]
    said = [text for base in own for text in (base.__doc__, base.construct.__doc__)]
    assert SHAPE.search(" ".join(filter(None, said)))


def raised_by(function):
    """Return the names of exceptions that a function, or the init of a class, itself raises."""
    if inspect.isclass(function):
        made = "__post_init__" if is_dataclass(function) else "__init__"
        function = getattr(function, made, None)
    if not inspect.isfunction(function):  # inherited from a base that is not written in Python
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc]
    names = {call.func.id for call in calls if isinstance(getattr(call, "func", None), ast.Name)}
    return {"InputError" if name == "wrong" else name for name in names}


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_raised_is_named_and_exists(name):
    owner, own_name, function = PUBLIC[name]
    texts = [method.__doc__ for method in overridden(owner, own_name)] if owner else []
    named = {n for text in [function.__doc__, *texts] for n in sections(text).get("Raises", {})}
    assert named <= (vars(builtins) | vars(errors)).keys()
    assert raised_by(function) <= named


def test_the_parser_sees_what_is_missing():
    def documented(first, second):
        """Do it.

        Args:
            first: a number.
              Not: an entry, but a line of it.

        Raises:
            ValueError: always.
        """
        raise TypeError(first, second)

    assert sections(documented.__doc__) == {
        "Args": {"first": "first: a number."},
        "Raises": {"ValueError": "ValueError: always."},
    }
    assert list(parameters(documented)) == ["first", "second"]
    assert raised_by(documented) == {"TypeError"}
    assert SHAPE.search("loss ()") and SHAPE.search("logits (B, C)") and SHAPE.search("them (n,)")
    for text in ("an array", "an array (see below, or not)", "an array (padding)", "of f()"):
        assert not SHAPE.search(text)
