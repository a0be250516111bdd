"""The optimizers alone: no correct one is red, and each fault is named where it begins."""

import copy
import math

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, mint, nn, ops
from mindspore.experimental import optim

import labkit
from labkit.errors import InputError
from labkit.migration import Rule, Trace, match, read, save
from labkit.migration.updates import compare_updates, torch_updates
from labkit.optimizers import AdamW, Both, Muon
from tests.support.migrating import Small, torch_small
from tests.support.step_cells import assert_bit_equal, snapshot

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("runtime")
TORCH = torch.optim
COSINE = [0.05 * (1 + math.cos(math.pi * i / 1000)) for i in range(20)]  # rates
WARM_UP = [0.1 * min(i / 5, 1) for i in range(20)]
PAUSED = [0.0 if i in (6, 7) else 0.1 for i in range(20)]  # updates that change nothing


def grouped(cls, *args, decay=1e-4, of=lambda p: len(p.shape) > 1, **options):
    """Return weights -> optimizer, with decay on the parameters ``of`` alone."""

    def make(weights):
        parts = [p for p in weights if of(p)], [p for p in weights if not of(p)]
        made = [{"params": p, "weight_decay": d} for p, d in zip(parts, (decay, 0.0), strict=True)]
        made += [{"order_params": weights}] if issubclass(cls, nn.Optimizer) else []
        return cls([group for group in made if group.get("params", True)], *args, **options)

    return make


def plain(cls, *args, **options):
    return lambda weights: cls(weights, *args, **options)


def part(cls):
    return lambda weights: cls(weights[1:], 0.1)


def sgd(cls=nn.SGD, rate=0.1, momentum=0.9, **options):
    return grouped(cls, rate, momentum=momentum, **options)


def scheduled(rates):
    """Return weights -> (PyTorch's SGD, its scheduler)."""
    schedule = TORCH.lr_scheduler.LambdaLR
    return lambda weights: (o := THEIRS(weights), schedule(o, lambda i: rates[i] / 0.1))


def stepped(library):
    schedule = library.lr_scheduler.StepLR
    return lambda weights: (o := library.AdamW(weights, 1e-3), schedule(o, 3, 0.5))


class TorchMuon(TORCH.Optimizer):
    """labkit's Muon in the tensors' own type; ``scale`` is kept outside of the groups."""

    def __init__(self, weights, rate, scale=0.2):
        super().__init__(weights, {"lr": rate})
        self.scale = scale

    def step(self):
        for w in self.param_groups[0]["params"]:
            m = self.state[w].setdefault("m", torch.zeros_like(w)).mul_(0.95).add_(w.grad)
            x = w.grad + 0.95 * m
            x = x / (x.norm() + 1e-7)
            for _ in range(5):
                s = x @ x.T
                x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
            w.data -= self.param_groups[0]["lr"] * (self.scale * max(w.shape) ** 0.5 * x + 0.1 * w)


class Clipped(nn.SGD):
    """It clips the gradients by their norm, without a word."""

    def construct(self, gradients):
        return super().construct(ops.clip_by_global_norm(gradients, 1.0))


def torch_network(seed=0):
    """Return PyTorch's network with one bias of zeros; that of ours has other weights."""
    module = torch_small(torch).float()
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
        module.fc.bias.zero_()
    return module


def made_by(theirs, seed=0):
    named = dict(torch_network(seed).named_parameters())
    return torch_updates(named, theirs(list(named.values())), seed=seed)


def compared(ours, theirs):
    network, named = Small(), dict(torch_network().named_parameters())
    optimizer = ours(network.trainable_params())
    return compare_updates(optimizer, match(network, named), made_by(theirs))


def matrices(optimizer):
    return lambda weights: optimizer([weight for weight in weights if weight.ndim == 2], 0.02)


