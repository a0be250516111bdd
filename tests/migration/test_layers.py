"""One layer with mapped weights computes what PyTorch's does: outputs, gradients, statistics.

The claim: for each configuration of the table, with the weights transferred by ``load``, the output
and the gradients of the input and of every parameter are those of PyTorch in float64.
"""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn

from labkit.errors import InputError
from labkit.migration import load, pairs, state_dict
from labkit.runtime import pynative
from labkit.steps.state import set_state

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("runtime")

# Largest difference over the largest value. Sums of at most 600 float32 products: 1e-6 measured.
SINGLE = 1e-5
# MindSpore's tanh and sigmoid on CPU are off by 1.6e-6 in one call and by 1.4e-5 in the gradient
# after two layers of five steps. A different order of the gates would be off by about 1.
RECURRENT = 1e-4


def conv(kind, *arguments, padding=0, **options):
    """Return MindSpore's convolution with explicit padding; has_bias is PyTorch's default."""
    padding_ends = {nn.Conv2d: 2, nn.Conv3d: 2}.get(kind, 1)
    if isinstance(padding, tuple):
        padding = tuple(side for side in padding for _ in range(padding_ends))
    return kind(*arguments, pad_mode="pad", padding=padding, **{"has_bias": True, **options})


T = torch.nn
TABLE = {
    # Convolutions: name -> (MindSpore, PyTorch, input shape).
    "conv1d strided, padded, dilated": (
        lambda: conv(nn.Conv1d, 4, 6, 3, stride=2, padding=2, dilation=2),
        lambda: T.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2),
        (2, 4, 12),
    ),
    "conv2d": (lambda: conv(nn.Conv2d, 4, 6, 3), lambda: T.Conv2d(4, 6, 3), (2, 4, 7, 8)),
    "conv2d of two sizes": (
        lambda: conv(nn.Conv2d, 4, 6, (3, 5), stride=(2, 1), padding=(0, 2), dilation=(1, 2)),
        lambda: T.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(0, 2), dilation=(1, 2)),
        (2, 4, 9, 10),
    ),
    "conv2d in groups": (
        lambda: conv(nn.Conv2d, 4, 6, 3, padding=1, group=2),
        lambda: T.Conv2d(4, 6, 3, padding=1, groups=2),
        (2, 4, 7, 7),
    ),
    "conv3d": (
        lambda: conv(nn.Conv3d, 2, 3, 3, stride=2, padding=1),
        lambda: T.Conv3d(2, 3, 3, stride=2, padding=1),
        (2, 2, 5, 6, 7),
    ),
    "conv1d transposed": (
        lambda: conv(nn.Conv1dTranspose, 4, 6, 3, stride=2, padding=1),
        lambda: T.ConvTranspose1d(4, 6, 3, stride=2, padding=1),
        (2, 4, 5),
    ),
    "conv2d transposed, strided, padded": (
        lambda: conv(nn.Conv2dTranspose, 4, 6, 3, stride=2, padding=1),
        lambda: T.ConvTranspose2d(4, 6, 3, stride=2, padding=1),
        (2, 4, 5, 6),
    ),
    "conv2d transposed in groups": (
        lambda: conv(nn.Conv2dTranspose, 4, 6, 3, padding=1, group=2),
        lambda: T.ConvTranspose2d(4, 6, 3, padding=1, groups=2),
        (2, 4, 5, 6),
    ),
    "conv3d transposed": (
        lambda: conv(nn.Conv3dTranspose, 2, 3, 3, stride=2, padding=1),
        lambda: T.ConvTranspose3d(2, 3, 3, stride=2, padding=1),
        (2, 2, 3, 4, 5),
    ),
    # Dense layers and normalisations.
    "dense, square": (lambda: nn.Dense(5, 5), lambda: T.Linear(5, 5), (4, 5)),
    "bilinear": (lambda: nn.BiDense(3, 4, 5), lambda: T.Bilinear(3, 4, 5), [(6, 3), (6, 4)]),
    "layer norm": (lambda: nn.LayerNorm((6,), epsilon=1e-5), lambda: T.LayerNorm(6), (3, 4, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 6), lambda: T.GroupNorm(2, 6), (3, 6, 4, 5)),
    "batch norm 2d, evaluating": (
        lambda: nn.BatchNorm2d(4),
        lambda: T.BatchNorm2d(4).eval(),
        (3, 4, 5, 6),
    ),
    "batch norm 3d, evaluating": (
        lambda: nn.BatchNorm3d(4),
        lambda: T.BatchNorm3d(4).eval(),
        (3, 4, 2, 3, 3),
    ),
    "prelu": (lambda: nn.PReLU(4), lambda: T.PReLU(4), (3, 4, 5)),
    # mint.nn: PyTorch's interface in MindSpore.
    "mint linear": (lambda: mint.nn.Linear(5, 3), lambda: T.Linear(5, 3), (4, 5)),
    "mint group norm": (lambda: mint.nn.GroupNorm(2, 6), lambda: T.GroupNorm(2, 6), (3, 6, 4, 5)),
    # Recurrent layers: gate order and both biases.
    "lstm, two layers, both ways": (
        lambda: nn.LSTM(3, 4, 2, bidirectional=True),
        lambda: T.LSTM(3, 4, 2, bidirectional=True),
        (5, 2, 3),
    ),
    "gru, two layers, both ways": (
        lambda: nn.GRU(3, 4, 2, bidirectional=True),
        lambda: T.GRU(3, 4, 2, bidirectional=True),
        (5, 2, 3),
    ),
    "rnn": (lambda: nn.RNN(3, 4), lambda: T.RNN(3, 4), (5, 2, 3)),
    "lstm cell": (lambda: nn.LSTMCell(3, 4), lambda: T.LSTMCell(3, 4), [(2, 3), ((2, 4), (2, 4))]),
    "gru cell": (lambda: nn.GRUCell(3, 4), lambda: T.GRUCell(3, 4), [(2, 3), (2, 4)]),
    "rnn cell": (lambda: nn.RNNCell(3, 4), lambda: T.RNNCell(3, 4), [(2, 3), (2, 4)]),
    "multi-head attention": (
        lambda: nn.MultiheadAttention(6, 2),
        lambda: T.MultiheadAttention(6, 2),
        [(5, 2, 6), (4, 2, 6), (4, 2, 6)],
    ),
}


