"""What a process concludes from what its launcher sets: its place, or an error. Never that it is alone by mistake."""

import random

import pytest

from replicant.cluster import Membership, detect
from replicant.errors import ClusterError

from ._launcher_environments import FLUX, HYDRA, RECOGNISED, REFUSED, TOLD, env


@pytest.mark.parametrize(("variables", "source", "process_id", "count", "coordinator"), RECOGNISED.values(), ids=RECOGNISED)
def test_recognised(variables, source, process_id, count, coordinator):
    found = detect(env(variables))
    assert (found.source, found.process_id, found.num_processes, found.doubt) == (source, process_id, count, None)
    address = found.coordinator_address
    assert coordinator in ((address, address.rpartition(":")[0]) if address else (None,))
    assert (found.membership.rendezvous is None) == (count == 1 or address is not None)


def refusal(environ):
    """The error, or the doubt with which strategies over workers refuse to start. None if there is a membership."""
    try:
        return detect(environ).doubt
    except ClusterError as error:
        return str(error)


@pytest.mark.parametrize(("variables", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(variables, words):
    assert words in (refusal(env(variables)) or "")


def test_the_table_is_long_and_names_versions_and_how_they_were_seen():
    """Each row is a launcher with its version where it has one, "run" or "read", or a mistake made by hand."""
    assert len(RECOGNISED) + len(REFUSED) >= 140
    seen = [name.rpartition(", ")[2] for name in (*RECOGNISED, *REFUSED)]
    assert seen.count("run") >= 20
    assert seen.count("read") >= 90


def test_places_on_the_host_and_ports():
    pmi = HYDRA + "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 " + TOLD
    assert detect(env(pmi)).membership == Membership(3, 4, "n1:5", "n1:5", 1, 2)
    flux = env(FLUX + "FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=1 FLUX_TASK_LOCAL_ID=1")
    addresses = {detect(flux | {"FLUX_JOB_ID": job}).coordinator_address for job in ("fA", "fB", "fC")}
    assert len(addresses) == 3
    assert detect(flux | {"JAX_COORDINATOR_PORT": "9"}).coordinator_address == "127.0.0.1:9"
    assert detect(flux).membership.job_id == "Flux: fA1b2"
    group = env("LWS_LEADER_ADDRESS=lws-0.lws LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1")
    assert detect(group | {"JAX_COORDINATOR_PORT": "9"}).coordinator_address == "lws-0.lws:9"


def test_a_jax_job_with_an_address_that_has_a_port():
    environ = env("PROCESS_ID=1 NUM_PROCESSES=2 COORDINATOR_ADDRESS=a:7")
    assert detect(environ).coordinator_address == "a:7"


COUNTS = (  # noqa: SIM905
    "PMI_SIZE MPI_LOCALNRANKS PMI_LOCAL_SIZE PALS_LOCAL_SIZE FLUX_JOB_SIZE FLUX_JOB_NNODES MV2_COMM_WORLD_SIZE "
    "MV2_COMM_WORLD_LOCAL_SIZE MVP_COMM_WORLD_SIZE MVP_COMM_WORLD_LOCAL_SIZE JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_SIZE "
    "OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE PET_NNODES NUM_PROCESSES "
    "LWS_GROUP_SIZE SLURM_STEP_NUM_TASKS HOROVOD_SIZE AWS_BATCH_JOB_NUM_NODES AZUREML_NODE_COUNT _CONDOR_NPROCS PBS_NUM_NODES "
    "VC_WORKER_NUM VC_MASTER_NUM"
).split()
RANKS = (  # noqa: SIM905
    "PMI_RANK MPI_LOCALRANKID PMI_LOCAL_RANK PALS_RANKID PALS_LOCAL_RANKID PALS_NODEID FLUX_TASK_RANK FLUX_TASK_LOCAL_ID "
    "MV2_COMM_WORLD_RANK MVP_COMM_WORLD_RANK JSM_NAMESPACE_RANK OMPI_COMM_WORLD_RANK PMIX_RANK RANK LOCAL_RANK GROUP_RANK "
    "PET_NODE_RANK NODE_RANK PROCESS_ID LWS_WORKER_INDEX SLURM_PROCID SLURM_LOCALID SLURM_NODEID HOROVOD_RANK ALPS_APP_PE "
    "VC_TASK_INDEX VK_TASK_INDEX _CONDOR_PROCNO LSF_PM_TASKID PBS_NODENUM PBS_VNODENUM JOB_COMPLETION_INDEX TPU_WORKER_ID "
    "MEGASCALE_SLICE_ID AWS_BATCH_JOB_NODE_INDEX"
).split()
# Lists and JSON that name a second process or host.
NAMED = {
    "SM_HOSTS": "algo-2",
    "CLUSTER_SPEC": "workerpool1",
    "LSB_MCPU_HOSTS": "n2",
    "LSB_HOSTS": "n2",
    "AZ_BATCH_HOST_LIST": "10.0.0.5",
    "AZ_BATCH_NODE_LIST": "10.0.0.5",
    "CCP_NODES": "10.0.0.5",
    "VC_WORKER_HOSTS": "job-worker-1",
    "TPU_WORKER_HOSTNAMES": "t1",
    "TF_CONFIG": '"b:2222"',
}


def _says_several(environ):
    """Whether a variable says that there are more processes than one: a number, a list or JSON."""
    above = [environ.get(name, "").isdigit() and int(environ[name]) > 1 for name in COUNTS]
    above += [environ.get(name, "").isdigit() and int(environ[name]) > 0 for name in RANKS]
    return any(above) or any(second in environ.get(name, "") for name, second in NAMED.items())


def test_no_mutation_of_an_environment_trains_alone():
    """Variables of the recorded environments are dropped, changed, and mixed with those of another one."""
    rng = random.Random(7)
    tables = [env(variables) for variables, *_ in (*RECOGNISED.values(), *REFUSED.values()) if "REPLICANT_SINGLE" not in variables]
    tables = [{name: value for name, value in table.items() if not name.startswith("JAX_PROCESS")} for table in tables]
    said = alone = 0
    for _ in range(5000):
        environ = dict(rng.choice(tables))
        if rng.random() < 0.2:
            environ |= rng.choice(tables)
        for name in rng.sample(sorted(environ), min(len(environ), rng.randrange(4))):
            if rng.random() < 0.5:
                del environ[name]
            else:
                environ[name] = rng.choice(["", "0", "1", "2", "3", "16", "x", "-1", "1:2"])
        refused = refusal(environ)
        if refused is None and detect(environ).num_processes == 1:
            alone += 1
            assert not _says_several(environ), environ
        said += _says_several(environ)
    assert said > 3500
    assert alone > 50
