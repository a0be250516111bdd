r"""The learning rates of the five source documents, one for every update of the whole training.

Update i = 0 .. N-1, with N = epochs * steps_per_epoch (updates in an epoch); the first
W = warmup_epochs * steps_per_epoch are the warm-up. Every function computes in float64 and returns
a float32 array (N,), the functions for THOR (N - global_step,), after ``global_step`` updates. Each
raises ``InputError`` for a count < 1, a warm-up longer than the training, or a negative rate.

    document                              function
    ResNet-50 migration, as meant         cosine
    ResNet-50 migration, as it trains     cosine_as_in_the_blog
    dimension reduction, Adasum           get_lr(..., lr_decay_mode="linear")
    THOR                                  get_thor_lr, get_thor_damping

Pass the array to an optimizer as ``Tensor(cosine(...))``; too short a one stops a training in its
middle (undefined rates on Ascend), which ``check_length`` refuses beforehand. ``get_lr``,
``get_thor_lr`` and ``get_thor_damping`` have the names and arguments of
official/cv/resnet/src/lr_generator.py in MindSpore's models repository (r1.6), from which the
documents import them. No MindSpore import.
"""

import numpy as np

from labkit.base.arguments import choice, integer, number
from labkit.errors import InputError
from labkit.steps.options import LR_DECAY_MODES, LrDecayMode

# lr_generator's cosine covers 0.47 of a period and never ends at zero.
_PERIODS = 0.47
_FLOOR = 1e-5
_LARGEST = float(np.finfo(np.float32).max)


def cosine(
    lr: float, lr_end: float, epochs: int, steps_per_epoch: int, warmup_epochs: int = 0
) -> np.ndarray:
    r"""Return a linear warm-up to ``lr`` followed by a cosine decay towards ``lr_end``.

        i < W:   lr (i + 1) / W
        i >= W:  lr_end + (lr - lr_end) (1 + cos(pi (i - W) / (N - W))) / 2

    Equal to PyTorch's SequentialLR of LinearLR(start_factor=1/W, total_iters=W-1) and
    CosineAnnealingLR(T_max=N-W), milestone W.
    """
    lr, lr_end = _rate("lr", lr), _rate("lr_end", lr_end)
    total, warmup = _lengths(epochs, steps_per_epoch, warmup_epochs)
    falling = _half_cosine(np.arange(total - warmup) / max(total - warmup, 1))
    rising = lr * np.arange(1, warmup + 1) / max(warmup, 1)
    return _float32(rising, lr_end + (lr - lr_end) * falling)


def cosine_as_in_the_blog(
    lr: float, lr_end: float, epochs: int, steps_per_epoch: int, warmup_epochs: int
) -> np.ndarray:
    r"""Return the rates that the migration document trains with: no warm-up, a floor too early.

        lr_end + (lr - lr_end) (1 + cos(pi min(e, warmup_epochs) / warmup_epochs)) / 2,
        e = floor(i / steps_per_epoch)

    Its train.py calls ``nn.dynamic_lr.cosine_decay_lr(lr_end, lr, N, steps_per_epoch, warmup)``,
    whose last argument is ``decay_epoch``. So the first epoch already has the full rate, and from
    epoch ``warmup_epochs`` on it is ``lr_end`` < ``lr``: with 5 of 90, 94 % of the training.
    """
    lr, lr_end = _rate("lr", lr), _rate("lr_end", lr_end)
    if not lr_end < lr:
        raise InputError(f"lr_end: expected less than lr, {lr}, as MindSpore does, got {lr_end}")
    warmup_epochs = integer("warmup_epochs", warmup_epochs)
    total, _ = _lengths(epochs, steps_per_epoch, warmup_epochs)
    epoch = np.arange(total) // int(steps_per_epoch)
    falling = _half_cosine(np.minimum(epoch, warmup_epochs) / warmup_epochs)
    return _float32(lr_end + (lr - lr_end) * falling)


