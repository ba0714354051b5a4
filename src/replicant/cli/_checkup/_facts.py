"""The checks that do not start JAX: versions, cores, settings, network and cluster."""

import os
import platform
import re
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from ... import cluster, kernels
from ...cluster._survey import survey
from ...errors import ReplicantError
from ...kernels.xla._flags import OPTION, VALUE, accelerator
from ...runtime._compile_cache import compile_cache
from ._result import Result

Environ = Mapping[str, str]

_MAY_BE_OFF = {"memory", "numba_conv", "numba_dot", "numba_lstm", "numba_norm", "pack"}  # they need more than JAX

OLDEST_JAX, OLDEST_KERAS = (0, 10), (3, 12)
NEWEST = {"jax": (0, 12), "keras": (3, 15), "Python": (3, 13)}  # the newest versions that this release was tested with
_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def look(environ: Environ = os.environ) -> Iterator[Result]:
    """Yield all facts, one after the other. If a fact cannot be found out, that is a failed check, not an error."""
    for name, fact in FACTS.items():
        try:
            yield fact(environ)
        except (ReplicantError, OSError) as error:
            yield Result(name, "fail", str(error), "fix what the message names")


def versions(_: Environ) -> Result:
    """Check the versions of the libraries, for combinations that are known not to work."""
    found = {"replicant": version_of("replicant-jax"), **{name: version_of(name) for name in ("jax", "jaxlib", "keras", "numpy")}}
    return judge_versions(found | {name: v for name in _plugins() if (v := version_of(name))})


def judge_versions(found: Mapping[str, str | None]) -> Result:
    """Judge these versions of jax, jaxlib, keras and JAX's plugins."""
    detail = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    jax, jaxlib, keras = (found.get(name) or "" for name in ("jax", "jaxlib", "keras"))
    if not jax or not jaxlib or not keras:
        return Result("versions", "fail", detail, "install jax, jaxlib and keras: pip install --upgrade replicant-jax")
    if _short(jax) < OLDEST_JAX:
        return Result("versions", "fail", detail, f"jax {jax} is too old: pip install 'jax>=0.10'")
    if _short(keras) < OLDEST_KERAS:
        return Result("versions", "fail", detail, f"keras {keras} is too old: pip install 'keras>=3.12'")
    if _short(jax) != _short(jaxlib):
        return Result(
            "versions", "fail", detail, f"jax {jax} and jaxlib {jaxlib} do not belong together: pip install --upgrade jax jaxlib"
        )
    for name, version in found.items():
        if name.startswith("jax-") and version and _short(version) != _short(jaxlib):
            return Result(
                "versions", "fail", detail, f"{name} {version} is for another jaxlib: pip install --upgrade {name} jaxlib"
            )
    return Result("versions", "ok", detail, _newer({"jax": jax, "keras": keras}))


def _newer(found: Mapping[str, str]) -> str:
    """Which of these versions are newer than those that this release was tested with, or an empty string."""
    names = [name for name, version in found.items() if _short(version) > NEWEST[name]]
    if not names:
        return ""
    newer = " and ".join(f"{name} {found[name]}" for name in names)
    tested = ", ".join(f"{name} {'.'.join(map(str, NEWEST[name]))}" for name in names)
    are = "is" if len(names) == 1 else "are"
    return f"{newer} {are} newer than the versions that this release was tested with (up to {tested})"


def _plugins() -> list[str]:
    return sorted({d.name for d in metadata.distributions() if d.name and re.fullmatch(r"jax-(cuda|rocm).*-plugin", d.name)})


