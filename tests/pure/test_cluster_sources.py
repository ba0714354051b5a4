"""Simulated environments of launchers and machine managers, one row per process, and what each process must conclude."""

import pytest

from replicant.cluster import KubernetesClusterResolver, Membership, SlurmClusterResolver, TPUClusterResolver
from replicant.cluster.resolvers._kubernetes import find as find_kubernetes
from replicant.cluster.resolvers._launchers import find_jax, find_torchrun
from replicant.cluster.resolvers._pmix import find as find_open_mpi
from replicant.cluster.resolvers._slurm import find as find_slurm
from replicant.cluster.resolvers._tpu import find as find_tpu
from replicant.errors import ClusterError


def env(text, **more):
    return dict(pair.split("=", 1) for pair in text.split()) | more


# ---- Slurm

STEP = "SLURM_JOB_ID=17 SLURM_STEP_ID=0 "
TWO_NODES = STEP + "SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 SLURM_STEP_NODELIST=n[01-02] SLURM_STEP_TASKS_PER_NODE=2(x2) "
# The step runs on fewer nodes than the job has.
SMALL_STEP = (
    STEP + "SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_NODELIST=n[01-04] SLURM_STEP_NODELIST=n[03-04] "
    "SLURM_TASKS_PER_NODE=1(x4) SLURM_STEP_TASKS_PER_NODE=1(x2) "
)
# srun's step list is missing: the job's is used.
JOB_LIST = "SLURM_JOBID=17 SLURM_STEPID=0 SLURM_NTASKS=3 SLURM_JOB_NODELIST=n[9-10] SLURM_TASKS_PER_NODE=2,1 "
SLURM = [
    # variables                                                  | id of n | coordinator, bound to | on the host
    (TWO_NODES + "SLURM_PROCID=0 SLURM_NODEID=0 SLURM_LOCALID=0", 0, 4, "n01", (0, 2)),
    (TWO_NODES + "SLURM_PROCID=1 SLURM_NODEID=0 SLURM_LOCALID=1", 1, 4, "n01", (1, 2)),
    (TWO_NODES + "SLURM_PROCID=2 SLURM_NODEID=1 SLURM_LOCALID=0", 2, 4, "n01", (0, 2)),
    (TWO_NODES + "SLURM_PROCID=3 SLURM_NODEID=1 SLURM_LOCALID=1", 3, 4, "n01", (1, 2)),
    (TWO_NODES + "SLURM_PROCID=1 SLURM_NODEID=1 SLURM_LOCALID=0 SLURM_DISTRIBUTION=cyclic", 1, 4, "n01", (0, 2)),
    (TWO_NODES + "SLURM_PROCID=2 SLURM_NODEID=0 SLURM_LOCALID=1 SLURM_DISTRIBUTION=cyclic:block", 2, 4, "n01", (1, 2)),
    (TWO_NODES + "SLURM_PROCID=3 SLURM_NODEID=1 SLURM_LOCALID=1 SLURM_DISTRIBUTION=plane=1 ", 3, 4, "n01", (1, 2)),
    (
        TWO_NODES + "SLURM_PROCID=3 SLURM_NODEID=1 SLURM_LOCALID=1 SLURM_DISTRIBUTION=plane SLURM_DIST_PLANESIZE=2",
        3,
        4,
        "n01",
        (1, 2),
    ),
    (SMALL_STEP + "SLURM_PROCID=1 SLURM_NODEID=1 SLURM_LOCALID=0", 1, 2, "n03", (0, 1)),
    (JOB_LIST + "SLURM_PROCID=0 SLURM_LOCALID=0", 0, 3, "n9", (0, 2)),
    (JOB_LIST + "SLURM_PROCID=2 SLURM_LOCALID=0", 2, 3, "n9", (0, 1)),
    # without the step's variables altogether, as in some containers: a number above 0 only srun gives
    ("SLURM_JOB_ID=17 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_NODELIST=a,b", 1, 2, "a", (0, 1)),
    # one node: nothing leaves the machine
    (STEP + "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=n01 SLURM_STEP_TASKS_PER_NODE=2 SLURM_PROCID=1", 1, 2, "127.0.0.1", (1, 2)),
    # a step of one task, a batch script of one task, an salloc shell
    (STEP + "SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NODELIST=n01 SLURM_STEP_TASKS_PER_NODE=1 SLURM_PROCID=0", 0, 1, None, (0, 1)),
    ("SLURM_JOB_ID=17 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_NODELIST=n01 SLURM_NNODES=1", 0, 1, None, (0, 1)),
    ("SLURM_JOB_ID=17 SLURM_JOB_NODELIST=n01", 0, 1, None, (0, 1)),
]


