"""The optimizer's input: U for the layers with curvature, all other gradients unchanged."""

from collections.abc import Sequence

import mindspore as ms
from mindspore import Tensor, nn, ops

from labkit.algorithms.thor.curvature import LayerCurvature
from labkit.algorithms.thor.geometry import Place
from labkit.steps.state import at, rated


class Directions(nn.Cell):
    """U for the weights and biases of layers with curvature, all other gradients unchanged.

    Args:
        layers: curvature of each layer.
        places: ``Place`` of each layer, in the same order.
        optimizer: provides the order of the parameters and, with ``kl_clip``, the learning rates.
        kl_clip: None, or c > 0: U is scaled by min(1, sqrt(c / s)), s = |sum of rate^2 <U, grad>
            over the layers| (Ba, Grosse and Martens, "Distributed second-order optimization using
            Kronecker-factored approximations", 2017, section 5).

    Attributes:
        sources: (index of the weight, index of the bias) of each layer; without a bias, the
            weight's index twice.
        made: number of directions that the layers return, two each.
        places: index of each parameter's direction in the layers' directions followed by all
            gradients; a parameter in no layer's factors takes its own gradient.
    """

    def __init__(
        self,
        layers: Sequence[LayerCurvature],
        places: Sequence[Place],
        optimizer: nn.Optimizer,
        kl_clip: float | None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.layers = layers
        self.optimizer = rated(optimizer)
        # float: a NumPy number would take over the division by a Tensor.
        self.kl_clip = None if kl_clip is None else float(kl_clip)
        self.sources = tuple(
            (place.weight, place.weight if place.bias is None else place.bias) for place in places
        )
        self.made = 2 * len(places)
        among = [self.made + i for i in range(len(optimizer.parameters))]
        for number, place in enumerate(places):
            among[place.weight] = 2 * number
            if place.bias is not None:
                among[place.bias] = 2 * number + 1
        self.places = tuple(among)
        self.map = ops.HyperMap()

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        made: tuple = ()
        for i in range(len(self.sources)):
            weight, bias = self.sources[i]
            made += self.layers[i](gradients[weight], gradients[bias])
        directions = self.map(ops.partial(at, made + gradients), self.places)
        if self.kl_clip is not None:
            directions = self._clipped(directions, gradients)
        return directions

    def _clipped(
        self, directions: tuple[Tensor, ...], gradients: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        rates = self.optimizer.get_lr()
        total = ops.cast(0.0, ms.float32)
        for i in range(len(gradients)):
            if self.places[i] < self.made:
                rate = rates[i] if self.optimizer.is_group_lr else rates
                product = ops.cast(directions[i], ms.float32) * ops.cast(gradients[i], ms.float32)
                total = total + ops.square(rate) * ops.reduce_sum(product.reshape(-1))
        factor = ops.sqrt(self.kl_clip / ops.maximum(ops.abs(total), self.kl_clip))
        clipped: tuple = ()
        for i in range(len(gradients)):
            if self.places[i] < self.made:
                clipped += (ops.cast(directions[i] * factor, directions[i].dtype),)
            else:
                clipped += (directions[i],)
        return clipped
