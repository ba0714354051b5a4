"""Printed jobs: each worker is started with the arguments that were given, and finds its place."""

import os
import shutil
import subprocess

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from replicant.cluster import Membership, detect
from replicant.errors import ArgumentError
from replicant.launch import Job, Settings, describe_job
from replicant.launch.engines._kubernetes import unexpanded
from replicant.launch.engines._options import IN_CONTAINERS, JOBS
from replicant.launch.engines._slurm import _bash_word, _sbatch_word
from replicant.launch.engines._yaml import yaml_text

from ._started_by_engines import STARTED, expanded

FIELDS = {
    "vertex": ("machineType=n1-standard-4",),
    "sagemaker": ("RoleArn=arn:aws:iam::123456789012:role/r", "InstanceType=ml.m5.large", "S3OutputPath=s3://bucket/out"),
}
# source, process 0's address (with a port of the job, only its host)
FOUND = {
    "slurm": ("Slurm", "n1"),
    "kubernetes": ("Kubernetes", "train-0.train:55527"),
    "jobset": ("Kubernetes", "train-worker-0-0.train:55527"),
    "trainer": ("JAX variables", "train-node-0-0.train:29500"),
    "vertex": ("Vertex AI", "cmle-training-workerpool0-ab-0:2222"),
    "sagemaker": ("SageMaker", "algo-1:55527"),
    "mpi": ("Open MPI", "n1"),
}
PLACES = {"slurm": [(0, 2), (1, 2), (0, 1)], "vertex": [(0, 1)] * 3, "sagemaker": [(0, 1)] * 3}  # on its host, where that is known

HOSTILE = (
    "",
    " ",
    "a b",
    "'",
    '"',
    "'\"'",
    "\\",
    "\\n",
    "\\x41",
    "\n",
    "\r\n",
    "a\r\n#SBATCH --uid=0\n",
    "\t",
    "\x01A",
    "\x1b[31m",
    "\x7f",
    "$HOME",
    "${HOME}",
    "$$",
    "$",
    "`id`",
    "; id",
    "&& id",
    "| id",
    "# no comment",
    "!",
    "!!",
    "%t",
    "*",
    "~",
    "--",
    "-x",
    "--ntasks=9",
    "{a: b}",
    "[a]",
    "- a",
    "a: b",
    "&a",
    "*a",
    "|",
    "@a",
    "on",
    "null",
    "1e3",
    "0x10",
    "---",
    "...",
    "<<",
    "=",
    "x:",
    ":x",
    "\N{LATIN SMALL LETTER E WITH ACUTE}",
    "\N{SLIGHTLY SMILING FACE}",
    "\x85\u2028\u2029\ufeff\uffff",
    '\\ud83d"\n',
)
EXPANDED = ("$(JAX_NUM_PROCESSES)", "$$(HOME)", "$(", "$()", "$(id)", "a$(HOME)b$")


def job_for(engine, workers, *arguments, **more):
    settings = Settings(("train.py", *arguments), num_workers=workers)
    image = "registry/train:1" if engine in IN_CONTAINERS else ""
    return Job(settings, engine, image=image, engine_args=FIELDS.get(engine, ()), **more)


@pytest.mark.parametrize("engine", JOBS)
def test_the_workers_of_a_printed_job_find_each_other(engine, tmp_path):
    source, address = FOUND[engine]
    found = [detect(environ) for _, environ in STARTED[engine](job_for(engine, 3), tmp_path)]
    assert [(each.source, each.doubt) for each in found] == [(source, None)] * 3
    if ":" not in address:
        port = int(found[0].coordinator_address.removeprefix(f"{address}:"))
        assert 61440 <= port < 65280
        address += f":{port}"
    places = PLACES.get(engine, [(None, None)] * 3)
    assert [each.membership for each in found] == [Membership(i, 3, address, address, *places[i]) for i in range(3)]


@pytest.mark.parametrize("engine", JOBS)
def test_a_printed_job_of_one_trains_alone(engine, tmp_path):
    ((_, environ),) = STARTED[engine](job_for(engine, 1), tmp_path)
    found = detect(environ)
    assert (found.source, found.process_id, found.num_processes, found.doubt) == (FOUND[engine][0], 0, 1, None)


@pytest.mark.parametrize("engine", IN_CONTAINERS)
def test_a_worker_that_its_engine_has_told_nothing_does_not_train_alone(engine, tmp_path):
    """The engine's own variables may be missing, as in an image that cleans its environment."""
    for _, environ in STARTED[engine](job_for(engine, 3), tmp_path):
        left = {name: value for name, value in environ.items() if name.startswith("REPLICANT_")}
        assert left == {"REPLICANT_JOB_ID": "train"}
        assert "by REPLICANT_JOB_ID=train (Replicant), this process is one of several" in detect(left).doubt