@pytest.mark.parametrize(("variables", "process_id", "count", "host", "local"), SLURM)
def test_slurm(variables, process_id, count, host, local):
    membership = find_slurm(env(variables)).membership()
    address = membership.coordinator_address
    assert membership == Membership(process_id, count, address, address, *local)
    assert (None if address is None else address.rpartition(":")[0]) == host


def test_slurm_ports_agree_within_a_step_and_differ_between_steps_and_jobs():
    def port(job, step, rank):
        membership = find_slurm(env(TWO_NODES, SLURM_JOB_ID=job, SLURM_STEP_ID=step, SLURM_PROCID=rank)).membership()
        return int(membership.coordinator_address.rpartition(":")[2])

    assert {port("17", "0", rank) for rank in "0123"} == {port("17", "0", "0")}
    assert len({port("17", "0", "0"), port("17", "1", "0"), port("18", "0", "0")}) == 3
    assert all(61440 <= port(str(job), "0", "0") < 65280 for job in range(50))


def test_slurm_addresses_jobs_and_overrides():
    environ = env(TWO_NODES + "SLURM_PROCID=1")
    resolver = SlurmClusterResolver({"worker": 3, "ps": 1}, 8888, environ=environ)
    assert resolver.cluster_spec() == {"ps": ["n01:8888"], "worker": ["n01:8889", "n02:8888", "n02:8889"]}
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 0, "grpc")
    assert resolver.master() == "grpc://n01:8889"
    assert resolver.membership() == Membership(0, 3, "n01:8889", "n01:8889", 1, 2)
    given = SlurmClusterResolver(port_base=1, tasks_per_node={"x": 1, "y": 3}, environ=environ)
    assert given.cluster_spec() == {"worker": ["x:1", "y:1", "y:2", "y:3"]}
    assert SlurmClusterResolver(port_base=1, tasks_per_node=2, environ=environ).cluster_spec().num_tasks("worker") == 4
    one_node = STEP + "SLURM_NTASKS=2 SLURM_NODELIST=n01 SLURM_PROCID=1 JAX_COORDINATOR_ADDRESS=n01:5"
    assert find_slurm(env(one_node)).membership() == Membership(1, 2, "n01:5", "n01:5", 1, 2)
    told = env(TWO_NODES + "SLURM_PROCID=1 JAX_COORDINATOR_ADDRESS=10.0.0.1:5 JAX_COORDINATOR_BIND_ADDRESS=10.0.0.2:6")
    assert find_slurm(told).membership() == Membership(1, 4, "10.0.0.1:5", "10.0.0.2:6", 1, 2)
    assert find_slurm(env(TWO_NODES + "SLURM_PROCID=1 JAX_COORDINATOR_PORT=5")).membership().coordinator_address == "n01:5"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            "SLURM_JOB_ID=1 SLURM_PROCID=0 SLURM_NTASKS=4",
            "Slurm: SLURM_NTASKS=4, but this process was not started by srun. A batch script",
        ),
        ("SLURM_JOB_ID=1 SLURM_PROCID=0 SLURM_NNODES=2", "Slurm: SLURM_NNODES=2, but this process was not started by srun"),
        (STEP + "SLURM_NTASKS=2", "Slurm: SLURM_PROCID is not set. Start the program with srun"),
        (STEP + "SLURM_PROCID=1", "Slurm: SLURM_STEP_NUM_TASKS or SLURM_NTASKS or SLURM_NPROCS is not set"),
        (TWO_NODES + "SLURM_PROCID=x", "SLURM_PROCID='x' is not a whole number from 0"),
        (TWO_NODES + "SLURM_PROCID=-1", "SLURM_PROCID='-1' is not a whole number from 0"),
        (TWO_NODES + "SLURM_PROCID=4", "Slurm: SLURM_PROCID=4 is outside SLURM_STEP_NUM_TASKS=4: it must be from 0 to 3"),
        (
            STEP + "SLURM_PROCID=0 SLURM_NTASKS=999999999",
            "Slurm: SLURM_NTASKS=999999999; there can be at most 65536 processes",
        ),
        (STEP + f"SLURM_PROCID={'9' * 5000}", "SLURM_PROCID has 5000 digits; a number here has at most 18"),
        (STEP + "SLURM_PROCID=0 SLURM_NTASKS=0", "Slurm: SLURM_NTASKS=0; there must be at least one process"),
        (STEP + "SLURM_PROCID=0 SLURM_NTASKS=2", "SLURM_STEP_NODELIST or .* is not set, so the nodes of 2 tasks are not known"),
        (TWO_NODES + "SLURM_PROCID=0 SLURM_STEP_NODELIST=n[01", r"Host list 'n\[01', column 2: a bracket is not closed"),
        (
            TWO_NODES + "SLURM_PROCID=0 SLURM_STEP_TASKS_PER_NODE=2(x2),1",
            r"describes 3 nodes, but SLURM_STEP_NODELIST=n\[01-02\] has 2",
        ),
        (
            TWO_NODES + "SLURM_PROCID=0 SLURM_STEP_TASKS_PER_NODE=2,1",
            r"adds up to 3 tasks on 2 node\(s\), but SLURM_STEP_NUM_TASKS=4",
        ),
        (
            STEP + "SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_NODELIST=a,b",
            "3 tasks on 2 nodes, but SLURM_STEP_TASKS_PER_NODE or .* is not set",
        ),
        (
            TWO_NODES + "SLURM_PROCID=1 SLURM_NODEID=1",
            "by the node list and the tasks per node, SLURM_PROCID=1 should have SLURM_NODEID=0, but",
        ),
        (
            TWO_NODES + "SLURM_PROCID=1 SLURM_LOCALID=0",
            "SLURM_PROCID=1 should have SLURM_LOCALID=1, but it has 0. Use --distribution=",
        ),
        (
            TWO_NODES + "SLURM_PROCID=1 SLURM_DISTRIBUTION=arbitrary",
            "SLURM_DISTRIBUTION='arbitrary' is not known. It must be block, cyclic or",
        ),
        (
            TWO_NODES + "SLURM_PROCID=1 SLURM_DISTRIBUTION=plane",
            "SLURM_DISTRIBUTION='plane' needs a size of at least 1, as in 'plane=4'",
        ),
        (TWO_NODES + "SLURM_PROCID=1 JAX_COORDINATOR_PORT=0", "JAX_COORDINATOR_PORT=0: a port is from 1 to 65535"),
        (
            TWO_NODES + "SLURM_PROCID=1 JAX_COORDINATOR_ADDRESS=n01",
            "JAX_COORDINATOR_ADDRESS: 'n01' is not an address. Write host:port",
        ),
    ],
)
def test_slurm_mistakes(variables, message):
    with pytest.raises(ClusterError, match=message):
        find_slurm(env(variables))


