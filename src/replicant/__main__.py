"""``python -m replicant`` is the command ``replicant``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
