"""Full training programs, one per technique, for one device or many."""

# Name on the command line -> module.
RECIPES = {
    "accumulation": "accumulation",
    "resnet50": "resnet50",
    "thor": "thor",
    "adasum": "adasum",
    "subspace-1": "subspace_stage_1",
    "subspace-2": "subspace_stage_2",
}
