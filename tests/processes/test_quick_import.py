"""What the import of Keras leaves until later, after `import replicant`. Each case is a process of its own."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

from _quiet import printed

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("with_sklearn")]

IMPORTS = "import sys, replicant, keras\n"
ESTIMATOR = """
import numpy as np
def make(X, y):
    model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(2, "softmax")])
    model.compile("adam", "categorical_crossentropy")
    return model
def fitted():
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    return keras.wrappers.SKLearnClassifier(make, fit_kwargs={"verbose": 0}).fit(x, (x[:, 0] > 0).astype(int)), x
"""


def answer(program: str, **environ: str) -> str:
    """Run a program that must not write to standard error, and return what it prints."""
    clean = {name: value for name, value in os.environ.items() if name not in {"NPROC", "XLA_FLAGS", "KERAS_BACKEND"}}
    return printed(program, clean | environ)


def test_keras_comes_without_scikit_learn_and_scipy():
    program = """
print(sorted({name.partition(".")[0] for name in sys.modules} & {"sklearn", "joblib"}), "scipy.linalg" in sys.modules)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
import numpy as np
model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
print("sklearn" in sys.modules, "scipy.linalg" in sys.modules, type(keras.wrappers).__name__)
"""
    assert answer(IMPORTS + program).splitlines() == ["[] False", "False False Deferred"]


FIRST = {
    "name": "keras.wrappers.SKLearnClassifier",
    "from": "from keras.wrappers import SKLearnClassifier",
    "star": "from keras.wrappers import *",
    "dir": "dir(keras.wrappers)",
    "vars": "vars(keras.wrappers)",
    "set": "keras.wrappers.more = 1; del keras.wrappers.more",
    "src": "from keras.src.wrappers.sklearn_wrapper import SKLearnRegressor; keras.wrappers.SKLearnRegressor",
}


@pytest.mark.cases("from")
@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_the_wrappers_are_there_when_they_are_asked_for(first: str):
    program = f"""
{first}
import types
print(type(keras.wrappers) is types.ModuleType, sys.modules["keras.wrappers"] is keras.wrappers is keras._tf_keras.keras.wrappers)
print(sorted(name for name in vars(keras.wrappers) if not name.startswith("_")))
print(type(keras.wrappers.__loader__).__name__, keras.wrappers.__spec__.loader_state, type(keras.__loader__).__name__)
import sklearn.base
print(issubclass(keras.wrappers.SKLearnClassifier, sklearn.base.ClassifierMixin), len(keras.wrappers.__doc__) > 10)
print(hasattr(keras.wrappers, "no_such_name"))
"""
    loader = "SourceFileLoader"
    names = str(["SKLearnClassifier", "SKLearnRegressor", "SKLearnTransformer"])
    assert answer(IMPORTS + program).splitlines() == ["True True", names, f"{loader} None {loader}", "True True", "False"]


@pytest.mark.slow
def test_all_modules_are_as_without_replicant():
    """The names of the deferred modules, and Keras's own, compared with a process that imports Keras first."""
    show = """
from replicant.runtime._imports import DEFERRED
for name in DEFERRED:
    print(name, sorted(vars(sys.modules[name])), sys.modules[name].__name__, sys.modules[name].__package__)
print(sorted(vars(keras)))
"""
    assert answer(IMPORTS + show) == answer("import sys, keras, replicant\n" + show, KERAS_BACKEND="jax")


@pytest.mark.slow
@pytest.mark.cases("import replicant, keras, sklearn")
@pytest.mark.parametrize(
    "order", ["import sklearn, replicant, keras", "import replicant, sklearn, keras", "import replicant, keras, sklearn"]
)
def test_the_users_scikit_learn_is_the_real_one(order: str):
    program = f"""
{order}
import types
from sklearn.linear_model import LinearRegression
print(type(sklearn) is types.ModuleType, LinearRegression().fit([[0.0], [1.0]], [1.0, 3.0]).coef_.round(6))
print(issubclass(keras.wrappers.SKLearnRegressor, sklearn.base.BaseEstimator))
"""
    assert answer(program).splitlines() == ["True [2.]", "True"]


