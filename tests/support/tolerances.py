"""Every tolerance that a test or a notebook uses, and the reason for its value.

Use them by name: ``assert_allclose(actual, expected, **TOLERANCE["one float32 gradient"])``.
Each is the bound of a requirement, or is set by the rounding that its comment names. None was
widened to make a test pass.
"""

TOLERANCE = {
    # Sums of at most 1e3 products of order 1 in float32, against float64.
    "one float32 gradient": dict(rtol=1e-5, atol=1e-6),
    # One rounding of a weight of order 1 (6e-8) and of its gradient.
    "float32, one update": dict(rtol=1e-5, atol=1e-6),
    # The same sums in another order, over five to ten updates.
    "float32, a few updates": dict(rtol=1e-5, atol=1e-6),
    # Against float64 over up to fifteen updates, whose errors add up.
    "float32, many updates": dict(rtol=1e-4, atol=1e-5),
    # Other convolution kernels: sums of up to 400 products in another order.
    "logits against PyTorch": dict(rtol=1e-4, atol=1e-5),
    # Other convolution kernels, 50 updates with momentum.
    "against PyTorch, 50 updates": dict(rtol=1e-3, atol=1e-5),
    # Momentum stops where float32 gradients no longer move the weights.
    "trained to the optimum": dict(rtol=1e-4, atol=1e-5),
    # 11 bits: 5e-4 of each product.
    "float16 network": dict(rtol=5e-3, atol=5e-3),
    # One rounding of a float64 rate to float32 (6e-8), and the rounding of the float64 loop.
    "a rate in float32": dict(rtol=1e-7, atol=1e-12),
    # Requirements of the basis, which is computed in float64 and rounded once, for entries scaled
    # to order 1; P P^T sums M products of numbers whose squares sum to 1.
    "basis against SVD": dict(rtol=0, atol=1e-5),
    "orthonormal rows in float32": dict(rtol=0, atol=1e-6),
}
