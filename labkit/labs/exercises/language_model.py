"""Exercises of lab 06, a language model: plain specifications, cases, learners' mistakes."""

import math

import numpy as np

from labkit.labs.exercises.check import Exercise, draw, of_lab


def perplexity(losses: np.ndarray, counts: np.ndarray) -> float:
    """exp of the mean loss over all tokens; ``losses`` are means (nats) over ``counts`` tokens."""
    total, tokens = 0.0, 0
    for loss, count in zip(losses, counts, strict=True):
        total += loss * count
        tokens += count
    return math.exp(total / tokens)


def causal_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Row t: mean of v[0..t], weighted by softmax of q[t] k[s] / sqrt(D); all (T, D)."""
    out = np.zeros_like(v)
    for t in range(len(q)):
        weights = np.exp([q[t] @ k[s] / math.sqrt(q.shape[1]) for s in range(t + 1)])
        out[t] = weights @ v[: t + 1] / weights.sum()
    return out


def _attention(scores: np.ndarray, v: np.ndarray, seen: np.ndarray, axis: int = 1) -> np.ndarray:
    """Attention with any mask: ``seen`` (T, T) is 1 where a row may look."""
    weights = np.exp(scores) * seen
    return weights / weights.sum(axis=axis, keepdims=True) @ v


def scheduled_sgd(weights: np.ndarray, gradients: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Weights after one update for each gradient: update i subtracts rates[i] gradients[i]."""
    for rate, gradient in zip(rates, gradients, strict=True):
        weights = weights - rate * gradient
    return weights


_COUNTS = [(np.array([2.0, 4.0]), np.array([77, 12])), (np.array([1.0, 3.0]), np.array([1, 3]))]
_COUNTS += [(np.array([2.5, 1.0, 2.0]), np.array([10, 30, 4]))]
_QKV = [tuple(draw(3 * seed + i, t, d) for i in range(3)) for seed, t, d in ((1, 4, 4), (2, 6, 3))]
_SCHEDULES = [
    (draw(seed, 3), draw(seed + 1, updates, 3), np.linspace(0.1, 0.5, updates) ** 2)
    for seed, updates in ((1, 3), (5, 4))
]
_T = "len(q), len(q)"
_SCORES = "q @ k.T / q.shape[1] ** 0.5"

EXERCISES = (
    Exercise(perplexity, _COUNTS, {
        "math.exp(losses.mean())":
            "a mean of means: every micro-batch has the same vote, however few tokens it holds",
        "(np.exp(losses) * counts).sum() / counts.sum()":
            "the exponential came first: average the losses, not the perplexities",
        "np.exp(losses).mean()": "these are the micro-batches' own perplexities, averaged",
        "math.log(right)": "that is the loss still; which function turns nats into choices?",
        "2 ** math.log(right)": "these losses are nats, not bits",
        "math.exp((losses * counts).sum() / len(counts))":
            "divided by the number of micro-batches: divide by the tokens",
    }, rtol=1e-6),
    Exercise(scheduled_sgd, _SCHEDULES, {
        "weights - rates[0] * gradients.sum(axis=0)":
            "every update took the first rate: who moves on in the schedule?",
        "weights - rates[-1] * gradients.sum(axis=0)": "every update took the last rate",
        "scheduled_sgd(weights, gradients, np.append(rates[1:], rates[-1]))":
            "one rate too far: which is the first update's?",
        "scheduled_sgd(weights, gradients, np.append(rates[0], rates[:-1]))":
            "one rate behind: the first one was taken twice",
        "scheduled_sgd(weights, -gradients, rates)": "uphill: what is the sign?",
    }, rtol=1e-5),  # float32 on the learner's side
    Exercise(causal_attention, _QKV, {
        f"_attention({_SCORES}, v, np.ones(({_T})))":
            "every position sees the future: where is the mask?",
        f"_attention({_SCORES}, v, np.triu(np.ones(({_T}))))":
            "the mask is upside down: each position sees what comes after it, and not before",
        f"_attention({_SCORES}, v, np.tril(np.ones(({_T})), -1) + np.eye({_T}) * 1e-30)":
            "a position may look at itself",
        f"_attention(q @ k.T, v, np.tril(np.ones(({_T}))))":
            "the scores grow with the width: what are they divided by?",
        f"_attention(q @ k.T / q.shape[1], v, np.tril(np.ones(({_T}))))":
            "divided by the width itself: it was to be its root",
        f"np.tril(_attention({_SCORES}, np.eye({_T}), np.ones(({_T})))) @ v":
            "masked after the softmax: the weights of a row no longer add up to 1",
        f"_attention({_SCORES}, v, np.tril(np.ones(({_T}))), 0)":
            "the softmax is over the wrong axis: whose weights add up to 1?",
        f"_attention(np.tril({_SCORES}), v, np.ones(({_T})))":
            "a score of zero still has a weight: a hidden position needs one of minus infinity",
    }),
)  # fmt: skip

check, hint = of_lab(EXERCISES)
