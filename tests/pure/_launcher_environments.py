"""What launchers set in their processes.

"run" marks variables that were seen in a process of the launcher, less what differs by machine; "read" those that its source or its
documentation names. The others are mistakes, made by hand.
"""


def env(text):
    """The variables of a row. A tilde stands for a blank within a value."""
    return {name: value.replace("~", " ") for name, value in (pair.split("=", 1) for pair in text.split())}


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
LSF = "LSB_JOBID=5 LSB_MCPU_HOSTS=n1~2~n2~2 LSB_HOSTS=n1~n1~n2~n2 LSB_DJOB_NUMPROC=4 "
JSM = "LSB_JOBID=5 LSB_MCPU_HOSTS=batch1~1~n1~42~n2~42 JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_LOCAL_SIZE=2 PMIX_NAMESPACE=4 "
PRTE = "PMIX_GDS_MODULE=shmem2,hash PMIX_HOSTNAME=vm PMIX_NAMESPACE=prterun-vm-19416@1 PRTE_LAUNCHED=1 PMIX_VERSION=5.0.11rc1 "
CONDOR = "_CONDOR_NPROCS=2 _CONDOR_REMOTE_SPOOL_DIR=/var/spool/condor/7 _CONDOR_SCRATCH_DIR=/var/lib/condor/dir_1 "
SPREAD = "PMI_SIZE=4 MPI_LOCALNRANKS=2 "
ORTE = "OMPI_MCA_orte_hnp_uri=655228928.0;tcp://192.0.2.2:35457;tcp6://[fd00::2]:60605 PMIX_NAMESPACE=655228929 "
ORTE += "OMPI_MCA_orte_num_nodes=1 OMPI_COMM_WORLD_SIZE=2 "
# Of `srun -n1 -w vm ... : -n2 -w localhost ...` and of `srun --het-group=...` in a script of sbatch, less what differs by run.
HET = "SLURM_HET_SIZE=2 SLURM_JOB_ID=6 SLURM_STEP_ID=0 "
HET_ALL = HET + "SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NODELIST=localhost,vm SLURM_STEP_TASKS_PER_NODE=2,1 "
HET_ALL += "SLURM_JOB_NODELIST=localhost,vm SLURM_JOB_NUM_NODES=2 SLURM_DISTRIBUTION=block "
PACKS = "SLURM_PACK_SIZE=2 SLURM_JOB_NODELIST_PACK_GROUP_0=vm SLURM_JOB_NODELIST_PACK_GROUP_1=localhost "
GROUPS = "SLURM_JOB_NODELIST_HET_GROUP_0=vm SLURM_JOB_NODELIST_HET_GROUP_1=localhost "
GROUPS += "SLURM_NTASKS_HET_GROUP_0=1 SLURM_NTASKS_HET_GROUP_1=2 "
MPI_RUNTIME = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile "
MPI_RUNTIME += "OMPI_MCA_plm_rsh_args=-o~ConnectionAttempts=10 OMPI_MCA_orte_hnp_uri=1.0;tcp://10.1.0.7:1 "
TRAINER = "PET_NNODES=2 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=job-node-0-0.job PET_MASTER_PORT=29400 JOB_COMPLETION_INDEX=1 "
PYTORCH_JOB = "WORLD_SIZE=2 MASTER_ADDR=pj-master-0 MASTER_PORT=23456 PET_NNODES=2 PET_NPROC_PER_NODE=1 PYTHONUNBUFFERED=1 "
VOLCANO = "VC_TASK_INDEX=1 VK_TASK_INDEX=1 VC_WORKER_NUM=2 VC_WORKER_HOSTS=job-worker-0.job,job-worker-1.job "
MASTER_AND_WORKERS = (
    "VC_MASTER_NUM=1 VC_MASTER_HOSTS=job-master-0.job VC_WORKER_NUM=2 VC_WORKER_HOSTS=job-worker-0.job,job-worker-1.job "
)
AZURE_ML = "AZUREML_NODE_COUNT=2 AZ_BATCH_MASTER_NODE=10.0.0.4:6000 AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 "
JOBSET = "JOBSET_NAME=js REPLICATED_JOB_NAME=w JAX_NUM_PROCESSES=4 PROCESSES_IN_JOB=2 "
TPU_HOSTS = "TPU_WORKER_HOSTNAMES=t0,t1 TPU_ACCELERATOR_TYPE=v5litepod-8 "
SPARK = "SPARK_AUTH_SOCKET_TIMEOUT=15 SPARK_BUFFER_SIZE=65536 SPARK_REUSE_WORKER=1 SPARK_HOME=/spark "
TWO_WORKERS = 'TF_CONFIG={"cluster":{"chief":["a:2222"],"worker":["b:2222"]},"environment":"cloud","task":'
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
    "MPICH 4.0.2, rank 1, run": (
        "HYDI_CONTROL_FD=7 MPIR_CVAR_CH3_INTERFACE_HOSTNAME=vm PMI_FD=8 MPI_LOCALRANKID=1 PMI_RANK=1 " + ONE_HOST,
        "MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "MPICH 5.0.2, two hosts of a job of LSF, rank 0, read": (
        HYDRA + LSF + SPREAD + "PMI_RANK=0 MPI_LOCALRANKID=0",
        "MPI",
        0,
        4,
        "n1",
    ),
    "MPICH 5.0.2, two hosts of a job of LSF, rank 3, read": (
        HYDRA + LSF + SPREAD + "PMI_RANK=3 MPI_LOCALRANKID=1",
        "MPI",
        3,
        4,
        "n1",
    ),
    "Intel MPI 2021.19, two hosts of a job of LSF, read": (
        INTEL + LSF + SPREAD + "PMI_RANK=2 MPI_LOCALRANKID=0",
        "MPI",
        2,
        4,
        "n1",
    ),
    "MPICH 5.0.2, two hosts of a batch job of Slurm, read": (
        HYDRA + SPREAD + "PMI_RANK=2 MPI_LOCALRANKID=0 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n[07-08] SLURM_NTASKS=4",
        "MPI",
        2,
        4,
        "n07",
    ),
    "Intel MPI 2021.19, two hosts of Azure ML, read": (
        INTEL + AZURE_ML + SPREAD + "PMI_RANK=2 MPI_LOCALRANKID=0",
        "MPI",
        2,
        4,
        "10.0.0.4",
    ),
    "MPICH 5.0.2, several hosts and a rendezvous, read": (
        HYDRA + SPREAD + "PMI_RANK=3 MPI_LOCALRANKID=1 REPLICANT_RENDEZVOUS=/shared REPLICANT_JOB_ID=a",
        "MPI",
        3,
        4,
        None,
    ),
    "Open MPI 4.1.4, rank 0, run": (
        ORTE + "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_RANK=0",
        "Open MPI",
        0,
        2,
        "127.0.0.1",
    ),
    "Open MPI 4.1.4, rank 1, run": (
        ORTE + "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 PMIX_RANK=1",
        "Open MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "Open MPI 4.1.4, two hosts, read": (
        ORTE + "OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_RANK=1",
        "Open MPI",
        1,
        2,
        "192.0.2.2",
    ),
    "Open MPI 5.0.11, two hosts, read": (
        OPEN_MPI.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1") + "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_RANK=1",
        "Open MPI",
        1,
        2,
        "vm",
    ),
    "Open MPI 5.0.11, two hosts and a rendezvous, read": (
        OPEN_MPI.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1")
        + "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_RANK=1 REPLICANT_RENDEZVOUS=/shared",
        "Open MPI",
        1,
        2,
        None,
    ),
    "Open MPI 5.0.11 in Azure ML, read": (
        AZURE_ML + OPEN_MPI + "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 PMIX_RANK=1",
        "Open MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "Open MPI in a job of Flux with PMIx, read": (
        FLUX + OPEN_MPI + "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 FLUX_TASK_RANK=0 FLUX_JOB_SIZE=1 FLUX_JOB_NNODES=1",
        "Open MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "mpirun in the MPI runtime of Kubeflow Trainer 2, read": (
        MPI_RUNTIME + "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=0",
        "Open MPI",
        1,
        2,
        "10.1.0.7",
    ),
    "prterun 5.0.11, told the number, rank 0, run": (PRTE + "PMIX_RANK=0 JAX_NUM_PROCESSES=2", "Open MPI", 0, 2, "vm"),
    "prterun 5.0.11, told the number, rank 1, run": (PRTE + "PMIX_RANK=1 JAX_NUM_PROCESSES=2", "Open MPI", 1, 2, "vm"),
    "prun in a DVM of PRRTE, read": (
        "PMIX_NAMESPACE=prte-head-77@3 PMIX_RANK=1 JAX_NUM_PROCESSES=2",
        "Open MPI",
        1,
        2,
        "head",
    ),
    "Flux with PMIx, read": (
        FLUX + "FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=1 FLUX_TASK_LOCAL_ID=1 PMIX_RANK=1 PMIX_NAMESPACE=fA1b2",
        "MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "Cray PALS with PMIx, one host, read": (
        PALS + "PALS_RANKID=1 PALS_LOCAL_RANKID=1 PMI_RANK=1 PMI_SIZE=2 PALS_LOCAL_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=2a61",
        "MPI",
        1,
        2,
        "127.0.0.1",
    ),
    "jsrun with its PMIx, two hosts, rank 0, read": (
        JSM + "JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_LOCAL_RANK=0 PMIX_RANK=0 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4",
        "MPI",
        0,
        4,
        "n1",
    ),
    "jsrun with its PMIx, two hosts, rank 3, read": (
        JSM + "JSM_NAMESPACE_RANK=3 JSM_NAMESPACE_LOCAL_RANK=1 PMIX_RANK=3 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4",
        "MPI",
        3,
        4,
        "n1",
    ),
    "HTCondor, the parallel universe, read": (TOLD + CONDOR + "_CONDOR_PROCNO=1", "MPI", 1, 2, "n1:5"),
    "HTCondor, the parallel universe and a rendezvous, read": (
        CONDOR + "_CONDOR_PROCNO=0 REPLICANT_RENDEZVOUS=/shared REPLICANT_JOB_ID=a",
        "MPI",
        0,
        2,
        None,
    ),
    "HTCondor, the parallel universe, one machine, read": ("_CONDOR_PROCNO=0 _CONDOR_NPROCS=1", "MPI", 0, 1, None),
    "Slurm 22.05, srun, one node, run": (
        (
            "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 "
            "SLURM_STEP_NODELIST=vm SLURM_JOB_NODELIST=vm SLURM_STEP_TASKS_PER_NODE=2 SLURM_GTIDS=0,1"
        ),
        "Slurm",
        1,
        2,
        "127.0.0.1",
    ),
    "Slurm 22.05, srun --multi-prog, run": (
        (
            "SLURM_JOB_ID=2 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 "
            "SLURM_STEP_NODELIST=vm SLURM_JOB_NODELIST=vm SLURM_STEP_TASKS_PER_NODE=2 SLURM_GTIDS=0,1 SLURM_JOB_NAME=mp.conf "
            "SLURMD_NODENAME=vm"
        ),
        "Slurm",
        1,
        2,
        "127.0.0.1",
    ),
    "Slurm 22.05, two nodes, run": (
        (
            "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3 "
            "SLURM_STEP_NODELIST=localhost,vm SLURM_JOB_NODELIST=localhost,vm SLURM_STEP_TASKS_PER_NODE=2,1"
        ),
        "Slurm",
        2,
        3,
        "localhost",
    ),
    "Slurm 22.05, srun over the components of a job, task 0, run": (
        HET_ALL + PACKS + "SLURM_PROCID=0 SLURM_NODEID=0 SLURM_LOCALID=0",
        "Slurm",
        0,
        3,
        "vm",
    ),
    "Slurm 22.05, srun over the components of a job, task 2, run": (
        HET_ALL + PACKS + "SLURM_PROCID=2 SLURM_NODEID=1 SLURM_LOCALID=1",
        "Slurm",
        2,
        3,
        "vm",
    ),
    "Slurm 22.05, srun --het-group=0,1, task 2, run": (
        HET_ALL + PACKS + GROUPS + "SLURM_PROCID=2 SLURM_NODEID=1 SLURM_LOCALID=1",
        "Slurm",
        2,
        3,
        "vm",
    ),
    "Slurm 22.05, srun --het-group=1, task 1, run": (
        HET + GROUPS + "SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=localhost SLURM_JOB_NODELIST=localhost "
        "SLURM_STEP_TASKS_PER_NODE=2 SLURM_PROCID=1 SLURM_NODEID=0 SLURM_LOCALID=1",
        "Slurm",
        1,
        2,
        "127.0.0.1",
    ),
    "Slurm 22.05, srun of one task in a job of two components, run": (
        HET + GROUPS + "SLURM_NTASKS=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NODELIST=vm SLURM_STEP_TASKS_PER_NODE=1 SLURM_PROCID=0",
        "Slurm",
        0,
        1,
        None,
    ),
    "srun --mpi=pmix, read": (
        SRUN + "SLURM_PROCID=1 PMIX_RANK=1 PMIX_NAMESPACE=slurm.pmix.7.0 SLURM_PMIXP_ABORT_AGENT_PORT=40001",
        "Slurm",
        1,
        2,
        "n1",
    ),
    "a batch script of one task of Slurm, read": ("SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=1", "Slurm", 0, 1, None),
    "torchrun 2.13, one node, read": (
        (
            "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 ROLE_RANK=1 ROLE_WORLD_SIZE=2 "
            "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0"
        ),
        "torchrun",
        1,
        2,
        "127.0.0.1:29501",
    ),
    "torchrun on a pod of Kubeflow Trainer 2, read": (
        TRAINER + ELASTIC + "PET_NODE_RANK=1 RANK=3 LOCAL_RANK=1",
        "torchrun",
        3,
        4,
        "n1:29501",
    ),
    "Kubeflow Trainer 2, torch-distributed without torchrun, pod 0, read": (
        TRAINER.replace("INDEX=1", "INDEX=0") + "PET_NODE_RANK=0",
        "Kubeflow Trainer",
        0,
        2,
        "job-node-0-0.job:29400",
    ),
    "Kubeflow Trainer 2, torch-distributed without torchrun, pod 1, read": (
        TRAINER + "PET_NODE_RANK=1",
        "Kubeflow Trainer",
        1,
        2,
        "job-node-0-0.job:29400",
    ),
    "Kubeflow Trainer 2, torch-distributed, one pod, read": (
        "PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=j PET_MASTER_PORT=29400 JOB_COMPLETION_INDEX=0",
        "Kubeflow Trainer",
        0,
        1,
        None,
    ),
    "PyTorchJob, training-operator v1, the master, read": (
        PYTORCH_JOB + "RANK=0 PET_NODE_RANK=0",
        "torchrun",
        0,
        2,
        "pj-master-0:23456",
    ),
    "PyTorchJob, training-operator v1, a worker, read": (
        PYTORCH_JOB + "RANK=1 PET_NODE_RANK=1",
        "torchrun",
        1,
        2,
        "pj-master-0:23456",
    ),
    "Volcano, the plugins env and svc, task 0, read": (
        VOLCANO.replace("INDEX=1", "INDEX=0") + "HOSTNAME=job-worker-0",
        "Volcano",
        0,
        2,
        "job-worker-0.job:55527",
    ),
    "Volcano, the plugins env and svc, task 1, read": (
        VOLCANO + "HOSTNAME=job-worker-1",
        "Volcano",
        1,
        2,
        "job-worker-0.job:55527",
    ),
    "Volcano, a master and two workers, read": (
        MASTER_AND_WORKERS + "VC_TASK_INDEX=1 HOSTNAME=job-worker-1",
        "Volcano",
        2,
        3,
        "job-master-0.job:55527",
    ),
    "Volcano, the plugin pytorch, read": (
        MASTER_AND_WORKERS + "VC_TASK_INDEX=0 RANK=1 WORLD_SIZE=3 MASTER_ADDR=job-master-0.job MASTER_PORT=23456",
        "torchrun",
        1,
        3,
        "job-master-0.job:23456",
    ),
    "Volcano, one pod, read": ("VC_TASK_INDEX=0 VC_WORKER_NUM=1 VC_WORKER_HOSTS=job-worker-0.job", "Volcano", 0, 1, None),
    "a JobSet, job 1, pod 1, read": (
        JOBSET + "JOB_COMPLETION_INDEX=1 HOSTNAME=js-w-1-1",
        "Kubernetes",
        3,
        4,
        "js-w-0-0.js:55527",
    ),
    "a JobSet, job 0, pod 0, read": (
        JOBSET + "JOB_COMPLETION_INDEX=0 HOSTNAME=js-w-0-0",
        "Kubernetes",
        0,
        4,
        "js-w-0-0.js:55527",
    ),
    "an indexed Job of Kubernetes and a rendezvous, read": (
        "JOB_COMPLETION_INDEX=1 HOSTNAME=train-1 JAX_NUM_PROCESSES=2 REPLICANT_RENDEZVOUS=/shared",
        "Kubernetes",
        1,
        2,
        None,
    ),
    "Kubeflow Trainer 2, jax-distributed, process 0, read": (
        "JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=0 JAX_COORDINATOR_ADDRESS=job-node-0-0.job:29500 JOB_COMPLETION_INDEX=0",
        "JAX variables",
        0,
        2,
        "job-node-0-0.job:29500",
    ),
    "JAX's variables and a rendezvous": (
        "JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=1 REPLICANT_RENDEZVOUS=/shared REPLICANT_JOB_ID=a",
        "JAX variables",
        1,
        2,
        None,
    ),
    "a TPU slice of GKE, read": (TPU_HOSTS + "TPU_WORKER_ID=1", "TPU", 1, 2, "t0:8482"),
    "two TPU slices of GKE, read": (
        TPU_HOSTS + "TPU_WORKER_ID=1 MEGASCALE_NUM_SLICES=2 MEGASCALE_SLICE_ID=1 MEGASCALE_COORDINATOR_ADDRESS=s0-t0",
        "TPU",
        3,
        4,
        "s0-t0:8482",
    ),
    "TFJob, training-operator v1, the chief, read": (
        TWO_WORKERS + '{"type":"chief","index":0}}',
        "TF_CONFIG",
        0,
        2,
        "a:2222",
    ),
    "Vertex AI with TF_CONFIG, a worker, read": (
        TWO_WORKERS + '{"type":"worker","index":0,"trial":"1"},"job":"{}"} CLUSTER_SPEC={"cluster":{"workerpool0":["a:2222"],'
        '"workerpool1":["b:2222"]},"task":{"type":"workerpool1","index":0}}',
        "TF_CONFIG",
        1,
        2,
        "a:2222",
    ),
    "Azure ML, distribution: tensorflow, read": (
        AZURE_ML + TWO_WORKERS + '{"type":"worker","index":0}}',
        "TF_CONFIG",
        1,
        2,
        "a:2222",
    ),
    "Azure ML, distribution: pytorch, read": (
        AZURE_ML + "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 NODE_RANK=1 MASTER_ADDR=10.0.0.4 MASTER_PORT=6105",
        "torchrun",
        1,
        2,
        "10.0.0.4:6105",
    ),
    "TorchDistributor of Spark 4.1, read": (SPARK + ELASTIC + "RANK=3 LOCAL_RANK=1", "torchrun", 3, 4, "n1:29501"),
    "Ray Train 2.60, TorchTrainer, another process, read": (
        "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 NODE_RANK=0 MASTER_ADDR=10.0.0.4 MASTER_PORT=41231",
        "torchrun",
        1,
        2,
        "127.0.0.1:41231",
    ),
    "PBS, one process on one host, read": (
        "PBS_JOBID=9.head PBS_NUM_NODES=1 PBS_NODENUM=0 PBS_NODEFILE=/none",
        "nothing",
        0,
        1,
        None,
    ),
    "LSF, one process on one host, read": ("LSB_JOBID=5 LSB_MCPU_HOSTS=n1~4 LSB_HOSTS=n1~n1~n1~n1", "nothing", 0, 1, None),
    "the driver of Databricks, read": (
        "DATABRICKS_RUNTIME_VERSION=16.4 DB_IS_DRIVER=TRUE SPARK_HOME=/spark",
        "nothing",
        0,
        1,
        None,
    ),
    "told to be alone under MPICH": (HYDRA + ONE_HOST + "PMI_RANK=1 REPLICANT_SINGLE=1", "REPLICANT_SINGLE", 0, 1, None),
}

