"""The file in which process 0 of a job tells the others its address."""

import contextlib
import errno
import hashlib
import json
import os
import socket
import stat
import time
from pathlib import Path
from typing import Any

from ..._untrusted_json import read_json
from ...errors import ClusterError, UnreachableError
from .._addresses import split_address
from ..resolvers._environ import RENDEZVOUS
from ..wire._connect import connected
from ..wire._handshake import code_of, is_proved
from ._job import JOB_ID, JOB_KEY

MAGIC = "replicant-rendezvous-1"
MOST_BYTES = 4096
_TRY_SECONDS = 0.5  # to connect
_PAUSE_SECONDS = 0.1


class _OutdatedError(ClusterError):
    """The file may be that of an earlier run of this job, which process 0 is about to replace."""


class RendezvousFile:
    """The file of a job in a folder. Process 0 writes it, and the others read it.

    Args:
        folder: The folder, which all hosts share.
        job: The name of the job, which no other run has.
        num_processes: The number of its processes.
        key: The job's key, or an empty string if it has none.

    Raises:
        ClusterError: If the folder is not there, or if the job has no name.
    """

    def __init__(self, folder: str, job: str, num_processes: int, key: str = "") -> None:
        self._job, self._num_processes, self._key = job, num_processes, key
        if not job:
            raise ClusterError(
                f"{RENDEZVOUS}={folder} needs a name for this run, which all of its processes share and no other run has: the "
                f"launcher tells none. Set {JOB_ID} in each process."
            )
        if not Path(folder).is_dir():
            raise ClusterError(f"{RENDEZVOUS}={folder}: there is no such folder on this host ({socket.gethostname()}).")
        self.path = Path(folder) / f"replicant-{hashlib.sha256(job.encode()).hexdigest()[:32]}.json"

    def write(self, address: str) -> None:
        """Write the file, in place of one that an earlier run has left.

        Raises:
            ClusterError: If it cannot be written.
        """
        said = self._claim(address)
        if self._key:
            said["proof"] = self._proof(said)
        new = self.path.with_suffix(f".{socket.gethostname()}-{os.getpid()}.new")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(descriptor, 0o644)  # whatever the umask is: only this user may write, and the others read
                file.write(json.dumps(said))
                file.flush()
                os.fsync(descriptor)
            new.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink()
            raise ClusterError(f"{RENDEZVOUS}: process 0 cannot write {self.path}: {error}.") from error

    def remove(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def wait(self, who: str, timeout_seconds: float) -> str:
        """Wait until process 0 has told its address and listens there.

        Args:
            who: This process, for messages.
            timeout_seconds: The time for it.

        Raises:
            ClusterError: If what is there is not the file of this job.
            UnreachableError: If it takes too long.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            address, problem = None, None
            try:
                address = self.read()
            except _OutdatedError as error:
                problem = error
            if address is not None:
                with contextlib.suppress(OSError), connected(split_address(address, "process 0"), _TRY_SECONDS):
                    return address
            if time.monotonic() > deadline:
                raise problem or UnreachableError(self._late(who, address, timeout_seconds))
            time.sleep(_PAUSE_SECONDS)

    def read(self) -> str | None:
        """The address in the file, or None if there is none yet.

        Raises:
            ClusterError: If the file may be somebody else's, or is another one.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._problem("it is a link" if error.errno == errno.ELOOP else f"it cannot be read ({error})") from error
        try:
            self._check_kind(os.fstat(descriptor))
            data = os.read(descriptor, MOST_BYTES + 1)
        finally:
            os.close(descriptor)
        try:
            said = read_json(data, MOST_BYTES)
        except ValueError as error:
            raise self._problem(f"it is not JSON: {error}") from None
        return self._address(said)

    def _check_kind(self, facts: os.stat_result) -> None:
        """It must be a file that this user alone can have written. A key proves that better."""
        if not stat.S_ISREG(facts.st_mode):
            raise self._problem("it is not a regular file")
        if self._key:
            return
        if facts.st_uid != os.geteuid():
            raise self._problem(f"user {facts.st_uid} owns it, and this process runs as user {os.geteuid()}")
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise self._problem(f"others may write to it (mode {stat.S_IMODE(facts.st_mode):o})")

    def _address(self, said: Any) -> str:
        """The address in what the file says, if it is of this job."""
        address = said.get("address") if isinstance(said, dict) else None
        if not isinstance(address, str) or said.get("magic") != MAGIC:
            raise self._problem("it was not written by process 0 of a job")
        claim = {name: said.get(name) for name in self._claim(address)}
        if self._key and not is_proved(said, self._proof(claim)):
            raise self._problem(f"it does not prove this job's {JOB_KEY}: give all processes the same one", _OutdatedError)
        if claim["job"] != self._job:
            raise self._problem(f"it is that of job {claim['job']!r}, and this one is {self._job!r}")
        if claim["num_processes"] != self._num_processes:
            counts = f"process 0 expects {claim['num_processes']} processes, and this one {self._num_processes}"
            raise self._problem(counts, _OutdatedError)
        split_address(address, str(self.path))
        return address

    def _claim(self, address: str) -> dict[str, Any]:
        return {"magic": MAGIC, "job": self._job, "num_processes": self._num_processes, "address": address}

    def _proof(self, said: dict[str, Any]) -> str:
        return code_of(self._key, json.dumps(said, sort_keys=True))

    def _problem(self, rule: str, kind: type[ClusterError] = ClusterError) -> ClusterError:
        return kind(
            f"{RENDEZVOUS}: {self.path} does not tell where process 0 is, because {rule}. Remove it, or set {RENDEZVOUS} to a "
            f"folder in which only you can write, or the same {JOB_KEY} in all processes."
        )

    def _late(self, who: str, address: str | None, timeout_seconds: float) -> str:
        me, longer = f"{who} ({socket.gethostname()})", "(To wait longer, set REPLICANT_START_TIMEOUT=seconds.)"
        if address is None:
            return (
                f"{me} waited {timeout_seconds:g} s for process 0 to write {self.path}. Has process 0 started, with the same "
                f"{RENDEZVOUS} and {JOB_ID}, and do the hosts share this folder? {longer}"
            )
        return (
            f"{me} found nobody within {timeout_seconds:g} s at {address}, where process 0 is by {self.path}. Has process 0 ended, "
            f"is the port closed between the hosts, or is the file that of an earlier run? {longer}"
        )
