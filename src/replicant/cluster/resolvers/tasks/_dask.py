"""Dask: whether this is a task of a worker. Dask starts each task by itself, so nothing tells how many belong together."""

import os
import sys

from .._environ import Environ


def sign(environ: Environ) -> str | None:
    """What says that this is a task on a worker of Dask. None if it is not.

    >>> sign({})  # not the environment of this process
    """
    distributed = sys.modules.get("distributed")
    if environ is not os.environ or distributed is None:
        return None
    try:
        return f"distributed.get_worker()={distributed.get_worker().address}"
    except ValueError:  # it is not a worker
        return None
