"""``precision="auto"`` and bfloat16: what is computed in which type, and what is refused."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.ops.primitive import constexpr

from labkit.algorithms.thor import ThorStep
from labkit.errors import InputError
from labkit.steps import precision
from labkit.steps.losses import LossNet, TokenLossNet
from labkit.steps.options import DynamicLossScale, GradientOptions
from labkit.steps.state import set_state
from labkit.steps.step import PlainStep
from tests.support.step_cells import linear, tensors

pytestmark = pytest.mark.usefixtures("runtime")

CLASSES, WIDTH, LENGTH = 11, 8, 6
AUTO = {"precision": "auto", "loss_scale": DynamicLossScale()}
TYPES: dict[str, str] = {}


@constexpr
def note(name, dtype):
    """Note, when a graph is compiled, the type of a Tensor in it."""
    TYPES[name] = str(dtype)
    return True


class Attention(nn.Cell):
    """Causal attention written by hand, a tied matmul as its head: tokens -> logits."""

    def __init__(self):
        super().__init__()
        self.embed, self.query = nn.Embedding(CLASSES, WIDTH), nn.Dense(WIDTH, WIDTH)
        draw = np.random.default_rng(0)
        for weight in self.trainable_params():
            set_state(weight, draw.normal(size=weight.shape).astype(np.float32) * 0.5)
        self.mask = Tensor(np.tril(np.ones((LENGTH, LENGTH), np.float32)) * 1e4 - 1e4)

    def construct(self, tokens):
        x = self.embed(tokens)
        scores = ops.matmul(self.query(x), x.swapaxes(1, 2))
        x = x + ops.matmul(ops.softmax(scores + self.mask, -1), x)
        return ops.matmul(x, self.embed.embedding_table.T)


def test_factors_are_sums_in_float32():
    """Of inputs as the layer gets them: in float16, A would overflow at 65504."""
    network = nn.SequentialCell(nn.Dense(3, 2, weight_init="zeros", bias_init="zeros"))
    inputs = np.random.default_rng(0).normal(0, 300, (16, 3)).astype(np.float32)
    step = ThorStep(
        LossNet(network, nn.MSELoss()), nn.SGD(network.trainable_params(), 0.0), 1.0, **AUTO
    )
    step(*tensors(inputs, np.full((16, 2), 1e-3, np.float32)))
    homogeneous = np.c_[inputs, np.ones(16)].astype(np.float64)
    expected = homogeneous.T @ homogeneous / 16
    assert expected.max() > 65504
    (a_factor,) = step.update.layers[0].a_factor.asnumpy()
    np.testing.assert_allclose(a_factor, expected, rtol=1e-5, atol=1e-6 * expected.max())
    assert step.last_update.number == 1


class Typed(nn.Cell):
    """A network that notes its types."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Dense(3, 4, has_bias=False), nn.LayerNorm((4,))
        self.biased, self.head = nn.Dense(4, 4), Parameter(Tensor(np.eye(4, 2, dtype=np.float32)))

    def construct(self, x):
        y = self.first(x)
        note("product", y.dtype)
        note("norm", self.norm(y).dtype)
        biased = self.biased(y)
        note("product and bias", biased.dtype)
        note("softmax", ops.softmax(y, -1).dtype)
        note("exp", ops.exp(y).dtype)
        note("scores", ops.matmul(y, y.T).dtype)
        y = ops.matmul(biased * ops.softmax(ops.matmul(y, y.T), -1).sum(), self.head)
        note("outputs inside", y.dtype)
        return y


def noted_loss(outputs, targets):
    note("outputs", outputs.dtype)
    note("product in the loss", ops.matmul(outputs, outputs.T).dtype)
    return ops.mean(ops.square(outputs - targets))


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16], ids=str)
def test_operators_are_cast_by_mindspores_lists(dtype, monkeypatch):
    """Products in the low type; norms, softmax, exp, sums with float32 and the loss in float32.

    The types are inferred before kernels are chosen, so the CPU, which has none for bfloat16,
    shows them too.
    """
    monkeypatch.setattr(precision, "has_products", lambda dtype: True)
    network = Typed()
    sgd = nn.SGD(network.trainable_params(), 0.1)
    step = PlainStep(LossNet(network, noted_loss), sgd, precision=("auto", dtype))
    TYPES.clear()
    data = tensors(np.ones((2, 3), np.float32), np.ones((2, 2), np.float32))
    if dtype == ms.float16:
        step(*data)
    else:
        with pytest.raises(InputError, match="CPU has no bfloat16 MatMul.*got 'bfloat16 in the n"):
            step(*data)
    low = {"product", "scores", "outputs inside"}
    float32 = {"norm", "product and bias", "softmax", "exp", "outputs", "product in the loss"}
    assert TYPES == dict.fromkeys(low, str(dtype)) | dict.fromkeys(float32, "Float32")
    assert all(weight.dtype == ms.float32 for weight in sgd.parameters)


