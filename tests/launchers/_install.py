"""Installs launchers that the index has, each in an environment of its own: ``build/launchers/NAME``. What is there stays.

What Debian has is installed by hand: ``apt-get install mpich openmpi-bin slurm-wlm munge python3-torch default-jre-headless``.
"""

import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "launchers"
PACKAGES = {"mpich": "mpiexec", "openmpi": "mpiexec", "impi-rt": "mpiexec", "pyspark": "pyspark"}  # with a command of each


def main() -> None:
    """Install them."""
    for package, command in PACKAGES.items():
        place = FOLDER / package
        if (place / "bin" / command).exists():
            continue
        venv.create(place, with_pip=True)
        done = subprocess.run([place / "bin" / "python", "-m", "pip", "install", "--quiet", package], check=False)
        if done.returncode:
            print(f"{package} cannot be installed here; its tests are skipped.", file=sys.stderr)


if __name__ == "__main__":
    main()