THEIRS, NESTEROV = sgd(TORCH.SGD), sgd(TORCH.SGD, nesterov=True)
ALL = plain(TORCH.SGD, 0.1, momentum=0.9, weight_decay=1e-4)
ADAM, ADAMW = plain(TORCH.Adam, 1e-3), plain(TORCH.AdamW, 1e-3, weight_decay=0.01)
CORRECT = {
    "SGD": (sgd(), THEIRS),
    "SGD, all decay": (sgd(of=lambda p: True), ALL),
    "SGD, dampening": (sgd(dampening=0.9), sgd(TORCH.SGD, dampening=0.9)),
    "SGD, plain": (plain(nn.SGD, 0.1), plain(TORCH.SGD, 0.1)),
    "SGD, nesterov": (sgd(nesterov=True), NESTEROV),
    "SGD, cosine": (sgd(rate=COSINE), scheduled(COSINE)),
    "SGD, paused": (sgd(rate=PAUSED), scheduled(PAUSED)),
    "SGD, a part": (part(nn.SGD), part(TORCH.SGD)),
    "Momentum": (sgd(nn.Momentum), THEIRS),
    "Momentum, warm-up": (sgd(nn.Momentum, WARM_UP), scheduled(WARM_UP)),
    "labkit AdamW": (grouped(AdamW, 1e-3, decay=0.05), grouped(TORCH.AdamW, 1e-3, decay=0.05)),
    "labkit AdamW for Adam": (plain(AdamW, 1e-3, weight_decay=0.0), ADAM),
    "Both": (
        lambda w: Both(w, AdamW(w[:3], 1e-3), AdamW(w[3:], 1e-2)),
        lambda w: TORCH.AdamW([{"params": w[:3]}, {"params": w[3:], "lr": 1e-2}], 1e-3),
    ),
    "Muon": (matrices(Muon), matrices(TorchMuon)),
    "mint SGD": (sgd(mint.optim.SGD), THEIRS),
    "mint Adam": (plain(mint.optim.Adam, 1e-3), ADAM),
    "AdamW": (plain(optim.AdamW, 1e-3, weight_decay=0.01), ADAMW),
    "AdamW, StepLR": (stepped(optim), stepped(TORCH)),
    "RMSprop": (plain(optim.RMSprop, 1e-3), plain(TORCH.RMSprop, 1e-3)),
    "Adagrad": (plain(optim.Adagrad, 1e-2), plain(TORCH.Adagrad, 1e-2)),
    "NAdam": (plain(optim.NAdam, 1e-3), plain(TORCH.NAdam, 1e-3)),
}


@pytest.mark.parametrize("name", CORRECT)
def test_no_correct_optimizer_is_red(name):
    ours, theirs = CORRECT[name]
    network, named = Small(), dict(torch_network().named_parameters())
    optimizer, before = ours(network.trainable_params()), snapshot(network)
    for seed in range(5):  # all with one optimizer: its state is restored
        rows = compare_updates(optimizer, match(network, named), made_by(theirs, seed))
        assert rows and all(row.update is None for row in rows), rows[0]
        assert all(row.difference <= row.allowed < 0.1 for row in rows), rows
    assert_bit_equal(snapshot(network), before)