def draw(shape, random):
    """Return random arrays of a shape, or of nested shapes."""
    if isinstance(shape, tuple) and isinstance(shape[0], int):
        return random.normal(size=shape).astype(np.float32)
    return type(shape)(draw(part, random) for part in shape)


def each(function, value):
    """Apply ``function`` to arrays in nested containers."""
    if isinstance(value, tuple | list):
        return tuple(each(function, part) for part in value)
    return function(value)


def first(value):
    """Return the first array of nested outputs, such as (output, (h, c)) of an LSTM."""
    while isinstance(value, tuple | list):
        value = value[0]
    return value


def weights_for(module, random):
    """Return random weights by PyTorch name; running variances are positive."""
    state = {}
    for name, value in module.state_dict().items():
        drawn = (0.5 * random.normal(size=tuple(value.shape))).astype(np.float32)
        drawn = np.abs(drawn) + np.float32(0.5) if name.endswith("running_var") else drawn
        state[name] = drawn if value.is_floating_point() else np.int64(3)
    return state


def put(module, state):
    """Load arrays into a PyTorch module, in float64."""
    module.load_state_dict({n: torch.from_numpy(np.asarray(v)) for n, v in state.items()})
    return module.double()


def off(actual, expected):
    """Return the largest difference over the largest expected value."""
    actual, expected = actual.asnumpy(), expected.detach().numpy()
    assert actual.shape == expected.shape and expected.any()
    return np.abs(actual - expected).max() / np.abs(expected).max()


