"""Printed jobs are what the systems that take them publish: Kubernetes, JobSet, Kubeflow Trainer, SageMaker and Vertex AI."""

import json
import re

import botocore.session
import pytest
import yaml
from botocore.validate import ParamValidator

from replicant.errors import ArgumentError
from replicant.launch import Job, Settings, describe_job
from replicant.launch.engines._options import TAKEN_BY

LIMITS = ("nvidia.com/gpu=8", "cpu=3.5", "memory=64Gi")
ROLE = "RoleArn=arn:aws:iam::123456789012:role/service-role/r"
SAGEMAKER = (ROLE, "InstanceType=ml.g5.2xlarge", "S3OutputPath=s3://bucket/out", "VolumeSizeInGB=100", "MaxRuntimeInSeconds=3600")
GPUS = ("acceleratorType=NVIDIA_TESLA_T4", "acceleratorCount=2")
VERTEX = ("machineType=n1-standard-4", *GPUS, "serviceAccount=a@p.iam.gserviceaccount.com", "network=projects/1/global/networks/n")


def job_for(engine, *engine_args, workers=3, arguments=("--rate", "$(A)\n")):
    restarts = 2 if engine in TAKEN_BY["max_restarts"] else 0
    settings = Settings(("train.py", *arguments), num_workers=workers, devices_per_worker=2, max_restarts=restarts)
    return Job(settings, engine, image="registry/train:1", engine_args=engine_args)


# ---- Kubernetes: its OpenAPI, JobSet's and Trainer's, as the models of kubeflow-trainer-api 2.3

DOCUMENTS = [
    ("kubernetes", 0, "IoK8sApiCoreV1Service"),
    ("kubernetes", 1, "IoK8sApiBatchV1Job"),
    ("jobset", 0, "JobsetV1alpha2JobSet"),
    ("trainer", 0, "TrainerV1alpha1TrainJob"),
]


def lost(given, read):
    """The places of what a model has not kept: it passes over names that it does not know."""
    if isinstance(given, dict):
        return [f".{key}{place}" for key in given for place in (lost(given[key], read[key]) if key in read else [""])]
    if isinstance(given, list):
        return [f"[{i}]{place}" for i, each in enumerate(given) for place in lost(each, read[i])]
    return [] if given == read else [f" {given!r} != {read!r}"]


@pytest.mark.parametrize("limits", [(), LIMITS])
@pytest.mark.parametrize(("engine", "number", "model"), DOCUMENTS)
def test_documents_for_kubernetes(engine, number, model, limits):
    from kubeflow_trainer_api import models

    kind = getattr(models, model)
    document = list(yaml.safe_load_all(describe_job(job_for(engine, *limits))))[number]
    assert lost(document, kind.from_dict(document).to_dict()) == []
    assert kind.from_dict(document).kind == document["kind"]
    wrong = {**document, "spec": {**document["spec"], "complitions": 1}}
    assert lost(wrong, kind.from_dict(wrong).to_dict()) == [".spec.complitions"]


@pytest.mark.parametrize("version", ["1.29", "1.32", "1.36"])
@pytest.mark.parametrize("number", [0, 1])
def test_the_service_and_the_job_by_the_schemas_of_kubernetes(number, version):
    """Its package has the schemas of all versions and takes 108 MB, so it is not among those of `make setup`."""
    validator = pytest.importorskip("kubernetes_validate")
    document = list(yaml.safe_load_all(describe_job(job_for("kubernetes", *LIMITS))))[number]
    validator.validate(document, version, strict=True)


def test_the_jobset():
    (document,) = yaml.safe_load_all(describe_job(job_for("jobset", *LIMITS)))
    assert document["metadata"] == {"name": "train"}
    assert document["spec"]["failurePolicy"] == {
        "maxRestarts": 2,
        "rules": [
            {
                "name": "askedToLeave",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
            }
        ],
    }
    (group,) = document["spec"]["replicatedJobs"]
    spec = group["template"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == ("Indexed", 3, 3, 0)
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [143]}},
    ]
    assert spec["template"]["spec"]["containers"] == [
        {
            "name": "worker",
            "image": "registry/train:1",
            "command": ["python", "train.py", "--rate", "$$(A)\n"],
            "env": [
                {"name": "JAX_NUM_PROCESSES", "value": "3"},
                {"name": "JAX_COORDINATOR_ADDRESS", "value": "train-worker-0-0.train:55527"},
                {"name": "PYTHONUNBUFFERED", "value": "1"},
                {"name": "REPLICANT_JOB_ID", "value": "train"},
                {"name": "JAX_NUM_CPU_DEVICES", "value": "2"},
                {"name": "NPROC", "value": "8"},
            ],
            "resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "3.5", "memory": "64Gi"}},
        }
    ]


