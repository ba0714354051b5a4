"""Connects to Ray or starts it, and ends it if it was started here. Ray is imported only when it is used.

A Ray that is started here listens on 127.0.0.1 and accepts calls only with its token, which this process draws. Ray checks tokens
since 2.52 and, up to some later release, only if RAY_AUTH_MODE=token is set.
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

from ...errors import ConfigurationError
from .._addresses import is_loopback

INSTALL = "pip install 'replicant-jax[ps]'"
_OLDEST = (2, 52)  # the first version that checks tokens; older ones accept every call
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "grpc_proxy")
# Ray reads these when it is imported, when it starts, and in the processes that it starts.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future default; without it, Ray warns
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^A worker died or was killed",  # we report this ourselves
}
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # despite its name, this keeps everything on 127.0.0.1
_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_KEY = secrets.token_hex(32)  # the same for all starts, because Ray remembers the first one
_lock = threading.Lock()
_users = 0
_is_ours = False


def load_ray() -> Any:
    """Import Ray.

    Returns:
        The module.

    Raises:
        ConfigurationError: If Ray is not installed or too old.
    """
    with _environment(_QUIET):
        try:
            import ray
        except ImportError as error:
            raise ConfigurationError(f"This needs Ray, which is not installed: {INSTALL}.") from error
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if version < _OLDEST:
        raise ConfigurationError(
            f"Ray {ray.__version__} is too old: Replicant needs at least {_OLDEST[0]}.{_OLDEST[1]}, because older versions ignore "
            f"{_MODE}=token and run whatever anybody sends them. {INSTALL}."
        )
    return ray


def join_ray(num_cpus: int = 1) -> Any:
    """Make sure that Ray runs. Call `leave_ray` when you no longer need it.

    A Ray that this process is connected to stays as it is. Otherwise this connects to the cluster that RAY_ADDRESS names, or
    starts Ray on this machine.

    Args:
        num_cpus: The smallest number of CPUs that a Ray started here has, even if the machine has fewer.

    Returns:
        The module.

    Raises:
        ConfigurationError: If Ray is not installed, or does not start.
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
    """Note that Ray is no longer needed. The last one who leaves a Ray that was started here ends it."""
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
        # JAX warns about every fork. Ray forks to start its processes, which run no JAX and become other programs at once.
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
            "start Ray yourself, as open as you want it, and set RAY_ADDRESS to its address."
        )
    locked = {_MODE: "token", _TOKEN: _KEY}
    with _environment(_QUIET | _LOOPBACK | locked, without=_PROXIES), _on_loopback():
        _check_mode(ray)
        logging.getLogger("ray").setLevel(logging.ERROR)  # otherwise it warns that it wants a key
        cpus = max(num_cpus, os.cpu_count() or 1)
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="error")
    address = str(ray.util.get_node_ip_address())
    if not is_loopback(address):
        ray.shutdown()
        raise ConfigurationError(
            f"Ray {ray.__version__} would listen at {address}, where others can reach it, instead of at 127.0.0.1 as it was told. "
            "Start it yourself with `ray start` or ray.init, as open as you want it."
        )


def _check_mode(ray: Any) -> None:
    """Make Ray read RAY_AUTH_MODE again, and check that it is used.

    Ray reads it when it is imported, perhaps earlier by other code. This uses private parts of Ray, as does `_on_loopback`.

    Raises:
        ConfigurationError: If this Ray does not check tokens, or does not say whether it does.
    """
    raylet: Any = sys.modules.get("ray._raylet")
    try:
        raylet.Config.initialize("")
        is_checked = raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN
    except AttributeError as error:
        raise ConfigurationError(
            f"Ray {ray.__version__} does not say whether it checks tokens ({error}). Use a version that this release was tested "
            "with (2.60), or start Ray yourself and set RAY_ADDRESS to its address."
        ) from error
    if not is_checked:
        raise ConfigurationError(
            f"Ray {ray.__version__} ignores {_MODE}=token: it would run whatever any user of this machine sends it. Install "
            f"another version: {INSTALL}."
        )


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Keep Ray on loopback, even if it has read its variable when other code imported it."""
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
    """Set variables that are not set yet, and remove those in `without`, until the context ends."""
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
