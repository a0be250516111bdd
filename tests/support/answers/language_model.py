"""Lab 06: wrong answers."""

import numpy as np

from tests.support.answers import solved

right = solved("06_language_model")


def _masked_by_zero(q, k, v):
    scores = np.tril(q @ k.T / np.sqrt(q.shape[1]))
    weights = np.exp(scores)
    return weights / weights.sum(axis=1, keepdims=True) @ v


def _future(q, k, v):
    weights = np.exp(q @ k.T / np.sqrt(q.shape[1]))
    return weights / weights.sum(axis=1, keepdims=True) @ v


def _standing(weights, gradients, rates):
    for gradient in gradients:
        weights = weights - rates[0] * gradient
    return weights


WRONG = [
    ("perplexity", lambda losses, counts: np.exp(np.mean(losses)), "has the same vote"),
    ("perplexity", lambda losses, counts: losses @ counts / counts.sum(), "choices"),
    ("perplexity", lambda losses, counts: np.average(
        np.exp(losses), weights=counts), "not the perplexities"),
    ("scheduled_sgd", _standing, "took the first rate"),
    ("scheduled_sgd", lambda w, g, rates: w - rates[-1] * g.sum(0), "took the last rate"),
    ("scheduled_sgd", lambda w, g, rates: w - g[1:].T @ rates[:-1], "off by"),
    ("causal_attention", _masked_by_zero, "minus infinity"),
    ("causal_attention", _future, "sees the future"),
    ("causal_attention", lambda q, k, v: right.causal_attention(
        q[::-1], k[::-1], v[::-1])[::-1], "upside down"),
]  # fmt: skip