def test_slurm_mistakes_in_arguments():
    with pytest.raises(ClusterError, match=r"jobs=\{'worker': 3\} have 3 tasks, but the step has 4"):
        SlurmClusterResolver({"worker": 3}, environ=env(TWO_NODES + "SLURM_PROCID=1"))
    with pytest.raises(ClusterError, match=r"tasks_per_node adds up to 2 tasks on 1 node\(s\), but SLURM_STEP_NUM_TASKS=4"):
        SlurmClusterResolver(tasks_per_node={"a": 2}, environ=env(TWO_NODES + "SLURM_PROCID=1"))
    with pytest.raises(ClusterError, match="SLURM_JOB_ID is not set, so this process is not part of a Slurm job"):
        SlurmClusterResolver(environ={})


# ---- Kubernetes

JOB = "KUBERNETES_SERVICE_HOST=10.0.0.1 JAX_NUM_PROCESSES=3 JAX_COORDINATOR_ADDRESS=train-0.pods:1234 "
JOBSET = "JAX_NUM_PROCESSES=4 JOBSET_NAME=js REPLICATED_JOB_NAME=w "
KUBERNETES = [
    (JOB + "JOB_COMPLETION_INDEX=0 HOSTNAME=train-0", 0, 3, "train-0.pods:1234"),
    (JOB + "JOB_COMPLETION_INDEX=2 HOSTNAME=train-2", 2, 3, "train-0.pods:1234"),
    ("JOB_COMPLETION_INDEX=1 JAX_PROCESS_COUNT=2 JAX_COORDINATOR_ADDRESS=train-0.pods", 1, 2, "train-0.pods:55527"),
    ("JOB_COMPLETION_INDEX=1 JAX_NUM_PROCESSES=2 JAX_COORDINATOR_ADDRESS=h JAX_COORDINATOR_PORT=7", 1, 2, "h:7"),
    ("JOB_COMPLETION_INDEX=0 JAX_NUM_PROCESSES=1", 0, 1, None),
    # a JobSet of one job of four pods, and of two jobs of two pods
    (JOBSET + "JOB_COMPLETION_INDEX=3 HOSTNAME=js-w-0-3", 3, 4, "js-w-0-0.js:55527"),
    (JOBSET + "PROCESSES_IN_JOB=2 JOB_COMPLETION_INDEX=1 HOSTNAME=js-w-0-1", 1, 4, "js-w-0-0.js:55527"),
    (JOBSET + "PROCESSES_IN_JOB=2 JOB_COMPLETION_INDEX=0 HOSTNAME=js-w-1-0", 2, 4, "js-w-0-0.js:55527"),
    (JOBSET + "PROCESSES_IN_JOB=2 JOB_COMPLETION_INDEX=1 JOB_INDEX=1 HOSTNAME=node7", 3, 4, "js-w-0-0.js:55527"),  # hostNetwork
    (JOBSET + "PROCESSES_IN_JOB=2 JOB_COMPLETION_INDEX=1 JOB_INDEX=1", 3, 4, "js-w-0-0.js:55527"),
    (
        "JOBSET_NAME=js REPLICATED_JOB_NAME=w REPLICATED_JOB_REPLICAS=2 PROCESSES_IN_JOB=2 JOB_INDEX=1 JOB_COMPLETION_INDEX=1",
        3,
        4,
        "js-w-0-0.js:55527",
    ),
]


