"""One detector: which source holds, what it says, and where the others disagree."""

import json

import pytest

from replicant.cli._checkup import _facts
from replicant.cluster import ClusterSpec, Membership, detect
from replicant.errors import ClusterError

JAX = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "jax:1"}
TF_CONFIG = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["tf:1", "tf2:1"]}, "task": {"type": "worker", "index": 1}})}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "torch", "MASTER_PORT": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-mpi-1@1"}
TPU = {"TPU_WORKER_HOSTNAMES": "tpu0,tpu1", "TPU_WORKER_ID": "1"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "slurm[1-2]"}
MPI = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "3", "HYDI_CONTROL_FD": "7"}
JAX_JOB = {"PROCESS_ID": "1", "NUM_PROCESSES": "2", "COORDINATOR_ADDRESS": "jaxjob", "COORDINATOR_PORT": "6666"}
LEADER_WORKER_SET = {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "lws"}
SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
VERTEX_AI = {
    "CLUSTER_SPEC": json.dumps(
        {"cluster": {"workerpool0": ["pool0:2222"], "workerpool1": ["pool1:2222"]}, "task": {"type": "workerpool1", "index": 0}}
    )
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "JAX_NUM_PROCESSES": "2", "JOBSET_NAME": "k8s", "REPLICATED_JOB_NAME": "w"}

# In the order in which they hold.
SOURCES = {
    "JAX variables": (JAX, "jax"),
    "TF_CONFIG": (TF_CONFIG, "tf"),
    "torchrun": (TORCHRUN, "torch"),
    "Open MPI": (OPEN_MPI, "mpi"),
    "MPI": (MPI, "127.0.0.1"),
    "TPU": (TPU, "tpu0"),
    "Slurm": (SLURM, "slurm1"),
    "JAXJob": (JAX_JOB, "jaxjob"),
    "LeaderWorkerSet": (LEADER_WORKER_SET, "lws"),
    "Kubernetes": (KUBERNETES, "k8s-w-0-0.k8s"),
    "SageMaker": (SAGEMAKER, "algo-1"),
    "Vertex AI": (VERTEX_AI, "pool0"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_each_source_alone(source):
    environ, host = SOURCES[source]
    found = detect(environ)
    assert (found.source, found.others, found.conflicts) == (source, (), ())
    assert (found.process_id, found.num_processes) == ({"torchrun": (3, 8), "MPI": (2, 3)}.get(source, (1, 2)))
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
    assert found.doubt == (
        "nothing that Replicant reads describes a cluster, but by RANK=3 (torchrun), this process is one of several. If so, set "
        "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or JAX_PROCESS_ID, JAX_NUM_PROCESSES and JAX_COORDINATOR_ADDRESS (the "
        "host:port of process 0) in each process. If it is to train alone, set REPLICANT_SINGLE=1, or pass "
        "cluster_resolver=SimpleClusterResolver(ClusterSpec({}))."
    )
    assert str(found) == (
        "Cluster: nothing\n"
        "  process       0 of 1\n"
        "  on this host  0 of 1\n"
        "  because       no variable describes a cluster\n"
        "  doubt         nothing that Replicant reads describes a cluster, but by RANK=3 (torchrun), this\n"
        "                process is one of several. If so, set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT,\n"
        "                or JAX_PROCESS_ID, JAX_NUM_PROCESSES and JAX_COORDINATOR_ADDRESS (the host:port of\n"
        "                process 0) in each process. If it is to train alone, set REPLICANT_SINGLE=1, or pass\n"
        "                cluster_resolver=SimpleClusterResolver(ClusterSpec({}))."
    )


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


TORCHRUN_OF_ONE = {"RANK": "0", "WORLD_SIZE": "1"}
ONE_WORKER = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["tf:1"]}, "task": {"type": "worker", "index": 0}})}
# What seems to be a job of one, and the words that say why it may not be one.
DOUBTS = [
    ({"PMI_SIZE": "4"}, "by PMI_SIZE=4 (MPICH, Intel MPI or Cray PALS), this process is one of several. If so, set PMI_RANK and"),
    ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "4"}, "set JAX_PROCESS_ID=$HOROVOD_RANK, JAX_NUM_PROCESSES=$HOROVOD_SIZE and"),
    ({"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0"}, "by PALS_RANKID=0 and PALS_LOCAL_RANKID=0 (MPICH"),
    ({"ALPS_APP_PE": "0"}, "ALPS_APP_PE=0 (Cray ALPS)"),
    ({"FLUX_TASK_RANK": "0", "FLUX_JOB_NNODES": "4"}, "FLUX_TASK_RANK=0 and FLUX_JOB_NNODES=4 (Flux)"),
    ({"MV2_COMM_WORLD_RANK": "1"}, "MV2_COMM_WORLD_RANK=1 (MVAPICH2)"),
    ({"RANK": "0", "LOCAL_RANK": "0"}, "RANK=0 and LOCAL_RANK=0 (torchrun)"),
    ({"WORLD_SIZE": "4", "MASTER_ADDR": "node1"}, "WORLD_SIZE=4 and MASTER_ADDR=node1 (torchrun)"),
    ({"PET_NNODES": "1:2"}, "PET_NNODES=1:2 (torchrun)"),
    ({"NUM_PROCESSES": "2", "PROCESS_ID": "0"}, "set PROCESS_ID, NUM_PROCESSES and COORDINATOR_ADDRESS, or JAX_PROCESS_ID"),
    ({"LWS_GROUP_SIZE": "two"}, "LWS_GROUP_SIZE=two (LeaderWorkerSet)"),
    ({"OMPI_COMM_WORLD_SIZE": "2"}, "set OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, or JAX_PROCESS_ID"),
    ({"JAX_COORDINATOR_ADDRESS": "node1:1"}, "by JAX_COORDINATOR_ADDRESS=node1:1 (JAX variables)"),
    ({"REPLICANT_JOB_ID": "a"}, "REPLICANT_JOB_ID=a (Replicant)"),
    ({"SM_HOSTS": '["a", "b"]'}, 'SM_HOSTS=["a", "b"] (SageMaker)'),
    ({"SM_RESOURCE_CONFIG": '{"hosts": ["a", "b"], "current_host": "a"}'}, "(SageMaker)"),
    ({"CLUSTER_SPEC": '{"cluster": {"head": ["a:1"], "workers": ["b:1"]}}'}, "(Vertex AI)"),
    (
        {"TF_CONFIG": '{"task": {"type": "worker", "index": 1}}'},
        '(TensorFlow), this process is one of several. If so, set a "cluster"',
    ),
    ({"TF_CONFIG": '{"cluster": {}, "task": {"type": "worker", "index": 1}}'}, "(TensorFlow)"),
    ({"TF_CONFIG": '{"Cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'}, "(TensorFlow)"),
    # Another source, or a launcher without one, contradicts the source that counts.
    (
        {**TORCHRUN_OF_ONE, **SLURM},
        "RANK=0 and WORLD_SIZE=1 say that this process is the only one, but by SLURM_STEP_NUM_TASKS=2 and SLURM_PROCID=1 (Slurm)",
    ),
    ({**ONE_WORKER, **TORCHRUN}, "says that this process is the only one, but by WORLD_SIZE=8, RANK=3"),
    (
        {**ONE_WORKER, "FLUX_JOB_SIZE": "2"},
        "FLUX_JOB_SIZE=2 (Flux), it is one of several. If so, unset what is wrong, or set JAX",
    ),
    (
        {**TORCHRUN_OF_ONE, "TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0"},
        "Membership(process 0 of 2, coordinator a:8482) (TPU)",
    ),
    ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "MPI_LOCALNRANKS": "2"}, "SLURM_JOB_ID=7 and SLURM_NTASKS=1 say"),
]


