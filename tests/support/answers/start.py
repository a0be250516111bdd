"""Notebook 00: wrong answers."""

import numpy as np

WRONG = [
    ("output_side", lambda size, kernel, stride, mode: size if mode == "same" else len(
        np.zeros(size)[kernel - 1 :]), "stride of 1"),
    ("gradient_of_squares", lambda x, y, w: 2 * x.T @ (x @ w - y), "the loss is a mean"),
    ("gradient_of_squares", lambda x, y, w: x.T @ (x @ w - y) / len(y), "derivative of a square"),
    ("gradient_of_squares", lambda x, y, w: 2 * x.T @ (x @ w) / len(y), "targets are not in it"),
]  # fmt: skip
