"""A process that has called jax.distributed.initialize itself, and then makes strategies. It writes what they say."""

import json
import os
import sys
import warnings
from pathlib import Path

import jax

jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(os.environ["RANK_HERE"]))

import replicant  # noqa: E402 - it comes too late on purpose
from replicant.errors import ReplicantError  # noqa: E402

said = {}
for name in ("MultiWorkerMirroredStrategy", "FullyShardedStrategy"):
    try:
        getattr(replicant, name)()
    except ReplicantError as error:
        said[name] = f"{type(error).__name__}: {error}"
kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("JAX_PROCESS")}
os.environ["REPLICANT_SINGLE"] = "1"
said["alone"] = replicant.MultiWorkerMirroredStrategy().num_replicas_in_sync
mirrored = replicant.MirroredStrategy()
with mirrored.scope():
    checkpoint = replicant.Checkpoint(value=replicant.Variable(1.0))
del os.environ["REPLICANT_SINGLE"]
os.environ |= kept
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    checkpoint.save(str(Path(os.environ["ANSWER"]).parent / os.environ["RANK_HERE"] / "ckpt"))
said["warned"] = [str(each.message) for each in caught if "overwrite each other" in str(each.message)]
Path(os.environ["ANSWER"]).write_text(json.dumps(said))
