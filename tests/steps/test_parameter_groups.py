"""Weight decay by the owner of a Parameter: which are decayed, and the resulting update."""

from functools import partial

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn

from labkit.errors import InputError
from labkit.nets.lenet import LeNet5
from labkit.nets.small import NORMS, NormNet
from labkit.steps.parameter_groups import decay_groups
from labkit.steps.state import set_state
from tests.support.step_cells import tensors
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")


def decayed(groups):
    """Return the names of the Parameters with a weight decay > 0."""
    return {p.name for g in groups if g.get("weight_decay", 0) > 0 for p in g["params"]}


def by_name(network, weight_decay):
    """Return the groups as the migration document makes them."""
    first, second = [], []
    for parameter in network.trainable_params():
        name = parameter.name
        plain = "beta" not in name and "gamma" not in name and "bias" not in name
        (first if plain else second).append(parameter)
    return [
        {"params": first, "weight_decay": weight_decay},
        {"params": second},
        {"order_params": network.trainable_params()},
    ]


class Misleading(nn.Cell):
    """A network in which names suggest other Cells than those that own the Parameters."""

    def __init__(self):
        super().__init__()
        self.bias_net = nn.Dense(3, 4)
        self.alphabeta = nn.Conv2d(3, 4, 1, has_bias=True)
        self.norm = mint.nn.BatchNorm2d(4)
        self.scale = Parameter(Tensor(np.ones(4, np.float32)), name="scale")


def test_names_mislead_and_owners_do_not():
    network = Misleading()
    ours, document = decayed(decay_groups(network, 0.1)), decayed(by_name(network, 0.1))
    assert ours == {"bias_net.weight", "alphabeta.weight"}
    # The document decays neither of the two layers, but BatchNorm's scale and a bare vector.
    assert document == {"norm.weight", "scale"}


@pytest.mark.parametrize("norm", NORMS)
def test_where_names_do_not_mislead_both_agree(norm):
    for network in (NormNet(norm), LeNet5()):
        assert decayed(decay_groups(network, 0.1)) == decayed(by_name(network, 0.1)) != set()


class Own(nn.Cell):
    """A user's own Cell, with bare Parameters of ranks 0 to 4."""

    def __init__(self):
        super().__init__()
        for rank, shape in enumerate([(), (4,), (4, 4), (2, 2, 2), (1, 4, 1, 1)]):
            value = Tensor(np.ones(shape, np.float32))
            setattr(self, f"rank_{rank}", Parameter(value, name=f"rank_{rank}"))


class Tied(nn.Cell):
    """One Parameter in two layers."""

    def __init__(self, norm):
        super().__init__()
        self.first = nn.LayerNorm((4, 3)) if norm else nn.Embedding(4, 3)
        self.dense = nn.Dense(3, 4, has_bias=False)
        self.dense.weight = self.first.gamma if norm else self.first.embedding_table


CONVOLUTION = dict(in_channels=2, out_channels=4, kernel_size=3), {"weight"}
OF_CHANNELS = dict(num_features=4), set()
LAYERS = {
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Conv2dTranspose), CONVOLUTION),
    **dict.fromkeys((mint.nn.Conv2d, mint.nn.Conv3d), CONVOLUTION),
    nn.Dense: (dict(in_channels=1, out_channels=1), {"weight"}),
    nn.BiDense: (dict(in1_channels=2, in2_channels=3, out_channels=4), {"weight"}),
    nn.Embedding: (dict(vocab_size=5, embedding_size=3), {"embedding_table"}),
    nn.PReLU: (dict(), set()),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), OF_CHANNELS),
    **dict.fromkeys((nn.SyncBatchNorm, nn.InstanceNorm2d, mint.nn.SyncBatchNorm), OF_CHANNELS),
    **dict.fromkeys((mint.nn.BatchNorm1d, mint.nn.BatchNorm2d, mint.nn.BatchNorm3d), OF_CHANNELS),
    nn.GroupNorm: (dict(num_groups=2, num_channels=4), set()),
    # Of rank 2: only its owner shows that it is a scale and not a weight.
    nn.LayerNorm: (dict(normalized_shape=(3, 4)), set()),
    nn.LSTM: (dict(input_size=3, hidden_size=4), {"weight_ih_l0", "weight_hh_l0"}),
    nn.MultiheadAttention: (
        dict(embed_dim=4, num_heads=2, add_bias_kv=True),
        {"in_proj_weight", "out_proj.weight"},
    ),
    mint.nn.Linear: (dict(in_features=1, out_features=1), {"weight"}),
    mint.nn.Embedding: (dict(num_embeddings=5, embedding_dim=3), {"weight"}),
    mint.nn.GroupNorm: (dict(num_groups=2, num_channels=4), set()),
    mint.nn.LayerNorm: (dict(normalized_shape=(3, 4)), set()),
    mint.nn.PReLU: (dict(), set()),
    Own: (dict(), {"rank_2", "rank_3", "rank_4"}),
    Tied: (dict(norm=False), {"first.embedding_table"}),
    partial(Tied, norm=True): (dict(), set()),  # one owner that exempts it is enough
}


