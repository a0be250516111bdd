"""Notebook 00: right answers, and wrong ones."""

import numpy as np


def output_side(size, kernel, stride, pad_mode):
    return -(-size // stride) if pad_mode == "same" else (size - kernel) // stride + 1


def gradient_of_squares(x, y, w):
    # Here, so that `labkit.start` comes first.
    import mindspore as ms
    from mindspore import Tensor

    rows, targets = Tensor(x), Tensor(y)

    def loss(weights):
        return (((rows * weights).sum(axis=1) - targets) ** 2).mean()

    return ms.grad(loss)(Tensor(w)).asnumpy()


WRONG = [
    ("output_side", lambda size, kernel, stride, mode: -(-size // stride), "no part in it"),
    ("output_side", lambda size, kernel, stride, mode: 1 + (size - kernel) // stride,
        "`same` keep"),
    ("output_side", lambda size, kernel, stride, mode: size if mode == "same" else len(
        np.zeros(size)[kernel - 1 :]), "stride of 1"),
    ("gradient_of_squares", lambda x, y, w: 2 * x.T @ (x @ w - y), "the loss is a mean"),
    ("gradient_of_squares", lambda x, y, w: x.T @ (x @ w - y) / len(y), "derivative of a square"),
    ("gradient_of_squares", lambda x, y, w: 2 * x.T @ (x @ w) / len(y), "targets are not in it"),
]  # fmt: skip
