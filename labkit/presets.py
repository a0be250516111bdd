"""The settings of every lab at every preset: one table, so that no notebook repeats a number.

``smoke`` is for tests (under 30 s a notebook), ``lab`` gives the numbers the text speaks of (under
4 minutes on two cores), ``paper`` is the source document's own full-scale setting.
"""

from labkit.errors import refuse_unknown

PRESETS = ("smoke", "lab", "paper")

# The source document trains on all 60 000 images in every setting, so `lab` and `paper` agree on
# everything that it fixes: batch 32, 4 micro-steps, 3 epochs, Momentum 0.01 / 0.9.
_GRADIENT_ACCUMULATION = {
    "lab": {
        "epochs": 3,
        "batch_size": 32,
        "micro_steps": 4,
        "learning_rate": 0.01,
        "momentum": 0.9,
        "train_images": 60_000,
        "seed": 1,
        "workers": 1,
    },
}
_GRADIENT_ACCUMULATION["paper"] = dict(_GRADIENT_ACCUMULATION["lab"])
_GRADIENT_ACCUMULATION["smoke"] = {
    **_GRADIENT_ACCUMULATION["lab"],
    "epochs": 1,
    "train_images": 2_080,
}

LABS = {"00_start_here": {name: {} for name in PRESETS}, "01_gradient_accumulation": _GRADIENT_ACCUMULATION}


def choose(lab: str, preset: str, **named) -> dict:
    """Return the settings of ``lab`` at ``preset``; a named value that is not None beats the preset.

    Raises ``InputError`` for an unknown lab, preset or setting name.
    """
    refuse_unknown("lab", lab, LABS)
    refuse_unknown("preset", preset, PRESETS)
    settings = dict(LABS[lab][preset])
    for name, value in named.items():
        refuse_unknown("parameter", name, settings)
        if value is not None:
            settings[name] = value
    return settings
