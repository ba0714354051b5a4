"""Lists of hosts that batch systems leave in a job's environment: LSF, PBS and Torque, Slurm, Azure Batch.

A launcher of MPI programs starts its first process on the first host of the job unless it is told otherwise. If it was, process 0
finds that the address is not its own, and all processes raise an error.
"""

from ..._whole_file import open_regular
from ...errors import ClusterError
from .._spec import MOST_TASKS
from ._environ import Environ, facts, first
from ._hostlist import expand_hosts

NODE_FILE = "PBS_NODEFILE"
_MOST_BYTES = 1 << 23  # 65,536 names of 100 characters

# Lists of names, separated by blanks, commas or semicolons, between which there may be numbers.
LSF = ("LSB_MCPU_HOSTS", "LSB_HOSTS")
AZURE = ("AZ_BATCH_HOST_LIST", "AZ_BATCH_NODE_LIST", "CCP_NODES")


def first_host(environ: Environ, *, starts_elsewhere: bool = False) -> tuple[str, str] | None:
    """The first host of the job, and the variable that says so, or None if no batch system tells it.

    Args:
        environ: The environment to read.
        starts_elsewhere: Whether the launcher starts nothing on the host of the batch script, as IBM's jsrun.

    Raises:
        ClusterError: If a list cannot be read.

    >>> first_host({"LSB_MCPU_HOSTS": "batch1 1 n1 42 n2 42"}, starts_elsewhere=True)
    ('n1', 'LSB_MCPU_HOSTS')
    >>> first_host({"SLURM_JOB_NODELIST": "n[3-4]"}), first_host({"AZ_BATCH_MASTER_NODE": "10.0.0.4:6000"}), first_host({})
    (('n3', 'SLURM_JOB_NODELIST'), ('10.0.0.4', 'AZ_BATCH_MASTER_NODE'), None)
    """
    for name in LSF:
        if hosts := hosts_in(environ, name):
            return (hosts[1:] if starts_elsewhere and len(hosts) > 1 else hosts)[0], name
    if hosts := hosts_of_pbs(environ):
        return hosts[0], NODE_FILE
    told = first(environ, "SLURM_JOB_NODELIST")
    if told is not None:
        return expand_hosts(told[1])[0], told[0]
    told = first(environ, "AZ_BATCH_MASTER_NODE")
    return None if told is None else (told[1].rpartition(":")[0] or told[1], told[0])


def hosts_in(environ: Environ, name: str) -> list[str]:
    """The different hosts in a list, in its order.

    >>> hosts_in({"LSB_HOSTS": "n1 n1 n2"}, "LSB_HOSTS"), hosts_in({"CCP_NODES": "2 10.0.0.4 1 10.0.0.5 1"}, "CCP_NODES")
    (['n1', 'n2'], ['10.0.0.4', '10.0.0.5'])
    """
    words = environ.get(name, "").replace(",", " ").replace(";", " ").split()
    return list(dict.fromkeys(word for word in words if not word.isdigit()))[:MOST_TASKS]


def hosts_of_pbs(environ: Environ) -> list[str]:
    """The different hosts in the file that ``PBS_NODEFILE`` names, with a line for each process. None where it is not there.

    Only the first host of a job has the file, unless it lies in a folder that the hosts share.

    Raises:
        ClusterError: If what is there cannot be read, or is not such a list.
    """
    told = first(environ, NODE_FILE)
    if told is None:
        return []
    try:
        with open_regular(told[1]) as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ClusterError(f"{NODE_FILE}={told[1]} cannot be read: {error.strerror}.") from error
    if len(data) > _MOST_BYTES:
        raise ClusterError(f"{NODE_FILE}={told[1]} is not a list of hosts, with a name on each line.")
    hosts = list(dict.fromkeys(line.strip() for line in data.decode(errors="replace").splitlines() if line.strip()))
    if any(len(host.split()) > 1 for host in hosts):
        raise ClusterError(f"{NODE_FILE}={told[1]} is not a list of hosts, with a name on each line.")
    return hosts[:MOST_TASKS]


def several_hosts(environ: Environ) -> tuple[str, ...]:
    """The variables with a list of several hosts.

    >>> several_hosts({"LSB_MCPU_HOSTS": "n1 4 n2 4"}), several_hosts({"LSB_MCPU_HOSTS": "n1 4"})
    (('LSB_MCPU_HOSTS=n1 4 n2 4',), ())
    """
    names = [name for name in (*LSF, *AZURE) if len(hosts_in(environ, name)) > 1]
    try:
        names += [NODE_FILE] if len(hosts_of_pbs(environ)) > 1 else []
    except ClusterError:
        names.append(NODE_FILE)
    return facts(environ, *names)
