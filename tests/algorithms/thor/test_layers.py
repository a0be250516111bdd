"""Which layers are found; taps change no output and no name, and come off again."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple, Tensor, mint, nn

from labkit.algorithms.thor import ThorStep, ThorUpdate
from labkit.algorithms.thor.taps import Tapped
from labkit.errors import InputError
from labkit.nets.lenet import LeNet5
from labkit.nets.resnet import resnet
from labkit.nets.small import NormNet
from labkit.runtime import pynative
from labkit.steps.losses import LossNet
from tests.support.step_cells import assert_bit_equal, digits, momentum, restore, snapshot, tensors
from tests.support.thor_layers import fill, normal

pytestmark = pytest.mark.usefixtures("runtime")


class Block(nn.Cell):
    """A dense layer, a norm and, in a CellList, two more dense layers in a list of their own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Dense(4, 4)
        self.norm = nn.LayerNorm((4,))
        self.lists = nn.CellList([nn.CellList([nn.Dense(4, 4), nn.Dense(4, 4, activation="tanh")])])

    def construct(self, x):
        x = self.norm(self.first(x))
        for inner in self.lists:
            for layer in inner:
                x = layer(x)
        return x


class Nested(nn.Cell):
    """(N, 4) -> (N, 2) through sequences, lists and blocks."""

    def __init__(self):
        super().__init__()
        self.stem = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU(), nn.SequentialCell(nn.Dense(4, 4)))
        self.block = Block()
        self.head = mint.nn.Linear(4, 2)

    def construct(self, x):
        return self.head(self.block(self.stem(x)))


NAMES = ["stem.0", "stem.2.0", "block.first", "block.lists.0.0", "block.lists.0.1", "head"]


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
        update = convert(network)
        assert sorted(names(update)) == sorted(NAMES)
        assert sorted(taps(network)) == sorted(NAMES)

    def test_lenet_in_the_order_of_its_cells(self):
        assert names(convert(LeNet5())) == ["conv1", "conv2", "fc1", "fc2", "fc3"]

    def test_resnet_with_its_downsampling_convolutions_and_no_norm(self):
        network = resnet(18, 10, width=0.0625)
        found = names(convert(network))
        assert len(found) == 21 and "layer2.0.downsample.0" in found
        weights = {p.name for p in network.trainable_params() if p.ndim > 1}
        assert {f"{name}.weight" for name in found} == weights

    def test_a_network_that_is_one_layer(self):
        assert names(convert(nn.Dense(3, 2))) == ["network"]

    def test_what_the_optimizer_does_not_update_stays(self):
        network = LeNet5()
        found = convert(network, [p for p in network.trainable_params() if "fc" in p.name])
        assert names(found) == ["fc1", "fc2", "fc3"]

    def test_a_bias_that_the_optimizer_does_not_update_is_no_coordinate(self):
        network = nn.SequentialCell(nn.Dense(4, 3))
        layer = convert(network, [network[0].weight]).layers[0]
        assert (layer.inputs, layer.homogeneous) == (4, False)

    @pytest.mark.parametrize("bias, inputs", [("homogeneous", 401), ("plain", 400)])
    def test_bias_by_name(self, bias, inputs):
        assert convert(LeNet5(), bias=bias).layers[2].inputs == inputs

    def test_skip_by_name_and_by_cell(self):
        network = LeNet5()
        assert names(convert(network, skip=("conv1", network.fc2))) == ["conv2", "fc1", "fc3"]
        assert taps(network) == ["conv2", "fc1", "fc3"]


class Tied(nn.Cell):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 4)
        self.second.weight = self.first.weight

    def construct(self, x):
        return self.second(self.first(x))


class TwoNames(nn.Cell):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Dense(4, 4)
        self.second = self.first

    def construct(self, x):
        return self.second(self.first(x))


def twice_in_a_sequence():
    layer = nn.Dense(4, 4)
    return nn.SequentialCell(layer, nn.ReLU(), layer)


