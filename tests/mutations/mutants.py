"""One small change to the core formula of each technique, and who must see it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A wrong formula.

    file      where it is
    right     the text of the right one, which must stand there once
    wrong     what takes its place
    notebook  stem of the lab in which an assertion must fail at preset smoke
    test      node id of a unit test that must fail
    """

    file: str
    right: str
    wrong: str
    notebook: str
    test: str


MUTANTS = {
    # A micro-batch's mean gradient that does not count its samples: the mean of means.
    "accumulation, weighting": Mutant(
        file="labkit/steps/gradients.py",
        right="return loss * weight, loss, weight",
        wrong="return loss, loss, weight",
        notebook="01_gradient_accumulation",
        test="tests/steps/test_accumulation.py::TestUnevenMicroBatches",
    ),
    # The tutorial's sum: k times the learning rate.
    "accumulation, sum": Mutant(
        file="labkit/steps/gradients.py",
        right="if self.mean:",
        wrong="if not self.mean:",
        notebook="01_gradient_accumulation",
        test="tests/steps/test_accumulation.py::TestTrainingOfLeNet",
    ),
    "accumulation, the last micro-batch alone": Mutant(
        file="labkit/steps/accumulation.py",
        right="self.map(ops.assign_add, sums, gradients)",
        wrong="self.map(ops.assign, sums, gradients)",
        notebook="01_gradient_accumulation",
        test="tests/steps/test_accumulation.py::TestTrainingOfLeNet",
    ),
    # Every group holds the ones before it as well.
    "accumulation, not cleared": Mutant(
        file="labkit/steps/accumulation.py",
        right="ops.assign(self.weight_sum, 0.0)",
        wrong="ops.assign_add(self.weight_sum, 0.0)",
        notebook="01_gradient_accumulation",
        test="tests/steps/test_accumulation.py::TestTrainingOfLeNet",
    ),
    "accumulation, a micro-batch too many": Mutant(
        file="labkit/steps/accumulation.py",
        right="if self.micro_step >= self.group_size:",
        wrong="if self.micro_step > self.group_size:",
        notebook="01_gradient_accumulation",
        test="tests/steps/test_accumulation.py::TestTails",
    ),
    "accumulation, the tail": Mutant(
        file="labkit/steps/accumulation.py",
        right='if self.tail == "carry":',
        wrong='if self.tail == "drop":',
        notebook="01_gradient_accumulation",
        test="tests/steps/test_accumulation.py::TestTails",
    ),
    # PyTorch's number taken for MindSpore's, which says the opposite.
    "migration, BatchNorm's momentum": Mutant(
        file="labkit/nets/resnet.py",
        right="nn.BatchNorm2d(channels, eps=1e-5, momentum=0.9)",
        wrong="nn.BatchNorm2d(channels, eps=1e-5, momentum=0.1)",
        notebook="02_resnet50_migration",
        test="tests/nets/test_resnet.py::test_batch_norms_have_pytorchs_momentum_and_epsilon",
    ),
    "migration, map of names": Mutant(
        file="labkit/migration/names.py",
        right='{"gamma": "weight", "beta": "bias"}',
        wrong='{"gamma": "bias", "beta": "weight"}',
        notebook="02_resnet50_migration",
        test="tests/migration/test_names.py::test_names_of_a_resnet_both_ways",
    ),
    # (F - damping I)^-1 g for the natural gradient (F + damping I)^-1 g.
    "THOR, natural gradient": Mutant(
        file="labkit/algorithms/thor/curvature.py",
        right="damped = factor + damping * identity",
        wrong="damped = factor - damping * identity",
        notebook="03_thor",
        test="tests/algorithms/thor/test_curvature.py::test_directions_are_the_references",
    ),
    # Six in the float64 twin, which the notebooks compare with the step and with their own lines.
    "THOR, A of the rows alone": Mutant(
        file="labkit/reference/kronecker.py",
        right="return a_factor / (rows * positions), ",
        wrong="return a_factor / rows, ",
        notebook="03_thor",
        test=(
            "tests/reference/test_kronecker.py"
            "::test_a_constant_convolution_is_underestimated_by_its_number_of_positions"
        ),
    ),
    "THOR, G of the mean loss": Mutant(
        file="labkit/reference/kronecker.py",
        right="g_factor * rows / positions, positions",
        wrong="g_factor / positions, positions",
        notebook="03_thor",
        test="tests/reference/test_kronecker.py::test_factors_by_hand",
    ),
    "THOR, inverse": Mutant(
        file="labkit/reference/kronecker.py",
        right="return np.linalg.inv(matrix + damping * np.eye(len(matrix)))",
        wrong="return np.linalg.inv(matrix - damping * np.eye(len(matrix)))",
        notebook="03_thor",
        test="tests/reference/test_kronecker.py::test_direction_by_hand",
    ),
    # As MindSpore cuts: 128, 128, 128 and 17 inputs of LeNet's fc1 instead of 101, 101, 101 and 98.
    "THOR, blocks with a rest": Mutant(
        file="labkit/reference/kronecker.py",
        right='size = split if cut == "fixed" else math.ceil(n / math.ceil(n / split))',
        wrong="size = split",
        notebook="03_thor",
        test="tests/reference/test_kronecker.py::test_blocks_are_few_and_of_one_size_but_the_last",
    ),
    "THOR, positions": Mutant(
        file="labkit/reference/kronecker.py",
        right="return direction / _pair(positions)[0]",
        wrong="return direction",
        notebook="03_thor",
        test=(
            "tests/reference/test_kronecker.py"
            "::test_direction_solves_the_whole_damped_kronecker_system"
        ),
    ),
    # A (x) G is for vectors that stack a matrix's columns.
    "THOR, Kronecker product of columns": Mutant(
        file="labkit/reference/kronecker.py",
        right="positions * np.kron(g, a)",
        wrong="positions * np.kron(a, g)",
        notebook="03_thor_in_depth",
        test=(
            "tests/reference/test_kronecker.py"
            "::test_a_linear_network_with_derivatives_independent_of_inputs_has_kronecker_blocks"
        ),
    ),
    # 1 + <a, b> / 2 |a|^2 for 1 - <a, b> / 2 |a|^2.
    "Adasum, coefficient": Mutant(
        file="labkit/algorithms/adasum/gram.py",
        right="factors = 1 - products / (squares + TINY)",
        wrong="factors = 1 + products / (squares + TINY)",
        notebook="04_adasum",
        test="tests/algorithms/adasum/test_gram.py::test_equals_the_float64_tree[2]",
    ),
    # (I + s y^T / y.s) B (I + y s^T / y.s) + s s^T / y.s
    "subspace, BFGS": Mutant(
        file="labkit/algorithms/subspace/search.py",
        right="left = np.eye(len(s)) - np.outer(s, y) / product",
        wrong="left = np.eye(len(s)) + np.outer(s, y) / product",
        notebook="05_dimension_reduction",
        test="tests/reference/test_subspace.py::test_the_steps_own_inverse_is_the_twins",
    ),
}
