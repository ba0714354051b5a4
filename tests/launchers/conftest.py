"""Programs that real launchers start: ``make test-launchers``. Other commands leave them out, because they take many minutes."""

import os

if os.environ.get("REPLICANT_TEST_LAUNCHERS") != "1":
    collect_ignore_glob = ["test_*.py"]
