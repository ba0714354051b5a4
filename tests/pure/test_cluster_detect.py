"""One detector: which source holds, what it says, and where the others disagree."""

import json

import pytest

from replicant.cluster import ClusterSpec, Membership, detect
from replicant.errors import ClusterError

JAX = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "jax:1"}
TF_CONFIG = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["tf:1", "tf2:1"]}, "task": {"type": "worker", "index": 1}})}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "torch", "MASTER_PORT": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-mpi-1@1"}
TPU = {"TPU_WORKER_HOSTNAMES": "tpu0,tpu1", "TPU_WORKER_ID": "1"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "slurm[1-2]"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "JAX_NUM_PROCESSES": "2", "JOBSET_NAME": "k8s", "REPLICATED_JOB_NAME": "w"}

# In the order in which they hold.
SOURCES = {
    "JAX variables": (JAX, "jax"),
    "TF_CONFIG": (TF_CONFIG, "tf"),
    "torchrun": (TORCHRUN, "torch"),
    "Open MPI": (OPEN_MPI, "mpi"),
    "TPU": (TPU, "tpu0"),
    "Slurm": (SLURM, "slurm1"),
    "Kubernetes": (KUBERNETES, "k8s-w-0-0.k8s"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_each_source_alone(source):
    environ, host = SOURCES[source]
    found = detect(environ)
    assert (found.source, found.others, found.conflicts) == (source, (), ())
    assert (found.process_id, found.num_processes) == ((3, 8) if source == "torchrun" else (1, 2))
    assert found.coordinator_address.rpartition(":")[0] == host
    assert found.bind_address == found.coordinator_address
    assert found.because


@pytest.mark.parametrize("at", range(len(SOURCES)))
def test_the_first_of_several_holds(at):
    """The sources from `at` on are all there."""
    names = list(SOURCES)[at:]
    environ = {}
    for name in reversed(names):
        environ |= SOURCES[name][0]
    if at:
        environ.pop("JAX_PROCESS_ID", None)
        environ.pop("JAX_COORDINATOR_ADDRESS", None)
    found = detect(environ)
    assert found.source == names[0]
    assert [source for source, _ in found.others] == names[1:]


def test_nothing():
    found = detect({"PATH": "/bin", "HOSTNAME": "x", "RANK": "3", "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert found.source == "nothing"
    assert found.membership == Membership(0, 1, None, None, 0, 1)
    assert (found.resolver.cluster_spec(), found.coordinator_address, found.bind_address) == (ClusterSpec({}), None, None)
    assert str(found) == (
        "Cluster: nothing\n"
        "  process       0 of 1\n"
        "  on this host  0 of 1\n"
        "  because       no variable describes a cluster\n"
        "  because       RANK=3 is set, but RANK and WORLD_SIZE are not both set"
    )  # fmt: skip


def test_the_table_of_torchrun_inside_slurm():
    found = detect({**TORCHRUN, **SLURM, "SLURM_PROCID": "0", "JAX_COORDINATOR_PORT": "9"})
    assert found.local_rank == 3
    assert repr(found) == "Detection(torchrun: Membership(process 3 of 8, coordinator torch:2))"
    assert str(found) == (
        "Cluster: torchrun\n"
        "  process       3 of 8 (task 3 of job 'worker')\n"
        "  coordinator   torch:2, listening on torch:2\n"
        "  on this host  3 of 4\n"
        "  because       RANK=3\n"
        "  because       WORLD_SIZE=8\n"
        "  because       LOCAL_RANK=3\n"
        "  because       LOCAL_WORLD_SIZE=4\n"
        "  because       MASTER_ADDR=torch\n"
        "  because       MASTER_PORT=2\n"
        "  also there    Slurm: Membership(process 0 of 2, coordinator slurm1:9)\n"
        "  conflict      number of processes: torchrun says 8, Slurm says 2\n"
        "  conflict      process id: torchrun says 3, Slurm says 0\n"
        "  conflict      coordinator's host: torchrun says torch, Slurm says slurm1"
    )


def test_a_source_that_is_overruled_need_not_make_sense():
    found = detect({**TF_CONFIG, "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"})
    assert (found.source, found.conflicts) == ("TF_CONFIG", ())
    [(source, said)] = found.others
    assert source == "Slurm"
    assert said.startswith("unusable: Slurm: SLURM_NTASKS=4, but this process was not started by srun")
    assert found.because == ("TF_CONFIG: task 1 of job 'worker'; 2 worker",)


def test_tf_config_has_the_coordinator():
    found = detect({**TF_CONFIG, "JAX_COORDINATOR_ADDRESS": "jax:1"})
    assert found.coordinator_address == "tf:1"
    assert found.conflicts == ("coordinator: TF_CONFIG says tf:1, JAX_COORDINATOR_ADDRESS says jax:1, which is not used",)
    assert detect({**TF_CONFIG, "JAX_COORDINATOR_ADDRESS": "tf:1"}).conflicts == ()


def test_the_source_that_holds_must_make_sense():
    with pytest.raises(ClusterError, match="TF_CONFIG is not JSON"):
        detect({**SLURM, "TF_CONFIG": "{"})


def test_the_process_s_own_environment(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert detect().process_id == 3
