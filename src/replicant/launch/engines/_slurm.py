"""A batch script for Slurm."""

import shlex

from ...errors import ArgumentError
from ._hosts import parse_hosts
from ._job import Job, no_colon

_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
UNSET = [*(variant for name in _PROXIES for variant in (name, name.upper())), "REPLICANT_SINGLE"]


def slurm_file(job: Job) -> str:
    """A batch script that starts one process per worker, and that requeues itself as long as restarts are left.

    Raises:
        ArgumentError: If an argument or a path has a meaning for Slurm.
    """
    no_colon(job)
    settings = job.settings
    folder = _folder(job)
    slots = parse_hosts(job.hosts)
    options = [f"--job-name={job.job_name}", f"--ntasks={settings.num_workers}"]
    if slots:
        options += [f"--nodelist={','.join(slots)}", f"--ntasks-per-node={max(slots.values())}"]
    options += ["--output=slurm-%j.log", "--open-mode=append", f"--signal=TERM@{settings.grace:.0f}"]
    options += ["--requeue" if settings.max_restarts else "--no-requeue", *map(_sbatch_word, job.engine_args)]
    run = ["srun", "--kill-on-bad-exit=1", f"--wait={settings.finish:.0f}", f"--output={folder}rank-%t.log", "--open-mode=append"]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), ""]
    lines += [f"unset {' '.join(UNSET)}", *(f"export {name}={_bash_word(value)}" for name, value in job.variables.items())]
    if folder:
        lines.append(f"mkdir -p -- {_bash_word(str(settings.log_dir))}")
    lines += ["", " ".join(map(_bash_word, [*run, *job.argv]))]
    if settings.max_restarts:
        test = f"[ $code -eq {settings.preempted_code} ] || {{ [ $code -ne 0 ] && [ ${{SLURM_RESTART_COUNT:-0}} -lt "
        test += f"{settings.max_restarts} ]; }}"
        lines += ["code=$?", f"if {test}; then", '    scontrol requeue "$SLURM_JOB_ID"', "fi", "exit $code"]
    return "\n".join(lines) + "\n"


def _folder(job: Job) -> str:
    """The folder of the logs, as srun reads it, with the slash behind it."""
    folder = str(job.settings.log_dir or "")
    if "\\" in folder:
        raise ArgumentError(f"--log-dir {folder!r} has a backslash, behind which srun does not write %t as a number. Rename it.")
    return folder and f"{folder.replace('%', '%%')}/"


def _sbatch_word(word: str) -> str:
    r"""An option as sbatch reads it in a line that begins with ``#SBATCH``.

    >>> print(_sbatch_word("--gpus=1"), _sbatch_word('--comment=a "b" \\c #d'))
    --gpus=1 "--comment=a \"b\" \\c #d"
    """
    if not all(each.isprintable() for each in word):
        raise ArgumentError(f"--engine-args: {word!r} has an end of line or another control character, which #SBATCH cannot hold.")
    if word and not set(word) & set(" \"'\\#"):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _bash_word(word: str) -> str:
    r"""A word for bash. sbatch takes no script with a carriage return, so control characters are written as escapes.

    >>> print(_bash_word("a b"), _bash_word("a'\r\n"))
    'a b' $'a\'\x0d\x0a'
    """
    if not any(each < " " or each == "\x7f" for each in word):
        return shlex.quote(word)
    return "$'" + "".join(_escaped(each) for each in word) + "'"


def _escaped(each: str) -> str:
    return f"\\x{ord(each):02x}" if each < " " or each == "\x7f" else f"\\{each}" if each in "\\'" else each
