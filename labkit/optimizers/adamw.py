r"""AdamW: Adam with decoupled weight decay.

    m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2
    w <- w - lr (m / c1 / (sqrt(v / c2) + eps) + decay w),   c1 = 1 - b1^t,  c2 = 1 - b2^t

Source: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", 2019 (arXiv:1711.05101),
algorithm 2, with the decay multiplied by the learning rate, as ``torch.optim.AdamW`` does.
"""

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.base.arguments import number, wrong
from labkit.steps.state import zeros_like


class AdamW(nn.Optimizer):
    """AdamW as ``torch.optim.AdamW`` has it, one kernel for each Parameter.

    Args:
        params: Parameters, float32 or float16, or groups as of any ``nn.Optimizer``, such as
            ``decay_groups(network, 0.1)``. Without groups biases and norms decay, too.
        learning_rate: number >= 0, one for each update, or a ``LearningRateSchedule``.
        beta1, beta2, eps: 0 < beta < 1, eps > 0.
        weight_decay: number >= 0 or a Cell of ``global_step``.

    Raises:
        InputError: if beta or eps is out of its bounds, or a Parameter of another type.
        ValueError: MindSpore's, for a rate or decay that is negative or not finite.

    The moments are float32. t counts this optimizer's own updates, whatever ``global_step`` says.

    MindSpore's own differ: ``nn.AdamWeightDecay`` has no bias correction (c1 = c2 = 1); ``nn.Adam``
    adds eps before it, which with beta2 = 0.999 is an eps 31 times larger at the first update, and
    its ``weight_decay`` goes into the moments.

    >>> optimizer = AdamW(decay_groups(network, 0.1), 1e-3, beta2=0.99)
    """

    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: Any = 1e-2,
    ):
        super().__init__(learning_rate, params, weight_decay)
        # What the kernel computes with, so that 1 - beta is the same number here and there.
        self.beta1 = float(np.float32(number("beta1", beta1, above=0, below=1)))
        self.beta2 = float(np.float32(number("beta2", beta2, above=0, below=1)))
        self.eps = number("eps", eps, above=0)
        for weight in self.parameters:
            if weight.dtype not in (ms.float32, ms.float16):
                raise wrong(weight.name, weight.dtype, "float32 or float16, as AdamW's kernel")
        # float32: beside float16 moments the kernel's eps is 0 and its update of a zero 0 / 0.
        m, v = ([zeros_like(w, f"adamw.{n}", ms.float32) for w in self.parameters] for n in "mv")
        self.m, self.v = ParameterTuple(m), ParameterTuple(v)
        self.made = Parameter(Tensor(0, ms.int32), name="adamw.made", requires_grad=False)
        self.kernel = ops.AdamWeightDecay()

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple:
        """Make an update; the gradients have the shapes and types of the Parameters."""
        rates, decays = self.get_lr(), self.get_weight_decay()
        made = ops.cast(ops.assign_add(self.made, 1), ms.float32)
        c1 = -ops.expm1(made * math.log(self.beta1))
        root2 = ops.sqrt(-ops.expm1(made * math.log(self.beta2)))
        # The kernel does not correct: lr m / c1 / (sqrt(v / c2) + eps) is its own formula with the
        # rate lr sqrt(c2) / c1 and eps sqrt(c2). The decay must not change with the rate.
        scale = root2 / c1
        done: tuple = ()
        for i in range(len(self.m)):
            rate = rates[i] if self.is_group_lr else rates
            decay = decays[i] if self.is_group else decays
            own = (self.parameters[i], self.m[i], self.v[i], rate * scale, self.beta1, self.beta2)
            done += (self.kernel(*own, self.eps * root2, decay / scale, gradients[i]),)
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        return done