@pytest.mark.parametrize(("variables", "process_id", "count", "coordinator"), KUBERNETES)
def test_kubernetes(variables, process_id, count, coordinator):
    membership = find_kubernetes(env(variables)).membership()
    local = (0, 1) if count == 1 else (None, None)
    assert membership == Membership(process_id, count, coordinator, coordinator, *local)


def test_kubernetes_arguments():
    environ = env("JOB_COMPLETION_INDEX=1 HOSTNAME=my-job-1")
    resolver = KubernetesClusterResolver(2, "svc", 99, environ=environ)
    assert resolver.cluster_spec().job_tasks("worker") == ["my-job-0.svc:99", None]
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert find_kubernetes({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            "JOB_COMPLETION_INDEX=1",
            "JOB_COMPLETION_INDEX is set, but the number of pods that train together is not. Set JAX_NUM_PROCESSES to",
        ),
        ("JOB_COMPLETION_INDEX=a", "JOB_COMPLETION_INDEX='a' is not a whole number"),
        (JOB + "JOB_COMPLETION_INDEX=3", "Kubernetes: the process id=3 is outside JAX_NUM_PROCESSES=3: it must be from 0 to 2"),
        (
            "JOB_COMPLETION_INDEX=1 JAX_NUM_PROCESSES=2",
            "neither JAX_COORDINATOR_ADDRESS nor a subdomain is given, so the other pods'",
        ),
        (
            JOBSET + "JOB_COMPLETION_INDEX=1 HOSTNAME=js-w-1-1",
            "this is a pod of job 1 of a JobSet, but the number of pods of each job is not",
        ),
        (JOBSET + "JOB_COMPLETION_INDEX=1 HOSTNAME=js-w-1-1 JOB_INDEX=0", "JOB_INDEX=0, but HOSTNAME=js-w-1-1 is a pod of job 1"),
        (JOBSET + "JOB_COMPLETION_INDEX=2 PROCESSES_IN_JOB=2", "JOB_COMPLETION_INDEX=2 is outside PROCESSES_IN_JOB=2"),
    ],
)
def test_kubernetes_mistakes(variables, message):
    with pytest.raises(ClusterError, match=message):
        find_kubernetes(env(variables))


