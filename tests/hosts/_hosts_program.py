"""A worker without JAX, which says where it runs, writes its process number to FOLDER, and does what its arguments say.

``_hosts_program.py FOLDER WHAT``: "ends", "waits", or "fails RANK" (that rank ends with exit code 7 in generation 0).
"""

import os
import sys
import time
from pathlib import Path

folder, what, *more = sys.argv[1:]
rank, generation = os.environ["JAX_PROCESS_ID"], os.environ["REPLICANT_GENERATION"]
print(f"rank {rank} of {os.environ['JAX_NUM_PROCESSES']} on {os.uname().nodename}, generation {generation}", flush=True)
Path(folder, f"{generation}-{rank}").write_text(str(os.getpid()))
if what == "fails" and generation == "0":
    if rank in more:
        print("it fails", flush=True)
        sys.exit(7)
    time.sleep(60)
if what == "waits":
    time.sleep(120)
