"""Boost dictionaries: those of the tutorials, and short ones."""

# The first tutorial's dictionary, with its names and values unchanged.
DIM_REDUCE = {
    "boost": {"mode": "manual", "dim_reduce": True},
    "common": {"device_num": 8},
    "dim_reduce": {
        "rho": 0.55,
        "gamma": 0.9,
        "alpha": 0.001,
        "sigma": 0.4,
        "n_component": 32,
        "pca_mat_path": None,
        "weight_load_dir": "./checkpoint_stage_1/checkpoint_pca",
        "timeout": 1200,
    },
}
# The Adasum tutorial's dictionary.
ADASUM = {
    "boost": {
        "mode": "manual",
        "less_bn": False,
        "grad_freeze": False,
        "adasum": True,
        "grad_accumulation": False,
        "dim_reduce": False,
    }
}
ACCUMULATION = {
    "boost": {"mode": "manual", "grad_accumulation": True},
    "grad_accumulation": {"grad_accumulation_step": 4},
}


def manual(*on, **sections):
    return {"boost": {"mode": "manual"} | dict.fromkeys(on, True)} | sections
