"""``Step.memory``: bytes by part, each Parameter once. Nothing is compiled."""

import numpy as np
import pytest
from mindspore import nn

from labkit.steps.losses import LossNet
from labkit.steps.state import state
from labkit.steps.step import PlainStep
from labkit.steps.update import UpdateStage
from tests.support.step_cells import STEPS, plain

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm"),
]

# All are numbers of 4 bytes. Dense 4 -> 3, BatchNorm of 3, dense 3 -> 2; before them a frozen layer
# 4 -> 4. A and G belong to the two dense layers, with their biases; two counts to each layer.
WEIGHTS, FROZEN, A, G, COUNTS = 12 + 3 + 2 * 3 + 6 + 2, 16 + 4, 25 + 16, 9 + 4, 2 * 2
COMMON = {"weights": WEIGHTS, "frozen weights": FROZEN, "statistics": 2 * 6}
SUMS = {"gradient sums": WEIGHTS}
FACTORS = {"factors": A + G + COUNTS, "inverses": A + G, "held gradients": WEIGHTS}
MEMORY = WEIGHTS + 3 * 3 + 3 + 3 + 1 + 3  # residual, B, last gradient and step, pair, trials ...


class Own(UpdateStage):
    """A stage with state of its own, under no name."""

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.copy = state("copy", np.zeros(100))


def step_of(make):
    network = nn.SequentialCell(nn.Dense(4, 4), nn.Dense(4, 3), nn.BatchNorm1d(3), nn.Dense(3, 2))
    network[0].weight.requires_grad = network[0].bias.requires_grad = False
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    return make(LossNet(network, nn.CrossEntropyLoss()), optimizer)


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (plain, {}),
        (lambda net, optimizer: PlainStep(net, nn.LARS(optimizer)), {}),
        (lambda net, optimizer: PlainStep(net, optimizer, update=Own(optimizer)), {}),
        (STEPS["accumulated"], SUMS),
        (STEPS["thor"], FACTORS),
        (STEPS["accumulated thor"], FACTORS | {"gradient sums": WEIGHTS + A + G + COUNTS}),
        (
            # Two workers, each with five notes and its moments; a twin with weights and moments.
            STEPS["adasum"],
            SUMS
            | {"workers' vectors": 2 * (WEIGHTS + 5), "a worker's turn": 2 * WEIGHTS}
            | {"bank": 2 * WEIGHTS},
        ),
        (STEPS["subspace"], SUMS | {"basis": 3 * WEIGHTS, "search": MEMORY}),
    ],
)
def test_each_number_is_counted_once_in_its_part(make, numbers):
    step = step_of(make)
    memory, parts = step.memory(), COMMON | numbers
    # The moments, a count, the rate and the momentum; a count and a rate of its own.
    own = WEIGHTS + 3 + 2 * isinstance(step.optimizer, nn.LARS)
    assert memory.pop("optimizer state") == 4 * own
    others = memory.pop("others")
    assert memory == {part: 4 * count for part, count in parts.items()}
    sizes = {id(each): each.nbytes for each in step.get_parameters()}
    basis = 4 * numbers.get("basis", 0)
    assert sum(memory.values()) + others + 4 * own == sum(sizes.values()) + basis
    stage = 400 if isinstance(step.update, Own) else 0
    assert stage <= others < stage + 200  # counters


def test_printed_it_is_a_table_with_the_sum(capsys):
    memory = step_of(plain).memory()
    print(memory)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-2] for line in lines] == [
        *(f"{size:,}" for size in memory.values()),
        f"{sum(memory.values()):,}",
    ]
    assert lines[0].split() == ["weights", str(4 * WEIGHTS), "bytes"]