@pytest.mark.parametrize("engine", JOBS)
def test_arguments_arrive_as_they_were_given(engine, tmp_path):
    arguments = HOSTILE if engine == "vertex" else HOSTILE + EXPANDED
    started = STARTED[engine](job_for(engine, 2, *arguments), tmp_path)
    assert [argv for argv, _ in started] == [["python", "train.py", *arguments]] * 2


@pytest.mark.parametrize("engine", ["slurm", "mpi"])
def test_an_argument_that_ends_the_command_is_refused(engine):
    other = {"slurm": "srun", "mpi": "mpirun"}[engine]
    with pytest.raises(ArgumentError, match=rf"an argument is ':', behind which {other} expects the options of another program\."):
        describe_job(job_for(engine, 2, "a", ":", "b"))


@pytest.mark.parametrize("argument", EXPANDED)
def test_an_argument_that_vertex_may_expand_is_refused(argument):
    with pytest.raises(ArgumentError, match=r"contains '\$\(', which Vertex AI may take for the name of a variable\."):
        describe_job(job_for("vertex", 2, argument))


@given(st.text(alphabet="$()aA_ ", max_size=12))
def test_kubernetes_expands_nothing(text):
    assert expanded(unexpanded(text), {"a": "b", "A": "C", "": "D"}) == text


@settings(max_examples=50)
@given(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans() | st.lists(st.text() | st.integers()), min_size=1))
def test_yaml_holds_what_it_was_given(document):
    document = {key.encode("utf-8", "ignore").decode(): value for key, value in document.items()}
    text = yaml_text({"a": document, "b": [{"c": document, "d": 1}], "e": [{"f": "\n", "g": ""}]})
    assert yaml.safe_load(text) == {"a": document, "b": [{"c": document, "d": 1}], "e": [{"f": "\n", "g": ""}]}


def test_words_for_bash():
    words = [f"{a}{b}" for a in HOSTILE for b in HOSTILE]
    line = f"printf '%s\\0' {' '.join(map(_bash_word, words))}"
    assert not set(line) & {chr(code) for code in (*range(32), 127)}
    done = subprocess.run(["bash", "-s"], input=line.encode(), capture_output=True, check=True, timeout=60)
    assert done.stdout.decode().split("\0") == [*words, ""]


@pytest.mark.parametrize("word", ["a\nb", "a\r", "\x7f", "\x85", "a\tb"])
def test_an_option_of_sbatch_holds_no_control_characters(word):
    with pytest.raises(ArgumentError, match="has an end of line or another control character, which #SBATCH cannot hold"):
        _sbatch_word(word)


def test_sbatch_reads_the_options_that_were_given(tmp_path):
    """What sbatch understands it tells with -vv, before it asks the controller, which is not there."""
    if shutil.which("sbatch") is None:
        pytest.skip("sbatch is not installed (Debian: slurm-client)")
    comment = "a \"b\" 'c' \\d #e $HOME `f` \\"
    job = Job(Settings(("train.py", "\r\n")), "slurm", engine_args=(f"--comment={comment}", "--account=p#q"))
    (tmp_path / "job.sh").write_text(describe_job(job), newline="")
    lines = ["ClusterName=x", "SlurmctldHost=localhost", "AuthType=auth/munge", "NodeName=n", "PartitionName=p Nodes=n Default=YES"]
    (tmp_path / "slurm.conf").write_text("\n".join(lines) + "\nMessageTimeout=1\n")
    environ = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    command = ["sbatch", "-vv", "--test-only", str(tmp_path / "job.sh")]
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        told = []
        for line in process.stderr:
            told.append(line.strip())
            if "end of defined options" in line:
                break
        process.kill()
    options = dict(line.removeprefix("sbatch: ").split(" : ", 1) for line in told if " : " in line)
    options = {name.strip(): value for name, value in options.items()}
    assert options["comment"] == comment
    assert options["account"] == "p#q"
    assert options["ntasks"] == "1"


def test_logs_are_where_they_were_wanted():
    folder = "50%/it's here"
    job = Job(Settings(("train.py",), log_dir=folder), "slurm")
    assert "mkdir -p -- '50%/it'\"'\"'s here'\n" in describe_job(job)
    assert "'--output=50%%/it'\"'\"'s here/rank-%t.log'" in describe_job(job)
    with pytest.raises(ArgumentError, match=r"--log-dir 'a\\\\b' has a backslash, behind which srun does not write %t as a number"):
        describe_job(Job(Settings(("train.py",), log_dir="a\\b"), "slurm"))
