"""Where the tasks of a step of Slurm run: on which node each rank is, also in a heterogeneous job, which has several components."""

from collections.abc import Sequence

from ...errors import ClusterError
from .._spec import MOST_TASKS
from ._environ import Environ, first, number
from ._hostlist import expand_hosts

COMPONENTS = ("SLURM_HET_SIZE", "SLURM_PACK_SIZE")  # the number of components; before 20.02 they were called packs


def in_component_order(environ: Environ, hosts: list[str], counts: list[int]) -> tuple[list[str], list[int], list[int]]:
    """The nodes of a step in the order of their ids, with the number of tasks on each, and the number of nodes of each component.

    The node list of a step over several components of a heterogeneous job is sorted by name, with its numbers of tasks. But nodes
    and tasks are numbered component by component. The components' own lists tell which node belongs to which. Up to version 22.05,
    srun calls them packs when it makes the job itself. Seen in Slurm 22.05.

    >>> environ = {"SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "n9", "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]"}
    >>> in_component_order(environ, ["n1", "n2", "n9"], [4, 4, 1])
    (['n9', 'n1', 'n2'], [1, 4, 4], [1, 2])
    """
    num_components = number(environ, *COMPONENTS) or 1
    if num_components > MOST_TASKS:
        raise ClusterError(f"Slurm: {COMPONENTS[0]}={num_components}; there can be at most {MOST_TASKS} components.")
    lists = [
        first(environ, f"SLURM_JOB_NODELIST_HET_GROUP_{i}", f"SLURM_JOB_NODELIST_PACK_GROUP_{i}") for i in range(num_components)
    ]
    if num_components == 1 or not any(lists):
        return hosts, counts, [len(hosts)]
    component_of = {host: i for i, found in enumerate(lists) if found is not None for host in expand_hosts(found[1])}
    if missing := [host for host in hosts if host not in component_of]:
        told = ", ".join(f"{found[0]}={found[1]}" for found in lists if found is not None)
        raise ClusterError(f"Slurm: node {missing[0]} of the step is in no component of the heterogeneous job: {told}.")
    order = sorted(range(len(hosts)), key=lambda at: component_of[hosts[at]])  # a stable sort
    members = [component_of[hosts[at]] for at in order]
    sizes = [members.count(i) for i in sorted(set(members))]
    return [hosts[at] for at in order], [counts[at] for at in order], sizes


def place_components(counts: Sequence[int], sizes: Sequence[int], plane_size: int | None = None) -> list[tuple[int, int]]:
    """The node of each rank, and its rank on that node, if `sizes` are the numbers of nodes of the step's components.

    >>> place_components([1, 2, 1], [1, 2], plane_size=1)
    [(0, 0), (1, 0), (2, 0), (1, 1)]
    """
    placed: list[tuple[int, int]] = []
    begin = 0
    for size in sizes:
        placed += [(begin + node, local) for node, local in place_tasks(counts[begin : begin + size], plane_size)]
        begin += size
    return placed


def place_tasks(counts: Sequence[int], plane_size: int | None = None) -> list[tuple[int, int]]:
    """The node of each rank, and its rank on that node.

    Args:
        counts: The number of tasks on each node.
        plane_size: How tasks are dealt out to the nodes. None fills one node after the other (Slurm's "block"), 1 deals them out
            one by one ("cyclic"), and a larger number deals them out in blocks of that size ("plane").

    >>> place_tasks([2, 1])
    [(0, 0), (0, 1), (1, 0)]
    >>> place_tasks([2, 1], plane_size=1)
    [(0, 0), (1, 0), (0, 1)]
    """
    block = plane_size or max(counts, default=1)
    placed: list[tuple[int, int]] = []
    used = [0] * len(counts)
    while len(placed) < sum(counts):
        for node, count in enumerate(counts):
            take = min(block, count - used[node])
            placed += [(node, used[node] + k) for k in range(take)]
            used[node] += take
    return placed
