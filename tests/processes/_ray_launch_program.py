"""Starts a Ray cluster of two nodes on 127.0.0.1, launches jobs on it, and prints their outcomes as JSON.

Argument: a folder for logs and backups.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SECONDS = 300
TRAINING = Path(__file__).with_name("_ray_training.py")
COMMAND = [sys.executable, "-m", "replicant", "launch", "--engine", "ray", "--workers"]


def launch(count: int, what: str, folder: Path, *options: str) -> dict[str, Any]:
    command = [*COMMAND, str(count), "--log-dir", str(folder / what), *options, str(TRAINING), what, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    logs = [path.read_text() for path in sorted((folder / what).glob("rank-*.log"))]
    return {"code": done.returncode, "out": sorted(done.stdout.splitlines()), "err": done.stderr, "logs": logs}


def launcher_killed(folder: Path) -> bool:
    """Kill a launcher, and check that its workers end, too."""
    files = [folder / f"pid-{rank}" for rank in range(2)]
    with (folder / "launcher").open("w") as output:
        launcher = subprocess.Popen([*COMMAND, "2", str(TRAINING), "waits", str(folder)], stdout=output, stderr=output)
    wait_for(lambda: all(path.exists() and path.read_text() for path in files), "the workers did not start")
    pids = [int(path.read_text()) for path in files]
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the workers run on")
    return True


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def main(folder: Path) -> None:
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex(), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        os.environ["RAY_ADDRESS"] = cluster.address
        answers = {
            "address": cluster.address,
            "fails": launch(2, "fails", folder),
        }
        if "1" in (os.environ.get("REPLICANT_TEST_SLOW"), os.environ.get("REPLICANT_TEST_FULL")):
            answers["trains"] = launch(2, "trains", folder, "--max-restarts", "1")
            answers["no room"] = launch(3, "fails", folder, "--start", "3")
            answers["launcher killed"] = launcher_killed(folder)
    finally:
        cluster.shutdown()
    print(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
