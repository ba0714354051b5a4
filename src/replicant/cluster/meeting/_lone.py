"""Warns a process that trains on its own and saves checkpoints, although its launcher says that it is one of several.

Each of the others would save to the same place. A process may also be alone on purpose, so that this is not an error.
"""

import warnings

from ...errors import ClusterError
from ..resolvers._detect import detect
from ..resolvers._environ import Environ


class _Process:
    """What this process knows of itself: the strategy that trains in it alone, and whether it was warned."""

    strategy: str | None = None
    warned = False


def trains_alone(strategy: str) -> None:
    """Note that a strategy with this name trains in this process only."""
    _Process.strategy = strategy


def warn_before_saving() -> None:
    """Warn, once, if a strategy trains alone here and the environment says that there are other processes."""
    strategy = _Process.strategy
    if strategy is None or _Process.warned:
        return
    _Process.warned = True
    sign = sign_of_others() or _connected()
    if sign is not None:
        warnings.warn(
            f"{strategy} trains in this process only and saves a checkpoint, but {sign} If each of several processes runs this "
            "program, they overwrite each other's checkpoints: use MultiWorkerMirroredStrategy. If not, set REPLICANT_SINGLE=1.",
            stacklevel=4,
        )


def _connected() -> str | None:
    """Whether the program has connected JAX to other processes itself, as a sentence. JAX has started."""
    import jax

    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return None
    return f"jax.distributed.initialize has made this process {jax.process_index()} of {jax.process_count()}."


def sign_of_others(environ: Environ | None = None) -> str | None:
    """What says that there are other processes than this one, as a sentence. None if nothing does.

    >>> sign_of_others({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"})
    'torchrun says that this is process 1 of 2.'
    >>> sign_of_others({})
    """
    try:
        found = detect(environ)
    except ClusterError as error:
        return f"the launcher's variables are not understood: {error}"
    if found.num_processes > 1:
        return f"{found.source} says that this is process {found.process_id} of {found.num_processes}."
    return found.doubt
