"""Writes figures/control_flow.json: what TensorFlow computes for the cases in `_control_flow_cases.py`.

Run it with a Python that has TensorFlow 2.21: ``python tests/conformance/_record_control_flow.py``.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow")

import keras
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))

import _control_flow_cases as cases

FIGURES = Path(__file__).parent / "figures" / "control_flow.json"


def variables(replicas):
    mean = {"aggregation": tf.VariableAggregation.MEAN}
    k = keras.Variable(0.5, dtype="float32")
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
    optimizer.build([k])
    return {
        "v": tf.Variable(2.0, **mean),
        "w": tf.Variable(3.0, **mean),
        "x": tf.Variable(1.5, **mean),
        "n": tf.Variable(0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA),
        "k": k,
        "source": k.value,
        "optimizer": optimizer,
        "metric": keras.metrics.Mean(),
        "rows": tf.constant([1.0, 2.0, 3.0]),
        "replicas": replicas,
    }


def plain(value):
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if value is None else value.numpy().tolist()


def recorded(name, strategy):
    form, _, action = name.partition(": ")
    gradient = action.endswith(", gradient")
    with strategy.scope():
        words = {"tf": tf, "Tape": tf.GradientTape, **variables(strategy.num_replicas_in_sync)}
    exec(cases.program(cases.FORMS[form].tensorflow, action.removesuffix(", gradient"), gradient=gradient), words)
    step = words["step"]
    run = tf.function(lambda: strategy.run(step), autograph=False)
    found = []
    try:
        for _ in range(cases.CALLS):
            result = run()
            local = tf.nest.map_structure(lambda x: None if x is None else strategy.experimental_local_results(x)[0], result)
            state = [plain(tf.convert_to_tensor(words[m])) for m in "vwnk"]
            found.append([plain(local), state, float(words["metric"].result())])
    except Exception as error:  # noqa: BLE001 - whatever TensorFlow raises is a figure
        return {"error": type(error).__name__, "message": str(error).splitlines()[0][:80]}
    return found


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategies = {"function": tf.distribute.get_strategy(), "run": tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])}
    rows = []
    for name in cases.names():
        rows.append(f"{json.dumps(name)}: " + json.dumps({key: recorded(name, s) for key, s in strategies.items()}))
        print(rows[-1][:300], flush=True)
    head = f'"tensorflow": "{tf.__version__}",\n"keras": "{keras.__version__}",\n"cases": {{\n'
    FIGURES.write_text("{\n" + head + ",\n".join(rows) + "\n}\n}\n")


if __name__ == "__main__":
    main()