class TiedToTable(nn.Cell):
    """A language model whose head multiplies with its embedding's table."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden = nn.Embedding(6, 4), nn.Dense(4, 4)
        self.head = nn.Dense(4, 6, has_bias=False)
        self.head.weight = self.embed.embedding_table

    def construct(self, tokens):
        return self.head(self.hidden(self.embed(tokens)))


class Owner(nn.Cell):
    """Has a Parameter of another Cell as its own, as an attribute, in a tuple or in a list."""

    def __init__(self, parameter, kind):
        super().__init__(auto_prefix=False)
        self.kept = {"attribute": parameter, "tuple": ParameterTuple([parameter])}.get(
            kind, [parameter]
        )

    def construct(self, x):
        return x


class OwnedTwice(nn.Cell):
    """A dense layer, and a Cell of another type that has its weight or its bias as well."""

    def __init__(self, kind, which="weight"):
        super().__init__()
        self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 4)
        self.owner = Owner(getattr(self.first, which), kind)

    def construct(self, x):
        return self.owner(self.second(self.first(x)))


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


class TestRefused:
    @pytest.mark.parametrize(
        "make, first, second",
        [
            (Tied, "first", "second"),
            (TwoNames, "first", "second"),
            (twice_in_a_sequence, "0", "2"),
        ],
    )
    def test_one_weight_in_two_places(self, make, first, second):
        network = make()
        said = f"layer '{first}' shares its weight .* with '{second}'; layer '{second}' shares its"
        with pytest.raises(InputError, match=f"{said} .*skip=\\('{first}', '{second}'\\)"):
            convert(network)
        assert not taps(network)

    @pytest.mark.parametrize("skip", [("first",), ("second",)])
    def test_the_other_place_would_have_half_of_the_factors(self, skip):
        with pytest.raises(InputError, match="shares its weight"):
            convert(Tied(), skip=skip)
        with pytest.raises(InputError, match="skip=\\('first', 'second'\\) leaves"):
            convert(Tied(), skip=("first", "second"))

    def test_a_head_that_is_tied_to_an_embedding(self):
        network = TiedToTable()
        said = "layer 'head' shares its weight 'embed.embedding_table' with 'embed'"
        with pytest.raises(InputError, match=f"{said}; .*skip=\\('head',\\)"):
            convert(network)
        assert not taps(network)
        assert names(convert(network, skip=("head",))) == ["hidden"]

    @pytest.mark.parametrize("kind", ["attribute", "tuple", "list"])
    def test_a_cell_of_any_type_that_has_the_weight(self, kind):
        network = OwnedTwice(kind)
        with pytest.raises(InputError, match=r"'first' shares its weight .* with 'owner'"):
            convert(network)
        assert names(convert(network, skip=("first",))) == ["second"]

    def test_a_shared_bias_where_it_is_in_the_factors(self):
        network = OwnedTwice("attribute", "bias")
        with pytest.raises(InputError, match=r"'first' shares its bias .* with 'owner'"):
            convert(network)
        assert names(convert(network, bias="plain")) == ["first", "second"]

    def test_a_shared_weight_that_is_not_updated_is_nobodys_concern(self):
        network = TiedToTable()
        assert names(convert(network, network.hidden.trainable_params())) == ["hidden"]

    def test_all_at_once_with_what_attention_does_not_call(self):
        network = Attention()
        with pytest.raises(InputError) as caught:
            convert(network)
        said = str(caught.value)
        assert "\n" not in said and f"skip={('head', *OUT)}" in said
        assert said.count("is never called: nn.MultiheadAttention takes its weight") == 2
        assert not taps(network)
        found = names(convert(network, skip=(*OUT, "head")))
        assert sorted(found) == [f"encoder.layers.{n}.dense{k}" for n in (0, 1) for k in (1, 2)]

    def test_a_second_conversion(self):
        network = LeNet5()
        update = convert(network)
        with pytest.raises(
            InputError, match=r"'network.conv1' has a tap .*call that one's release"
        ):
            convert(network)
        update.release()
        assert len(convert(network).layers) == 5

    @pytest.mark.parametrize(
        "skip, message",
        [
            (("fc4",), "skip names a layer 'fc4' that has no factors. Did you mean 'fc[123]'"),
            (("relu",), "skip names a layer 'relu' that has no factors"),
            (("conv1", "cnov2"), "'cnov2' that has no factors.*Did you mean 'conv2'"),
            ((nn.Dense,), "skip holds a type that is no Cell of the network"),
            ((3,), "skip holds a int that is no Cell of the network"),
        ],
    )
    def test_unknown_names_in_skip(self, skip, message):
        network = LeNet5()
        with pytest.raises(InputError, match=message):
            convert(network, skip=skip)
        assert not taps(network)

    def test_another_networks_cell_in_skip(self):
        with pytest.raises(InputError, match="skip holds a Dense that is no Cell of the network"):
            convert(LeNet5(), skip=(nn.Dense(3, 3),))

    def test_nothing_to_precondition(self):
        network = nn.SequentialCell(nn.LayerNorm((4,)))
        with pytest.raises(InputError, match="THOR has nothing to precondition"):
            convert(network)
        with pytest.raises(InputError, match=r"skip=\('0',\) leaves"):
            convert(nn.SequentialCell(nn.Dense(4, 4)), skip=("0",))

    def test_a_convolution_on_other_axes(self):
        network = LeNet5()
        network.conv2.data_format = "NHWC"  # MindSpore refuses to build one on CPU
        with pytest.raises(InputError, match="expected 'NCHW'"):
            convert(network)
        assert not taps(network)


NETWORKS = {
    "nested": (Nested, (5, 4)),
    "lenet": (LeNet5, (3, 1, 32, 32)),
    "norm": (NormNet, (3, 1, 32, 32)),
}


class TestConversion:
    @pytest.mark.parametrize("name", NETWORKS)
    def test_outputs_names_and_order_are_unchanged(self, name):
        make, shape = NETWORKS[name]
        network, x = fill(make()), Tensor(normal(shape))
        before = [p.name for p in network.get_parameters()], snapshot(network)
        with pynative():
            outputs = network(x).asnumpy()
            update = convert(network)
            assert taps(network)
            np.testing.assert_array_equal(network(x).asnumpy(), outputs)
            assert [p.name for p in network.get_parameters()] == before[0]
            assert_bit_equal(snapshot(network), before[1])
            update.release()
            np.testing.assert_array_equal(network(x).asnumpy(), outputs)

    def test_compiled_outputs_are_the_same_to_the_bit(self):
        network, twin, x = LeNet5(), LeNet5(), Tensor(normal((3, 1, 32, 32)))
        restore(twin, snapshot(fill(network)))
        convert(network)
        np.testing.assert_array_equal(network(x).asnumpy(), twin(x).asnumpy())

    @pytest.mark.parametrize("name", NETWORKS)
    def test_release_gives_the_layers_back(self, name):
        network = NETWORKS[name][0]()
        before = dict(network.cells_and_names())
        sequences = {
            path: list(cell.cell_list)
            for path, cell in before.items()
            if isinstance(cell, nn.SequentialCell)
        }
        flags = {p: getattr(cell, "activation_flag", None) for p, cell in before.items()}
        update = convert(network)
        assert dict(network.cells_and_names()) != before
        for _ in range(2):  # the second time it changes nothing
            update.release()
            after = dict(network.cells_and_names())
            assert list(after) == list(before)
            assert all(after[path] is cell for path, cell in before.items())
            assert {p: getattr(c, "activation_flag", None) for p, c in after.items()} == flags
            for path, cells in sequences.items():
                assert all(a is b for a, b in zip(after[path].cell_list, cells, strict=True))

    def test_checkpoints_go_both_ways(self, tmp_path):
        file = str(tmp_path / "it.ckpt")
        plain, converted = fill(LeNet5(), 1), fill(LeNet5(), 2)
        convert(converted)
        for source, target in ((plain, converted), (fill(LeNet5(), 3), LeNet5())):
            if target is not converted:
                convert(source)
            ms.save_checkpoint(source, file)
            loaded = ms.load_checkpoint(file)
            assert set(loaded) == {p.name for p in plain.get_parameters()}
            assert ms.load_param_into_net(target, loaded) == ([], [])
            assert_bit_equal(snapshot(target), snapshot(source))

    def test_a_checkpoint_of_the_step_loads_into_the_bare_network(self, tmp_path):
        network = NormNet()
        loss_net = LossNet(network, nn.CrossEntropyLoss())
        with pynative():
            step = ThorStep(loss_net, momentum(network), 0.1)
            step(*tensors(*digits(4)))
        ms.save_checkpoint(step, str(tmp_path / "it.ckpt"))
        bare = NormNet()
        loaded = ms.load_checkpoint(str(tmp_path / "it.ckpt"))
        assert ms.load_param_into_net(bare, loaded)[0] == []
        assert_bit_equal(snapshot(bare), snapshot(network))
        own = {f"thor.{n}.{f}" for n in ("conv", "dense") for f in ("a_factor", "g_inverse")}
        assert own <= set(loaded)

    def test_a_tap_has_its_layers_attributes(self):
        network = LeNet5(conv_bias=True)
        plain = network.conv1
        convert(network)
        assert isinstance(network.conv1, Tapped)
        for name in ("weight", "bias", "kernel_size", "in_channels", "pad_mode", "has_bias"):
            assert getattr(network.conv1, name) is getattr(plain, name), name
        with pytest.raises(AttributeError, match="kernal_size"):
            network.conv1.kernal_size  # noqa: B018

    def test_training_mode_reaches_the_layers(self):
        network = LeNet5()
        update = convert(network)
        network.set_train()
        assert network.fc1.training and network.fc1.layer.training
        update.release()
        assert network.fc1.training
