"""What the workers of a printed job are started with: their arguments and their environment, by the rules of each engine.

Slurm's script and mpirun's line are run by bash, with small programs in place of srun, mpirun and python. Kubernetes, its operators
and the clouds are imitated; what they do was read in the sources and pages that are named.
"""

import json
import os
import subprocess
import sys

import yaml

from replicant.launch import describe_job

_PYTHON = """\
import json, os, sys
given = {name: value for name, value in os.environ.items() if name not in ("PATH", "LC_CTYPE")}
print(json.dumps([["python", *sys.argv[1:]], given]))
"""
# Starts the command behind its options once for each task, on two nodes as soon as there are several.
_SRUN = """\
import os, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    print(words.pop(0), file=sys.stderr)
count = int(os.environ["SLURM_NTASKS"])
nodes = "n1" if count == 1 else "n[1-2]"
each = "1" if count == 1 else f"{count - 1},1"
more = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(count), "SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": each}
for rank in range(count):
    subprocess.run(words, env={**os.environ, **more, "SLURM_PROCID": str(rank)}, check=True)
"""
_MPIRUN = """\
import os, subprocess, sys
words, given = sys.argv[1:], {}
while words[0].startswith("-"):
    option, value = words.pop(0), words.pop(0)
    if option == "-np":
        count = int(value)
    elif option == "-x":
        given.update([value.split("=", 1)])
for rank in range(count):
    own = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(count), "PMIX_NAMESPACE": "prterun-n1-7@1"}
    subprocess.run(words, env={**os.environ, **given, **own}, check=True)
"""


def _stubs(folder):
    for name, text in (("python", _PYTHON), ("srun", _SRUN), ("mpirun", _MPIRUN), ("scontrol", "")):
        (folder / name).write_text(f"#!{sys.executable} -IS\n{text}")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def _run(command, environ, folder):
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def _slurm(job, folder):
    script = folder / "job.sh"
    script.write_text(describe_job(job), newline="")
    subprocess.run(["bash", "-n", script], check=True, timeout=60)
    environ = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": str(job.settings.num_workers)}
    return _run(["bash", script], _stubs(folder) | environ, folder)


def _mpi(job, folder):
    return _run(["bash", "-c", describe_job(job)], _stubs(folder), folder)


def expanded(text, variables):
    """Kubernetes' expansion of ``$(NAME)``: kubernetes v1.34, third_party/forked/golang/expansion/expand.go."""
    found, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            found, at = found + text[at], at + 1
        elif text[at + 1] == "(" and ")" in text[at + 2 :]:
            name = text[at + 2 : text.index(")", at + 2)]
            found, at = found + variables.get(name, f"$({name})"), at + 3 + len(name)
        else:  # "$$" is one dollar sign, and before another letter it stands for itself
            found, at = found + ("$" if text[at + 1] == "$" else text[at : at + 2]), at + 2
    return found


def _in_pod(container, more):
    """A pod's arguments and environment. What the operator sets comes last."""
    variables = {}
    for each in container["env"]:
        variables[each["name"]] = expanded(each["value"], variables)
    return [expanded(word, variables) for word in container["command"]], {**variables, **more}


def _kubernetes(job, folder):
    _, document = yaml.safe_load_all(describe_job(job))
    spec = document["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    name = document["metadata"]["name"]
    return [
        _in_pod(container, {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"{name}-{index}"})
        for index in range(spec["completions"])
    ]


def _jobset(job, folder):
    """JobSet 0.10: the host names in its documentation, "Configuring DNS hostnames"."""
    document = yaml.safe_load(describe_job(job))
    (group,) = document["spec"]["replicatedJobs"]
    (container,) = group["template"]["spec"]["template"]["spec"]["containers"]
    name = f"{document['metadata']['name']}-{group['name']}-0"
    return [
        _in_pod(container, {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"{name}-{index}"})
        for index in range(group["template"]["spec"]["completions"])
    ]


def _trainer(job, folder):
    """Kubeflow Trainer 2.1: pkg/runtime/framework/plugins/jax/jax.go, manifests/base/runtimes/jax_distributed.yaml."""
    document = yaml.safe_load(describe_job(job))
    name, trainer = document["metadata"]["name"], document["spec"]["trainer"]
    own = {
        "JAX_NUM_PROCESSES": str(trainer["numNodes"]),
        "JAX_COORDINATOR_ADDRESS": f"{name}-node-0-0.{name}:29500",
        "JAX_COORDINATOR_PORT": "29500",
        "JAX_DISTRIBUTED_BACKEND": "gloo",
    }
    return [
        _in_pod(trainer, own | {"JAX_PROCESS_ID": str(i), "JOB_COMPLETION_INDEX": str(i), "HOSTNAME": f"{name}-node-0-{i}"})
        for i in range(trainer["numNodes"])
    ]


def _vertex(job, folder):
    """Vertex AI's documentation, "Distributed training": the format of CLUSTER_SPEC."""
    pools = yaml.safe_load(describe_job(job))["workerPoolSpecs"]
    at = [(number, index) for number, pool in enumerate(pools) for index in range(pool["replicaCount"])]
    cluster = {
        f"workerpool{number}": [f"cmle-training-workerpool{number}-ab-{index}:2222" for n, index in at if n == number]
        for number in range(len(pools))
    }
    found = []
    for number, index in at:
        container = pools[number]["containerSpec"]
        spec = {"cluster": cluster, "task": {"type": f"workerpool{number}", "index": index}, "environment": "cloud"}
        environ = {each["name"]: each["value"] for each in container["env"]}
        found.append(([*container["command"], *container["args"]], environ | {"CLUSTER_SPEC": json.dumps(spec)}))
    return found


def _sagemaker(job, folder):
    """SageMaker's documentation, "How Amazon SageMaker AI provides training information". The job's own program is run."""
    request = json.loads(describe_job(job))
    hosts = [f"algo-{number}" for number in range(1, request["ResourceConfig"]["InstanceCount"] + 1)]
    algorithm = request["AlgorithmSpecification"]
    python, option, program = algorithm["ContainerEntrypoint"]
    assert (python, option) == ("python", "-c")
    found = []
    for host in hosts:
        config = {"current_host": host, "hosts": hosts, "network_interface_name": "eth0"}
        (folder / "resourceconfig.json").write_text(json.dumps(config))
        here = program.replace("/opt/ml/input/config", str(folder))
        assert here != program
        command = [sys.executable, "-IS", "-c", here, *algorithm["ContainerArguments"]]
        found += _run(command, _stubs(folder) | request["Environment"], folder)
    return found


STARTED = {
    "slurm": _slurm,
    "kubernetes": _kubernetes,
    "jobset": _jobset,
    "trainer": _trainer,
    "vertex": _vertex,
    "sagemaker": _sagemaker,
    "mpi": _mpi,
}
