"""Lists of hosts of batch systems: which host is the first, and whether there are several."""

import pytest

from replicant.cluster import detect
from replicant.cluster.resolvers._host_lists import first_host, hosts_of_pbs, several_hosts
from replicant.errors import ClusterError

HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environ", "elsewhere", "found"),
    [
        ({"LSB_MCPU_HOSTS": "n1 4 n2 4"}, False, ("n1", "LSB_MCPU_HOSTS")),
        ({"LSB_MCPU_HOSTS": "batch1 1 n1 42 n2 42"}, True, ("n1", "LSB_MCPU_HOSTS")),
        ({"LSB_MCPU_HOSTS": "n1 42"}, True, ("n1", "LSB_MCPU_HOSTS")),
        ({"LSB_HOSTS": "n2 n2 n1"}, False, ("n2", "LSB_HOSTS")),
        ({"SLURM_JOB_NODELIST": "n[07-09]"}, False, ("n07", "SLURM_JOB_NODELIST")),
        ({"AZ_BATCH_MASTER_NODE": "10.0.0.4:6000"}, False, ("10.0.0.4", "AZ_BATCH_MASTER_NODE")),
        ({"AZ_BATCH_MASTER_NODE": "10.0.0.4"}, False, ("10.0.0.4", "AZ_BATCH_MASTER_NODE")),
        ({"LSB_MCPU_HOSTS": " ", "PBS_NODEFILE": "/no/such"}, False, None),
    ],
)
def test_the_first_host(environ, elsewhere, found):
    assert first_host(environ, starts_elsewhere=elsewhere) == found


def test_the_file_of_pbs(tmp_path):
    path = tmp_path / "9.head"
    path.write_text("n1\nn1\n\nn2\nn2\n", encoding="utf-8")
    environ = HYDRA | {"PBS_JOBID": "9.head", "PBS_NODEFILE": str(path)}
    assert hosts_of_pbs(environ) == ["n1", "n2"]
    found = detect(environ)
    assert (found.process_id, found.num_processes, found.coordinator_address.rpartition(":")[0]) == (3, 4, "n1")
    assert f"PBS_NODEFILE={path}" in found.because
    assert found.doubt is None
    batch = {"PBS_JOBID": "9.head", "PBS_NODEFILE": str(path)}
    assert several_hosts(batch) == (f"PBS_NODEFILE={path}",)
    assert f"by PBS_NODEFILE={path} (PBS), this process is one of several" in detect(batch).doubt
    path.write_text("n1\nn1\n", encoding="utf-8")
    assert detect(batch).doubt is None


def test_a_file_of_pbs_that_is_none(tmp_path):
    path = tmp_path / "9.head"
    path.write_text("a table of\nwords\n", encoding="utf-8")
    with pytest.raises(ClusterError, match=r"PBS_NODEFILE=.* is not a list of hosts, with a name on each line"):
        hosts_of_pbs({"PBS_NODEFILE": str(path)})
    assert several_hosts({"PBS_NODEFILE": str(path)}) == (f"PBS_NODEFILE={path}",)
    with path.open("wb") as file:
        file.truncate((1 << 23) + 1)
    with pytest.raises(ClusterError, match=r"PBS_NODEFILE=.* is not a list of hosts"):
        hosts_of_pbs({"PBS_NODEFILE": str(path)})
    with pytest.raises(ClusterError, match=f"PBS_NODEFILE={tmp_path} cannot be read: Is a directory"):
        hosts_of_pbs({"PBS_NODEFILE": str(tmp_path)})
