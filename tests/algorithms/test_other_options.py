"""A training resumes only with the options that it started with."""

from functools import partial

import pytest

from labkit.algorithms.thor import TraceRule
from tests.support.trainings import adasum, subspace, thor

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm"),
]

THOR = {
    "frequency": 4,
    "factor_decay": 0.6,
    "split": 64,
    "bias": "plain",
    "damping_split": "pi",
    "trace_rule": TraceRule(0.2, 0.03),
    "kl_clip": 1e-3,
    "skip": ("4",),
    "nan": "drop",
}
SUBSPACE = {
    "seed": 1,
    "rho": 0.5,
    "sigma": 0.3,
    "trials": 2,
    "gamma": 0.8,
    "curvature": 0.1,
    "failure": "rollback",
    "micro_steps": 2,
    "tail": "drop",
}
ADASUM = {"workers": 3, "on": "gradients", "reduction": "mean", "scope": "network", "tail": "drop"}
NAMES = {"seed": "basis", "workers": "team"}  # settings whose names differ from the option's


@pytest.mark.parametrize(
    ("make", "different", "others"),
    [
        (thor, THOR, {"damping", "formulas"}),
        (subspace, SUBSPACE, set()),
        (partial(adasum, workers=2), ADASUM, set()),
    ],
    ids=["thor", "subspace", "adasum"],
)
def test_they_are_not_resumed(make, different, others):
    """Their settings differ, and ``fit`` compares them before it changes anything."""
    settings = make().settings
    assert {NAMES.get(name, name) for name in different} | others <= set(settings)
    for name, value in different.items():
        other = make(**{name: value}).settings
        assert [n for n in other if other[n] != settings.get(n)] == [NAMES.get(name, name)]