def test_outside_of_the_step_the_network_stays_float32():
    network = nn.Dense(3, 2, has_bias=False)  # whose product nothing casts back
    inputs = Tensor(np.random.default_rng(0).normal(size=(4, 3)), ms.float32)
    before = network(inputs).asnumpy()
    loss_net = LossNet(network, nn.MSELoss())
    PlainStep(loss_net, nn.SGD(network.trainable_params(), 0.1), precision="auto")
    np.testing.assert_array_equal(network(inputs).asnumpy(), before)
    outputs = loss_net.network(inputs)
    assert outputs.dtype == ms.float32 and (outputs.asnumpy() != before).any()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (("auto", ms.float16), "auto"),
        (("auto", ms.bfloat16), "auto-bfloat16"),
        ("auto-bfloat16", "auto-bfloat16"),
    ],
)
def test_a_precision_is_a_plain_word_in_the_settings(given, word):
    settings = GradientOptions(precision=given).settings()
    assert json.loads(json.dumps(settings))["precision"] == word


def step_of(network, level="O0"):
    sgd = nn.SGD(network.trainable_params(), 0.1)
    return PlainStep(LossNet(network, nn.MSELoss()), sgd, precision=level)


def in_bfloat16():
    network = linear()
    network.weight.set_dtype(ms.bfloat16)
    return network


class Scaled(nn.Cell):
    """A frozen scale in bfloat16, and a product in it or in float32."""

    def __init__(self, dtype):
        super().__init__()
        self.scale = Parameter(Tensor(np.ones(3), ms.bfloat16), requires_grad=False)
        self.weight, self.dtype = Parameter(Tensor(np.ones((3, 2)), ms.float32)), dtype

    def construct(self, x):
        x = ops.cast(ops.cast(x, ms.bfloat16) * self.scale, self.dtype)
        return ops.matmul(x, ops.cast(self.weight, self.dtype))


def twice(first, second):
    network = linear()
    for level in (first, second):
        step_of(network, level)


def called(network, level="O0", outputs=2):
    data = tensors(np.ones((2, 3), np.float32), np.ones((2, outputs), np.float32))
    return step_of(network, level)(*data)


def on_attention(level):
    network, tokens = Attention(), Tensor(np.zeros((2, LENGTH), np.int32))
    sgd = nn.SGD(network.trainable_params(), 0.1)
    return PlainStep(TokenLossNet(network), sgd, precision=level)(tokens, tokens)


NO_PRODUCT = "MindSpore's CPU has no bfloat16 product: expected float32 layers and precision='auto'"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        # Before a compilation.
        (lambda: step_of(linear(), ("auto", ms.bfloat16)), NO_PRODUCT + ".*got .*auto-bfloat16"),
        (lambda: step_of(linear().to_float(ms.bfloat16)), NO_PRODUCT + ".*layer 'network' in bf"),
        (lambda: step_of(in_bfloat16()), NO_PRODUCT + ".*layer 'network' in bfloat16"),
        (lambda: step_of(linear(), ("auto", ms.float32)), "'auto-bfloat16', got .'auto', minds"),
        (lambda: twice("auto", "O0"), "precision: expected 'auto', which an earlier .*, got 'O0'"),
        (lambda: twice("O2", "auto"), "precision: expected 'O2', which an earlier .*, got 'auto'"),
        # At the first.
        (lambda: called(Scaled(ms.bfloat16)), r"CPU has no bfloat16 \w+: expected float32 lay"),
        (lambda: called(mint.nn.LayerNorm((3,)), outputs=3), "that CPU has, .*got LayerNormExt$"),
        (lambda: on_attention("O2"), "precision: expected 'auto', .*MatMulExt.*got 'O2'$"),
        (lambda: on_attention("O3"), "precision: expected 'auto', .*MatMulExt.*got 'O3'$"),
    ],
)
def test_refused(call, words):
    with pytest.raises(InputError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_what_runs_in_bfloat16_is_not_refused():
    """CPU has no product in bfloat16, and an element-wise one."""
    assert np.isfinite(float(called(Scaled(ms.float32))))
    assert precision.has_products(ms.float16) and not precision.has_products(ms.bfloat16)
