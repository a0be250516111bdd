"""The schedules of ``labkit.steps.schedules`` as lists, computed update by update."""

import math


def cosine_schedule(
    lr: float, lr_end: float, epochs: int, steps_per_epoch: int, warmup_epochs: int = 0
) -> list[float]:
    total, warmup, rates = epochs * steps_per_epoch, warmup_epochs * steps_per_epoch, []
    for update in range(total):
        if update < warmup:
            rates.append(lr * (update + 1) / warmup)
        else:
            angle = math.pi * (update - warmup) / (total - warmup)
            rates.append(lr_end + 0.5 * (lr - lr_end) * (1 + math.cos(angle)))
    return rates


def resnet_schedule(
    lr_init: float,
    lr_end: float,
    lr_max: float,
    warmup_epochs: int,
    total_epochs: int,
    steps_per_epoch: int,
    mode: str,
) -> list[float]:
    total, warmup, rates = total_epochs * steps_per_epoch, warmup_epochs * steps_per_epoch, []
    for update in range(total):
        if update < warmup:
            done = (update + 1 if mode == "cosine" else update) / warmup
            rates.append(lr_init * (1 - done) + lr_max * done)
            continue
        left = (total - update) / (total - warmup)
        if mode == "linear":
            rates.append(lr_end + (lr_max - lr_end) * left)
        elif mode == "poly":
            rates.append(lr_max * left * left)
        elif mode == "steps":
            share = 0 if update < 0.3 * total else 1 if update < 0.6 * total else 2
            rates.append(lr_max * (1.0, 0.1, 0.01, 0.001)[share + (update >= 0.8 * total)])
        elif mode == "cosine":
            wave = math.cos(0.47 * 2 * math.pi * update / (total - warmup))
            rates.append(lr_max * (left * (0.5 + 0.5 * wave) + 0.00001))
    return rates


def thor_schedule(
    lr_init: float, decay: float, total_epochs: int, steps_per_epoch: int, decay_epochs: int
) -> list[float]:
    rates = []
    for made in range(1, total_epochs * steps_per_epoch + 1):
        rate = lr_init * math.pow(1 - made / steps_per_epoch / total_epochs, decay)
        # Compared in whole updates, so that no rounding decides which one begins an epoch.
        if made >= decay_epochs * steps_per_epoch:
            rate /= 2
        if made >= (decay_epochs + 1) * steps_per_epoch:
            rate /= 2
        rates.append(rate)
    return rates


def thor_damping(
    damping_init: float, decay_rate: float, total_epochs: int, steps_per_epoch: int
) -> list[float]:
    return [
        damping_init * math.exp(math.log(decay_rate) * made / steps_per_epoch / 10)
        for made in range(1, total_epochs * steps_per_epoch + 1)
    ]
