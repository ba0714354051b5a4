"""What launchers set in their processes.

"run" marks variables that were seen in a process of the launcher, less what differs by machine; "read" those that its source or its
documentation names. The others are mistakes, made by hand.
"""


def env(text):
    return dict(pair.split("=", 1) for pair in text.split())


def _spec(task, **pools):
    listed = ",".join(f'"{pool}":[{",".join(chr(34) + each + chr(34) for each in addresses)}]' for pool, addresses in pools.items())
    return f'CLUSTER_SPEC={{"cluster":{{{listed}}},"task":{{{task}}},"environment":"cloud"}}'


HYDRA = "GFORTRAN_UNBUFFERED_PRECONNECTED=y HYDI_CONTROL_FD=7 PMI_FD=9 PMI_HOSTNAME=vm "
INTEL = "HYDRA_BSTRAP_LOCALHOST=vm I_MPI_HYDRA_UUID=fc320000-d694-a90c-6e61-0600c16f3f44 PMI_FD=9 "
ONE_HOST = "PMI_SIZE=2 MPI_LOCALNRANKS=2 "
OPEN_MPI = (
    "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_MCA_num_procs=2 OMPI_VERSION=5.0.11 PMIX_HOSTNAME=vm "
    "PMIX_NAMESPACE=prterun-vm-13349@1 PRTE_LAUNCHED=1 "
)
FLUX = "FLUX_JOB_ID=fA1b2 FLUX_URI=local:///run/flux/local PMI_FD=9 "
PALS = "PALS_APID=2a61 PALS_NODEID=0 PALS_SPOOL_DIR=/var/run/palsd PMI_JOBID=2a61 PMI_CONTROL_PORT=11 "
SRUN = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=n[1-2] "
SRUN += "SLURM_STEP_TASKS_PER_NODE=1(x2) "
JAX_JOB = "PYTHONUNBUFFERED=1 COORDINATOR_PORT=6666 COORDINATOR_ADDRESS=job-worker-0 NUM_PROCESSES=2 "
LWS = "LWS_LEADER_ADDRESS=lws-0.lws.default LWS_GROUP_SIZE=2 "
ELASTIC = "WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=r TORCHELASTIC_RESTART_COUNT=0 "
HOSTS = 'SM_HOSTS=["algo-1","algo-2"] SM_NETWORK_INTERFACE_NAME=eth0 '
POOLS = {"workerpool0": ["a:2222"], "workerpool1": ["b:2222", "c:2222"]}
TOLD = "JAX_COORDINATOR_ADDRESS=n1:5 "

