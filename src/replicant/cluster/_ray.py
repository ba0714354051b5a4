"""Ray: connected to or started, and ended by who has started it. Imported on use only.

A Ray that is started here listens on 127.0.0.1 and takes calls only from those who know its token, which this process draws. Ray
checks tokens since 2.52 and, up to some later release, only where RAY_AUTH_MODE=token asks for it.
"""

import contextlib
import logging
import os
import secrets
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from ..errors import ConfigurationError
from ._addresses import is_loopback

INSTALL = "pip install 'replicant[ps]'"
_OLDEST = (2, 52)  # the first that checks tokens; older ones take every call
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "grpc_proxy")
# Read when Ray is imported, when it starts, and by the processes that it starts.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what will be its default, and else a warning
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^A worker died or was killed",  # whoever needs it, is told by us
}
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # the variable's name notwithstanding: everything on 127.0.0.1
_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_KEY = secrets.token_hex(32)  # one for all starts: Ray remembers the first
_lock = threading.Lock()
_users = 0
_is_ours = False


def load_ray() -> Any:
    """The module. Raises ConfigurationError where it is not installed, or too old."""
    with _environment(_QUIET):
        try:
            import ray
        except ImportError as error:
            raise ConfigurationError(f"This needs Ray, which is not installed: {INSTALL}.") from error
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if version < _OLDEST:
        raise ConfigurationError(
            f"Ray {ray.__version__} is too old: at least {_OLDEST[0]}.{_OLDEST[1]} is needed, because older versions ignore "
            f"{_MODE}=token and run whatever anybody sends them. {INSTALL}."
        )
    return ray


def join_ray(num_cpus: int = 1) -> Any:
    """Ray, running: as it is, the cluster that RAY_ADDRESS names, or else one started on this machine. `leave_ray` is to follow.

    Args:
        num_cpus: that one started here must have, whatever the machine has.

    Raises ConfigurationError where Ray is not installed, or does not start.
    """
    global _users, _is_ours  # noqa: PLW0603 - one Ray per process
    with _lock:
        ray = load_ray()
        if not ray.is_initialized():
            _start(ray, num_cpus)
            _is_ours, _users = True, 0
        _users += 1
        return ray


def leave_ray() -> None:
    """The last one who leaves a Ray that was started here ends it."""
    global _users  # noqa: PLW0603 - as above
    with _lock:
        _users -= 1
        if not _users and _is_ours:
            _stop()


def _stop() -> None:
    global _is_ours  # noqa: PLW0603 - as above
    _is_ours = False
    sys.modules["ray"].shutdown()


def _start(ray: Any, num_cpus: int) -> None:
    try:
        # JAX warns of every fork. Ray's, to start its processes, run nothing of JAX, and end in another program at once.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
            _init(ray, num_cpus)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(f"Ray does not start ({type(error).__name__}: {error}).") from error


def _init(ray: Any, num_cpus: int) -> None:
    if os.environ.get("RAY_ADDRESS"):
        with _environment(_QUIET):
            ray.init(log_to_driver=False, logging_level="error")
        return
    mode = os.environ.get(_MODE, "").strip().lower()
    if mode not in ("", "token"):
        raise ConfigurationError(
            f"{_MODE}={mode}: a Ray that is started here would run whatever any user of this machine sends it. Unset {_MODE}, or "
            "start Ray yourself, as open as you want it, and name it in RAY_ADDRESS."
        )
    locked = {_MODE: "token", _TOKEN: _KEY}
    with _environment(_QUIET | _LOOPBACK | locked, without=_PROXIES), _on_loopback():
        _check_mode(ray)
        logging.getLogger("ray").setLevel(logging.ERROR)  # else it warns that it wants a key
        cpus = max(num_cpus, os.cpu_count() or 1)
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="error")
    address = str(ray.util.get_node_ip_address())
    if not is_loopback(address):
        ray.shutdown()
        raise ConfigurationError(
            f"Ray {ray.__version__} would listen at {address}, where others can reach it, and not at 127.0.0.1 as it was told. "
            "Start it yourself, with `ray start` or ray.init, as open as you want it."
        )


def _check_mode(ray: Any) -> None:
    """Have Ray look at RAY_AUTH_MODE: it did so when it was imported, perhaps by somebody else. Private parts of it, as below."""
    raylet: Any = sys.modules.get("ray._raylet")
    try:
        raylet.Config.initialize("")
        is_checked = raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN
    except AttributeError as error:
        raise ConfigurationError(
            f"Ray {ray.__version__} does not say whether it checks tokens ({error}). Use a version that this release was tested "
            "with (2.60), or start Ray yourself and name it in RAY_ADDRESS."
        ) from error
    if not is_checked:
        raise ConfigurationError(
            f"Ray {ray.__version__} ignores {_MODE}=token: it would run whatever any user of this machine sends it. Install "
            f"another version: {INSTALL}."
        )


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray has read its variable when it was imported, perhaps by somebody else."""
    constants: Any = sys.modules.get("ray._private.ray_constants")
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    if before is not None:
        constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        if before is not None:
            constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _environment(values: dict[str, str], without: tuple[str, ...] = ()) -> Iterator[None]:
    """With these variables, unless they are set already to something, and afterwards as before."""
    before = dict(os.environ)
    for name in list(os.environ):
        if name.lower() in without:
            del os.environ[name]
    for name, value in values.items():
        os.environ[name] = os.environ.get(name) or value
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
