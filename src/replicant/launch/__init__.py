"""``replicant launch``: starts the workers of a job, watches them, and starts them again if they fail.

    cli/_launch.py --> Settings --> Supervisor.run()                 _settings.py, _supervisor.py
                                      ├─ the workers of a generation   team/_team.py
                                      │    ├─ deadlines                  team/_deadlines.py (pure)
                                      │    ├─ elastic jobs: who goes on  team/_elastic.py, _generations.py, _elastic_commands.py
                                      │    ├─ JAX's coordination service team/_service.py
                                      │    ├─ processes, and their end   team/_processes.py, _environment.py
                                      │    ├─ messages from workers      team/_connections.py (theirs: cluster/wire/_supervisor.py)
                                      │    ├─ how fast they are          record/_progress.py
                                      │    └─ logs and console           console/_logs.py, console/_console.py
                                      ├─ what happened               record/_run_log.py
                                      └─ failures --> decision         team/_policy.py (pure)
    cli/_report.py --> the run log --> time and steps                record/_goodput.py, show/_report_text.py, _report_page.py

On several hosts, an agent on each of them starts the workers for the supervisor: hosts/.
Other engines are in engines/: Ray, and those for which only a file or a command line is written. _cpu.py has what `replicant run`
shares with this command.
"""

from ._settings import Settings
from ._supervisor import Supervisor
from .engines._job import Job
from .engines._jobs import describe_job, submit_job

__all__ = ["Job", "Settings", "Supervisor", "describe_job", "submit_job"]
