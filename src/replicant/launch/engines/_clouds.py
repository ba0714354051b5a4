"""Jobs for training services of clouds: Vertex AI and Amazon SageMaker."""

import json
from typing import Any

from ..._display import short
from ...errors import ArgumentError
from ._job import Job
from ._yaml import yaml_text

_FIELD = r"({})=([^\s]+)"
_MOST_WORDS, _LONGEST_WORD = 100, 256  # of SageMaker's ContainerArguments
_VERTEX = ("machineType", "acceleratorType", "acceleratorCount", "serviceAccount", "network")
_SAGEMAKER = ("RoleArn", "InstanceType", "S3OutputPath", "VolumeSizeInGB", "MaxRuntimeInSeconds")
# To an image of the user's own, SageMaker tells the hosts in a file. The arguments are written as in JSON, without ends of lines.
_START = (
    "import json,os,sys;c=json.load(open('/opt/ml/input/config/resourceconfig.json'));"
    "os.environ.update(SM_HOSTS=json.dumps(c['hosts']),SM_CURRENT_HOST=c['current_host']);"
    "a=[json.loads(f'\"{x}\"')for x in sys.argv[1:]];os.execvp(a[0],a)"
)


def vertex_file(job: Job) -> str:
    """The configuration of a custom job, with the chief in pool 0 and the other workers in pool 1, as ``gcloud`` reads it.

    Raises:
        ArgumentError: If a field is missing or wrong, or if Vertex AI may change an argument.
    """
    fields = _fields(job, _VERTEX, "machineType")
    if ("acceleratorType" in fields) != ("acceleratorCount" in fields):
        raise ArgumentError("--engine-args: acceleratorType and acceleratorCount go together. Write both, or neither.")
    machine: dict[str, Any] = {name: fields[name] for name in ("machineType", "acceleratorType") if name in fields}
    if "acceleratorCount" in fields:
        machine["acceleratorCount"] = _number(fields, "acceleratorCount")
    expanded = next((word for word in job.argv if "$(" in word), None)
    if expanded is not None:
        raise ArgumentError(
            f"{expanded!r} contains '$(', which Vertex AI may take for the name of a variable. Write the argument in another way."
        )
    env = [{"name": name, "value": value} for name, value in job.variables.items()]
    container = {"imageUri": job.image, "command": job.argv[:1], "args": job.argv[1:], "env": env}
    pools = [{"replicaCount": count, "machineSpec": machine, "containerSpec": container} for count in _pools(job)]
    document = {"workerPoolSpecs": pools} | {name: fields[name] for name in ("serviceAccount", "network") if name in fields}
    use = f"# gcloud ai custom-jobs create --region=REGION --display-name={job.job_name} --config=FILE"
    return f"{use}\n{yaml_text(document)}\n"


def _pools(job: Job) -> list[int]:
    return [1] if job.settings.num_workers == 1 else [1, job.settings.num_workers - 1]


def sagemaker_file(job: Job) -> str:
    """A request to create a training job, in the JSON of ``aws sagemaker create-training-job --cli-input-json``.

    Raises:
        ArgumentError: If a field is missing or wrong, or if the command line does not fit.
    """
    fields = {"VolumeSizeInGB": "30", "MaxRuntimeInSeconds": "86400"} | _fields(job, _SAGEMAKER, *_SAGEMAKER[:3])
    words = [json.dumps(word)[1:-1] for word in job.argv]
    if len(words) > _MOST_WORDS:
        raise ArgumentError(f"the command has {len(words)} words, but SageMaker takes at most {_MOST_WORDS}. Put them into a file.")
    for word, written in zip(job.argv, words, strict=True):
        if len(written) > _LONGEST_WORD:
            raise ArgumentError(
                f"the argument {short(word)!r} has {len(written)} characters in JSON, but SageMaker takes at most {_LONGEST_WORD}. "
                "Put it into a file."
            )
    request = {
        "TrainingJobName": job.job_name,
        "RoleArn": fields["RoleArn"],
        "AlgorithmSpecification": {
            "TrainingImage": job.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python", "-c", _START],
            "ContainerArguments": words,
        },
        "ResourceConfig": {
            "InstanceType": fields["InstanceType"],
            "InstanceCount": job.settings.num_workers,
            "VolumeSizeInGB": _number(fields, "VolumeSizeInGB"),
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": _number(fields, "MaxRuntimeInSeconds")},
        "OutputDataConfig": {"S3OutputPath": fields["S3OutputPath"]},
        "Environment": job.variables,
    }
    return json.dumps(request, indent=2) + "\n"


def _fields(job: Job, known: tuple[str, ...], *needed: str) -> dict[str, str]:
    fields = job.fields(_FIELD.format("|".join(known)), f"NAME=VALUE with one of {', '.join(known)}")
    missing = [name for name in needed if name not in fields]
    if missing:
        raise ArgumentError(
            f"--engine {job.engine} needs {' and '.join(missing)}: write --engine-args "
            f"'{' '.join(f'{name}=...' for name in needed)}'."
        )
    return fields


def _number(fields: dict[str, str], name: str) -> int:
    text = fields[name]
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0):
        raise ArgumentError(f"--engine-args: {name}={text} is not a whole number from 1 to 999999999.")
    return int(text)