TRAINER = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: train
spec:
  runtimeRef:
    name: jax-distributed
  trainer:
    numNodes: 3
    image: "registry/train:1"
    command: ["python", "train.py", "--rate", "$$(A)\\n"]
    env:
    - {name: PYTHONUNBUFFERED, value: "1"}
    - {name: REPLICANT_JOB_ID, value: train}
    - {name: JAX_NUM_CPU_DEVICES, value: "2"}
    - {name: NPROC, value: "8"}
    resourcesPerNode:
      limits:
        nvidia.com/gpu: "8"
"""


def test_the_trainjob():
    assert describe_job(job_for("trainer", LIMITS[0])) == TRAINER


# ---- SageMaker: its service description in botocore

SHAPE = botocore.session.get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob").input_shape


def broken(value, shape, place=""):
    """The rules that a value breaks and that botocore leaves to the service: patterns, choices and the largest sizes."""
    found = []
    if shape.type_name == "structure":
        for name, each in value.items():
            found += broken(each, shape.members[name], f"{place}.{name}")
    elif shape.type_name == "list":
        found += [rule for i, each in enumerate(value) for rule in broken(each, shape.member, f"{place}[{i}]")]
    elif shape.type_name == "map":
        for name, each in value.items():
            found += [*broken(name, shape.key, f"{place}.{name}"), *broken(each, shape.value, f"{place}.{name}")]
    rules = shape.metadata
    size = value if isinstance(value, int) else len(value)
    if size > rules.get("max", size) or size < rules.get("min", size):
        found.append(f"{place}: {size} is not from {rules.get('min')} to {rules.get('max')}")
    if "pattern" in rules and not re.fullmatch(rules["pattern"], value):
        found.append(f"{place}: {value!r} does not match {rules['pattern']}")
    if "enum" in rules and value not in rules["enum"]:
        found.append(f"{place}: {value!r} is no choice")
    return found


def test_the_request_for_sagemaker():
    longest = ("a" * 256, *["b"] * 97)
    for arguments in (("--rate", "$(A)\n"), ("\r\n\"'\\", "\N{SLIGHTLY SMILING FACE}"), longest):
        request = json.loads(describe_job(job_for("sagemaker", *SAGEMAKER, arguments=arguments)))
        assert ParamValidator().validate(request, SHAPE).generate_report() == ""
        assert broken(request, SHAPE) == []
    assert broken(request | {"TrainingJobName": "a--"}, SHAPE) == [
        ".TrainingJobName: 'a--' does not match [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"
    ]
    del request["AlgorithmSpecification"]
    assert request == {
        "TrainingJobName": "train",
        "RoleArn": "arn:aws:iam::123456789012:role/service-role/r",
        "ResourceConfig": {"InstanceType": "ml.g5.2xlarge", "InstanceCount": 3, "VolumeSizeInGB": 100},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "Environment": {"PYTHONUNBUFFERED": "1", "REPLICANT_JOB_ID": "train", "JAX_NUM_CPU_DEVICES": "2", "NPROC": "8"},
    }


# ---- Vertex AI: the fields of google-cloud-aiplatform 2.7.0 (423 MB with what it needs), google.cloud.aiplatform_v1.types

CUSTOM_JOB_SPEC = {"workerPoolSpecs": ["WorkerPoolSpec"], "serviceAccount": str, "network": str}
MESSAGES = {
    "WorkerPoolSpec": {"containerSpec": "ContainerSpec", "machineSpec": "MachineSpec", "replicaCount": int},
    "ContainerSpec": {"imageUri": str, "command": [str], "args": [str], "env": ["EnvVar"]},
    "EnvVar": {"name": str, "value": str},
    "MachineSpec": {"machineType": str, "acceleratorType": str, "acceleratorCount": int},
}


def assert_is(value, kind):
    if isinstance(kind, list):
        assert isinstance(value, list)
        for each in value:
            assert_is(each, kind[0])
    elif isinstance(kind, type):
        assert type(value) is kind
    else:
        fields = kind if isinstance(kind, dict) else MESSAGES[kind]
        assert set(value) <= set(fields)
        for name, each in value.items():
            assert_is(each, fields[name])


def test_the_configuration_for_vertex():
    text = describe_job(job_for("vertex", *VERTEX, arguments=("--rate", "0.1 0.2")))
    document = yaml.safe_load(text)
    assert_is(document, CUSTOM_JOB_SPEC)
    assert text.startswith("# gcloud ai custom-jobs create --region=REGION --display-name=train --config=FILE\nworkerPoolSpecs:\n")
    machine = {"machineType": "n1-standard-4", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 2}
    variables = {"PYTHONUNBUFFERED": "1", "REPLICANT_JOB_ID": "train", "JAX_NUM_CPU_DEVICES": "2", "NPROC": "8"}
    container = {
        "imageUri": "registry/train:1",
        "command": ["python"],
        "args": ["train.py", "--rate", "0.1 0.2"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
    }
    assert document == {
        "workerPoolSpecs": [
            {"replicaCount": 1, "machineSpec": machine, "containerSpec": container},
            {"replicaCount": 2, "machineSpec": machine, "containerSpec": container},
        ],
        "serviceAccount": "a@p.iam.gserviceaccount.com",
        "network": "projects/1/global/networks/n",
    }
    alone = yaml.safe_load(describe_job(job_for("vertex", VERTEX[0], workers=1, arguments=())))
    assert [pool["replicaCount"] for pool in alone["workerPoolSpecs"]] == [1]


def test_the_configuration_for_vertex_by_its_own_types():
    types = pytest.importorskip("google.cloud.aiplatform_v1.types")
    from google.protobuf import json_format

    document = yaml.safe_load(describe_job(job_for("vertex", *VERTEX, arguments=())))
    spec = types.CustomJobSpec.from_json(json.dumps(document))
    assert json_format.MessageToDict(types.CustomJobSpec.pb(spec), use_integers_for_enums=False)["network"] == document["network"]


# ---- what engines do not take

WRONG = [
    (
        "kubernetes",
        ("--partition=gpu",),
        "--engine-args: '--partition=gpu' is not for --engine kubernetes. Write limits of a pod's",
    ),
    (
        "jobset",
        ("memory=lots",),
        "--engine-args: 'memory=lots' is not for --engine jobset. Write limits of a pod's resources, as in",
    ),
    (
        "trainer",
        ("a: b=1",),
        "--engine-args: 'a: b=1' is not for --engine trainer. Write limits of a pod's resources, as in 'nvidia",
    ),
    ("trainer", ("cpu=1", "cpu=2"), "--engine-args: cpu is there twice, with '1' and '2'."),
    ("vertex", (), "--engine vertex needs machineType: write --engine-args 'machineType=...'."),
    (
        "vertex",
        ("machine=x",),
        "--engine-args: 'machine=x' is not for --engine vertex. Write NAME=VALUE with one of machineType, acc",
    ),
    (
        "vertex",
        ("machineType=",),
        "--engine-args: 'machineType=' is not for --engine vertex. Write NAME=VALUE with one of machineType",
    ),
    (
        "vertex",
        ("machineType=x", GPUS[0]),
        "--engine-args: acceleratorType and acceleratorCount go together. Write both, or neither.",
    ),
    (
        "vertex",
        ("machineType=x", GPUS[0], "acceleratorCount=two"),
        "--engine-args: acceleratorCount=two is not a whole number from 1",
    ),
    (
        "sagemaker",
        (ROLE,),
        "--engine sagemaker needs InstanceType and S3OutputPath: write --engine-args 'RoleArn=... InstanceType=...",
    ),
    (
        "sagemaker",
        (*SAGEMAKER[:3], "VolumeSizeInGB=0"),
        "--engine-args: VolumeSizeInGB=0 is not a whole number from 1 to 999999999.",
    ),
    (
        "sagemaker",
        (*SAGEMAKER[:3], f"VolumeSizeInGB={'9' * 5000}"),
        f"--engine-args: VolumeSizeInGB={'9' * 5000} is not a whole num",
    ),
]


@pytest.mark.parametrize(("engine", "engine_args", "message"), WRONG)
def test_fields_that_cannot_be(engine, engine_args, message):
    with pytest.raises(ArgumentError) as caught:
        describe_job(job_for(engine, *engine_args, arguments=()))
    assert str(caught.value).startswith(message)


def test_arguments_that_do_not_fit_into_a_request_for_sagemaker():
    with pytest.raises(ArgumentError) as caught:
        describe_job(job_for("sagemaker", *SAGEMAKER, arguments=["a"] * 99))
    assert str(caught.value) == "the command has 101 words, but SageMaker takes at most 100. Put them into a file."
    with pytest.raises(ArgumentError) as caught:
        describe_job(job_for("sagemaker", *SAGEMAKER, arguments=["\n" * 129]))
    assert str(caught.value) == (
        f"the argument {chr(10) * 129!r} has 258 characters in JSON, but SageMaker takes at most 256. Put it into a file."
    )
