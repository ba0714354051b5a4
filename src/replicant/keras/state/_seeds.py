"""Seeds of random functions and layers: each replica draws other numbers, and replica 0 those of one device."""

from typing import Any

import jax.numpy as jnp

from ...errors import ArgumentError
from ...replicas._context import (
    active_replica_context,
)
from ...replicas._micro import active_micro_batch
from ...replicas._own_mesh import at_once
from ...variables._recorder import current_recorder
from .. import _internals
from ._recording_scope import RecordingScope
from ._refs import MADE_UNDER


def draw_seed(original: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw a seed that differs by replica. Replica 0 draws the seed of one device."""
    seed = original(generator, *args, **kwargs)
    context, micro_batch = active_replica_context(), active_micro_batch()
    if micro_batch is not None and micro_batch.replica is not None:
        replica = micro_batch.replica
    elif context is None or current_recorder() is None or context.num_replicas_in_sync == 1:
        return seed
    else:
        replica = context.replica_id_in_sync_group
    # The generator's state stays the same on all replicas, but what they draw depends on the replica. An odd multiplier
    # (2**32 / golden ratio) spreads the replica ids over all seeds and leaves replica 0 with the seed of one device.
    shift = replica.astype(seed.dtype) * jnp.asarray(0x9E3779B1, seed.dtype)
    return seed + jnp.stack([shift, jnp.zeros_like(shift)])


def global_generator(original: Any) -> Any:
    """Return the generator of random functions without a seed. Keras gives none in a trace, but our programs have its state."""
    if current_recorder() is not None and not isinstance(_internals.get_stateless_scope(), RecordingScope):
        raise ArgumentError(
            "A function of keras.random was called without a seed in functional code of Keras, such as `stateless_call`, where it "
            "would draw the same numbers at every step. Create a generator once, seed = keras.random.SeedGenerator(), make it an "
            "attribute of the model, and pass it: keras.random.normal(shape, seed=seed)."
        )
    if current_recorder() is None:
        generator = original()
    else:
        with _internals.outside_stateless_scope(), at_once():
            generator = original()
    generator.state.__dict__.pop(MADE_UNDER, None)  # it serves all strategies, whoever draws first
    return generator