@pytest.mark.parametrize(("kind", "expected"), LAYERS.items())
def test_every_kind_of_layer(kind, expected):
    """Each Parameter is there once, also one that two layers share."""
    arguments, weights = expected
    network = kind(**arguments)
    groups = decay_groups(network, 0.1)
    assert decayed(groups) == weights
    in_groups = [p.name for group in groups for p in group.get("params", ())]
    assert sorted(in_groups) == sorted(p.name for p in network.trainable_params())
    nn.Momentum(groups, 0.1, 0.9)


def test_the_order_is_kept_zero_is_said_and_frozen_parameters_are_left_out():
    network = NormNet()
    network.norm.gamma.requires_grad = False
    groups = decay_groups(network, 0.1)
    assert [group["weight_decay"] for group in groups[:2]] == [0.1, 0.0]
    optimizer = nn.Momentum(groups, 0.1, 0.9)
    names = [parameter.name for parameter in network.trainable_params()]
    assert [parameter.name for parameter in optimizer.parameters] == names


@pytest.mark.parametrize(("grouped", "decay"), [(by_name, 0.5), (decay_groups, 0.0)])
def test_the_document_s_second_group_takes_the_optimizer_s_own_decay(grouped, decay):
    """With weights of 1, gradients of zero and a rate of 1, the decay alone is the move."""
    network = NormNet()
    for parameter in network.trainable_params():
        set_state(parameter, np.ones(parameter.shape))
    optimizer = nn.Momentum(grouped(network, 0.1), 1.0, 0.0, weight_decay=0.5)
    optimizer(tuple(ms.ops.zeros_like(p) for p in optimizer.parameters))
    for parameter in network.trainable_params():
        expected = 1 - (0.1 if "weight" in parameter.name else decay)
        np.testing.assert_allclose(parameter.asnumpy(), expected, rtol=1e-6)


# 0.1 is large enough to show a decay in the wrong place: it moves a weight of 1 by 0.03.
@pytest.mark.parametrize("decay", [1e-4, 0.1])
def test_the_update_is_that_of_float64_and_of_pytorch_s_sgd(decay):
    """v <- 0.9 v + (g + d w), w <- w - 0.1 v, by PyTorch in float64."""
    torch = pytest.importorskip("torch")
    network, random = NormNet(), np.random.default_rng(3)
    parameters = network.trainable_params()
    before = {p.name: p.asnumpy().copy() for p in parameters}
    gradients = [
        [random.normal(size=p.shape).astype(np.float32) for p in parameters] for _ in range(4)
    ]
    optimizer = nn.Momentum(decay_groups(network, decay), 0.1, 0.9)
    for each in gradients:
        optimizer(tensors(*each))
    after = {p.name: p.asnumpy() for p in parameters}
    theirs = {n: torch.tensor(v.astype(float), requires_grad=True) for n, v in before.items()}
    decays = dict.fromkeys(before, 0.0) | {"conv.weight": decay, "dense.weight": decay}
    groups = [{"params": theirs[name], "weight_decay": decays[name]} for name in before]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=False)
    for each in gradients:
        for parameter, gradient in zip(theirs.values(), each, strict=True):
            parameter.grad = torch.tensor(gradient.astype(float))
        optimizer.step()
    for name in before:
        expected = theirs[name].detach().numpy()
        np.testing.assert_allclose(after[name], expected, **TOLERANCE["float32, a few updates"])


@pytest.mark.parametrize(
    ("network", "decay", "words"),
    [
        (LeNet5, -1e-4, "weight_decay: expected a finite number >= 0, got"),
        (nn.ReLU, 0.1, "network: expected a trainable Parameter, got 'ReLU'"),
    ],
)
def test_what_is_refused(network, decay, words):
    with pytest.raises(InputError, match=words):
        decay_groups(network(), decay)
