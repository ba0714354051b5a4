"""Job files are golden, and mistakes are told in words."""

import argparse
import dataclasses
import os
import re
from pathlib import Path

import pytest
import yaml

from replicant.cli import main, make_parser
from replicant.errors import ArgumentError, ConfigurationError
from replicant.launch import Job, Settings, describe_job, submit_job
from replicant.launch._environment import Place, accelerators_of, worker_environment
from replicant.launch._settings import parse_elastic
from replicant.launch.engines._hosts import parse_hosts
from replicant.launch.engines._options import ENGINES, TAKEN_BY

SETTINGS = Settings(
    command=("train.py", "--rate", "0.1 0.2"), num_workers=4, devices_per_worker=2, max_restarts=3, log_dir=Path("run/logs")
)
PLACE = Place(1, 2, 3, "127.0.0.1:1111", "127.0.0.1:2222", "secret")

SLURM = """\
#!/bin/bash
#SBATCH --job-name=train
#SBATCH --ntasks=4
#SBATCH --nodelist=node1,node2
#SBATCH --ntasks-per-node=2
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=TERM@30
#SBATCH --requeue
#SBATCH --partition=gpu
#SBATCH --gpus-per-task=1

unset http_proxy HTTP_PROXY https_proxy HTTPS_PROXY grpc_proxy GRPC_PROXY all_proxy ALL_PROXY REPLICANT_SINGLE
export PYTHONUNBUFFERED=1
export JAX_NUM_CPU_DEVICES=2
export NPROC=8
mkdir -p -- run/logs

srun --kill-on-bad-exit=1 --wait=300 --output=run/logs/rank-%t.log --open-mode=append python train.py --rate '0.1 0.2'
code=$?
if [ $code -eq 143 ] || { [ $code -ne 0 ] && [ ${SLURM_RESTART_COUNT:-0} -lt 3 ]; }; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
"""

SMALL_SLURM = """\
#!/bin/bash
#SBATCH --job-name=my-train
#SBATCH --ntasks=1
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=TERM@30
#SBATCH --no-requeue

unset http_proxy HTTP_PROXY https_proxy HTTPS_PROXY grpc_proxy GRPC_PROXY all_proxy ALL_PROXY REPLICANT_SINGLE
export PYTHONUNBUFFERED=1

srun --kill-on-bad-exit=1 --wait=300 --output=rank-%t.log --open-mode=append python -m my.train
"""

KUBERNETES = """\
apiVersion: v1
kind: Service
metadata:
  name: train
spec:
  clusterIP: None
  publishNotReadyAddresses: true  # pods look for pod 0 before it is ready
  selector:
    batch.kubernetes.io/job-name: train
  ports:
  - {port: 55527}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
spec:
  completionMode: Indexed
  completions: 4
  parallelism: 4
  backoffLimit: 12  # every failed pod counts, and one failure ends the others
  podFailurePolicy:
    rules:
    - action: Ignore  # the node is taken away
      onPodConditions:
      - {type: DisruptionTarget, status: "True"}
    - action: Ignore  # the pod was asked to leave, and has saved everything
      onExitCodes:
        operator: In
        values: [143]
  template:
    spec:
      subdomain: train
      restartPolicy: Never
      terminationGracePeriodSeconds: 30
      containers:
      - name: worker
        image: "registry/train:1"
        command: ["python", "train.py", "--rate", "0.1 0.2"]
        env:
        - {name: JAX_NUM_PROCESSES, value: "4"}
        - {name: JAX_COORDINATOR_ADDRESS, value: "train-0.train:55527"}
        - {name: PYTHONUNBUFFERED, value: "1"}
        - {name: REPLICANT_JOB_ID, value: train}
        - {name: JAX_NUM_CPU_DEVICES, value: "2"}
        - {name: NPROC, value: "8"}
"""

MPI = (
    "mpirun -np 4 -H node1:2,node2:2 -x PYTHONUNBUFFERED=1 -x JAX_NUM_CPU_DEVICES=2 -x NPROC=8 --map-by core "
    "python train.py --rate '0.1 0.2'\n"
)


def test_the_slurm_file() -> None:
    job = Job(SETTINGS, "slurm", hosts=("node1:2", "node2:2"), engine_args=("--partition=gpu", "--gpus-per-task=1"))
    assert describe_job(job) == SLURM
    assert describe_job(Job(Settings(("my.train",), is_module=True), "slurm")) == SMALL_SLURM


