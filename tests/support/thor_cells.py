"""Small networks, the float64 twin of one of them, and trainings of both."""

import numpy as np
from mindspore import mint, nn

from labkit import reference
from labkit.algorithms.thor import ThorOptions, ThorStep, ThorUpdate
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.state import set_state
from tests.support.step_cells import INPUTS, OUTPUTS, momentum, rows, tensors

HIDDEN, RATE, DECAY, DAMPING = 4, 0.05, 0.01, 0.1
# The layers' names, the same in the step and in the twin.
FIRST, SECOND = "0", "2"


def mlp(seed=0):
    """Return (network, loss_net): dense (B, 3) -> tanh -> dense (B, 2), weights of order 1."""
    random = np.random.default_rng(3000 + seed)
    network = nn.SequentialCell(nn.Dense(INPUTS, HIDDEN), nn.Tanh(), nn.Dense(HIDDEN, OUTPUTS))
    for parameter in network.get_parameters():
        set_state(parameter, random.normal(size=parameter.shape).astype(np.float32))
    return network, LossNet(network, nn.MSELoss())


def values(network):
    """Return every Parameter of a network by name, float64."""
    return {p.name: p.asnumpy().astype(np.float64) for p in network.get_parameters()}


def gradients(parameters, inputs, targets):
    """Return (mean squared error, gradients by name, the layers) of ``mlp``, by hand."""
    hidden = np.tanh(inputs @ parameters["0.weight"].T + parameters["0.bias"])
    error = hidden @ parameters["2.weight"].T + parameters["2.bias"] - targets
    slope = 2.0 * error / error.size
    below = (slope @ parameters["2.weight"]) * (1 - hidden**2)
    made = {
        "0.weight": below.T @ inputs,
        "0.bias": below.sum(axis=0),
        "2.weight": slope.T @ hidden,
        "2.bias": slope.sum(axis=0),
    }
    layers = [reference.Layer(FIRST, inputs, below), reference.Layer(SECOND, hidden, slope)]
    return float(np.mean(error**2)), made, layers


class Twin:
    """``reference.Thor`` on ``mlp``: ``twin(inputs, targets)`` updates and returns the loss."""

    def __init__(self, parameters, **options):
        options = {"learning_rate": RATE, "damping": DAMPING, "weight_decay": DECAY} | options
        self.parameters, self.thor = parameters, reference.Thor(**options)

    def __call__(self, inputs, targets):
        loss, slopes, layers = gradients(self.parameters, inputs, targets)
        self.parameters = self.thor.update(self.parameters, slopes, layers)
        return loss


# Options, besides the damping, that only the Python between the compiled graphs reads.
BETWEEN_GRAPHS = ("frequency", "trace_rule", "nan")


def thor_step(once, damping=DAMPING, **options):
    """Return (network, ThorStep) on ``mlp``, as new; steps with equal graphs are compiled once."""
    in_graphs = {n: v for n, v in options.items() if n not in BETWEEN_GRAPHS}
    network, step = once(_thor_step, **in_graphs)
    own = {name: options[name] for name in BETWEEN_GRAPHS if name in options}
    step.update.options = ThorOptions(damping, **own)
    return network, step


def _thor_step(**options):
    network, loss_net = mlp()
    return network, ThorStep(loss_net, momentum(network, RATE, DECAY), DAMPING, **options)


def accumulated(micro_steps, **options):
    """Return (network, AccumulatedStep) on ``mlp`` that refreshes at every second update."""
    network, loss_net = mlp()
    sgd = momentum(network, RATE, DECAY)
    thor = ThorUpdate(loss_net, sgd, DAMPING, frequency=2, **options)
    return network, AccumulatedStep(loss_net, sgd, micro_steps, update=thor)


def rows64(seed):
    """Return the rows that ``call`` takes, in float64."""
    return tuple(part.astype(np.float64) for part in rows(8, seed))


def call(step, seed, scale=1.0):
    """Call a step with the rows of ``seed``, the inputs times ``scale``."""
    inputs, targets = rows(8, seed)
    return float(step(*tensors(inputs * np.float32(scale), targets)).asnumpy())


def factors(update, names=("a_factor", "g_factor")):
    """Return copies of A and G of all layers."""
    return {
        f"{layer.layer_name}.{name}": getattr(layer, name).asnumpy().copy()
        for layer in update.layers
        for name in names
    }


def inverses(update):
    """Return copies of the inverses of all layers."""
    return factors(update, ("a_inverse", "g_inverse"))


def same(values, others):
    """Return whether two dicts of arrays are equal to the bit."""
    assert values and values.keys() == others.keys()
    return all(np.array_equal(values[name], others[name]) for name in values)


def normal(shape, seed=0):
    """Float32 numbers of order 1."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def fill(cell, seed=0):
    """Set all trainable Parameters of a cell to numbers of order 1 / sqrt(in); return the cell."""
    for number, parameter in enumerate(cell.trainable_params()):
        size = np.prod(parameter.shape[1:]) if parameter.ndim > 1 else 4
        set_state(parameter, normal(parameter.shape, 100 * seed + number) / np.sqrt(size))
    return cell


class Nested(nn.Cell):
    """(N, 4) -> (N, 2) through sequences, a norm, and a CellList inside a CellList."""

    def __init__(self):
        super().__init__()
        self.stem = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU(), nn.SequentialCell(nn.Dense(4, 4)))
        self.norm = nn.LayerNorm((4,))
        self.lists = nn.CellList([nn.CellList([nn.Dense(4, 4), nn.Dense(4, 4, activation="tanh")])])
        self.head = mint.nn.Linear(4, 2)

    def construct(self, x):
        x = self.norm(self.stem(x))
        for inner in self.lists:
            for layer in inner:
                x = layer(x)
        return self.head(x)


def off(actual, expected):
    """Return the largest difference over the largest expected entry."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape and expected.size, (actual.shape, expected.shape)
    return np.abs(actual - expected).max() / np.abs(expected).max()
