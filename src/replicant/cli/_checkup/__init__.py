"""The checks of ``replicant doctor``: _facts about this machine, and the _selftest in processes that _runner starts and ends."""

from ._facts import FACTS as FACTS
from ._facts import look as look
from ._result import Result as Result
from ._runner import run_selftest as run_selftest
from ._selftest import CHECKS as CHECKS
