"""MindSpore's own dimension reduction, in a child process: ``main(FOLDER)``.

``AutoBoost`` is one object per process and keeps its first configuration. Reads FOLDER/given.npz
(the rows of each step, the weights), FOLDER/constants.json and FOLDER/pca_mat.npy, trains, and
writes FOLDER/weights.npz.
"""

import json

import numpy as np

CONSTANTS = {"rho": 0.55, "gamma": 0.9, "alpha": 0.001, "sigma": 0.4}


def main(folder):
    import mindspore as ms
    from mindspore import nn
    from mindspore.train import Callback, Model

    from labkit.runtime import start
    from labkit.steps.state import set_state
    from tests.support.subspace_cells import small_network

    start(device="CPU", seed=1)
    given = dict(np.load(folder / "given.npz"))
    images, labels = given.pop("images"), given.pop("labels")
    constants = json.loads((folder / "constants.json").read_text())
    network = small_network()
    for parameter in network.trainable_params():
        set_state(parameter, given[parameter.name])
    # Read now: MindSpore's training cell renames the parameters.
    names, values = [p.name for p in network.trainable_params()], []

    class Keep(Callback):
        def on_train_step_end(self, run_context):
            values.append([p.asnumpy().copy() for p in network.trainable_params()])

    # Each step's own distinct rows and labels, in order.
    data = ms.dataset.NumpySlicesDataset(
        (np.concatenate(images), np.concatenate(labels)), ["x", "y"], shuffle=False
    ).batch(images.shape[1])
    model = Model(
        network,
        nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        nn.Momentum(network.trainable_params(), 0.37, 0.9, 0.01),
        metrics={"accuracy"},
        boost_level="O1",
        boost_config_dict={
            "boost": {"mode": "manual", "dim_reduce": True},
            "dim_reduce": {
                **constants,
                "n_components": given["components"].item(),
                "pca_mat_path": str(folder / "pca_mat.npy"),
                "timeout": 60,
            },
        },
    )
    model.train(1, data, [Keep()], dataset_sink_mode=False)
    by_name = zip(names, map(np.stack, zip(*values, strict=True)), strict=True)
    np.savez(folder / "weights.npz", **dict(by_name))
