"""Weights and SavedModels that TensorFlow has written, as the program reads them."""

from collections.abc import Callable, Mapping, Sequence

import libcst as cst
import libcst.matchers as m

from . import _files
from ._rewrite import Rewrite, by_name, code

_KERAS = (".h5", ".hdf5", ".keras")
_LOAD = "replicant.keras.load_weights"
_REPORT = (
    "it reads checkpoints of TensorFlow and files of Keras 2, raises an error if a weight of the model is missing, and returns a "
    "report in place of a status"
)
STATUS = "report = replicant.keras.load_weights(model, path), then assert not report.left"
MATCHED = ("assert_existing_objects_matched", "assert_nontrivial_match", "expect_partial")  # what the function checks itself


class OwnWeights:
    """Whether the program writes the weights that it reads, in a format of Keras 3 from now on."""

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self.has_callback = False

    def find(self, module: cst.Module, name_of: Callable[[cst.CSTNode], str | None]) -> None:
        """Note what the program writes."""
        for call in _calls(module):
            if m.matches(call.func, m.Attribute(attr=m.Name("save_weights"))) and call.args:
                self._paths.add(code(call.args[0].value))
            self.has_callback |= name_of(call.func) == "keras.callbacks.ModelCheckpoint"

    def has(self, path: cst.BaseExpression) -> bool:
        """Return whether the file of this name may be one of them."""
        return self.has_callback or code(path) in self._paths


def load_weights(call: cst.Call, ending_of: Callable[[cst.BaseExpression], str | None], own: OwnWeights) -> Rewrite:
    """Translate ``model.load_weights(path)``: without the ending of a file of Keras, it is a checkpoint of TensorFlow."""
    path = next((a.value for a in call.args if (a.keyword is None or a.keyword.value == "filepath") and not a.star), None)
    ending = None if path is None else ending_of(path)
    if path is None or ending is None or ending.endswith(_KERAS) or own.has(path):
        return _files.saved_weights(call, ending_of)
    given = by_name(call.args, "filepath")  # what comes second depends on the version of Keras
    options = {a.keyword.value: a.value for a in call.args if a.keyword is not None and a.value is not path}
    if given is None and not (len(call.args) == len(options) + 1 and set(options) <= {"by_name", "skip_mismatch"}):
        return Rewrite(left=f"{_LOAD}(model, path), which takes by_name= and skip_mismatch=, and no options")
    return _loaded(call, path, options)


def load_latest_weights(call: cst.Call, own: OwnWeights) -> Rewrite | None:
    """Translate ``model.load_weights(tf.train.latest_checkpoint(folder))``; None if the program has written these weights."""
    if own.has_callback or own.has(call.args[0].value):
        return None
    inner = cst.ensure_type(call.args[0].value, cst.Call)
    return _loaded(call, cst.parse_expression(f"replicant.latest_checkpoint({code(inner.args[0].value)})"), {})


def _loaded(call: cst.Call, path: cst.BaseExpression, options: Mapping[str, cst.BaseExpression]) -> Rewrite:
    model = code(cst.ensure_type(call.func, cst.Attribute).value)
    arguments = "".join(f", {name}={code(value)}" for name, value in options.items())
    return Rewrite(cst.parse_expression(f"{_LOAD}({model}, {code(path)}{arguments})"), frozenset({"replicant"}), _REPORT)


def is_loaded(node: cst.BaseExpression) -> bool:
    """Return whether this is a call that `load_weights` has translated."""
    return isinstance(node, cst.Call) and code(node.func) == _LOAD


def _save_weights(call: cst.Call, ending_of: Callable[[cst.BaseExpression], str | None], own: OwnWeights) -> Rewrite:
    del own
    return _files.saved_weights(call, ending_of)


HANDLERS = {"load_weights": load_weights, "save_weights": _save_weights}


class VariablesOnly:
    """The calls of ``tf.saved_model.load`` of whose results the program uses nothing but ``variables``.

    Attributes:
        calls: The calls.
        attributes: Where ``variables`` is read.
    """

    def __init__(self) -> None:
        self.calls: set[cst.CSTNode] = set()
        self.attributes: set[cst.CSTNode] = set()

    def find(
        self,
        module: cst.Module,
        name_of: Callable[[cst.CSTNode], str | None],
        values: Mapping[str, Sequence[cst.BaseExpression | None]],
    ) -> None:
        """Note them. A name that gets several values, or is used for anything else, does not count."""
        loads = {call for call in _calls(module) if name_of(call.func) == "saved_model.load"}
        reads = [each for each in m.findall(module, m.Attribute(attr=m.Name("variables"))) if isinstance(each, cst.Attribute)]
        for read in reads:
            if read.value in loads:
                self._add(read.value, [read])
        for assign in m.findall(module, m.Assign(targets=[m.AssignTarget(target=m.Name())])):
            assert isinstance(assign, cst.Assign)
            name = cst.ensure_type(assign.targets[0].target, cst.Name).value
            own = [read for read in reads if m.matches(read.value, m.Name(name))]
            uses = len(m.findall(module, m.Name(name))) - 1  # without the assignment
            if assign.value in loads and len(values.get(name, ())) == 1 and uses == len(own) > 0:
                self._add(assign.value, own)

    def _add(self, call: cst.CSTNode, reads: Sequence[cst.CSTNode]) -> None:
        self.calls.add(call)
        self.attributes.update(reads)


def saved_variables(call: cst.Call) -> Rewrite:
    """Translate ``tf.saved_model.load(folder)``, of which only the variables are used, to their list."""
    given = by_name(call.args, "export_dir", "tags", "options")
    if given is None or "export_dir" not in given:
        return Rewrite(left="replicant.saved_model_variables(folder) is the list of its variables")
    check = "this is the list of its variables itself, which are of type replicant.Variable"
    new = cst.parse_expression(f"replicant.saved_model_variables({code(given['export_dir'])})")
    return Rewrite(new, frozenset({"replicant"}), check)


def _calls(module: cst.Module) -> list[cst.Call]:
    return [call for call in m.findall(module, m.Call()) if isinstance(call, cst.Call)]
