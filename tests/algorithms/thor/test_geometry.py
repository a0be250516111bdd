"""Sizes of factors, blocks and paddings; which layers are found; tied weights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import nn

from labkit import reference
from labkit.algorithms.thor import ThorUpdate
from labkit.algorithms.thor.layers import Tapped, cut, padding
from labkit.errors import InputError
from labkit.nets.lenet import LeNet5
from labkit.nets.resnet import resnet
from labkit.steps.losses import LossNet
from tests.support.step_cells import momentum
from tests.support.thor_layers import Nested

pytestmark = pytest.mark.usefixtures("runtime")


@given(st.integers(1, 5000), st.none() | st.integers(1, 600))
def test_blocks_are_as_few_and_as_equal_as_possible(dimension, split):
    blocks = cut(dimension, split)
    most = split or dimension
    assert blocks.size <= most and blocks.count * blocks.size >= dimension
    assert (blocks.count - 1) * most < dimension, "one block fewer would have been enough"
    padded = blocks.count * blocks.size - dimension
    assert 0 <= padded < blocks.count, "a block smaller by one would have been enough"
    bounds = reference.block_bounds(dimension, split)
    starts = range(0, dimension, blocks.size)
    assert bounds == [(first, min(first + blocks.size, dimension)) for first in starts]


axes = st.tuples(st.integers(1, 4), st.integers(1, 4))


@given(st.tuples(st.integers(1, 20), st.integers(1, 20)), axes, axes, axes)
def test_same_padding_is_the_references(size, kernel, stride, dilation):
    (top, bottom), (left, right) = padding("same", (9,) * 4, kernel, stride, dilation, size)
    assert (top, bottom, left, right) == reference.same_padding(size, kernel, stride, dilation)
    assert 0 <= bottom - top <= 1 and 0 <= right - left <= 1
    for axis, around in enumerate((top + bottom, left + right)):
        last = size[axis] + around - (kernel[axis] - 1) * dilation[axis] - 1
        assert last // stride[axis] + 1 == -(-size[axis] // stride[axis])


NAMES = ["stem.0", "stem.2.0", "lists.0.0", "lists.0.1", "head"]


def convert(network, parameters=None, **options):
    """Put taps into the network; return the update stage."""
    optimizer = momentum(network) if parameters is None else nn.SGD(parameters, 0.1)
    options.setdefault("loss", "sample mean")
    return ThorUpdate(LossNet(network, nn.MSELoss()), optimizer, 0.1, **options)


def names(update):
    return [layer.layer_name for layer in update.layers]


def taps(network):
    return [name for name, cell in network.cells_and_names() if isinstance(cell, Tapped)]


class TestFound:
    def test_in_sequences_lists_and_blocks(self):
        network = Nested()
        assert sorted(names(convert(network))) == sorted(taps(network)) == sorted(NAMES)

    def test_resnet_with_its_downsampling_convolutions_and_no_norm(self):
        network = resnet(18, 10, width=0.0625)
        layers = names(convert(network))
        assert len(layers) == 21 and "layer2.0.downsample.0" in layers
        weights = {p.name for p in network.trainable_params() if p.ndim > 1}
        assert {f"{name}.weight" for name in layers} == weights

    @pytest.mark.parametrize(
        "trained, skip, left",
        [
            ("", ["conv1", "fc2"], ["conv2", "fc1", "fc3"]),
            ("", ("conv*",), ["fc1", "fc2", "fc3"]),
            ("", ["fc[12]", "*3"], ["conv1", "conv2"]),
            ("fc", (), ["fc1", "fc2", "fc3"]),
        ],
        ids=str,
    )
    def test_what_is_skipped_or_not_trained_is_left_out(self, trained, skip, left):
        network = LeNet5()
        parameters = [p for p in network.trainable_params() if trained in p.name]
        assert names(convert(network, parameters, skip=skip)) == taps(network) == left

    def test_a_bias_that_the_optimizer_does_not_update_is_no_coordinate(self):
        network = nn.SequentialCell(nn.Dense(4, 3))
        layer = convert(network, [network[0].weight]).layers[0]
        assert (layer.inputs, layer.homogeneous) == (4, False)


class Tied(nn.Cell):
    """Two layers that share one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 4)
        self.second.weight = self.first.weight

    def construct(self, x):
        return self.second(self.first(x))


def twice_in_a_sequence():
    layer = nn.Dense(4, 4)
    return nn.SequentialCell(layer, nn.ReLU(), layer)


class Attention(nn.Cell):
    """MindSpore's own encoder of two layers, whose out_proj are never called, and a tied head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Dense(4, 6, has_bias=False)
        self.head.weight = self.embed.embedding_table

    def construct(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))


OUT = [f"encoder.layers.{number}.self_attn.out_proj" for number in range(2)]


class TestTiedWeights:
    @pytest.mark.parametrize(
        "make, first, second", [(Tied, "first", "second"), (twice_in_a_sequence, "0", "2")]
    )
    def test_one_weight_in_two_places(self, make, first, second):
        """Skipping one of the two is not enough: the other would have half of the factors."""
        said = f"layer '{first}' shares its weight .* with '{second}'; layer '{second}' shares its"
        network = make()
        with pytest.raises(InputError, match=f"{said} .*skip=\\('{first}', '{second}'\\)"):
            convert(network)
        assert not taps(network)
        with pytest.raises(InputError, match="shares its weight"):
            convert(network, skip=(first,))

    def test_all_at_once_with_what_attention_does_not_call(self):
        network = Attention()
        with pytest.raises(InputError) as raised:
            convert(network)
        said = str(raised.value)
        assert "layer 'head' shares its weight 'embed.embedding_table' with 'embed'" in said
        assert said.count("is never called: nn.MultiheadAttention takes its weight") == 2
        assert f"skip={('head', *OUT)}" in said and not taps(network)
        layers = names(convert(network, skip=("*.out_proj", "head")))
        assert sorted(layers) == [f"encoder.layers.{n}.dense{k}" for n in (0, 1) for k in (1, 2)]

    def test_a_shared_weight_that_is_not_updated_does_no_harm(self):
        network = Attention()
        dense = [p for p in network.trainable_params() if ".dense1." in p.name]
        assert len(names(convert(network, dense))) == 2