@pytest.mark.slow
def test_scikit_learn_is_not_installed():
    program = """
try:
    keras.wrappers.SKLearnClassifier(None)
except ImportError as error:
    print(error)
"""
    hidden = "import sys; sys.modules['sklearn'] = None\n"
    assert answer(hidden + IMPORTS + program).startswith("SKLearnClassifier requires `scikit-learn` to be installed.")


@pytest.mark.slow
def test_a_wrapper_trains_and_is_pickled():
    program = """
import pickle, sklearn.base
estimator, x = fitted()
text = pickle.dumps(sklearn.base.clone(keras.wrappers.SKLearnRegressor(make)))
print(type(pickle.loads(text)).__qualname__, estimator.predict(x).shape, len(estimator.history_.history["loss"]))
"""
    assert answer(IMPORTS + ESTIMATOR + program).splitlines()[-1] == "SKLearnRegressor (32,) 1"  # Keras shows its progress above


@pytest.mark.slow
def test_a_pickled_estimator_is_read_by_a_process_that_has_not_used_the_wrappers(tmp_path):
    write = """
import pickle
with open(PATH, "wb") as file:
    pickle.dump(keras.wrappers.SKLearnTransformer(model=None, warm_start=True), file)
"""
    read = "import pickle\nwith open(PATH, 'rb') as file: print(pickle.load(file).warm_start, type(keras.wrappers).__name__)"
    path = f"PATH = {str(tmp_path / 'estimator')!r}\n"
    answer(IMPORTS + path + write)
    assert answer(IMPORTS + path + read) == "True Deferred"


@pytest.mark.slow
def test_the_wrappers_can_be_reloaded():
    program = """
import importlib
print(importlib.reload(keras.wrappers).SKLearnClassifier.__name__, hasattr(keras.wrappers, "no_such_name"))
"""
    assert answer(IMPORTS + program) == "SKLearnClassifier False"


def test_threads_that_ask_at_the_same_time():
    program = """
import threading
meeting, found = threading.Barrier(8), []
def ask(i):
    meeting.wait()
    solvers = sys.modules["jax.experimental.sparse.linalg"]
    found.append((keras.wrappers.SKLearnClassifier, keras.wrappers.SKLearnRegressor, solvers.spsolve))
threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(found), len(set(found)))
"""
    assert answer(IMPORTS + program) == "8 1"


@pytest.mark.slow
def test_threads_that_import_at_the_same_time():
    program = """
import threading, jax  # NumPy and JAX themselves cannot be imported by several threads at once
meeting, errors = threading.Barrier(4), []
def start(text):
    meeting.wait()
    try:
        exec(text)
    except BaseException as error:
        errors.append(error)
texts = ["import replicant, keras; keras.wrappers", "import replicant, keras; keras.wrappers.SKLearnClassifier",
         "import sklearn.linear_model", "import jax.experimental.sparse.linalg as s; s.spsolve"]
threads = [threading.Thread(target=start, args=(text,)) for text in texts]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
import gc, keras, sklearn
print(errors, issubclass(keras.wrappers.SKLearnClassifier, sklearn.base.BaseEstimator), gc.get_threshold() == BEFORE)
"""
    assert answer("import gc; BEFORE = gc.get_threshold()\n" + program) == "[] True True"


def test_sparse_solvers_work():
    program = """
import numpy as np
from jax.experimental import sparse
matrix = sparse.BCSR.fromdense(2 * np.eye(3, dtype="float32"))
print(sparse.linalg.spsolve(matrix.data, matrix.indices, matrix.indptr, np.ones(3, "float32")))
print(type(sparse.linalg).__name__)
"""
    assert answer(IMPORTS + program).splitlines() == ["[0.5 0.5 0.5]", "module"]


def test_the_collection_of_garbage_is_as_it_was():
    program = """
import gc
gc.set_threshold(123, 4, 5)
import replicant
print(gc.get_threshold(), gc.isenabled())
gc.disable()
import keras
print(gc.get_threshold(), gc.isenabled())
"""
    assert answer(program).splitlines() == ["(123, 4, 5) True", "(123, 4, 5) False"]