@pytest.mark.parametrize(("environ", "words"), DOUBTS)
def test_a_job_of_one_in_doubt(environ, words):
    found = detect(environ)
    assert found.num_processes == 1
    assert words in found.doubt
    assert found.doubt in " ".join(str(found).split())
    result = _facts.cluster_variables(environ)
    assert (result.state, result.remedy) == ("fail", f"strategies over workers refuse to start here: {found.doubt}")
    for meant in ({"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, {"REPLICANT_SINGLE": "1"}):
        alone = detect(environ | meant)
        assert (alone.num_processes, alone.doubt) == (1, None)


@pytest.mark.parametrize(
    "environ",
    [
        {"WORLD_SIZE": "1", "MASTER_ADDR": "localhost"},
        {**TORCHRUN_OF_ONE, "LOCAL_RANK": "0", "NNODES": "1", "MASTER_ADDR": "localhost", "REPLICANT_JOB_ID": "a"},
        {"TF_CONFIG": '{"cluster": {}, "task": {"type": "master", "index": 0}, "environment": "cloud"}'},
        {"PMI_RANK": "0", "PMI_SIZE": "1", "PALS_RANKID": "0", "PALS_NODEID": "0"},
        {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "MASTER_ADDR": "n1", "SLURM_ARRAY_TASK_ID": "3"},
        {"PBS_NODENUM": "0", "PBS_VNODENUM": "0", "TPU_WORKER_ID": "0", "SM_HOSTS": '["a"]', "CLUSTER_SPEC": "prod"},
        # Others are in the cluster, although they do not train with this one.
        {"TF_CONFIG": json.dumps({"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}), "PMI_SIZE": "2"},
        {
            "TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}}),
            "PMI_SIZE": "2",
        },
    ],
)
def test_a_job_of_one_without_doubt(environ):
    found = detect(environ)
    assert (found.num_processes, found.doubt) == (1, None)
    assert _facts.cluster_variables(environ).state == "ok"


def test_the_process_s_own_environment(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert detect().process_id == 3
