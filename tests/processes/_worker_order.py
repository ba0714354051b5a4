"""One worker, which reads every pipeline of PLANS in turn, and writes what it saw."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import replicant

strategy = replicant.MultiWorkerMirroredStrategy()

import _pipelines  # noqa: E402

plans = json.loads(Path(os.environ["PLANS"]).read_text())
worker = strategy.topology.worker_index
folder = Path(os.environ["FOLDER"])
answers = [_pipelines.epochs(strategy, worker, plan, folder, number) for number, plan in enumerate(plans)]
answer = {"epochs": answers, "errors": _pipelines.errors(strategy, worker, folder), "fit": _pipelines.fitted(strategy, worker)}
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