WRITE = "write labkit.AdamW(parameters, 0.001, 0.9, 0.999, 1e-08, {})".format
EARLY = "adds eps before the bias correction"
GROUP = "write nn.SGD([{'params': parameters, 'weight_decay': 0.0001}], ...)"
FIRST = "1 conv1.weight"
L2, SAID = {"weight_decay": 0.01}, "PyTorch: SGD(weight_decay=0.0001, lr=0.1, momentum=0.9"
MIXED = ("conv1.weight", "conv2.weight", "fc.weight", "hidden.bias")
# ours, PyTorch's, the update and parameter (if all gradients show it), what is said
FAULTS = {
    "decay forgotten": (sgd(decay=0.0), THEIRS, FIRST, SAID),
    "decay 5e-4": (sgd(decay=5e-4), THEIRS, FIRST, SAID),
    "all": (sgd(of=lambda p: True), THEIRS, "1 bn1.weight", "PyTorch: SGD(lr=0.1, momentum=0.9"),
    "no groups": (plain(nn.SGD, 0.1, 0.9, 0.0, 1e-4), ALL, "1 bn1.weight", GROUP),
    "swapped": (sgd(of=lambda p: p.name in MIXED), THEIRS, "1 hidden.weight", SAID),
    "momentum": (sgd(momentum=0.8), THEIRS, "2 conv1.weight", SAID),
    "dampening": (sgd(dampening=0.9), THEIRS, "2 conv1.weight", SAID),
    "nesterov": (sgd(nesterov=True), THEIRS, FIRST, SAID),
    # Its kernel on CPU ignores the argument.
    "use_nesterov": (sgd(nn.Momentum, use_nesterov=True), NESTEROV, FIRST, "nesterov=True"),
    "rate": (sgd(rate=0.1001), THEIRS, FIRST, SAID),
    "cosine": (sgd(rate=COSINE[1:]), scheduled(COSINE), "4 ", "lr=0.0999"),
    "warm-up": (sgd(rate=WARM_UP[1:]), scheduled(WARM_UP), FIRST, "PyTorch: SGD(weight_decay"),
    "late": (sgd(rate=[0.0, *WARM_UP]), scheduled(WARM_UP), "2 conv1.weight", "lr=0.02, "),
    "clipped": (grouped(Clipped, 0.1, momentum=0.9), THEIRS, FIRST, SAID),
    "nn.Adam": (plain(nn.Adam, 1e-3), ADAM, FIRST, f"nn.Adam {EARLY}: {WRITE(0)}"),
    "experimental Adam": (plain(optim.Adam, 1e-3), ADAM, FIRST, WRITE(0)),
    "nn.Adam, L2": (plain(nn.Adam, 1e-3, **L2), ADAMW, FIRST, WRITE(0.01)),
    "AdamWeightDecay": (plain(nn.AdamWeightDecay, 1e-3, **L2), ADAMW, FIRST, WRITE(0.01)),
    "eps": (plain(AdamW, 1e-3, eps=1e-6), ADAMW, FIRST, "eps=1e-08"),
    "beta2": (plain(AdamW, 1e-3, beta2=0.99), ADAMW, "2 ", "betas=[0.9, 0.999]"),
    "amsgrad": (plain(optim.AdamW, 1e-3, amsgrad=True), ADAMW, "2 ", "PyTorch: AdamW("),
    "RMSProp": (plain(nn.RMSProp, 1e-3), plain(TORCH.RMSprop, 1e-3), FIRST, "PyTorch: RMSprop("),
    "forgotten": (part(nn.SGD), plain(TORCH.SGD, 0.1), "0 conv1.weight", "ours does not"),
    "too many": (plain(nn.SGD, 0.1), part(TORCH.SGD), "0 conv1.weight", "PyTorch's does not"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_at_its_update_and_parameter(name):
    ours, theirs, place, words = FAULTS[name]
    row = compared(ours, theirs)[0]
    assert f"{row.update} {row.name}".startswith(place) and words in row.note, row


def test_the_lines_to_write_are_right():
    names = {"labkit": labkit, "nn": nn}
    for name in ("nn.Adam", "AdamWeightDecay", "nn.Adam, L2", "no groups"):
        ours, theirs, *_ = FAULTS[name]
        line = compared(ours, theirs)[0].note.partition("write ")[2].replace("...", "0.1, 0.9")
        cured = compared(lambda w, line=line: eval(line, names | {"parameters": w}), theirs)
        assert cured[0].update is None, (line, cured[0])


def test_a_file_says_the_same_and_pytorchs_side_is_untouched(tmp_path):
    module = torch_network()
    module.conv1.weight.requires_grad_(False)
    optimizer, scheduler = scheduled(COSINE)(list(module.parameters()))
    module(torch.randn(4, 3, 8, 8)).sum().backward()
    optimizer.step()  # it has a state
    kept = copy.deepcopy([module.state_dict(), optimizer.state_dict(), scheduler.state_dict()])
    made = torch_updates(dict(module.named_parameters()), (optimizer, scheduler), steps=4)
    save(tmp_path / "trace.npz", Trace("PyTorch", {}, updates=made))
    network = Small()
    network.conv1.weight.requires_grad = False
    ours = sgd(rate=COSINE, momentum=0.8)(network.trainable_params())
    linked = match(network, dict(module.named_parameters()))
    rows = compare_updates(ours, linked, made)
    assert rows == compare_updates(ours, linked, read(tmp_path / "trace.npz").updates)
    # The momentum that PyTorch has already makes the first update differ, and no suspect fits.
    assert rows[0].update == 1 and rows[0].note.startswith("PyTorch: SGD(") and len(rows) == 7
    now = [module.state_dict(), optimizer.state_dict(), scheduler.state_dict()]
    torch.testing.assert_close(now[:2], kept[:2], rtol=0, atol=0)
    assert now[2] == kept[2] and module.conv2.weight.grad is not None
    adam = ADAM(list(module.parameters()))
    adam.step()
    next(torch_updates(dict(module.named_parameters()), adam).run())  # its state is cast, too


def test_a_single_number_may_be_off_by_its_spacing():
    """PyTorch's own rounding of it may happen to be nothing."""
    ours, theirs = nn.Cell(), torch.nn.Module()
    ours.scale = Parameter(ms.Tensor([1.0], ms.float32), name="scale")
    theirs.scale = torch.nn.Parameter(torch.ones(1))
    named = dict(theirs.named_parameters())
    optimizer, linked = AdamW([ours.scale], 1e-3), match(ours, named)
    for seed in range(20):
        made = torch_updates(named, TORCH.AdamW([theirs.scale], 1e-3), seed=seed)
        assert compare_updates(optimizer, linked, made)[0].update is None, seed


class Split(nn.Cell):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.out = (nn.Dense(6, 6, has_bias=False) for _ in range(3))


def test_split_transposed_and_tied_weights():
    theirs = torch.nn.Module()
    theirs.qk, theirs.out = torch.nn.Linear(6, 12, bias=False), torch.nn.Linear(6, 6, bias=False)
    theirs.tied = theirs.out
    network, named = Split(), dict(theirs.named_parameters(remove_duplicate=False))
    rules = [Rule("qk", ("q", "k")), Rule("^out", "out", transpose=True), Rule("tied", None)]
    linked = match(network, named, rules)
    for decay, update in ((0.01, None), (0.0, 1)):
        ours = AdamW(network.trainable_params(), 1e-3, weight_decay=decay)
        rows = compare_updates(ours, linked, torch_updates(named, ADAMW(theirs.parameters())))
        assert {row.update for row in rows} == {update}, rows


def test_refusals():
    named = dict(torch_network().named_parameters())
    with pytest.raises(InputError, match="parameters: 1 of the optimizer's are not among them"):
        torch_updates({n: p for n, p in named.items() if n != "fc.bias"}, ADAM(named.values()))
    half = nn.SGD([Parameter(ms.Tensor(np.ones(2, np.float16)), name="half")], 0.1)
    with pytest.raises(InputError, match="half: expected float32"):
        compare_updates(half, match(Small(), named), made_by(ADAM))