def test_the_kubernetes_file() -> None:
    assert describe_job(Job(SETTINGS, "kubernetes", image="registry/train:1")) == KUBERNETES


def test_characters_of_every_plane_in_the_kubernetes_file() -> None:
    """YAML has its own way to write those beyond 16 bits, and reads an end of line in some where JSON has none."""
    command = (
        "train.py",
        "\N{SLIGHTLY SMILING FACE}",
        '\\ud83d"\n',
        "\x7f\u2028\u2029\ufeff\uffff",
        "\N{LATIN SMALL LETTER E WITH ACUTE}",
    )
    text = describe_job(Job(Settings(command), "kubernetes", image="x"))
    words = r""""\U0001f642", "\\ud83d\"\n", "\u007f\u2028\u2029\ufeff\uffff", "\u00e9"]"""
    (line,) = [line for line in text.splitlines() if line.strip().startswith("command:")]
    assert line.partition('"train.py", ')[2] == words
    _, job = yaml.safe_load_all(text)
    assert job["spec"]["template"]["spec"]["containers"][0]["command"][1:] == list(command)


@pytest.mark.parametrize("engine", ["kubernetes", "slurm", "mpi"])
def test_what_is_no_text_cannot_stand_in_a_job(engine: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Job(Settings(("train.py", "a\udcff")), engine, image="x" if engine == "kubernetes" else "")
    assert str(caught.value) == (
        rf"'a\udcff' is not UTF-8 text, so it cannot be part of a job for {engine}. Rename the file, or change the argument."
    )


def test_the_line_of_mpirun() -> None:
    job = Job(SETTINGS, "mpi", hosts=("node1:2", "node2:2"), engine_args=("--map-by", "core"))
    assert describe_job(job) == MPI


NAMES = [
    ("train.py", "train"),
    ("my/Train_It.py", "train-it"),
    ("my.train", "my"),
    ("__main__.py", "main"),
    ("--.py", "job"),
    ("4b.py", "job-4b"),
]


@pytest.mark.parametrize(("script", "name"), NAMES)
def test_the_name_of_a_job(script: str, name: str) -> None:
    assert Job(Settings((script,)), "slurm").job_name == name


BAD_JOBS = [
    ({"engine": "ray"}, r"--engine ray runs the job itself, so there is no job file to print or submit\."),
    (
        {"engine": "yarn"},
        r"--engine 'yarn' is not known\. It is one of local, ray, slurm, kubernetes, jobset, ",
    ),
    ({"engine": "slurm", "name": "My Job"}, r"--name 'My Job' is not a valid name\. Write a letter and then up to 39 letters"),
    ({"engine": "slurm", "name": "7b"}, r"--name '7b' is not a valid name\. Write a letter and then up to 39 letters"),
    (
        {"engine": "mpi", "name": "x"},
        r"--name is not for --engine mpi\. It is for --engine slurm, kubernetes, jobset",
    ),
    (
        {"engine": "slurm", "image": "x"},
        r"--image is not for --engine slurm\. It is for --engine kubernetes, jobset",
    ),
    (
        {"engine": "jobset", "image": "a b"},
        r"--image 'a b' has spaces or control characters, which the name of an image never has\.",
    ),
    ({"engine": "slurm", "hosts": ("me@a:4",)}, r"--hosts: 'me@a' names a user, which is for ssh\. For --engine slurm write the"),
    ({"engine": "kubernetes"}, r"--engine kubernetes needs --image"),
    (
        {"engine": "kubernetes", "image": "x", "hosts": ("a",)},
        r"--hosts is not for --engine kubernetes\. It is for --engine local,",
    ),
    ({"engine": "mpi", "hosts": ("a", "b:2")}, r"--hosts a,b:2 has room for 3 worker\(s\), but --workers is 4\."),
    ({"engine": "mpi", "hosts": ("a:0",)}, r"--hosts: 'a:0' is neither HOST nor HOST:WORKERS"),
    ({"engine": "mpi", "hosts": ("a", "a")}, r"--hosts: 'a' is there twice\. Write a:N for N workers on it\."),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_JOBS)
def test_jobs_that_cannot_be(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Job(SETTINGS, **arguments)  # type: ignore[arg-type]


BAD_SETTINGS = [
    ({"num_workers": 0}, r"--workers must be from 1 to 1024\. Got 0\."),
    ({"devices_per_worker": 0}, r"--devices-per-worker must be from 1 to 1024\. Got 0\."),
    ({"max_restarts": -1}, r"--max-restarts must be from 0 to 1000000\. Got -1\."),
    ({"port": 65536}, r"--port must be from 1 to 65535\. Got 65536\."),
    ({"preempted_code": 0}, r"--preempted-code must be from 1 to 255\. Got 0\."),
    ({"grace": 0.0}, r"--grace must be a positive number of seconds\. Got 0\."),
    ({"heartbeat": -1.0}, r"--heartbeat must be a positive number of seconds\. Got -1\."),
    ({"start": float("nan")}, r"--start must be a positive number of seconds\. Got nan\."),
    ({"finish": float("inf")}, r"--finish must be a positive number of seconds\. Got inf\."),
    ({"stall": 0.0}, r"--stall must be a positive number of seconds\. Got 0\."),
    (
        {"log_dir": Path("s3://bucket/logs")},
        r"--log-dir must be a path on this machine, .+ Received: PosixPath\('s3:/bucket/logs'\)\.",
    ),
    ({"elastic": (0, 2)}, r"--elastic 0:2: the smallest number of workers must be from 1 to the largest, 2\."),
    ({"elastic": (3, 2)}, r"--elastic 3:2: the smallest number of workers must be from 1 to the largest, 2\."),
    ({"elastic": (2, 4)}, r"--elastic 2:4 does not include --workers 1, with which the job starts\."),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_SETTINGS)
def test_settings_that_cannot_be(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Settings(("train.py",), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["3", "a:b", "1:2:3", ":", "-1:2", ""])
def test_elastic_ranges_that_are_none(text: str) -> None:
    with pytest.raises(ArgumentError, match=rf"--elastic '{re.escape(text)}' is not a range of workers\. Write MIN:MAX"):
        parse_elastic(text)


def test_hosts() -> None:
    assert parse_hosts(("a", "b.c:12")) == {"a": 1, "b.c": 12}


def test_the_environment_of_a_worker() -> None:
    before = {
        "HOME": "/home/me",
        "https_proxy": "http://proxy:3128",
        "NO_PROXY": "x",
        "JAX_COORDINATOR_BIND_ADDRESS": "0.0.0.0:1",
        "TF_CONFIG": "{}",
        "REPLICANT_SINGLE": "1",
        "XLA_FLAGS": "--a --xla_force_host_platform_device_count=8",
        "NPROC": "4",
    }
    assert worker_environment(before, PLACE, 3, (), 60.5) == {
        "HOME": "/home/me",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
        "REPLICANT_GENERATION": "3",
        "REPLICANT_SUPERVISOR": "127.0.0.1:2222",
        "REPLICANT_SUPERVISOR_KEY": "secret",
        "PYTHONUNBUFFERED": "1",
        "REPLICANT_START_TIMEOUT": "60",
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:1111",
        "REPLICANT_COORDINATOR": "outside",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "JAX_NUM_CPU_DEVICES": "3",
        "NPROC": "12",
        "XLA_FLAGS": "--a",
    }
    alone = worker_environment({"NPROC": "64"}, dataclasses.replace(PLACE, coordinator=None), None, (), 60.0)
    assert "JAX_COORDINATOR_ADDRESS" not in alone
    assert "REPLICANT_COORDINATOR" not in alone
    assert alone["NPROC"] == "64"


def test_gpus_are_shared_out() -> None:
    def shares(devices: int | None, gpus: tuple[str, ...]) -> list[str]:
        places = [dataclasses.replace(PLACE, rank=rank) for rank in range(2)]
        return [worker_environment({}, place, devices, gpus, 60.0)["CUDA_VISIBLE_DEVICES"] for place in places]

    assert shares(None, ("0", "1", "2", "3")) == ["0,1", "2,3"]
    assert shares(1, ("4", "6", "7")) == ["4", "6"]
    with pytest.raises(ConfigurationError, match=r"2 workers need 2 GPUs, but this machine has 1 \(0\)"):
        shares(None, ("0",))
    with pytest.raises(ConfigurationError, match=r"2 workers with 2 GPU\(s\) each need 4 GPUs, but this machine has 3"):
        shares(2, ("0", "1", "2"))
    assert accelerators_of({"JAX_PLATFORMS": "cuda,cpu"}, ["nvidia10", "nvidia9"]) == ("9", "10")
    assert accelerators_of({"CUDA_VISIBLE_DEVICES": ""}, ["nvidia0"]) == ()


def test_the_options_are_a_golden_list() -> None:
    (action,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    options = [option for option in action.choices["launch"]._option_string_actions if option.startswith("--")]
    assert sorted(options) == [
        "--address",
        "--devices-per-worker",
        "--elastic",
        "--engine",
        "--engine-args",
        "--finish",
        "--grace",
        "--heartbeat",
        "--help",
        "--hosts",
        "--hosts-file",
        "--image",
        "--log-dir",
        "--max-clock-skew",
        "--max-restarts",
        "--module",
        "--name",
        "--node-rank",
        "--nodes",
        "--port",
        "--preempted-code",
        "--print",
        "--python",
        "--stall",
        "--start",
        "--status",
        "--status-port",
        "--submit",
        "--workers",
    ]


def test_what_follows_the_script_is_its_own() -> None:
    found = make_parser().parse_args(["launch", "--workers", "2", "train.py", "--workers", "3", "--", "x"])
    assert (found.workers, found.script, found.arguments) == (2, "train.py", ["--workers", "3", "--", "x"])


def test_the_page_says_which_engines_take_an_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "launch.md").read_text()
    table = re.search(r"\| option \| engines that take it \|\n\|---\|---\|\n((?:\|.*\|\n)+)", page)
    assert table is not None
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table[1].splitlines()]
    told = {name: ENGINES if cell == "all" else tuple(cell.split(", ")) for names, cell in rows for name in names.split(", ")}
    taken = {f"`--{option.replace('_', '-')}`": engines for option, engines in TAKEN_BY.items()}
    assert told == taken | {"`--workers`": ENGINES, "`--devices-per-worker`": ENGINES}


BAD_COMMANDS = [
    (["nothing.py"], r"The script 'nothing.py' does not exist \(looked in .*\)\. To run a module, write -m nothing.py\."),
    (["."], r"The script '.' is a directory without a __main__.py\."),
    (
        ["--engine", "yarn", "x.py"],
        r"--engine 'yarn' is not known\. It is one of local, ray, slurm, kubernetes, jobset, ",
    ),
    (["--submit", "x.py"], r"--submit is not for --engine local\. It is for --engine slurm, kubernetes, jobset, trainer and mpi\."),
    (
        ["--print", "x.py"],
        r"--print is not for --engine local\. It is for --engine slurm, kubernetes, jobset",
    ),
    (
        ["--engine", "slurm", "--print", "--submit", "x.py"],
        r"--print prints the job and --submit submits it: give one of the two\.",
    ),
    (
        ["--image", "i", "x.py"],
        r"--image is not for --engine local\. It is for --engine kubernetes, jobset",
    ),
    (["--engine", "mpi", "--grace", "30", "x.py"], r"--grace is not for --engine mpi\. It is for --engine local, ray, slurm, kube"),
    (["--engine", "trainer", "--max-restarts", "0", "x"], r"--max-restarts is not for --engine trainer\. It is for --engine local"),
    (["--engine", "kubernetes", "--log-dir", "d", "x"], r"--log-dir is not for --engine kubernetes\. It is for --engine local, ra"),
    (["--hosts", "a:2", "--workers", "3", "x.py"], r"--hosts a:2 has 2 worker\(s\), but --workers is 3\. Leave --workers out"),
    (["--hosts", "a", "--nodes", "2", "x.py"], r"--hosts starts the job on all hosts by ssh, and --nodes on this one only"),
    (["--hosts", "a", "--hosts-file", "f", "x.py"], r"--hosts and --hosts-file both say which hosts there are"),
    (["--hosts", "", "x.py"], r"--hosts: '' is neither HOST nor HOST:WORKERS, with 1 to 9999 workers\. Write it"),
    (["--hosts", "a,,b", "x.py"], r"--hosts: '' is neither HOST nor HOST:WORKERS"),
    (["--hosts", "a, b", "x.py"], r"--hosts: ' b' is neither HOST nor HOST:WORKERS"),
    (
        ["--hosts", "fd00::1", "x.py"],
        r"--hosts: 'fd00::1' is .* An IPv6 address is not a HOST: workers reach each other over IPv4\.",
    ),
    (["--hosts", "[fd00::1]:2", "x.py"], r"--hosts: '\[fd00::1\]:2' is .* An IPv6 address is not a HOST"),
    (["--hosts", "a,b,a:2", "x.py"], r"--hosts: 'a' is there twice\. Write a:N for N workers on it\."),
    (["--hosts=-oX", "x.py"], r"--hosts: '-oX' is neither HOST nor HOST:WORKERS"),
    (["--hosts", "a", "--address", "b:1", "x.py"], r"--address 'b:1': with --hosts it is a host without a port"),
    (["--hosts", "a", "--max-clock-skew", "0", "x.py"], r"--max-clock-skew must be a positive number of seconds\. Got 0\."),
    (["--hosts", "a", "--elastic", "1:1", "x.py"], r"--elastic works only on one machine so far"),
    (["--hosts-file", "nowhere", "x.py"], r"--hosts-file '.*nowhere' cannot be read: .*No such file"),
    (["--python", "p", "x.py"], r"--python is only for a job on several hosts: give --hosts or --nodes\."),
    (["--nodes", "2", "x.py"], r"--node-rank and --address is missing: a job that is started on each host needs --nodes"),
    (
        ["--nodes", "2", "--node-rank", "2", "--address", "a", "x.py"],
        r"--node-rank must be from 0 to 1, because --nodes is 2\. Got 2",
    ),
    (["--nodes", "0", "--node-rank", "0", "--address", "a", "x.py"], r"--nodes must be at least 1\. Got 0\."),
    (["--nodes", "1", "--node-rank", "0", "--address", "a:x", "x.py"], r"--address: 'a:x' is not an address\. Write host:port"),
    (
        ["--nodes", "1", "--node-rank", "0", "--address", "a", "--python", "p", "x.py"],
        r"--python is only for --hosts\. A node runs",
    ),
    (["--engine", "slurm", "--node-rank", "0", "x.py"], r"--node-rank is not for --engine slurm\. It is for --engine local\."),
    (
        ["--engine", "ray", "--hosts-file", "f", "x.py"],
        r"--hosts-file is not for --engine ray\. It is for --engine local, slurm an",
    ),
    (
        ["--engine", "slurm", "--port", "5000", "x.py"],
        r"--port is not for --engine slurm\. It is for --engine local and ray\.",
    ),
    (
        ["--engine", "mpi", "--elastic", "1:2", "x.py"],
        r"--elastic is not for --engine mpi\. It is for --engine local\.",
    ),
    (["--engine", "mpi", "--engine-args", "'", "x.py"], r"--engine-args \"'\" cannot be split into words: No closing quotation\."),
    (["--engine", "ray", "--elastic", "1:1", "x.py"], r"--elastic is not for --engine ray\. It is for --engine local\."),
    (["--engine", "ray", "--submit", "x.py"], r"--submit is not for --engine ray\. It is for --engine slurm, kubern"),
    (["--log-dir", "x.py/logs", "x.py"], r"--log-dir 'x.py/logs' cannot be written: Not a directory\."),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_COMMANDS)
def test_commands_that_cannot_be(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    assert main(["launch", *arguments]) == 1
    assert re.match("replicant launch: " + message, capsys.readouterr().err)


def test_jobs_are_printed_or_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    command = ["launch", "--engine", "kubernetes", "--image", "registry/train:1", "--workers", "4", "--devices-per-worker", "2"]
    command += ["--max-restarts", "3", "train.py", "--rate", "0.1 0.2"]
    assert main(command) == 0
    assert capsys.readouterr().out == KUBERNETES

    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for tool in ("sbatch", "mpirun"):
        (bin_folder / tool).write_text(
            f'#!/bin/sh\necho "$0 $@ $http_proxy" > {tmp_path}/{tool}.txt\ncat >> {tmp_path}/{tool}.txt\nexit 5\n'
        )
        (bin_folder / tool).chmod(0o755)
    environ = {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "http_proxy": "http://proxy:3128"}
    job = Job(SETTINGS, "slurm")
    assert submit_job(job, environ) == 5
    assert (tmp_path / "sbatch.txt").read_text() == f"{bin_folder}/sbatch  \n{describe_job(job)}"
    with pytest.raises(ConfigurationError, match=r"--submit needs the command 'kubectl', which is not on PATH\."):
        submit_job(Job(SETTINGS, "kubernetes", image="x"), {"PATH": str(bin_folder)})