def test_kubernetes_mistakes_in_arguments():
    with pytest.raises(ClusterError, match=r'JOB_COMPLETION_INDEX is not set\. Set completionMode: "Indexed" in the Job'):
        KubernetesClusterResolver(2, "svc", environ={})
    with pytest.raises(ClusterError, match="HOSTNAME=node7 does not end in -1, as pod 1 of an indexed Job does"):
        KubernetesClusterResolver(2, "svc", environ=env("JOB_COMPLETION_INDEX=1 HOSTNAME=node7"))


# ---- Open MPI

# As mpirun of Debian's Open MPI 4.1.4 sets them, and as Open MPI 5 does.
OMPI4 = (
    "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_NAMESPACE=3058040833 "
    "OMPI_MCA_orte_hnp_uri=3058040832.0;tcp://10.96.0.1,10.148.0.1:34911;tcp6://[fd00::2]:40007 "
)
OMPI5 = "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-gpu-node1-4711@1 PMIX_SERVER_URI2=x "
OPEN_MPI = [
    (OMPI4 + "OMPI_COMM_WORLD_RANK=0 PMIX_RANK=0", 0, 2, "10.96.0.1", (0, 1)),
    (OMPI4 + "OMPI_COMM_WORLD_RANK=1 PMIX_RANK=1", 1, 2, "10.96.0.1", (0, 1)),
    (OMPI4 + "OMPI_COMM_WORLD_RANK=1 OMPI_MCA_orte_hnp_uri=1.0;tcp6://[fe80::1,2620::2]:43370", 1, 2, "[fe80::1]", (0, 1)),
    (OMPI5 + "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 PMIX_RANK=3", 3, 4, "gpu-node1", (1, 2)),
    # only PMIx says the rank, and the number of processes was passed on
    ("PMIX_RANK=1 PMIX_NAMESPACE=prterun-a-1@1 JAX_NUM_PROCESSES=2", 1, 2, "a", (None, None)),
    # one machine
    (OMPI5 + "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1", 1, 2, "127.0.0.1", (1, 2)),
    ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", 0, 1, None, (0, 1)),
]


@pytest.mark.parametrize(("variables", "process_id", "count", "host", "local"), OPEN_MPI)
def test_open_mpi(variables, process_id, count, host, local):
    membership = find_open_mpi(env(variables)).membership()
    address = membership.coordinator_address
    assert membership == Membership(process_id, count, address, address, *local)
    assert (None if address is None else address.rpartition(":")[0]) == host


def test_open_mpi_ports_and_absence():
    ports = {find_open_mpi(env(OMPI5, OMPI_COMM_WORLD_RANK=rank)).membership().coordinator_address for rank in "0123"}
    assert len(ports) == 1
    other = find_open_mpi(env(OMPI5, OMPI_COMM_WORLD_RANK="0", PMIX_NAMESPACE="prterun-gpu-node1-4712@1")).membership()
    assert other.coordinator_address not in ports
    assert find_open_mpi({}) is None
    assert find_open_mpi(env("PMIX_RANK=1 PMIX_NAMESPACE=slurm.pmix.17.0")) is None  # srun --mpi=pmix: Slurm's variables say more


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            "OMPI_COMM_WORLD_RANK=0",
            "Open MPI: OMPI_COMM_WORLD_SIZE or JAX_NUM_PROCESSES is not set. PMIx tells a process its rank, but not",
        ),
        ("PMIX_RANK=1 PMIX_NAMESPACE=prterun-a-1@1", "pass -x JAX_NUM_PROCESSES=N to the launcher"),
        ("PMIX_RANK=one", "PMIX_RANK='one' is not a whole number"),
        ("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=2 is outside OMPI_COMM_WORLD_SIZE=2"),
        (
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
            "neither OMPI_MCA_orte_hnp_uri nor PMIX_NAMESPACE says on which host mpirun",
        ),
        (
            OMPI5 + "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=2",
            "OMPI_COMM_WORLD_LOCAL_RANK=2 is outside OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
    ],
)
def test_open_mpi_mistakes(variables, message):
    with pytest.raises(ClusterError, match=message):
        find_open_mpi(env(variables))


# ---- torchrun