def _short(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def version_of(name: str) -> str | None:
    """The version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def python(_: Environ) -> Result:
    """Report the versions of Python and of the system."""
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return judge_python(platform.python_version(), f"at {sys.executable}, {platform.platform()}", free_threaded=free_threaded)


def judge_python(version: str, more: str, *, free_threaded: bool = False) -> Result:
    """Judge a version of Python."""
    remedy = "this release was not tested with free-threaded Python" if free_threaded else _newer({"Python": version})
    return Result("python", "ok", f"{version} {more}", remedy)


def backend(environ: Environ) -> Result:
    """Check that Keras runs on JAX."""
    value = environ.get("KERAS_BACKEND", "jax")
    remedy = f"KERAS_BACKEND={value}: unset it, or set it to jax, before Keras is imported"
    return Result("Keras backend", "ok", value) if value == "jax" else Result("Keras backend", "fail", value, remedy)


def cores(environ: Environ) -> Result:
    """Check the cores that this process may use, and the threads of XLA's pool."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(Path("/sys/fs/cgroup/cpu.max"))
    limit = f", of which a quota leaves {quota:g}" if quota is not None and quota < usable else ""
    detail = f"{usable} cores{limit}; NPROC={environ.get('NPROC', 'unset')}"
    return judge_threads(detail, environ)


def judge_threads(detail: str, environ: Environ) -> Result:
    """Judge whether there are enough threads for the virtual devices that the environment asks for."""
    match = _DEVICE_COUNT.search(environ.get("XLA_FLAGS", ""))
    devices = int(match[1]) if match else int(environ.get("JAX_NUM_CPU_DEVICES", "1"))
    threads = environ.get("NPROC", "")
    if devices > 1 and not (threads.isdigit() and int(threads) >= 2 * devices):
        remedy = (
            f"strategies take care of this, but other JAX programs that exchange data between {devices} virtual devices need "
            f"NPROC={4 * devices} or more, or the devices can wait for each other forever"
        )
        return Result("cores and threads", "warn", detail, remedy)
    return Result("cores and threads", "ok", detail)


def _cpu_quota(file: Path) -> float | None:
    """The number of cores that Linux's control group grants, or None if it sets no limit."""
    if not file.exists():
        return None
    quota, _, period = file.read_text().strip().partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def cpu_kernels(_: Environ) -> Result:
    """Check which CPU kernels are on."""
    return judge_kernels(dict(kernels.status().kernels), accelerator())


def judge_kernels(states: dict[str, str], beside: str | None) -> Result:
    """Judge these states of the CPU kernels. Beside an accelerator, on which training runs, some are off by design."""
    off = [name for name, state in states.items() if state != "on" and name not in _MAY_BE_OFF]
    detail = ", ".join(f"{name} {state}" for name, state in states.items())
    if not off or beside is not None:
        return Result("CPU kernels", "ok", detail)
    return Result("CPU kernels", "warn", detail, "training on a CPU is slower without them: see docs/kernels.md")


def cache(_: Environ) -> Result:
    """Check where compiled programs are kept."""
    found = compile_cache()
    if found.folder is None:
        return Result("compile cache", "warn", found.reason, "every start compiles everything again: see replicant.compile_cache")
    return Result("compile cache", "ok", str(found.folder))


def xla_flags(environ: Environ) -> Result:
    """Report the options of XLA and JAX in the environment, and separately what Replicant itself has added."""
    found = {name: value for name, value in sorted(environ.items()) if name == "XLA_FLAGS" or name.startswith(("JAX_", "LIBTPU_"))}
    own = f"{OPTION}={VALUE}"
    added = own in found.get("XLA_FLAGS", "").split()
    if added:
        found["XLA_FLAGS"] = " ".join(flag for flag in found["XLA_FLAGS"].split() if flag != own)
    flags = [f"{name}={value}" for name, value in found.items() if value]
    return Result("XLA and JAX settings", "ok", ("; ".join(flags) or "none") + (f"; Replicant adds {own}" if added else ""))


def network(_: Environ) -> Result:
    """Check the network interfaces, and that a port on loopback can be used."""
    names = ", ".join(name for _, name in socket.if_nameindex()) or "none"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Result("network", "ok", f"interfaces {names}; host name {socket.gethostname()}; port {port} on 127.0.0.1 can be used")


def cluster_variables(environ: Environ) -> Result:
    """Check which processes take part, according to the environment."""
    found = survey(dict(environ))
    rows = tuple(found.lines())
    if found.detection is None:
        return Result("cluster", "fail", found.refusal or "", "fix what the message names", rows=rows)
    member = found.detection.membership
    detail = f"{found.detection.source}: {repr(member).removeprefix('Membership(').removesuffix(')')}"
    if not rows:
        detail += " (no variable describes a cluster)"
    if found.refusal:
        return Result("cluster", "fail", detail, f"strategies over workers refuse to start here: {found.refusal}", rows=rows)
    if found.detection.conflicts:
        return Result("cluster", "warn", detail, "sources disagree: " + "; ".join(found.detection.conflicts), rows=rows)
    if member.num_processes > 1 and member.coordinator_address:
        proxies = cluster.proxy_variables(dict(environ), member.coordinator_address)
        if proxies:
            remedy = f"unset {', '.join(proxies)}, or add the coordinator to no_proxy, because connections would hang"
            return Result("cluster", "fail", detail, remedy, rows=rows)
    return Result("cluster", "ok", detail, rows=rows)


FACTS: dict[str, Callable[[Environ], Result]] = {
    "versions": versions,
    "python": python,
    "Keras backend": backend,
    "cores and threads": cores,
    "CPU kernels": cpu_kernels,
    "compile cache": cache,
    "XLA and JAX settings": xla_flags,
    "network": network,
    "cluster": cluster_variables,
}