def test_no_young_collection_goes_over_what_was_imported():
    """A collection that young objects cause went over all modules twice after each import: 0.2 s until the first step."""
    program = """
import gc
gc.collect()
import replicant
young = len(gc.get_objects(0)) + len(gc.get_objects(1))
import keras
young = max(young, len(gc.get_objects(0)) + len(gc.get_objects(1)))
print(young < 10_000 < 50_000 < len(gc.get_objects()), gc.get_freeze_count())
"""
    assert answer(program) == "True 0"


def test_garbage_of_an_import_is_still_found():
    program = """
import gc, weakref
from replicant.runtime._collector import CollectionPaused
class Node: pass
with CollectionPaused(stays=True):
    node = Node()
    node.itself, seen = node, weakref.ref(node)
    del node
print(seen() is None)
gc.collect()
print(seen() is None)
"""
    assert answer(program).splitlines() == ["False", "True"]


def test_what_the_program_has_frozen_stays_frozen():
    program = """
import gc
gc.freeze()
before = gc.get_freeze_count()
import replicant
print(before > 0 and before - gc.get_freeze_count() < 100)
"""
    assert answer(program) == "True"


@pytest.mark.slow
def test_a_program_that_changes_the_thresholds_meanwhile_is_respected():
    program = """
import gc
from replicant.runtime._collector import CollectionPaused
with CollectionPaused():
    with CollectionPaused():
        pass
    print(gc.get_threshold()[0] > 1 << 30)
    gc.set_threshold(77, 8, 9)
print(gc.get_threshold())
"""
    assert answer(program).splitlines() == ["True", "(77, 8, 9)"]


@pytest.mark.slow
def test_keras_that_cannot_be_imported_can_be_imported_later(tmp_path):
    program = """
import os, sys
os.environ["KERAS_BACKEND"] = "no_such_backend"
import replicant
try:
    import keras
except ValueError as error:
    print(type(error).__name__)
for name in [name for name in sys.modules if name.partition(".")[0] == "keras"]:
    del sys.modules[name]
os.environ["KERAS_BACKEND"] = "jax"
import keras
from replicant.runtime._imports import Finder
print(type(keras.wrappers).__name__, any(isinstance(finder, Finder) for finder in sys.meta_path))
"""
    assert answer(program).splitlines() == ["ValueError", "Deferred False"]


@pytest.mark.slow
def test_replicant_is_imported_again_before_keras():
    program = """
import importlib, sys
import replicant
importlib.reload(replicant)
for name in [name for name in sys.modules if name.partition(".")[0] == "replicant"]:
    del sys.modules[name]
import replicant.runtime._imports as again
again.install()
print(sum(type(finder).__name__ == "Finder" for finder in sys.meta_path))
import keras
print(type(keras.wrappers).__name__, any(type(finder).__name__ == "Finder" for finder in sys.meta_path))
"""
    assert answer(program).splitlines() == ["1", "Deferred False"]


def test_code_that_fails_is_tried_again():
    program = """
import sys, types
sys.modules["keras.src.wrappers.sklearn_wrapper"] = None
for _ in range(2):
    try:
        keras.wrappers.SKLearnClassifier
    except ImportError as error:
        print(type(error).__name__)
del sys.modules["keras.src.wrappers.sklearn_wrapper"]
print(keras.wrappers.SKLearnClassifier.__name__)
"""
    assert answer(IMPORTS + program).splitlines() == ["ModuleNotFoundError"] * 2 + ["SKLearnClassifier"]


@pytest.mark.slow
def test_keras_is_found_with_its_source_before_it_is_imported():
    program = """
import importlib.util
import replicant
spec = importlib.util.find_spec("keras")
print(spec.origin.endswith("keras/__init__.py"), "import" in spec.loader.get_source("keras"), spec.submodule_search_locations != [])
import inspect, keras
print("import" in inspect.getsource(keras), inspect.getsource(keras.wrappers)[:10], type(keras.wrappers).__name__)
"""
    assert answer(program).splitlines()[0] == "True True True"
