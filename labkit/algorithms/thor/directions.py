"""From the gradients of all parameters to what the optimizer takes in their place."""

import mindspore as ms
from mindspore import nn, ops


class Directions(nn.Cell):
    """U for the weights and biases of the layers with curvature, the others' gradients as they are.

    layers, places  ``LayerCurvature`` and ``Place`` of each
    optimizer       for the order of the parameters and, with ``kl_clip``, the learning rates
    kl_clip         largest sum of rate^2 <U, grad> over the layers, or None: U is scaled down to it
                    (Ba, Grosse and Martens, "Distributed second-order optimization using
                    Kronecker-factored approximations", 2017, section 5)

    sources  (index of the weight, of the bias) of each layer; a weight alone stands for both
    roles    of each parameter: (number of its layer, 0 for the weight or 1 for the bias); (-1, 0)
             for a parameter of no layer
    """

    def __init__(self, layers, places, optimizer, kl_clip):
        super().__init__(auto_prefix=False)
        self.layers = layers
        self.optimizer = optimizer
        # float: a NumPy number takes over the division by a Tensor.
        self.kl_clip = None if kl_clip is None else float(kl_clip)
        self.sources = tuple(
            (place.weight, place.weight if place.bias is None else place.bias) for place in places
        )
        roles = [(-1, 0)] * len(optimizer.parameters)
        for number, place in enumerate(places):
            roles[place.weight] = (number, 0)
            if place.bias is not None:
                roles[place.bias] = (number, 1)
        self.roles = tuple(roles)

    def construct(self, gradients):
        results = ()
        for i in range(len(self.sources)):
            weight, bias = self.sources[i]
            results += (self.layers[i](gradients[weight], gradients[bias]),)
        directions = ()
        for i in range(len(gradients)):
            layer, part = self.roles[i]
            if layer < 0:
                directions += (gradients[i],)
            else:
                directions += (results[layer][part],)
        if self.kl_clip is not None:
            directions = self._clipped(directions, gradients)
        return directions

    def _clipped(self, directions, gradients):
        rates = self.optimizer.get_lr()
        total = ops.cast(0.0, ms.float32)
        for i in range(len(gradients)):
            if self.roles[i][0] >= 0:
                rate = rates[i] if self.optimizer.is_group_lr else rates
                product = ops.cast(directions[i], ms.float32) * ops.cast(gradients[i], ms.float32)
                total = total + ops.square(rate) * ops.reduce_sum(product.reshape(-1))
        factor = ops.sqrt(self.kl_clip / ops.maximum(ops.abs(total), self.kl_clip))
        clipped = ()
        for i in range(len(gradients)):
            if self.roles[i][0] >= 0:
                clipped += (ops.cast(directions[i] * factor, directions[i].dtype),)
            else:
                clipped += (directions[i],)
        return clipped
