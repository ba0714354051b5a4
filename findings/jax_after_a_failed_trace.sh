#!/usr/bin/env bash
# jax 0.10.2 (and 0.12.0.1) on CPUs, jax.jit of a function whose first call raises.
#
# A jitted function is started by C++ from its second call on, without any Python of JAX. One expects that a first call that raises,
# because the user's code does while it is traced, leaves no trace: the next call traces again, compiles, and the following ones are
# quick. The next call does compile. But all calls with arguments of these shapes go through JAX's Python dispatch from then on, for
# the life of the function: nothing is computed wrongly or raised, each call just takes longer to start (90 against 9 microseconds on
# two cores). Arguments of other shapes are started by C++, and so are these again after `clear_cache()` of the function, which
# compiles once more.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat > "$folder/calls.py" <<'PROGRAM'
import sys

import jax
import jax.numpy as jnp

fails = False


def double(x):
    if fails:
        raise RuntimeError("not yet")
    return jax.lax.add(x, x)


def through_python(fn, x):
    """Of ten calls, how many does JAX start through its Python?"""
    names = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        for _ in range(10):
            fn(x)
    finally:
        sys.setprofile(None)
    return names.count("cache_miss")


x, longer = jnp.ones(3), jnp.ones(5)
usual = jax.jit(lambda x: double(x))
found = {"never failed": through_python(usual, x)}
failed = jax.jit(lambda x: double(x))
fails = True
try:
    failed(x)
except RuntimeError as error:
    assert str(error) == "not yet"
fails = False
found["failed once"] = through_python(failed, x)
found["failed once, and again"] = through_python(failed, x)
found["failed once, other shape"] = through_python(failed, longer)
failed.clear_cache()
found["after clear_cache"] = through_python(failed, x)
print(found)
assert found == {
    "never failed": 1,
    "failed once": 10,
    "failed once, and again": 10,
    "failed once, other shape": 1,
    "after clear_cache": 1,
}
PROGRAM
"$folder/venv/bin/python" "$folder/calls.py"
# Seen on 2026-11-29:
# {'never failed': 1, 'failed once': 10, 'failed once, and again': 10, 'failed once, other shape': 1, 'after clear_cache': 1}
