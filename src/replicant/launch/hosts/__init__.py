"""The workers of one job on several hosts, with an agent on each of them.

    the launcher's host                                            every host
    Supervisor --> HostsTeam --> RemoteWorker --> Link    ===>     Agent --> Worker
                   _hosts.py     _remote.py                        _agent.py
                                                 signed lines, _wire.py
      --hosts:     SshHosts   _ssh.py        ... through ssh ...   started by ssh
      --node-rank: NodeRanks  _node_ranks.py <-- TCP, _lobby.py    started by the user, Joining  _join.py

What a host tells about itself, and in what it must agree with the launcher's, is in _facts.py.
"""

from ...cluster._addresses import split_address
from ._join import Joining, key_of_nodes
from ._node_ranks import NodeRanks
from ._ssh import SshHosts

__all__ = ["Joining", "NodeRanks", "SshHosts", "key_of_nodes", "split_address"]