ELASTIC = "WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none "
TORCHRUN = [
    (ELASTIC + "RANK=0 LOCAL_RANK=0 TORCHELASTIC_RESTART_COUNT=0", 0, 4, "node1:29501", (0, 2)),
    (ELASTIC + "RANK=3 LOCAL_RANK=1 TORCHELASTIC_RESTART_COUNT=0", 3, 4, "node1:29501", (1, 2)),
    (ELASTIC + "RANK=3 LOCAL_RANK=1 TORCHELASTIC_RESTART_COUNT=2", 3, 4, "node1:29503", (1, 2)),
    (ELASTIC + "RANK=3 LOCAL_RANK=1 MASTER_PORT=65535", 3, 4, "node1:65534", (1, 2)),
    (ELASTIC + "RANK=3 LOCAL_RANK=1 MASTER_ADDR=fd00::1", 3, 4, "[fd00::1]:29501", (1, 2)),
    (ELASTIC + "RANK=3 LOCAL_RANK=1 JAX_COORDINATOR_ADDRESS=node9:1", 3, 4, "node9:1", (1, 2)),
    # nobody holds the port where no torchrun agent runs, as in a PyTorchJob
    ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456", 1, 2, "job-master-0:23456", (None, None)),
    # one machine
    (ELASTIC + "RANK=1 LOCAL_RANK=1 WORLD_SIZE=2", 1, 2, "127.0.0.1:29501", (1, 2)),
    (ELASTIC + "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1", 0, 1, None, (0, 1)),
]


@pytest.mark.parametrize(("variables", "process_id", "count", "coordinator", "local"), TORCHRUN)
def test_torchrun(variables, process_id, count, coordinator, local):
    found = find_torchrun(env(variables))
    assert found.membership() == Membership(process_id, count, coordinator, coordinator, *local)
    assert (found.task_type, found.task_id, found.cluster_spec().num_tasks("worker")) == ("worker", process_id, count)


@pytest.mark.parametrize("variables", ["", "RANK=1", "WORLD_SIZE=2", "RANK= WORLD_SIZE="])
def test_words_that_others_use_too_are_no_torchrun(variables):
    assert find_torchrun(env(variables)) is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ("TORCHELASTIC_RUN_ID=a", "torchrun: RANK is not set. torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."),
        ("TORCHELASTIC_RUN_ID=a RANK=1", "torchrun: WORLD_SIZE is not set"),
        ("RANK=1.5 WORLD_SIZE=2", "RANK='1.5' is not a whole number"),
        ("RANK=²  WORLD_SIZE=3", "RANK='²' is not a whole number"),
        ("RANK=2 WORLD_SIZE=2", "torchrun: RANK=2 is outside WORLD_SIZE=2: it must be from 0 to 1"),
        ("RANK=1 WORLD_SIZE=2", "torchrun: MASTER_ADDR is not set"),
        ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a", "torchrun: MASTER_PORT is not set"),
        ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=99999", "MASTER_ADDR='a' with MASTER_PORT=99999: 'a:99999' has port 99999"),
        (ELASTIC + "RANK=1 LOCAL_RANK=2", "torchrun: LOCAL_RANK=2 is outside LOCAL_WORLD_SIZE=2"),
    ],
)
def test_torchrun_mistakes(variables, message):
    with pytest.raises(ClusterError, match=message):
        find_torchrun(env(variables))


# ---- JAX's own variables, as Kubeflow Trainer sets them


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ("JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=1 JAX_COORDINATOR_ADDRESS=a:1", Membership(1, 2, "a:1", "a:1")),
        ("JAX_PROCESS_COUNT=2 JAX_PROCESS_INDEX=0 JAX_COORDINATOR_ADDRESS=a:1", Membership(0, 2, "a:1", "a:1")),
        (
            "JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=0 JAX_COORDINATOR_ADDRESS=localhost:1",
            Membership(0, 2, "localhost:1", "127.0.0.1:1"),
        ),
        ("JAX_NUM_PROCESSES=1 JAX_PROCESS_ID=0", Membership(0, 1, None, None, 0, 1)),
    ],
)
def test_jax_variables(variables, expected):
    assert find_jax(env(variables)).membership() == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            "JAX_PROCESS_ID=1",
            "JAX variables: JAX_NUM_PROCESSES or JAX_PROCESS_COUNT is not set. Set it together with JAX_PROCESS_ID=1.",
        ),
        ("JAX_PROCESS_ID=a JAX_NUM_PROCESSES=2", "JAX_PROCESS_ID='a' is not a whole number"),
        ("JAX_PROCESS_ID=2 JAX_NUM_PROCESSES=2", "JAX_PROCESS_ID=2 is outside JAX_NUM_PROCESSES=2"),
        (
            "JAX_PROCESS_ID=1 JAX_NUM_PROCESSES=2",
            "JAX_COORDINATOR_ADDRESS is not set. Set JAX_COORDINATOR_ADDRESS=HOST:PORT in each process",
        ),
    ],
)
def test_jax_variable_mistakes(variables, message):
    with pytest.raises(ClusterError, match=message):
        find_jax(env(variables))
    assert find_jax({"JAX_NUM_PROCESSES": "2"}) is None


