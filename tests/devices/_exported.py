"""Runs what was exported in its own runtime, without Replicant: ``python _exported.py RUNTIME ARTEFACT ARRAYS ANSWER``.

ARRAYS is a file of NumPy with the batch. ANSWER gets the outputs for its first 1 and 3 rows, and for all.
"""

import os
import sys
from pathlib import Path

import numpy as np

SIZES = (1, 3, 14)


def with_jax(path):
    from jax import export

    return export.deserialize(bytearray(Path(path).read_bytes())).call


def with_onnxruntime(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    (name,) = (each.name for each in session.get_inputs())
    return lambda x: session.run(None, {name: x})[0]


def with_tensorflow(path):
    import tensorflow as tf

    served = tf.saved_model.load(path)  # its variables live as long as it does

    def call(x):
        return served.serve(x)

    return call


def with_litert(path):
    from ai_edge_litert.interpreter import Interpreter

    def call(x):
        interpreter = Interpreter(model_path=path)
        place = interpreter.get_input_details()[0]["index"]
        interpreter.resize_tensor_input(place, x.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(place, x)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    return call


def keras_on_tensorflow(path, format, artefact):  # noqa: A002 - as in Keras
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras

    model = keras.saving.load_model(path)
    if format == "onnx":
        model(keras.ops.zeros((1, *model.input_shape[1:])))  # Keras asks for a model that has been called
    model.export(artefact, format=format, verbose=False)


if __name__ == "__main__":
    runtime, artefact, arrays, answer = sys.argv[1:]
    if runtime.startswith("keras:"):
        keras_on_tensorflow(artefact, runtime.partition(":")[2], answer)
    else:
        call = globals()[f"with_{runtime}"](artefact)
        x = np.load(arrays)
        found = {str(n): np.asarray(call(x[:n])) for n in SIZES}
        np.savez(answer, **found)
    assert not {"replicant"} & sys.modules.keys()
    assert runtime != "jax" or "keras" not in sys.modules
