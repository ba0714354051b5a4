"""Keras's global generator, which random functions without a seed draw from.

A compiled step keeps the generator with which it was traced. After ``keras.utils.set_random_seed``, Keras makes another one. The
step then gives its own generator the state of the new one, and makes it the global one again, so that both go on with the new seed.
"""

from collections.abc import Callable, Container
from typing import Any

from .. import _internals
from ._refs import ref_of_keras

_NAME = getattr(_internals.seed_generator, "GLOBAL_SEED_GENERATOR", "global_seed_generator")  # Keras 3.12 writes the name itself


def global_generator() -> Any:
    """Return the global generator; None if there is none."""
    return _internals.global_state.get_global_attribute(_NAME)


def following(refs: Container[Any]) -> Callable[[], tuple[()]] | None:
    """Return what a step calls before it runs if the global generator is among its variables; None otherwise."""
    generator = global_generator()
    if generator is None or ref_of_keras(generator.state) not in refs:
        return None

    def follow() -> tuple[()]:
        # Keras keeps the global generator for each thread. One in which none was ever made leaves this one as it is.
        now = getattr(_internals.global_state.GLOBAL_STATE_TRACKER, _NAME, generator)
        if now is not generator:
            if now is None:
                now = _internals.seed_generator.global_seed_generator()
            generator.state.assign(now.state.value)
            _internals.global_state.set_global_attribute(_NAME, generator)
        return ()

    return follow