# ---- TPU

SLICE = "TPU_WORKER_HOSTNAMES=t-0,t-1,t-2,t-3 "
TPU = [
    (SLICE + "TPU_WORKER_ID=0", 0, 4, "t-0:8482"),
    (SLICE + "TPU_WORKER_ID=3", 3, 4, "t-0:8482"),
    (SLICE + "CLOUD_TPU_TASK_ID=3 JAX_COORDINATOR_PORT=7", 3, 4, "t-0:7"),
    (SLICE + "TPU_WORKER_ID=3 JAX_COORDINATOR_ADDRESS=t-9", 3, 4, "t-9:8482"),
    ("TPU_PROCESS_ADDRESSES=10.0.0.1:8476,10.0.0.2:8476 TPU_WORKER_ID=1", 1, 2, "10.0.0.1:8482"),
    (SLICE + "TPU_WORKER_ID=2 MEGASCALE_NUM_SLICES=2 MEGASCALE_SLICE_ID=0 MEGASCALE_COORDINATOR_ADDRESS=t-0:81", 2, 8, "t-0:8482"),
    (
        "TPU_WORKER_HOSTNAMES=u,v TPU_WORKER_ID=1 MEGASCALE_NUM_SLICES=3 MEGASCALE_SLICE_ID=2 MEGASCALE_COORDINATOR_ADDRESS=t-0",
        5,
        6,
        "t-0:8482",
    ),
    ("TPU_WORKER_HOSTNAMES=localhost TPU_WORKER_ID=0", 0, 1, None),
    ("TPU_WORKER_HOSTNAMES=localhost", 0, 1, None),
]


@pytest.mark.parametrize(("variables", "process_id", "count", "coordinator"), TPU)
def test_tpu(variables, process_id, count, coordinator):
    assert find_tpu(env(variables)).membership() == Membership(process_id, count, coordinator, coordinator, 0, 1)


def test_tpu_by_itself():
    assert find_tpu({}) is None
    for name in (None, "", "local"):
        assert TPUClusterResolver(name, environ={}).membership() == Membership(0, 1, None, None, 0, 1)
    assert TPUClusterResolver(environ={}).because == ("no TPU_WORKER_HOSTNAMES: one host",)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (SLICE, "TPU: TPU_WORKER_ID or CLOUD_TPU_TASK_ID is not set. It says which of 4 hosts this is."),
        (SLICE + "TPU_WORKER_ID=4", "TPU: TPU_WORKER_ID=4 is outside the number of hosts=4: it must be from 0 to 3"),
        (
            SLICE + "TPU_WORKER_ID=0 MEGASCALE_NUM_SLICES=2 MEGASCALE_SLICE_ID=2",
            "MEGASCALE_SLICE_ID=2 is outside MEGASCALE_NUM_SLICES=2",
        ),
        (SLICE + "TPU_WORKER_ID=0 MEGASCALE_NUM_SLICES=2", "MEGASCALE_NUM_SLICES=2, but MEGASCALE_COORDINATOR_ADDRESS is not set"),
        ("TPU_WORKER_HOSTNAMES=a,,b TPU_WORKER_ID=0", "TPU_WORKER_HOSTNAMES='a,,b' has an empty name"),
        ("TPU_WORKER_HOSTNAMES=a,a TPU_WORKER_ID=0", "TPU_WORKER_HOSTNAMES='a,a' names a host twice"),
    ],
)
def test_tpu_mistakes(variables, message):
    with pytest.raises(ClusterError, match=message):
        find_tpu(env(variables))


def test_a_tpu_elsewhere():
    with pytest.raises(
        ClusterError, match="tpu='my-pod' names a TPU to connect to, but the program runs on the TPU VMs themselves"
    ):
        TPUClusterResolver("my-pod", environ={})