def get_lr(
    lr_init: float,
    lr_end: float,
    lr_max: float,
    warmup_epochs: int,
    total_epochs: int,
    steps_per_epoch: int,
    lr_decay_mode: LrDecayMode = "linear",
) -> np.ndarray:
    r"""Return lr_generator's rates: a warm-up from ``lr_init`` to ``lr_max``, then a decay.

    With p = (i - W) / (N - W), for i < W (left) and for i >= W (right):

        linear  lr_init + (lr_max - lr_init) i / W          lr_max - (lr_max - lr_end) p
        poly    as linear                                   lr_max (1 - p)^2
        steps   as linear                                   lr_max, divided by 10 at each of
                                                            0.3 N, 0.6 N and 0.8 N
        cosine  lr_init + (lr_max - lr_init) (i + 1) / W    lr_max ((1 - p) c + 1e-5),
                c = (1 + cos(0.94 pi i / (N - W))) / 2

    Only ``linear`` uses ``lr_end``; with the documents' 0, 0, 0.8, 5, 90 its epoch 70, counted from
    0, starts at 0.188. In the ``cosine`` mode the argument contains i, not i - W, so the rate drops
    at the end of the warm-up (from 0.8 to 0.794 for 5 of 90 epochs, to 0.67 for 20).
    """
    choice("lr_decay_mode", lr_decay_mode, LR_DECAY_MODES)
    lr_init, lr_end = _rate("lr_init", lr_init), _rate("lr_end", lr_end)
    lr_max = _rate("lr_max", lr_max)
    total, warmup = _lengths(total_epochs, steps_per_epoch, warmup_epochs, of="total_epochs")
    ahead = 1 if lr_decay_mode == "cosine" else 0
    rising = lr_init + (lr_max - lr_init) * (np.arange(warmup) + ahead) / max(warmup, 1)
    update = np.arange(warmup, total)
    progress = (update - warmup) / max(total - warmup, 1)
    if lr_decay_mode == "linear":
        falling = lr_max - (lr_max - lr_end) * progress
    elif lr_decay_mode == "poly":
        falling = lr_max * (1 - progress) ** 2
    elif lr_decay_mode == "steps":
        passed = np.sum([update >= part * total for part in (0.3, 0.6, 0.8)], axis=0)
        falling = lr_max * np.power(10.0, -passed)
    else:
        wave = _half_cosine(2 * _PERIODS * update / max(total - warmup, 1))
        falling = lr_max * ((1 - progress) * wave + _FLOOR)
    return _float32(rising, falling)


def get_thor_lr(
    global_step: int,
    lr_init: float,
    decay: float,
    total_epochs: int,
    steps_per_epoch: int,
    decay_epochs: int = 39,
) -> np.ndarray:
    r"""Return THOR's learning rates from update ``global_step`` on.

        lr_init (1 - e / total_epochs)^decay h,   e = (i + 1) / steps_per_epoch
        h = 1, 1/2 once e >= decay_epochs, 1/4 once e >= decay_epochs + 1

    The rate would be 0 at epoch ``total_epochs``, the document's lr_end_epoch: 53, of which it
    trains 45. The original's default of ``decay_epochs`` is 100.
    """
    lr_init, decay = _rate("lr_init", lr_init), _rate("decay", decay)
    decay_epochs = integer("decay_epochs", decay_epochs)
    epoch = _thor_epochs(global_step, total_epochs, steps_per_epoch)
    halvings = (epoch >= decay_epochs).astype(int) + (epoch >= decay_epochs + 1)
    return _float32(lr_init * (1 - epoch / total_epochs) ** decay * 0.5**halvings)


def get_thor_damping(
    global_step: int,
    damping_init: float,
    decay_rate: float,
    total_epochs: int,
    steps_per_epoch: int,
) -> np.ndarray:
    r"""Return THOR's dampings from update ``global_step`` on.

    damping_init decay_rate^(e / 10),   e = (i + 1) / steps_per_epoch
    """
    damping_init = _rate("damping_init", damping_init)
    decay_rate = number("decay_rate", decay_rate, above=0, at_most=_LARGEST)
    epoch = _thor_epochs(global_step, total_epochs, steps_per_epoch)
    return _float32(damping_init * decay_rate ** (epoch / 10))


def check_length(schedule: np.ndarray, updates: int, name: str = "the schedule") -> None:
    """Raise ``InputError`` unless a schedule has the shape (N,), with N >= ``updates``."""
    shape = np.shape(schedule)
    if len(shape) != 1:
        raise InputError(f"{name}: expected shape (N,), one value an update, got {shape}")
    if shape[0] < updates:
        raise InputError(
            f"{name} has {shape[0]} values for {updates} updates; expected at least as many: the "
            "training would stop in its middle, or go on with undefined ones"
        )


def _half_cosine(progress: np.ndarray) -> np.ndarray:
    return (1 + np.cos(np.pi * progress)) / 2


def _thor_epochs(global_step: int, total_epochs: int, steps_per_epoch: int) -> np.ndarray:
    total, _ = _lengths(total_epochs, steps_per_epoch, of="total_epochs")
    integer("global_step, the number of updates made", global_step, 0, total - 1)
    return np.arange(global_step + 1, total + 1) / steps_per_epoch


def _lengths(
    epochs: int, steps_per_epoch: int, warmup_epochs: int = 0, of: str = "epochs"
) -> tuple[int, int]:
    """Return (updates of the training, updates of the warm-up), checked."""
    epochs = integer(of, epochs)
    steps_per_epoch = integer("steps_per_epoch", steps_per_epoch)
    warmup_epochs = integer("warmup_epochs", warmup_epochs, 0, epochs)
    return epochs * steps_per_epoch, warmup_epochs * steps_per_epoch


def _rate(name: str, value: object) -> float:
    return number(name, value, at_least=0, at_most=_LARGEST)


def _float32(*parts: np.ndarray) -> np.ndarray:
    rates = np.concatenate(parts)
    if not (rates <= _LARGEST).all():
        raise InputError(f"the rates grow to {rates.max():.3g}; expected what float32 holds")
    return rates.astype(np.float32)
