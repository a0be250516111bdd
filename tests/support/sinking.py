"""MindSpore's dataset sink mode on CPU, except for the queue's kernel, which only devices have.

``Model`` sees a GPU as its device and so takes its path for devices: its own Cell with ``GetNext``
around the network, its own callbacks, and its loop in C++ that runs the compiled graph
``sink_size`` times per call. An operator that calls Python replaces ``GetNext``. An iterator over
the data set, with the epochs and the first batch that MindSpore asks for, replaces the queue.

Sinks of one batch do not work: for them MindSpore waits on a second queue, of the batches' shapes.
"""

import numpy as np
from mindspore import context, ops
from mindspore.train import dataset_helper, model

from labkit.training import sinking


class _Context:
    """MindSpore's context with a GPU as its device."""

    def __getattr__(self, name):
        return getattr(context, name)

    def get_context(self, name):
        return "GPU" if name == "device_target" else context.get_context(name)


class Queues:
    """Replaces the queues of a device.

    Attributes:
        taken: number of rows of each batch that a graph has taken, in order.
    """

    def __init__(self, monkeypatch):
        self._batches, self.taken = {}, []
        self._send = dataset_helper._send_data
        monkeypatch.setattr(dataset_helper, "_send_data", self.send)
        monkeypatch.setattr(dataset_helper, "P", self)
        for module in (dataset_helper, model, sinking):
            monkeypatch.setattr(module, "context", _Context())
        executor = type(dataset_helper._cell_graph_executor)
        init = executor.init_dataset
        # Without the kernel that makes the queue; the number of runs of a graph is still set.
        monkeypatch.setattr(
            executor, "init_dataset", lambda *given, **o: init(*given, **o, need_run=False)
        )

    def send(self, dataset, epochs):
        """Begin to send ``epochs`` epochs of a data set, from its first step on."""
        self._send(dataset, epochs)
        batches = dataset.create_tuple_iterator(num_epochs=epochs, output_numpy=True)
        name = dataset.__transfer_dataset__.queue_name
        self._batches[name] = (batch for _ in range(epochs) for batch in batches)

    def GetNext(self, types, shapes, count, name):  # noqa: N802, MindSpore's name
        """Return an operator that replaces ``GetNext``."""

        def following():
            batch = next(self._batches[name])
            self.taken.append(len(batch[0]))
            return tuple(np.ascontiguousarray(part) for part in batch)

        shapes = tuple([int(size) for size in shape] for shape in shapes)
        return ops.Custom(following, shapes, tuple(types), func_type="pyfunc")
