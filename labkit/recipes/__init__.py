"""Full training programs, one per technique, for one device or many."""

# As the command line has it -> its module.
RECIPES = {
    "accumulation": "accumulation",
    "resnet50": "resnet50",
    "thor": "thor",
    "adasum": "adasum",
    "subspace-1": "subspace_stage_1",
    "subspace-2": "subspace_stage_2",
}
