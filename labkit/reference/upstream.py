"""The factors that MindSpore's THOR makes on a GPU (and on a CPU, if its operators ran there).

Read from nn/layer/thor_layer.py (DenseThor, Conv2dThor) and nn/optim/thor.py (ThorGpu) of MindSpore
2.10.0. They differ from ``kronecker_factors`` in three places:

    dense        A = sum x x^T / in, where the batch has N rows: N / in times too large
    convolution  patches and derivatives are averaged over the batch before the outer product:
                 A = mean(p) mean(p)^T summed over positions / T_a, of rank <= T_a
    convolution  patches are those of pad_mode "same", whatever the layer pads; so T_a positions
                 are seen and T_g derivatives. Damping sqrt(damping / T_a) and sqrt(damping / T_g);
                 the update is divided by T_a

Of G for a dense layer, upstream's is right. The bias has no curvature there.
"""

import numpy as np

from labkit.errors import InputError
from labkit.reference.convolution import Window, patches, same_padding
from labkit.reference.kronecker import Positions, kronecker_factors


def upstream_factors(
    inputs: np.ndarray, derivatives: np.ndarray, window: Window | None
) -> tuple[np.ndarray, np.ndarray, Positions]:
    """Return (A (1, in, in), G (1, out, out), (T of A, T of G)).

    ``inputs`` are (N, in), or (N, C, H, W) where there is a ``window``; ``derivatives`` are
    dL/dy of the mean loss, (N, out) or (N, O, H', W').
    """
    if window is None:
        if np.ndim(inputs) != 2:
            raise InputError(
                f"inputs of shape {np.shape(inputs)}; expected (N, in), upstream's only"
            )
        a_factor, g_factor, _ = kronecker_factors(inputs, derivatives, homogeneous=False)
        return a_factor * len(inputs) / inputs.shape[1], g_factor, (1, 1)
    if window.groups != 1:
        raise InputError(f"{window.groups} groups; expected 1: upstream's only")
    rows, outputs = derivatives.shape[:2]
    height, width = inputs.shape[2:]
    around = same_padding((height, width), window.kernel, window.stride)
    columns = patches(inputs, window.kernel, window.stride, around)[:, 0].mean(axis=0)
    slopes = derivatives.reshape(rows, outputs, -1).mean(axis=0)
    a_factor = columns @ columns.T / columns.shape[1]
    g_factor = rows**2 * slopes @ slopes.T / slopes.shape[1]
    return a_factor[None], g_factor[None], (columns.shape[1], slopes.shape[1])
