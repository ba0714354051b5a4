"""One of two workers that save variables in slices where one of them cannot write, or has a disk of its own."""

import json
import os
import resource
import signal
from pathlib import Path

import replicant

strategy = replicant.FullyShardedStrategy(min_size=8)

import numpy as np  # noqa: E402

from replicant.checkpoint.values import _restore  # noqa: E402
from replicant.checkpoint.workers import _collective_save  # noqa: E402

RANK, FOLDER = int(os.environ["JAX_PROCESS_ID"]), Path(os.environ["FOLDER"])
_collective_save.SEEN_SECONDS = 1.0
with strategy.scope():
    kernel = replicant.Variable(np.arange(20_000, dtype="float32").reshape(2, 10_000), name="kernel")
strategy.run(lambda: kernel.assign_add(np.ones((2, 10_000), "float32")))
checkpoint = replicant.Checkpoint(kernel=kernel)
found = {}


def case(name, do):
    try:
        found[name] = do()
    except replicant.errors.CheckpointError as error:
        found[name] = f"{type(error).__name__}: {error}"


def limit(num_bytes):
    """Let no file of worker 1 have more bytes."""
    if RANK == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


def background(prefix):
    checkpoint.save(prefix, replicant.CheckpointOptions(enable_async=True))
    checkpoint.sync()


def restored(path):
    kernel.assign(np.zeros((2, 10_000), "float32"))
    checkpoint.restore(path).assert_consumed()
    return float(np.asarray(kernel.numpy()).sum(dtype="float64"))


def cut_and_assign(*args):
    if RANK == 1:
        (Path(found["third"]) / "slices-1.bin").write_bytes(b"")
    assign_slices(*args)


shared = FOLDER / "shared"
limit(4096)
case("full", lambda: checkpoint.save(shared / "ckpt"))
case("full in the background", lambda: background(shared / "ckpt"))
limit(resource.RLIM_INFINITY)
case("left", lambda: sorted(path.name for path in shared.iterdir()))
case("saved", lambda: str(checkpoint.save(shared / "ckpt", replicant.CheckpointOptions(enable_async=True))))
case("restored", lambda: restored(found["saved"]))
case("taken", lambda: checkpoint.write(found["saved"]))
case("second", lambda: str(checkpoint.save(shared / "ckpt")))
strategy.run(lambda: None)
if RANK == 1:
    with (Path(found["second"]) / "slices-1.bin").open("r+b") as stream:
        stream.write(b"damaged")
case("damaged", lambda: restored(found["second"]))
with replicant.CheckpointManager(checkpoint, shared, 3) as manager:
    case("passed over", manager.restore_or_initialize)

# Worker 1 can no longer read its slices when it assigns them.
case("third", lambda: str(checkpoint.save(shared / "ckpt")))
assign_slices = _restore.assign_slices
_restore.assign_slices = cut_and_assign
case("cut", lambda: restored(found["third"]))
_restore.assign_slices = assign_slices
case("restored again", lambda: restored(found["saved"]))
strategy.run(lambda: None)  # the workers compare what they have restored

# From here on, each worker has a disk of its own in the same place.
(FOLDER / f"disk-{RANK}").mkdir()
os.chdir(FOLDER / f"disk-{RANK}")
case("own disk", lambda: checkpoint.save("run/ckpt"))
case("own disk in the background", lambda: background("run/ckpt"))
if RANK == 0:
    Path("run/shared").symlink_to(shared)
case("restored from own disk", lambda: restored(f"run/shared/{Path(found['saved']).name}"))
Path(os.environ["ANSWER"]).write_text(json.dumps(found))
