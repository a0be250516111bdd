"""Boost dictionaries: those of the tutorials, and short ones."""

from labkit.upstream.boost_config import ABSENT, FUNCTIONS

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
# The format that MindSpore 2.10.0 recommends, with every entry of its table.
WHOLE = {
    "boost": {"mode": "auto"} | dict.fromkeys((*FUNCTIONS, *ABSENT), False),
    "common": {"gradient_split_groups": [50, 100], "device_number": 8},
    "less_bn": {"fn_flag": True, "gc_flag": True},
    "grad_freeze": {"param_groups": 10, "freeze_type": 1, "freeze_p": 0.7, "total_steps": 65536},
    "dim_reduce": {
        "rho": 0.55,
        "gamma": 0.9,
        "alpha": 0.001,
        "sigma": 0.4,
        "n_components": 32,
        "pca_mat_path": None,
        "weight_load_dir": None,
        "timeout": 1800,
    },
}


def manual(*on, **sections):
    return {"boost": {"mode": "manual"} | dict.fromkeys(on, True)} | sections