def compute(network, inputs, weight):
    """Return a Cell's outputs and the gradients of sum(weight * output) by input and parameter."""

    def objective(*inputs):
        output = network(*inputs)
        # Two levels at most, unrolled because graphs do not support a loop with isinstance.
        output = output[0] if isinstance(output, tuple) else output
        output = output[0] if isinstance(output, tuple) else output
        return (output * weight).sum(), output

    with pynative():
        gradient = ms.value_and_grad(objective, 0, network.trainable_params(), has_aux=True)
        (_, output), (by_input, by_parameter) = gradient(*inputs)
    return output, by_input, by_parameter


@pytest.mark.parametrize("name", TABLE)
def test_outputs_and_gradients_are_pytorchs(name):
    build, build_torch, shape = TABLE[name]
    limit = RECURRENT if name.startswith(("lstm", "gru", "rnn")) else SINGLE
    random = np.random.default_rng(1)
    network, module = build(), build_torch()
    state = weights_for(module, random)
    result = load(network, state)
    module = put(module, state)
    inputs = draw(shape if isinstance(shape, list) else [shape], random)
    theirs = each(lambda x: torch.from_numpy(x).double().requires_grad_(), inputs)
    expected = first(module(*theirs))
    weight = random.normal(size=tuple(expected.shape))
    (expected * torch.from_numpy(weight)).sum().backward()
    output, by_input, by_parameter = compute(
        network, each(Tensor, inputs), Tensor(weight, ms.float32)
    )
    assert off(output, expected) <= limit
    assert off(by_input, theirs[0].grad) <= limit
    names = {pair.mindspore: pair for pair in result.pairs}
    gradients = dict(module.named_parameters())
    assert len(by_parameter) == len(gradients)
    for parameter, actual in zip(network.trainable_params(), by_parameter, strict=True):
        pair = names[parameter.name]
        assert off(actual.reshape(pair.torch_shape), gradients[pair.torch].grad) <= limit, pair
    back = state_dict(network)
    assert all(np.array_equal(back[n], v) for n, v in state.items() if not n.endswith("tracked"))


@pytest.mark.parametrize("build", [nn.Embedding, nn.EmbeddingLookup, mint.nn.Embedding])
def test_embeddings(build):
    index = np.array([[0, 4, 2], [3, 3, 1]])
    network, module = build(5, 3), T.Embedding(5, 3)
    state = weights_for(module, np.random.default_rng(0))
    load(network, state)
    expected = put(module, state)(torch.from_numpy(index))
    assert off(network(Tensor(index, ms.int32)), expected) == 0


@pytest.mark.parametrize(
    ("build", "build_torch", "shape"),
    [
        (nn.BatchNorm1d, T.BatchNorm1d, (6, 4)),
        (nn.BatchNorm2d, T.BatchNorm2d, (3, 4, 2, 2)),
        (nn.BatchNorm3d, T.BatchNorm3d, (3, 4, 2, 2, 1)),
    ],
)
def test_batch_norms_train_and_their_statistics_follow_as_pytorchs(build, build_torch, shape):
    """The running variance is unbiased; with 6 to 12 values a biased one is 8 to 17 % smaller."""
    random = np.random.default_rng(3)
    network, module = build(4, eps=1e-5, momentum=0.9), build_torch(4)
    state = weights_for(module, random)
    load(network, state)
    module = put(module, state).train()
    network.set_train()
    for _ in range(2):
        x = (1 + 2 * random.normal(size=shape)).astype(np.float32)
        theirs = torch.from_numpy(x).double().requires_grad_()
        expected = module(theirs)
        weight = random.normal(size=shape)
        module.zero_grad()
        (expected * torch.from_numpy(weight)).sum().backward()
        actual, by_input, by_parameter = compute(network, (Tensor(x),), Tensor(weight, ms.float32))
        assert off(actual, expected) <= SINGLE
        assert off(by_input, theirs.grad) <= SINGLE
        assert off(by_parameter[0], module.weight.grad) <= SINGLE
        assert off(by_parameter[1], module.bias.grad) <= SINGLE
    back = state_dict(network)
    for name in ("running_mean", "running_var"):
        expected = module.state_dict()[name].numpy()
        assert np.abs(expected - state[name]).max() > 0.1
        assert np.abs(back[name] - expected).max() <= SINGLE * np.abs(expected).max(), name