# launcher and version, how it was seen: variables, source, id, number, coordinator (with a port of the job, only its host)
RECOGNISED = {
    "MPICH 5.0.2, rank 0, run": (HYDRA + ONE_HOST + "PMI_RANK=0 MPI_LOCALRANKID=0", "MPI", 0, 2, "127.0.0.1"),
    "MPICH 5.0.2, rank 1, run": (HYDRA + ONE_HOST + "PMI_RANK=1 MPI_LOCALRANKID=1", "MPI", 1, 2, "127.0.0.1"),
    "MPICH 5.0.2, one process, run": (HYDRA + "PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", "MPI", 0, 1, None),
    "MPICH 5.0.2, two hosts, run": (
        HYDRA + TOLD + "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
        "MPI",
        3,
        4,
        "n1:5",
    ),
    "MPICH 5.0.2 in a batch job of Slurm, read": (
        HYDRA + ONE_HOST + "PMI_RANK=1 MPI_LOCALRANKID=1 SLURM_JOB_ID=7 SLURM_NTASKS=2",
        "MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "MPICH 5.0.2 in a step of Slurm with the same numbers, read": (
        HYDRA + ONE_HOST + SRUN + "PMI_RANK=1 MPI_LOCALRANKID=1 SLURM_PROCID=1",
        "MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "Intel MPI 2021.19, rank 0, run": (INTEL + ONE_HOST + "PMI_RANK=0 MPI_LOCALRANKID=0", "MPI", 0, 2, "127.0.0.1"),
    "Intel MPI 2021.19, rank 1, run": (INTEL + ONE_HOST + "PMI_RANK=1 MPI_LOCALRANKID=1", "MPI", 1, 2, "127.0.0.1"),
    "Open MPI 5.0.11, rank 0, run": (
        OPEN_MPI + "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_RANK=0",
        "Open MPI",
        0,
        2,
        "127.0.0.1",
    ),
    "Open MPI 5.0.11, rank 1, run": (
        OPEN_MPI + "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 PMIX_RANK=1",
        "Open MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "Flux, one host, read": (
        FLUX + "FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=1 FLUX_TASK_LOCAL_ID=1 PMI_RANK=1 PMI_SIZE=2",
        "MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "Flux, two hosts, read": (
        FLUX + TOLD + "FLUX_TASK_RANK=2 FLUX_JOB_SIZE=4 FLUX_JOB_NNODES=2 FLUX_TASK_LOCAL_ID=0",
        "MPI",
        2,
        4,
        "n1:5",
    ),
    "Flux inside Slurm, read": (
        FLUX + "FLUX_TASK_RANK=1 FLUX_JOB_SIZE=4 FLUX_JOB_NNODES=1 FLUX_TASK_LOCAL_ID=1 SLURM_JOB_ID=7 SLURM_NTASKS=1",
        "MPI",
        1,
        4,
        "127.0.0.1",
    ),
    "Cray PALS, one host, read": (
        PALS + "PALS_RANKID=1 PALS_LOCAL_RANKID=1 PMI_RANK=1 PMI_SIZE=2 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2",
        "MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "Cray PALS, two hosts, read": (
        PALS + TOLD + "PALS_RANKID=3 PALS_LOCAL_RANKID=1 PMI_RANK=3 PMI_SIZE=4 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2",
        "MPI",
        3,
        4,
        "n1:5",
    ),
    "Cray PMI of srun, read": (
        SRUN + PALS + "SLURM_PROCID=1 PALS_RANKID=1 PALS_LOCAL_RANKID=0 PMI_RANK=1 PMI_SIZE=2 PMI_LOCAL_RANK=0 PMI_LOCAL_SIZE=1",
        "Slurm",
        1,
        2,
        "n1",
    ),
    "srun --mpi=pmi2, read": (SRUN + "SLURM_PROCID=1 PMI_RANK=1 PMI_SIZE=2 PMI_FD=5", "Slurm", 1, 2, "n1"),
    "MVAPICH2 2.3, one host, read": (
        "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2 PMI_ID=1",
        "MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "jsrun, one host, read": (
        "LSB_JOBID=5 JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_LOCAL_RANK=1 JSM_NAMESPACE_LOCAL_SIZE=2",
        "MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "jsrun, two hosts, read": (
        TOLD + "LSB_JOBID=5 JSM_NAMESPACE_RANK=3 JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_LOCAL_RANK=1 JSM_NAMESPACE_LOCAL_SIZE=2",
        "MPI",
        3,
        4,
        "n1:5",
    ),
    "JAXJob, training-operator v1, process 0, read": (JAX_JOB + "PROCESS_ID=0", "JAXJob", 0, 2, "job-worker-0:6666"),
    "JAXJob, training-operator v1, process 1, read": (JAX_JOB + "PROCESS_ID=1", "JAXJob", 1, 2, "job-worker-0:6666"),
    "LeaderWorkerSet, leader, read": (LWS + "LWS_WORKER_INDEX=0", "LeaderWorkerSet", 0, 2, "lws-0.lws.default:55527"),
    "LeaderWorkerSet, worker, read": (LWS + "LWS_WORKER_INDEX=1", "LeaderWorkerSet", 1, 2, "lws-0.lws.default:55527"),
    "PyTorchJob, training-operator v1, read": (
        "RANK=1 WORLD_SIZE=2 MASTER_ADDR=pj-master-0 MASTER_PORT=23456 PET_NNODES=2",
        "torchrun",
        1,
        2,
        "pj-master-0:23456",
    ),
    "torchrun, two nodes, read": (ELASTIC + "RANK=3 LOCAL_RANK=1", "torchrun", 3, 4, "n1:29501"),
    "SageMaker, host 1, read": (HOSTS + "SM_CURRENT_HOST=algo-1", "SageMaker", 0, 2, "algo-1:55527"),
    "SageMaker, host 2, read": (HOSTS + "SM_CURRENT_HOST=algo-2", "SageMaker", 1, 2, "algo-1:55527"),
    "SageMaker, one host, read": ('SM_HOSTS=["algo-1"] SM_CURRENT_HOST=algo-1', "SageMaker", 0, 1, None),
    "SageMaker with torchrun, read": (
        HOSTS + ELASTIC + "SM_CURRENT_HOST=algo-2 RANK=2 LOCAL_RANK=0",
        "torchrun",
        2,
        4,
        "n1:29501",
    ),
    "Vertex AI, the chief, read": (_spec('"type":"workerpool0","index":0', **POOLS), "Vertex AI", 0, 3, "a:2222"),
    "Vertex AI, a worker, read": (_spec('"type":"workerpool1","index":1', **POOLS), "Vertex AI", 2, 3, "a:2222"),
    "Vertex AI, an address of ours, read": (TOLD + _spec('"type":"workerpool1","index":0', **POOLS), "Vertex AI", 1, 3, "n1:5"),
    "Slurm, srun, read": (SRUN + "SLURM_PROCID=1", "Slurm", 1, 2, "n1"),
    "an indexed Job of Kubernetes, read": (
        "JOB_COMPLETION_INDEX=1 HOSTNAME=train-1 JAX_NUM_PROCESSES=2 JAX_COORDINATOR_ADDRESS=train-0.pods:55527",
        "Kubernetes",
        1,
        2,
        "train-0.pods:55527",
    ),
    "Kubeflow Trainer 2, jax-distributed, read": (
        "JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=1 JAX_COORDINATOR_ADDRESS=job-node-0-0.job:29500",
        "JAX variables",
        1,
        2,
        "job-node-0-0.job:29500",
    ),
    "told to be alone under MPICH": (HYDRA + ONE_HOST + "PMI_RANK=1 REPLICANT_SINGLE=1", "REPLICANT_SINGLE", 0, 1, None),
}

# launcher and version, how it was seen: variables, and the error or the doubt
REFUSED = {
    "MPICH 5.0.2, two hosts and no address, run": (
        HYDRA + "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
        (
            "MPICH or Intel MPI: by PMI_SIZE=4, MPI_LOCALNRANKS=2, the processes may be on several hosts, and nothing says where "
            "process 0 is. Set JAX_COORDINATOR_ADDRESS=HOST:PORT in each process, with the host of process 0 and a free port there."
            " If each process is to train alone, set REPLICANT_SINGLE=1."
        ),
    ),
    "Flux, two hosts and no address, read": (
        FLUX + "FLUX_TASK_RANK=2 FLUX_JOB_SIZE=4 FLUX_JOB_NNODES=2 FLUX_TASK_LOCAL_ID=0",
        "Flux: by FLUX_JOB_SIZE=4, FLUX_JOB_NNODES=2, the processes may be on several hosts",
    ),
    "Cray PALS, two hosts and no address, read": (
        PALS + "PALS_RANKID=3 PALS_LOCAL_RANKID=1 PMI_RANK=3 PMI_SIZE=4 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2",
        "Cray PALS: by PMI_SIZE=4, PMI_LOCAL_SIZE=2, the processes may be on several hosts",
    ),
    "PMI without the number on a host": ("PMI_RANK=1 PMI_SIZE=2", "MPICH or Intel MPI: by PMI_SIZE=2, the processes may be on"),
    "PMI, a rank too high": (
        "PMI_RANK=2 PMI_SIZE=2",
        "MPICH or Intel MPI: PMI_RANK=2 is outside PMI_SIZE=2: it must be from 0 to 1.",
    ),
    "PMI, no number": ("PMI_RANK=one PMI_SIZE=2", "PMI_RANK='one' is not a whole number from 0."),
    "PMI, more on a host than in all": (
        "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4",
        "MPICH or Intel MPI: MPI_LOCALNRANKS=4 is more than PMI_SIZE=2.",
    ),
    "PMI, a rank on its host too high": (
        "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=2",
        "MPICH or Intel MPI: MPI_LOCALRANKID=2 is outside MPI_LOCALNRANKS=2",
    ),
    "MPICH 5.0.2, mpiexec -pmi-port, one process on each host, run": (
        "HYDI_CONTROL_FD=7 PMI_HOSTNAME=vm PMI_ID=0 PMI_PORT=vm:46797 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1",
        "by PMI_ID=0 and PMI_PORT=vm:46797 (mpiexec -pmi-port), this process is one of several. If so, set PMI_RANK and PMI_SIZE",
    ),
    "MVAPICH 3": (
        "MVP_COMM_WORLD_RANK=0 MVP_COMM_WORLD_SIZE=2",
        "set JAX_PROCESS_ID=$MVP_COMM_WORLD_RANK, JAX_NUM_PROCESSES=$MVP_",
    ),
    "Horovod, read": (
        "HOROVOD_RANK=0 HOROVOD_SIZE=2",
        "by HOROVOD_SIZE=2 and HOROVOD_RANK=0 (Horovod), this process is one of several",
    ),
    "Cray ALPS, read": ("ALPS_APP_PE=1", "by ALPS_APP_PE=1 (Cray ALPS), this process is one of several"),
    "AWS Batch, read": (
        "AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_MAIN_NODE_INDEX=0",
        "by AWS_BATCH_JOB_NUM_NODES=2 and AWS_BATCH_JOB_NODE_INDEX=0 (AWS Batch), this process is one of several",
    ),
    "Azure ML, read": ("AZUREML_NODE_COUNT=2", "by AZUREML_NODE_COUNT=2 (Azure ML), this process is one of several"),
    "Volcano, read": ("VC_TASK_INDEX=1", "by VC_TASK_INDEX=1 (Volcano), this process is one of several"),
    "a heterogeneous job of Slurm, read": (
        SRUN + "SLURM_PROCID=1 SLURM_HET_SIZE=2",
        "Slurm: SLURM_HET_SIZE=2: heterogeneous jobs have one node list for each component",
    ),
    "srun --distribution=arbitrary, read": (
        SRUN + "SLURM_PROCID=1 SLURM_DISTRIBUTION=arbitrary",
        "Slurm: SLURM_DISTRIBUTION='arbitrary' is not known",
    ),
    "torchrun of one left over in a step of srun": (
        SRUN + "SLURM_PROCID=1 RANK=0 WORLD_SIZE=1",
        "RANK=0 and WORLD_SIZE=1 say that this process is the only one, but by SLURM_STEP_NUM_TASKS=2 and SLURM_PROCID=1 (Slurm)",
    ),
    "torchrun of one left over under MPICH": (
        HYDRA + ONE_HOST + "PMI_RANK=1 MPI_LOCALRANKID=1 RANK=0 WORLD_SIZE=1",
        (
            "RANK=0 and WORLD_SIZE=1 say that this process is the only one, but by PMI_SIZE=2, PMI_RANK=1, MPI_LOCALRANKID=1 and "
            "MPI_LOCALNRANKS=2 (MPICH, Intel MPI or Cray PALS), it is one of several. If so, unset what is wrong, or set JAX_PROCE"
        ),
    ),
    "JAXJob without its port": (
        "PROCESS_ID=1 NUM_PROCESSES=2 COORDINATOR_ADDRESS=a",
        "JAXJob: COORDINATOR_PORT is not set. The operator sets it with the others.",
    ),
    "JAXJob, a bad port": (
        "PROCESS_ID=1 NUM_PROCESSES=2 COORDINATOR_ADDRESS=a COORDINATOR_PORT=0",
        "JAXJob: COORDINATOR_ADDRESS with COORDINATOR_PORT: 'a:0' has port 0",
    ),
    "JAXJob, a rank too high": (JAX_JOB + "PROCESS_ID=2", "JAXJob: PROCESS_ID=2 is outside NUM_PROCESSES=2"),
    "LeaderWorkerSet without a leader": (
        "LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1",
        "LeaderWorkerSet: LWS_LEADER_ADDRESS is not set. Set JAX_COORDINATOR_ADDRESS to the leader's host.",
    ),
    "SageMaker, an unknown host": (HOSTS + "SM_CURRENT_HOST=x", "SageMaker: SM_CURRENT_HOST=x is not in SM_HOSTS="),
    "SageMaker, no list": ("SM_HOSTS=algo-1,algo-2 SM_CURRENT_HOST=algo-1", "SM_HOSTS is not JSON: "),
    "SageMaker, a host twice": (
        'SM_HOSTS=["a","a"] SM_CURRENT_HOST=a',
        'SageMaker: SM_HOSTS=["a","a"] is not a list of different names',
    ),
    "Vertex AI, parameter servers": (
        _spec('"type":"workerpool0","index":0', **POOLS, workerpool2=["p:2222"]),
        "Vertex AI: CLUSTER_SPEC has workerpool2, for parameter servers or evaluators. Describe the cluster in TF_CONFIG",
    ),
    "Vertex AI, no such task": (
        _spec('"type":"workerpool1","index":2', **POOLS),
        (
            "Vertex AI: the task in CLUSTER_SPEC, {'type': 'workerpool1', 'index': 2}, is not one of the cluster's replicas: "
            "1 in workerpool0, 2 in workerpool1."
        ),
    ),
    "Vertex AI, no address": (
        _spec('"type":"workerpool0","index":0', workerpool0=["a"]),
        "Vertex AI: task 0 of workerpool0 in CLUSTER_SPEC: 'a' is not an address",
    ),
    "Vertex AI, no list": (
        'CLUSTER_SPEC={"cluster":{"workerpool0":"a:1"},"task":{"type":"workerpool0","index":0}}',
        "Vertex AI: workerpool0 in CLUSTER_SPEC is not a list of addresses",
    ),
    "REPLICANT_SINGLE, another value": ("REPLICANT_SINGLE=yes", "REPLICANT_SINGLE='yes' is neither 0 nor 1."),
    "REPLICANT_SINGLE in a worker of a job": (
        "REPLICANT_SINGLE=1 JAX_PROCESS_ID=1 JAX_NUM_PROCESSES=2",
        "REPLICANT_SINGLE=1 says that this process trains alone, but JAX_PROCESS_ID=1, JAX_NUM_PROCESSES=2 says that it is one",
    ),
}
