"""A program that _flag_trial.py starts: prints the processor time of a convolution's gradients, and their sum.

It imports nothing of this package, whose import would lead back here.
"""

import json
import time

import jax
import jax.numpy as jnp
from jax import Array, lax

_IMAGES, _FILTERS = (64, 26, 26, 32), (3, 3, 32, 64)  # a layer of the guides' CNN
_ROUNDS = 12


def loss(filters: Array, images: Array) -> Array:
    """The mean of squares of a convolution."""
    result = lax.conv_general_dilated(images, filters, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.mean(result * result)


def main() -> None:
    """Compute and print."""
    filters, images = (jnp.sin(jnp.arange(jnp.zeros(shape).size) * 0.7).reshape(shape) for shape in (_FILTERS, _IMAGES))
    gradients = jax.jit(jax.grad(loss, (0, 1)))
    of_filters, of_images = gradients(filters, images)
    total = float(jnp.abs(of_filters).sum() + jnp.abs(of_images).sum())
    times = []
    for _ in range(_ROUNDS):
        begin = time.process_time()
        jax.block_until_ready(gradients(filters, images))
        times.append(time.process_time() - begin)
    print(json.dumps({"seconds": min(times), "sum": total}))  # noqa: T201 - _flag_trial.py reads it


if __name__ == "__main__":
    main()