# launcher and version, how it was seen: variables, and the error or the doubt
REFUSED = {
    "MPICH 5.0.2, two hosts and no address, run": (
        HYDRA + "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
        (
            "MPICH or Intel MPI: by PMI_SIZE=4, MPI_LOCALNRANKS=2, the processes may be on several hosts, and nothing says where "
            "process 0 is. Set JAX_COORDINATOR_ADDRESS=HOST:PORT in each process, with the host of process 0 and a free port there,"
            " or REPLICANT_RENDEZVOUS=/path/of/a/folder that all hosts share. If each process is to train alone, set REPLICANT_SI"
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
    "Slurm 22.05, the script of a heterogeneous job, run": (
        HET.replace("SLURM_STEP_ID=0 ", "") + GROUPS + "SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_PROCID=0",
        "Slurm: SLURM_HET_SIZE=2, but this process was not started by srun. A batch script runs only once",
    ),
    "a heterogeneous job of Slurm, a node of no component": (
        HET_ALL + "SLURM_JOB_NODELIST_HET_GROUP_0=vm SLURM_PROCID=1",
        "Slurm: node localhost of the step is in no component of the heterogeneous job: SLURM_JOB_NODELIST_HET_GROUP_0=vm.",
    ),
    "a heterogeneous job of Slurm, too many components": (
        HET_ALL + "SLURM_HET_SIZE=99999999 SLURM_PROCID=1",
        "Slurm: SLURM_HET_SIZE=99999999; there can be at most 65536 components.",
    ),
    "a batch script of several tasks of Slurm with torchrun's variables of one left over": (
        "SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 RANK=0 WORLD_SIZE=1",
        "RANK=0 and WORLD_SIZE=1 say that this process is the only one, but by SLURM_NTASKS=4 (Slurm), it is one of several",
    ),
    "prterun 5.0.11, run": (
        PRTE + "PMIX_RANK=0",
        (
            "PMIx: OMPI_COMM_WORLD_SIZE or JAX_NUM_PROCESSES is not set. PMIx tells a process its rank, but not the number of "
            "processes: pass -x JAX_NUM_PROCESSES=N to the launcher. If the process is to train alone, set REPLICANT_SINGLE=1."
        ),
    ),
    "PMIx of an unknown launcher, read": (
        "PMIX_RANK=1 PMIX_NAMESPACE=job7 JAX_NUM_PROCESSES=2",
        "PMIx: neither OMPI_MCA_orte_hnp_uri nor PMIX_NAMESPACE says on which host mpirun runs. Pass mpirun JAX_COORDINATOR_ADDR",
    ),
    "a folder for the rendezvous without its full path": (
        "PMI_RANK=1 PMI_SIZE=2 REPLICANT_RENDEZVOUS=jobs",
        "REPLICANT_RENDEZVOUS='jobs' is not the full path of a folder that all processes share, as in /shared/jobs.",
    ),
    "HTCondor, two machines and no address, read": (
        CONDOR + "_CONDOR_PROCNO=0",
        "HTCondor: by _CONDOR_NPROCS=2, the processes may be on several hosts, and nothing says where process 0 is. Set JAX_COORDI",
    ),
    "HTCondor, a rank without the number": ("_CONDOR_PROCNO=1", "by _CONDOR_PROCNO=1 (HTCondor), this process is one of several"),
    "Cray PALS with PMIx, no number, read": (
        PALS + "PALS_RANKID=0 PMIX_RANK=0 PMIX_NAMESPACE=2a61",
        "by PALS_RANKID=0 and PALS_NODEID=0 (MPICH, Intel MPI or Cray PALS), this process is one of several",
    ),
    "LSF, a program without a launcher on two hosts, read": (
        LSF,
        (
            "by LSB_MCPU_HOSTS=n1 2 n2 2 and LSB_HOSTS=n1 n1 n2 n2 (LSF), this process is one of several. If so, set the variables "
            "of a launcher, such as mpiexec or jsrun, or JAX_PROCESS_ID"
        ),
    ),
    "LSF, torchrun's variables of one left over, read": (
        LSF + "RANK=0 WORLD_SIZE=1",
        "RANK=0 and WORLD_SIZE=1 say that this process is the only one, but by LSB_MCPU_HOSTS=n1 2 n2 2 and LSB_HOSTS=",
    ),
    "LSF, a first host that is no name": (
        HYDRA + SPREAD + "PMI_RANK=2 MPI_LOCALRANKID=0 LSB_JOBID=5 LSB_MCPU_HOSTS=[n1~4~n2~4",
        "MPICH or Intel MPI: the first host in LSB_MCPU_HOSTS: '[n1:1' is not an address",
    ),
    "LSF's blaunch, the first task, read": (
        "LSB_JOBID=5 LSF_PM_TASKID=1",
        "by LSF_PM_TASKID=1 (LSF's blaunch), this process is one",
    ),
    "Torque, a program without a launcher on two hosts, read": (
        "PBS_JOBID=9.head PBS_NUM_NODES=2 PBS_NODENUM=0 PBS_VNODENUM=0",
        "by PBS_NUM_NODES=2 (PBS), this process is one of several",
    ),
    "PBS, pbsdsh, read": ("PBS_JOBID=9.head PBS_NODENUM=1 PBS_VNODENUM=1", "by PBS_VNODENUM=1 and PBS_NODENUM=1 (PBS)"),
    "PBS, a list of hosts that is none": (
        HYDRA + SPREAD + "PMI_RANK=2 MPI_LOCALRANKID=0 PBS_NODEFILE=/dev/null",
        "PBS_NODEFILE=/dev/null cannot be read: It is not a regular file",
    ),
    "Azure Batch, a task on several nodes, read": (
        "AZ_BATCH_NODE_LIST=10.0.0.4;10.0.0.5 AZ_BATCH_IS_CURRENT_NODE_MASTER=true CCP_NODES=2~10.0.0.4~1~10.0.0.5~1",
        "by AZ_BATCH_NODE_LIST=10.0.0.4;10.0.0.5 and CCP_NODES=2 10.0.0.4 1 10.0.0.5 1 (Azure ML), this process is one of several",
    ),
    "Azure ML, no distribution on two nodes, read": (
        AZURE_ML,
        "by AZUREML_NODE_COUNT=2 (Azure ML), this process is one of several",
    ),
    "Kubeflow Trainer 2, an elastic torch runtime without torchrun, read": (
        TRAINER.replace("NNODES=2", "NNODES=1:4") + "PET_NODE_RANK=1",
        "Kubeflow Trainer: by PET_NNODES=1:4, PET_NPROC_PER_NODE=auto, the number of pods may change, which needs torchrun",
    ),
    "Kubeflow Trainer 2, two processes in each pod without torchrun, read": (
        TRAINER.replace("=auto", "=2") + "PET_NODE_RANK=1",
        "Kubeflow Trainer: by PET_NNODES=2, PET_NPROC_PER_NODE=2, there are several processes in each pod, which needs torchrun",
    ),
    "Kubeflow Trainer 2 without a port": (
        TRAINER.replace("PET_MASTER_PORT=29400 ", "") + "PET_NODE_RANK=1",
        "Kubeflow Trainer: PET_MASTER_PORT is not set. The operator sets it with the others.",
    ),
    "Kubeflow Trainer 2 without an address": (
        "PET_NNODES=2 PET_NODE_RANK=1",
        "Kubeflow Trainer: PET_MASTER_ADDR is not set. The operator sets it with the others.",
    ),
    "PyTorchJob, two processes in each pod without torchrun, read": (
        PYTORCH_JOB.replace("WORLD_SIZE=2", "WORLD_SIZE=4").replace("PER_NODE=1", "PER_NODE=2") + "RANK=1 PET_NODE_RANK=1",
        "torchrun: by WORLD_SIZE=4, PET_NNODES=2, PET_NPROC_PER_NODE=2, torchrun is to start several processes in each pod, but it",
    ),
    "PyTorchJob, elastic, without torchrun, read": (
        "PET_RDZV_ENDPOINT=pj-worker-0:23456 PET_RDZV_BACKEND=c10d PET_NNODES=1:3 PET_NPROC_PER_NODE=1",
        "by PET_NNODES=1:3 (torchrun), this process is one of several",
    ),
    "Volcano, other tasks, read": (
        "VC_TASK_INDEX=0 VC_PS_HOSTS=job-ps-0.job VC_WORKER_HOSTS=job-worker-0.job",
        "Volcano: the job has tasks with other names than chief, master and worker: PS. Describe the cluster in TF_CONFIG",
    ),
    "Volcano, another host's name": (
        MASTER_AND_WORKERS + "VC_TASK_INDEX=1 HOSTNAME=x",
        "Volcano: by VC_TASK_INDEX=1, HOSTNAME=x, VC_MASTER_HOSTS=job-master-0.job, VC_WORKER_HOSTS=job-worker-0.job,job-worker-1",
    ),
    "Volcano, an index that is too high": (
        VOLCANO.replace("VC_TASK_INDEX=1", "VC_TASK_INDEX=2"),
        "it is not clear which pod of the job this is",
    ),
    "Volcano, only the plugin svc, read": (
        "VC_WORKER_NUM=2 VC_WORKER_HOSTS=job-worker-0.job,job-worker-1.job",
        "by VC_WORKER_NUM=2 and VC_WORKER_HOSTS=job-worker-0.job,job-worker-1.job (Volcano), this process is one of several",
    ),
    "a task of Spark 4.1 that is no barrier task, read": (
        SPARK,
        "by SPARK_AUTH_SOCKET_TIMEOUT=15, SPARK_BUFFER_SIZE=65536 and SPARK_REUSE_WORKER=1 (Spark), this process is one of several",
    ),
    "an executor of Databricks, read": (
        SPARK + "DATABRICKS_RUNTIME_VERSION=16.4 DB_IS_DRIVER=FALSE",
        "SPARK_REUSE_WORKER=1 (Spark), this process is one of several",
    ),
    "a JobSet without the number of pods, read": (
        "JOB_COMPLETION_INDEX=0 JOBSET_NAME=js REPLICATED_JOB_NAME=w",
        "Kubernetes: JOB_COMPLETION_INDEX is set, but the number of pods that train together is not.",
    ),
    "the trainer's JAX runtime without an address": (
        "JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=1",
        "JAX variables: JAX_COORDINATOR_ADDRESS is not set. Set JAX_COORDINATOR_ADDRESS=HOST:PORT in each process, with the host",
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
