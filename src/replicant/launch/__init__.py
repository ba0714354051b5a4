"""``replicant launch``: starts the workers of a job, watches them, and starts them again if they fail.

    cli/_launch.py --> Settings --> Supervisor.run()                  _settings.py, _supervisor.py
                                      ├─ the workers of a generation    _team.py
                                      │    ├─ deadlines                   _deadlines.py (pure)
                                      │    ├─ elastic jobs: who goes on   _elastic.py, _generations.py and _orders.py (pure)
                                      │    ├─ JAX's coordination service  _service.py
                                      │    ├─ processes, and their end    _processes.py, _environment.py
                                      │    ├─ messages from workers       _channel.py (their end: cluster/_heartbeat.py)
                                      │    ├─ how fast they are           _progress.py
                                      │    └─ logs and console            _logs.py, _console.py
                                      ├─ what happened                _run_log.py
                                      └─ failures --> decision          _policy.py (pure)
    cli/_report.py --> the run log --> time and steps                 _account.py (pure), _report_text.py, _report_page.py

On several hosts, an agent on each of them starts the workers for the supervisor: hosts/.
For other engines, _jobs.py only writes a file or a command line. _cpu.py has what `replicant run` shares with this command.
"""

from ._jobs import Job, describe_job, submit_job
from ._settings import Settings
from ._supervisor import Supervisor

__all__ = ["Job", "Settings", "Supervisor", "describe_job", "submit_job"]
