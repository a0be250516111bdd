"""LeNet-5 in PyTorch, with the names of ``labkit.nets.lenet.LeNet5``."""

from collections import OrderedDict


def torch_lenet(torch, values):
    """Return the network (N, 1, 32, 32) -> (N, 10) with the weights ``values``, arrays by name.

    Its dtype is that of the weights, and its convolutions have a bias if ``values`` has one.
    ``torch`` is the module, which the tests import by ``importorskip``.
    """
    n, bias = torch.nn, "conv1.bias" in values
    network = n.Sequential(
        OrderedDict(
            conv1=n.Conv2d(1, 6, 5, bias=bias),
            relu1=n.ReLU(),
            pool1=n.MaxPool2d(2),
            conv2=n.Conv2d(6, 16, 5, bias=bias),
            relu2=n.ReLU(),
            pool2=n.MaxPool2d(2),
            flatten=n.Flatten(),
            fc1=n.Linear(400, 120),
            relu3=n.ReLU(),
            fc2=n.Linear(120, 84),
            relu4=n.ReLU(),
            fc3=n.Linear(84, 10),
        )
    )
    tensors = {name: torch.from_numpy(value) for name, value in values.items()}
    network.to(tensors["fc1.weight"].dtype).load_state_dict(tensors)
    return network
