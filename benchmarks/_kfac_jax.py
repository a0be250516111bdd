"""Optional row of thor_step.py: kfac-jax on the same LeNet, in an interpreter that has it.

    pip install kfac-jax==0.0.8 jax==0.6.2 jaxlib==0.6.2    (in an environment of its own)
    python benchmarks/_kfac_jax.py BATCH ROUNDS FREQUENCY...

With jax 0.10, kfac-jax 0.0.8 can be installed but fails at its first step.

It prints one line of JSON: milliseconds per step of optax's momentum and of kfac-jax at each
frequency.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp
import kfac_jax
import numpy as np
import optax

STEPS = 50


def main(batch, rounds, *frequencies):
    """Time all in turn; print the medians over rounds of means over a whole number of cycles."""
    images = np.random.default_rng(0).standard_normal((batch, 32, 32, 1), dtype=np.float32)
    data = (jnp.asarray(images), jnp.asarray(np.arange(batch) % 10))
    calls = {"kfac-jax, momentum": _momentum(data)}
    calls |= {f"kfac-jax, frequency {f}": _kfac(data, f) for f in frequencies}
    taken = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(STEPS):
                call()
            if number:  # the first round compiles
                taken[name].append((time.perf_counter() - begin) / STEPS * 1e3)
    print(json.dumps({name: float(np.median(values)) for name, values in taken.items()}))


def _initial():
    shapes = {
        "c1": (5, 5, 1, 6), "c2": (5, 5, 6, 16), "w1": (400, 120), "b1": (120,),
        "w2": (120, 84), "b2": (84,), "w3": (84, 10), "b3": (10,),
    }  # fmt: skip
    keys = jax.random.split(jax.random.PRNGKey(0), len(shapes))
    return {
        name: 0.1 * jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def _network(weights, images):
    x = images
    for name in ("c1", "c2"):
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(
            x, weights[name], (1, 1), "VALID", dimension_numbers=numbers
        )
        window = (1, 2, 2, 1)
        x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, window, window, "VALID")
    x = x.reshape(x.shape[0], -1)
    x = jax.nn.relu(x @ weights["w1"] + weights["b1"])
    x = jax.nn.relu(x @ weights["w2"] + weights["b2"])
    return x @ weights["w3"] + weights["b3"]


def _loss(weights, data, *, registered=False):
    logits = _network(weights, data[0])
    if registered:
        kfac_jax.register_softmax_cross_entropy_loss(logits, data[1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, data[1]).mean()


def _momentum(data):
    rule, weights = optax.sgd(0.01, 0.9), _initial()
    kept = {"weights": weights, "state": rule.init(weights)}

    @jax.jit
    def step(weights, state, data):
        loss, gradients = jax.value_and_grad(_loss)(weights, data)
        updates, state = rule.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    def call():
        kept["weights"], kept["state"], loss = step(kept["weights"], kept["state"], data)
        return float(loss)

    return call


def _kfac(data, frequency):
    optimizer = kfac_jax.Optimizer(
        value_and_grad_func=jax.value_and_grad(
            lambda weights, batch: _loss(weights, batch, registered=True)
        ),
        l2_reg=0.0,
        value_func_has_aux=False,
        value_func_has_state=False,
        value_func_has_rng=False,
        use_adaptive_learning_rate=False,
        use_adaptive_momentum=False,
        use_adaptive_damping=False,
        inverse_update_period=frequency,
        curvature_update_period=frequency,
        num_burnin_steps=0,
        multi_device=False,
    )
    key, weights = jax.random.PRNGKey(0), _initial()
    kept = {"weights": weights, "state": optimizer.init(weights, key, data), "number": 0}

    def call():
        kept["weights"], kept["state"], stats = optimizer.step(
            kept["weights"], kept["state"], key, batch=data, global_step_int=kept["number"],
            learning_rate=0.01, momentum=0.9, damping=0.3,
        )  # fmt: skip
        kept["number"] += 1
        return float(stats["loss"])

    return call


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
