"""Small changes to the core formulas of each technique, and the tests that must detect them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A wrong formula.

    file   the file that is changed
    right  the text of the right formula, which must occur there once
    wrong  the text that replaces it
    test   node id of a unit test that must fail
    """

    file: str
    right: str
    wrong: str
    test: str


KRONECKER = "tests/reference/test_kronecker.py"
TWENTY_UPDATES = (
    "tests/algorithms/subspace/test_step.py::TestTwin::test_twenty_updates_equal_float64"
)

# Stem of the lab in which an assertion must fail at preset smoke -> {what is wrong: its mutant}.
MUTANTS = {
    "01_gradient_accumulation": {
        # Mean gradients that are not weighted by their samples: the mean of means.
        "accumulation, weighting": Mutant(
            file="labkit/steps/gradients.py",
            right="return loss * weight, loss, weight",
            wrong="return loss, loss, weight",
            test="tests/steps/test_gradients.py::test_an_update_is_that_of_all_rows",
        ),
        # The tutorial's sum: k times the learning rate.
        "accumulation, sum": Mutant(
            file="labkit/steps/gradients.py",
            right="if self.mean:",
            wrong="if not self.mean:",
            test="tests/steps/test_accumulation.py::TestTrainingOfLeNet",
        ),
        "accumulation, the last micro-batch alone": Mutant(
            file="labkit/steps/accumulation.py",
            right="self.map(ops.assign_add, sums, gradients)",
            wrong="self.map(ops.assign, sums, gradients)",
            test="tests/steps/test_accumulation.py::TestTrainingOfLeNet",
        ),
        # Every group also holds the groups before it.
        "accumulation, not cleared": Mutant(
            file="labkit/steps/accumulation.py",
            right="ops.assign(self.weight_sum, self.nothing)",
            wrong="ops.assign_add(self.weight_sum, self.nothing)",
            test="tests/steps/test_accumulation.py::TestTrainingOfLeNet",
        ),
        "accumulation, a micro-batch too many": Mutant(
            file="labkit/steps/accumulation.py",
            right="if self.micro_step >= self.group_size:",
            wrong="if self.micro_step > self.group_size:",
            test="tests/steps/test_accumulation.py::TestTails",
        ),
        "accumulation, the tail": Mutant(
            file="labkit/steps/accumulation.py",
            right='if self.tail == "carry":',
            wrong='if self.tail == "drop":',
            test="tests/steps/test_accumulation.py::TestTails",
        ),
    },
    "02_resnet50_migration": {
        # PyTorch's number taken for MindSpore's, which means the opposite.
        "migration, BatchNorm's momentum": Mutant(
            file="labkit/nets/resnet.py",
            right="nn.BatchNorm2d(channels, eps=1e-5, momentum=0.9)",
            wrong="nn.BatchNorm2d(channels, eps=1e-5, momentum=0.1)",
            test="tests/nets/test_resnet.py::test_batch_norms_have_pytorchs_momentum_and_epsilon",
        ),
        "migration, map of names": Mutant(
            file="labkit/migration/names.py",
            right='{"gamma": "weight", "beta": "bias"}',
            wrong='{"gamma": "bias", "beta": "weight"}',
            test="tests/migration/test_names.py::test_attributes_of_a_users_own_cell_keep_their_names",
        ),
        # "same" pads only after the last row, while PyTorch pads both sides.
        "migration, padding of the max-pool": Mutant(
            file="labkit/nets/resnet.py",
            right='if same else {"pad_mode": "pad", "padding": 1}',
            wrong='if True else {"pad_mode": "pad", "padding": 1}',
            test="tests/nets/test_resnet.py::test_logits_parameters_and_names_are_those_of_pytorch",
        ),
        "migration, BatchNorm's epsilon": Mutant(
            file="labkit/nets/resnet.py",
            right="channels, eps=1e-5,",
            wrong="channels, eps=1e-3,",
            test="tests/nets/test_resnet.py::test_batch_norms_have_pytorchs_momentum_and_epsilon",
        ),
        "migration, statistics exchanged": Mutant(
            file="labkit/migration/names.py",
            right='{"moving_mean": "running_mean", "moving_variance": "running_var"}',
            wrong='{"moving_mean": "running_var", "moving_variance": "running_mean"}',
            test="tests/nets/test_resnet.py::test_logits_parameters_and_names_are_those_of_pytorch",
        ),
        "migration, the update turned round": Mutant(
            file="labkit/labs/one_step.py",
            right="after[name] - before[name]",
            wrong="before[name] - after[name]",
            test="tests/labs/test_one_step.py",
        ),
    },
    "03_thor": {
        # (F - damping I)^-1 g instead of the natural gradient (F + damping I)^-1 g.
        "THOR, natural gradient": Mutant(
            file="labkit/algorithms/thor/curvature.py",
            right="damped = factor + damping * identity",
            wrong="damped = factor - damping * identity",
            test="tests/algorithms/thor/test_layers.py::test_directions_are_the_references",
        ),
        # lambda in one factor instead of its root in each.
        "THOR, damping not split": Mutant(
            file="labkit/algorithms/thor/curvature.py",
            right="a_damping = ops.sqrt(damping / a_count)",
            wrong="a_damping = damping / a_count",
            test="tests/algorithms/thor/test_layers.py::test_directions_are_the_references",
        ),
        "THOR, G's inverse twice": Mutant(
            file="labkit/algorithms/thor/curvature.py",
            right="matrix = self.product(left, matrix)\n",
            wrong="matrix = self.product(left, self.product(left, matrix))\n",
            test="tests/algorithms/thor/test_layers.py::test_directions_are_the_references",
        ),
        "THOR, A's inverse forgotten": Mutant(
            file="labkit/algorithms/thor/curvature.py",
            right="return self.product(matrix, right)",
            wrong="return matrix",
            test="tests/algorithms/thor/test_layers.py::test_directions_are_the_references",
        ),
        "THOR, the gradient itself": Mutant(
            file="labkit/algorithms/thor/update.py",
            right="return self.optimizer(directions)",
            wrong="return self.optimizer(gradients)",
            test="tests/algorithms/thor/test_update.py::test_a_small_resnet_with_batch_norm",
        ),
        "THOR, refreshed too late": Mutant(
            file="labkit/algorithms/thor/update.py",
            right="updates - last >= self.options.frequency",
            wrong="updates - last > self.options.frequency",
            test="tests/algorithms/thor/test_step.py::test_with_drop_a_training_goes_on_as_if_the_batch_had_never_existed",
        ),
    },
    "03_thor_in_depth": {
        # Mutants of the float64 twin, which the notebook compares with code of its own.
        "THOR, A of the rows alone": Mutant(
            file="labkit/reference/kronecker.py",
            right="a_factor = a_factor / (rows * positions)",
            wrong="a_factor = a_factor / rows",
            test=f"{KRONECKER}::test_a_constant_convolution_is_underestimated_by_its_number_of_positions",
        ),
        "THOR, G of the mean loss": Mutant(
            file="labkit/reference/kronecker.py",
            right="g_factor * rows / positions, positions",
            wrong="g_factor / positions, positions",
            test=f"{KRONECKER}::test_factors_by_hand",
        ),
        "THOR, inverse": Mutant(
            file="labkit/reference/kronecker.py",
            right="return np.linalg.inv(matrix + damping * np.eye(len(matrix)))",
            wrong="return np.linalg.inv(matrix - damping * np.eye(len(matrix)))",
            test=f"{KRONECKER}::test_direction_by_hand",
        ),
        # MindSpore's blocks: 128, 128, 128 and 17 inputs of LeNet's fc1, not 101, 101, 101 and 98.
        "THOR, blocks with a rest": Mutant(
            file="labkit/reference/kronecker.py",
            right="size = math.ceil(n / math.ceil(n / split))",
            wrong="size = split",
            test=f"{KRONECKER}::test_blocks_are_few_and_of_one_size_but_the_last",
        ),
        "THOR, positions": Mutant(
            file="labkit/reference/kronecker.py",
            right="return direction / np.broadcast_to(positions, 2)[0]",
            wrong="return direction",
            test=f"{KRONECKER}::test_direction_solves_the_whole_damped_kronecker_system",
        ),
        # A (x) G is for vectors that stack a matrix's columns.
        "THOR, Kronecker product of columns": Mutant(
            file="labkit/reference/kronecker.py",
            right="positions * np.kron(g, a)",
            wrong="positions * np.kron(a, g)",
            test=f"{KRONECKER}::test_a_linear_network_with_derivatives_independent_of_inputs_has_kronecker_blocks",
        ),
    },
    "04_adasum": {
        # 1 + <a, b> / 2 |a|^2 instead of 1 - <a, b> / 2 |a|^2.
        "Adasum, coefficient": Mutant(
            file="labkit/algorithms/adasum/combine.py",
            right="factors = 1 - products / (squares + TINY)",
            wrong="factors = 1 + products / (squares + TINY)",
            test="tests/algorithms/adasum/test_gram.py::test_equals_the_float64_tree[2]",
        ),
        # Parallel vectors cancel: the whole overlap is subtracted from both.
        "Adasum, the overlap not halved": Mutant(
            file="labkit/algorithms/adasum/combine.py",
            right="shares = made_by / made_by.sum(axis=1, keepdims=True)",
            wrong="shares = np.ones(made_by.shape)",
            test="tests/algorithms/adasum/test_gram.py::test_equals_the_float64_tree[2]",
        ),
        # The overlap is divided by the other vector's length: right only for equal lengths.
        "Adasum, lengths exchanged": Mutant(
            file="labkit/algorithms/adasum/combine.py",
            right="for i in first + second])",
            wrong="for i in second + first])",
            test="tests/algorithms/adasum/test_gram.py::test_equals_the_float64_tree[2]",
        ),
        "Adasum, one angle for all layers": Mutant(
            file="labkit/algorithms/adasum/update.py",
            right='layers = self.sizes if scope == "layer" else (self.numbers,)',
            wrong="layers = (self.numbers,)",
            test="tests/algorithms/adasum/test_step.py::TestTwin",
        ),
        # Every worker continues with the first worker's momentum.
        "Adasum, one momentum for all workers": Mutant(
            file="labkit/algorithms/adasum/workers.py",
            right="index = ops.reshape(self.side * self.workers + worker, (1,))",
            wrong="index = ops.reshape(self.side * self.workers, (1,))",
            test="tests/algorithms/adasum/test_step.py::test_each_worker_has_an_optimizer_of_its_own",
        ),
    },
    "04_adasum_in_depth": {
        "Adasum, vector by vector": Mutant(
            file="labkit/algorithms/adasum/combine.py",
            right="combined = (length_a - self.of_first * cosine * length_b) * unit_a",
            wrong="combined = (length_a - self.of_first * cosine * length_a) * unit_a",
            test="tests/algorithms/adasum/test_combination.py::TestAgainstFloat64"
            "::test_every_kind_of_vector[7-tree]",
        ),
    },
    "05_dimension_reduction": {
        # (I + s y^T / y.s) B (I + y s^T / y.s) + s s^T / y.s
        "subspace, BFGS": Mutant(
            file="labkit/algorithms/subspace/search.py",
            right="left = np.eye(len(s)) - np.outer(s, y) / product",
            wrong="left = np.eye(len(s)) + np.outer(s, y) / product",
            test="tests/reference/test_subspace.py::test_the_steps_own_inverse_is_the_twins",
        ),
        # -g instead of -B g: gradient descent in the subspace.
        "subspace, direction": Mutant(
            file="labkit/algorithms/subspace/search.py",
            right="direction = (-inverse @ gradient).astype(np.float32)",
            wrong="direction = (-gradient).astype(np.float32)",
            test=TWENTY_UPDATES,
        ),
        "subspace, the pair's length for its curvature": Mutant(
            file="labkit/algorithms/subspace/search.py",
            right="product = y @ s",
            wrong="product = s @ s",
            test="tests/reference/test_subspace.py::test_the_steps_own_inverse_is_the_twins",
        ),
        # The last gradient is not subtracted.
        "subspace, y": Mutant(
            file="labkit/algorithms/subspace/search.py",
            right="gradient - memory.gradient.astype(np.float64)",
            wrong="gradient",
            test="tests/reference/test_subspace.py::test_the_steps_own_inverse_is_the_twins",
        ),
        "subspace, no pair at all": Mutant(
            file="labkit/algorithms/subspace/search.py",
            right="if not memory.has_pair:",
            wrong="if True:",
            test="tests/reference/test_subspace.py::test_the_steps_own_inverse_is_the_twins",
        ),
    },
    "05_dimension_reduction_in_depth": {
        # The bound is above the loss: any full step is accepted.
        "subspace, Armijo's bound": Mutant(
            file="labkit/algorithms/subspace/search.py",
            right="loss + constants.sigma * size * slope",
            wrong="loss - constants.sigma * size * slope",
            test=TWENTY_UPDATES,
        ),
    },
}
