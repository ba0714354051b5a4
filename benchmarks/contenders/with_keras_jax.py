"""Stock Keras on JAX: ``fit``, without Replicant."""

import argparse
import os
from collections.abc import Callable

os.environ["KERAS_BACKEND"] = "jax"

import jax
from _models import fit_rounds, make_model
from _serve import Round, parse, serve


def make(args: argparse.Namespace) -> Callable[[], Round]:
    """Make a round of training on one device."""
    if args.case.gpu:
        jax.devices("gpu")  # fails if there is none
    return fit_rounds(args.case, make_model(args.case), args.steps)


if __name__ == "__main__":
    serve(parse(), make)
