"""Lab 01: each exercise solved rightly, and wrongly in the ways learners do."""

import numpy as np


def right_mean_gradient(gradients, sizes):
    total = np.zeros_like(gradients[0])
    for gradient, size in zip(gradients, sizes, strict=True):
        total += size * gradient
    return total / np.sum(sizes)


def right_normalise(pixels):
    return (pixels / 255 - 0.1307) / 0.3081


def right_updates_per_epoch(micro_batches, micro_steps, tail):
    updates = 0
    for start in range(0, micro_batches, micro_steps):
        updates += tail == "flush" or start + micro_steps <= micro_batches
    return updates


def right_clipped_update(gradients, sizes, clip_norm):
    mean = np.average(gradients, axis=0, weights=sizes)
    norm = np.sqrt((mean**2).sum())
    return mean if norm <= clip_norm else mean * clip_norm / norm


def right_token_loss(losses, is_token):
    losses, is_token = np.concatenate(losses), np.concatenate(is_token)
    return losses[is_token == 1].mean()


SOLUTIONS = {
    "mean_gradient": right_mean_gradient,
    "normalise": right_normalise,
    "updates_per_epoch": right_updates_per_epoch,
    "clipped_update": right_clipped_update,
    "token_loss": right_token_loss,
}
WRONG = [
    ("mean_gradient", lambda gradients, sizes: sum(gradients), "the plain sum"),
    ("mean_gradient", lambda gradients, sizes: np.mean(gradients, axis=0), "same size"),
    ("mean_gradient", lambda g, n: 3 * right_mean_gradient(g, n), "3 times what is expected"),
    ("mean_gradient", lambda g, n: -right_mean_gradient(g, n), "-1 times what is expected"),
    ("mean_gradient", lambda g, n: None, "is the `return` missing?"),
    ("mean_gradient", lambda g, n: "half", "expected numbers"),
    ("mean_gradient", lambda g, n: right_mean_gradient(g, n)[:3], "3 numbers; expected 6"),
    ("mean_gradient", lambda g, n: g[0] * np.nan, "not finite"),
    ("mean_gradient", lambda g, n: 1 / 0, "ZeroDivisionError: division by zero"),
    ("normalise", lambda pixels: (pixels / 0.3081 - 0.1307 / 0.3081) / 255, "which step is first"),
    ("normalise", lambda pixels: pixels / 255, "off by"),
    ("updates_per_epoch", lambda n, k, tail: n // k, "is an update too"),
    ("updates_per_epoch", lambda n, k, tail: -(-n // k), "only `flush`"),
    ("clipped_update", lambda g, n, norm: right_mean_gradient(g, n), "off by|times"),
    ("clipped_update", lambda g, n, norm: right_clipped_update(
        [right_clipped_update([one], [1], norm) for one in g], n, np.inf), "on its own"),
    ("clipped_update", lambda g, n, norm: right_mean_gradient(g, n) * norm
        / np.linalg.norm(right_mean_gradient(g, n)), "made longer"),
    ("token_loss", lambda losses, masks: np.mean(
        [losses[i][masks[i] == 1].mean() for i in range(len(losses))]), "count as much"),
    ("token_loss", lambda losses, masks: (
        np.concatenate(losses) * np.concatenate(masks)).mean(), "padding was counted"),
]  # fmt: skip
