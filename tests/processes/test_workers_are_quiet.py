"""Workers on CPUs print what their program prints, and nothing of the library that connects them."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import _group  # noqa: E402

# A worker prints through C++'s std::cout: before, while a first program computes, and after.
PRINTS = """
import ctypes
import replicant
from replicant.cluster.jax import _gloo_chatter

library = ctypes.CDLL("libstdc++.so.6")
cout = ctypes.addressof(ctypes.c_char.in_dll(library, "_ZSt4cout"))

def say(text):
    library["_ZNSo5writeEPKcl"](ctypes.c_void_p(cout), text, ctypes.c_long(len(text)))
    library["_ZNSo5flushEv"](ctypes.c_void_p(cout))

connecting = _gloo_chatter.connecting()
say(b"before\\n")
with connecting.quiet(lambda: None):
    say(b"meanwhile\\n")
try:
    with connecting.quiet(lambda: None):
        raise KeyboardInterrupt
except KeyboardInterrupt:
    say(b"after\\n")
"""

# The compiler's event tells that a program is new: then the worker waits for its end, once.
WAITS = """
import jax, jax.numpy as jnp
from replicant.cluster.jax import _gloo_chatter

connecting, program, waited = _gloo_chatter.connecting(), jax.jit(lambda x: x + 1), []
for size in (2, 2, 3, 2):
    x = jnp.zeros(size).block_until_ready()
    with connecting.quiet(lambda: waited.append(size)):
        program(x)
print(waited)
"""


def printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.long
def test_each_worker_prints_its_own_lines_only(tmp_path: Path) -> None:
    group = _group.Group(HERE / "_worker_quiet.py", 2, tmp_path)
    expected = "fit: batches of 12 and 8\nfit: batches of 7, 7 and 6\nloop: 7.0\nloop: 7.0\nloop: 6.0\n"
    assert [ended.out for ended in group.wait()] == [expected, expected]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into the C++ library of Linux")
@pytest.mark.long
def test_the_stream_is_silent_only_meanwhile() -> None:
    assert ctypes.CDLL("libstdc++.so.6")
    assert printed(PRINTS) == "before\nafter\n"


@pytest.mark.long
def test_it_waits_for_new_programs_only() -> None:
    assert printed(WAITS) == "[2, 3]\n"
