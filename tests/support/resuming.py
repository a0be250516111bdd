"""A training with a checkpoint after every micro-batch, which tests resume from any of them."""

import shutil

import numpy as np
from mindspore import nn

from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.subspace import SubspaceStep
from labkit.algorithms.thor import ThorStep, ThorUpdate, TraceRule
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.step import PlainStep
from labkit.training import checkpoint
from labkit.training.fit import fit
from tests.support.step_cells import snapshot
from tests.support.subspace_cells import basis_of
from tests.support.trainings import comparable, dataset, loss_fn, make_step, network

EPOCHS = 3


def plain():
    net = network()
    rates = nn.ExponentialDecayLR(0.05, 0.9, 1)
    optimizer = nn.Momentum(net.trainable_params(), rates, 0.9, 1e-3)
    return PlainStep(LossNet(net, loss_fn()), optimizer)


def accumulated_thor():
    net = network()
    loss_net = LossNet(net, loss_fn())
    adam = nn.Adam(net.trainable_params(), 0.02)
    options = {"frequency": 2, "factor_decay": 0.5, "trace_rule": TraceRule(0.2, 0.02)}
    update = ThorUpdate(loss_net, adam, 0.3 * 0.9 ** np.arange(20), **options)
    return AccumulatedStep(loss_net, adam, 4, update=update)


def adasum(**options):
    net = network()
    return AdasumStep(LossNet(net, loss_fn()), nn.Adam(net.trainable_params(), 0.02), **options)


def thor(**options):
    """A step with every kind of state: trace rule, running average, schedules, BatchNorm."""
    net = network(norm=True)
    rates = nn.ExponentialDecayLR(0.05, 0.9, 1)
    momentum = nn.Momentum(net.trainable_params(), rates, 0.9, 1e-3)
    own = {"frequency": 3, "factor_decay": 0.7, "trace_rule": TraceRule(0.2, 0.02)}
    options = own | options
    return ThorStep(LossNet(net, loss_fn()), momentum, 0.3, **options)


def subspace(seed=0, **options):
    """A step with every kind of state: B, residual, Adam's moments, BatchNorm."""
    net = network(norm=True)
    parameters = net.trainable_params()
    adam = nn.Adam(parameters, nn.ExponentialDecayLR(0.02, 0.9, 1))
    basis = basis_of(parameters, 6, seed=seed)
    return SubspaceStep(LossNet(net, loss_fn()), adam, basis, alpha=0.5, **options)


def quiet_fit(step, data, epochs=EPOCHS, **options):
    return fit(step, data, epochs, progress=None, **options)


def position_of(path):
    """Return the position that a checkpoint holds."""
    return checkpoint.load(path)[0]


class Training:
    """An uninterrupted training with a checkpoint after every micro-batch."""

    def __init__(self, folder, make=make_step, data=dataset):
        self.folder, self.make, self.data = folder, make, data
        self.step = make()
        self.fresh = snapshot(self.step)
        records = quiet_fit(self.step, data(), folder=folder, checkpoint_every=1, keep=1000)
        self.rows = comparable(records.rows)
        self.final = snapshot(self.step)
        self.paths = checkpoint.checkpoints(folder / "checkpoint")

    def interrupted(self, path, folder):
        """Write into ``folder`` what a kill right after the checkpoint ``path`` leaves behind."""
        (folder / "checkpoint").mkdir(parents=True)
        shutil.copy(path, folder / "checkpoint")
        lines = (self.folder / "records.csv").read_text().splitlines(keepends=True)
        count = position_of(path).records
        # Two rows of later updates, the last one cut short: no checkpoint was written after them.
        kept, later = lines[: count + 1], lines[count + 1 : count + 3] or ["3,99,1"]
        (folder / "records.csv").write_text("".join(kept + later)[:-5])
        return folder

    def resumed(self, path, folder, step=None):
        """Resume from ``path``; return the records and all Parameters at the end."""
        step = self.make() if step is None else step
        self.interrupted(path, folder)
        records = quiet_fit(step, self.data(), folder=folder, resume=True)
        return comparable(records.rows), snapshot(step)