def test_transformer_layers_by_renames():
    random = np.random.default_rng(5)
    network = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0)
    module = T.TransformerEncoderLayer(6, 2, 8, dropout=0.0)
    state = weights_for(module, random)
    load(network, state, renames={"dense1": "linear1", "dense2": "linear2"})
    x = random.normal(size=(5, 2, 6)).astype(np.float32)
    expected = put(module, state).train()(torch.from_numpy(x).double())
    assert off(network(Tensor(x)), expected) <= SINGLE


def test_transposed_convolutions_with_output_padding_compute_otherwise_and_are_refused():
    """MindSpore 2.10 appends zeros; PyTorch computes the last row and column."""
    random = np.random.default_rng(0)
    build = {"stride": 2, "padding": 1, "output_padding": 1}
    network = conv(nn.Conv2dTranspose, 4, 6, 3, **build)
    module = T.ConvTranspose2d(4, 6, 3, **build)
    state = weights_for(module, random)
    set_state(network.weight, state["weight"])
    set_state(network.bias, state["bias"])
    x = random.normal(size=(2, 4, 5, 6)).astype(np.float32)
    actual, expected = network(Tensor(x)), put(module, state)(torch.from_numpy(x).double())
    assert off(actual, expected) > 0.1
    assert not actual.asnumpy()[:, :, -1].any() and expected.detach().numpy()[:, :, -1].any()
    with pytest.raises(InputError, match="the network: nn.Conv2dTranspose with output_padding=1"):
        load(network, state)
    inside = nn.SequentialCell(nn.ReLU(), conv(nn.Conv2dTranspose, 4, 6, 3, **build))
    with pytest.raises(InputError, match="^1: nn.Conv2dTranspose.*appends zeros"):
        pairs(inside)


# MindSpore 2.10 has no CPU kernel for these: names and shapes only.
WITHOUT_KERNEL = {
    "instance norm": (
        lambda: nn.InstanceNorm2d(4),
        lambda: T.InstanceNorm2d(4, affine=True),
    ),
    "mint batch norm": (lambda: mint.nn.BatchNorm2d(4), lambda: T.BatchNorm2d(4)),
    "mint layer norm": (lambda: mint.nn.LayerNorm(6), lambda: T.LayerNorm(6)),
    "mint conv1d": (lambda: mint.nn.Conv1d(4, 6, 3), lambda: T.Conv1d(4, 6, 3)),
    "mint conv2d": (
        lambda: mint.nn.Conv2d(4, 6, 3, groups=2),
        lambda: T.Conv2d(4, 6, 3, groups=2),
    ),
    "mint conv2d transposed": (
        lambda: mint.nn.ConvTranspose2d(4, 6, 3),
        lambda: T.ConvTranspose2d(4, 6, 3),
    ),
    "mint conv3d": (lambda: mint.nn.Conv3d(2, 3, 3), lambda: T.Conv3d(2, 3, 3)),
    "sync batch norm": (lambda: nn.SyncBatchNorm(4), lambda: T.SyncBatchNorm(4)),
}


@pytest.mark.parametrize("name", WITHOUT_KERNEL)
def test_layers_without_a_cpu_kernel_go_there_and_back(name):
    build, build_torch = WITHOUT_KERNEL[name]
    network, module = build(), build_torch()
    state = weights_for(module, np.random.default_rng(1))
    result = load(network, state)
    counters = {counter: 3 for counter in result.carried}
    back = state_dict(network, counters=counters)
    assert back.keys() == state.keys()
    for key, value in state.items():
        assert np.array_equal(back[key], value) and back[key].dtype == value.dtype, key


def test_instance_norms_with_running_statistics_are_refused():
    """PyTorch reads them in evaluation; MindSpore never does."""
    state = T.InstanceNorm2d(4, affine=True, track_running_stats=True).state_dict()
    with pytest.raises(InputError, match="no parameter of the network for: running_mean"):
        load(nn.InstanceNorm2d(4), state)
