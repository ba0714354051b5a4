"""Walks through a program and translates what has an equivalent. Everything else is left as it is and reported."""

from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider, QualifiedNameProvider, QualifiedNameSource

from . import _branches, _scan
from ._conditions import Arrays
from ._findings import Finding
from ._kinds import Kinds, lacks
from ._seeds import Seeds
from .tables import _calls, _files, _functions, _names, _ops, _tfds, _weights
from .tables._advice import advice_for, advice_for_method, advice_for_package
from .tables._definitions import BY_NAME
from .tables._rewrite import Rewrite, code

_RANGE_ADVICE = "in traced code, range takes Python numbers: use keras.ops.fori_loop for a number that is an array"
_SEED_ADVICE = "in Keras, a number as seed gives the same numbers at every call: pass a keras.random.SeedGenerator(number)"
_IF_ADVICE = (
    "in traced code, the condition must not be an array: use keras.ops.where, cond or while_loop, which may assign variables"
)
_DEVICE_LISTS = ("config.list_physical_devices", "config.experimental.list_physical_devices")
_LISTS = (*_DEVICE_LISTS, "config.list_logical_devices", "config.experimental.list_logical_devices")
_RENAMED = {
    "experimental_run_v2": "run",
    "experimental_distribute_datasets_from_function": "distribute_datasets_from_function",
}
_LISTED_EARLY = (
    "listing devices starts JAX, and replicant.set_virtual_devices comes too late then: move this below it, where it lists the "
    "virtual devices"
)
_TAKERS = ("config.set_logical_device_configuration", "config.experimental.set_virtual_device_configuration")


# Statements that are not needed, by the name of what they call.
_NOT_NEEDED = {
    "config.experimental_connect_to_cluster": "this was left out: the strategy connects to the other workers itself",
    "config.experimental_connect_to_host": "this was left out: the strategy connects to the other workers itself",
    "tpu.experimental.initialize_tpu_system": "this was left out: replicant.TPUStrategy finds and starts the TPU",
    "tpu.experimental.shutdown_tpu_system": "this was left out: the TPU is free when the program ends",
}
_SHAPE = m.Attribute(attr=m.Name("shape")) | m.Call(func=m.Attribute(attr=m.Name("get_shape")), args=[])
_SET_SHAPE = m.SimpleStatementLine(body=[m.Expr(m.Call(func=m.Attribute(attr=m.Name("set_shape")), args=[m.Arg()]))])


class Rewriter(cst.CSTTransformer):
    """One walk through a program.

    Afterwards, `findings` has what the user has to look at, `modules` the modules that the new code needs, `definitions` the
    functions that it needs, `kept` the names of TensorFlow that are still in use, and `translated` those of which something was
    translated.
    """

    METADATA_DEPENDENCIES = (PositionProvider, QualifiedNameProvider)

    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self.findings: list[Finding] = []
        self.modules: set[str] = set()
        self.kept: set[str] = set()
        self.translated: set[str] = set()
        self.definitions: set[str] = set()
        self._aliases = _scan.module_aliases(module)
        self._bound = self._aliases | _scan.from_imports(module)
        self._values = _scan.bound_names(module)
        self._ending_of = _files.Endings(self._values)
        self._annotations = {name for note in m.findall(module, m.Annotation()) for name in m.findall(note, m.Attribute())}
        self._seeds = Seeds(_scan.traced_functions(module), self._values)
        self._arrays: list[Arrays] = []
        self._handled: set[cst.CSTNode] = set()  # names that were translated together with their call
        self._unused = _scan.only_for_virtual_devices(module, _TAKERS)
        self._uses_tensorflow = bool(m.findall(module, m.Name("tensorflow") | m.Name("keras")))
        self._imports_tensorflow = bool(m.findall(module, m.Name("tensorflow")))
        self._kinds = Kinds(self._name)
        self._own_weights, self._saved_models = _weights.OwnWeights(), _weights.VariablesOnly()
        self._elifs: set[cst.CSTNode] = set()
        self._moved: set[cst.CSTNode] = set()  # branches and loops that become functions
        self._dropped: set[cst.CSTNode] = set()  # lists of devices that are left out
        self._virtual_from = 0  # the line where virtual devices are made

    # Which name

    def _name(self, node: cst.CSTNode) -> str | None:
        """The name in TensorFlow that an expression stands for, without "tensorflow.", or None."""
        if not _is_dotted(node):
            return None
        for found in self.get_metadata(QualifiedNameProvider, node, ()):
            name = found.name
            if found.source == QualifiedNameSource.LOCAL:
                root, dot, rest = name.partition(".")
                name = self._aliases.get(root, "") + dot + rest
            if name == "tensorflow" or name.startswith("tensorflow."):
                return name.removeprefix("tensorflow").removeprefix(".").removeprefix("compat.v2.")
            if name.startswith(("keras.", f"{_tfds.PACKAGE}.")):
                return name  # tf.keras has the same names
        return None

    def _is_plain_keras(self, node: cst.CSTNode) -> bool:
        return any(found.name.startswith("keras.") for found in self.get_metadata(QualifiedNameProvider, node, ()))

    def _line(self, node: cst.CSTNode) -> int:
        position: Any = self.get_metadata(PositionProvider, node)
        return position.start.line

    def _is_early(self, node: cst.CSTNode) -> bool:
        """Whether this stands above a call that makes virtual devices."""
        return self._line(node) < self._virtual_from

    def _note(self, kind: str, node: cst.CSTNode, advice: str) -> None:
        line = self._line(node)
        construct = " ".join(code(node).split())
        if len(construct) > 100:
            construct = construct[:97] + "..."
        self.findings.append(Finding(line, "left" if kind == "left" else "check", construct, advice))

    def _leave_alone(self, node: cst.CSTNode, advice: str) -> None:
        self._note("left", node, advice)
        self.kept.add(_root(node))

    # Names

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if node in self._handled:
            return False
        name = node.attr.value
        owner = self._kinds.of(node.value)
        if owner == _tfds.BUILDER and name in ("as_dataset", "info"):
            self._handled.add(node)
        elif owner is not None and name not in _RENAMED and lacks(owner, name):
            advice = (
                advice_for_method(name, owner) or f"{owner} has no {name}; docs/differences.md and docs/input.md list what it has"
            )
            self._note("left", node.attr, advice)
        elif self._uses_tensorflow and owner is None and not self._name(node) and (advice := advice_for_method(name)):
            self._note("left", node, advice)
        return self._name(node) is None  # the longest name decides, not its parts

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if original_node in self._handled:
            return self._of_builder(original_node, updated_node)
        name = self._name(original_node)
        if name is None:
            return self._method_attribute(original_node, updated_node)
        return self._renamed(name, original_node) or updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        if original_node not in self._handled and self._name(original_node) == "" and original_node.value not in self._aliases:
            self._leave_alone(original_node, "the module itself is used as a value")
        return updated_node

    def _is_of_builder(self, node: cst.BaseExpression, name: str) -> bool:
        """Whether this is the attribute of this name of a builder of TFDS."""
        return isinstance(node, cst.Attribute) and node.attr.value == name and self._kinds.of(node.value) == _tfds.BUILDER

    def _of_builder(self, original: cst.Attribute, updated: cst.Attribute) -> cst.BaseExpression:
        """The info of a builder of TFDS, whose translation is a path; anything else as it is."""
        if not self._is_of_builder(original, "info"):
            return updated
        self.modules.add("replicant")
        return _tfds.info(updated.value)

    def _renamed(self, name: str, node: cst.Attribute) -> cst.BaseExpression | None:
        root = _root(node)
        if name in _LISTS and node not in self._dropped and self._is_early(node):
            self._note("left", node, _LISTED_EARLY)
        target = "jax.Array" if name == "Tensor" and node in self._annotations else _names.target_of(name)
        if target is None:
            self._leave_alone(node, advice_for(name))
            return None
        if root in self._bound:  # the name is translated where it is defined
            alias = _names.target_of(self._bound[root].removeprefix("tensorflow."))
            if alias is not None and code(node).replace(root, alias, 1) == target:
                return None
        self.translated.add(root)
        if code(node) == target or (target == name and self._is_plain_keras(node)):
            return None
        return self._expression(target)

    def _expression(self, target: str) -> cst.BaseExpression:
        root = target.partition(".")[0]
        if root in ("replicant", "keras", "jax", "np", "os", "shutil"):
            self.modules.add("numpy" if root == "np" else root)
        return cst.parse_expression(target)

    def _method_attribute(self, original: cst.Attribute, updated: cst.Attribute) -> cst.BaseExpression:
        if original in self._saved_models.attributes:
            return updated.value
        if original.attr.value == "lr" and "optimizer" in code(original.value).rpartition(".")[2]:
            self._note("check", original, "in Keras 3, an optimizer has learning_rate instead")
            return updated.with_changes(attr=cst.Name("learning_rate"))
        if original.attr.value in ("rank", "ndims") and self._uses_tensorflow and m.matches(original.value, _SHAPE):
            return cst.parse_expression(f"len({code(updated.value)})")
        return updated

    # Calls

    def visit_Call(self, node: cst.Call) -> bool:
        name = self._name(node.func)
        if name in _ops.OPS or name in _calls.HANDLERS or name in BY_NAME or name in ("print", "add_n", "math.add_n"):
            self._handled.add(node.func)
        if name == f"{_tfds.PACKAGE}.load" or self._is_of_builder(node.func, "as_dataset"):
            self._handled.update(_tfds.configs_of(node))
        if name == "distribute.MirroredStrategy":
            self._handled.update(_calls.left_out(node))
        if self._loads_latest_weights(node) or self._transformation(node):
            self._handled.add(_inner(node).func)
        if node in self._saved_models.calls:
            self._handled.add(node.func)
        return name not in _TAKERS or _calls.logical_devices(node).node is None  # otherwise nothing of it is kept

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        if self._loads_latest_weights(original_node):
            rewrite = _weights.load_latest_weights(updated_node, self._own_weights) or _calls.load_latest_weights(updated_node)
            return self._rewritten(original_node, updated_node, rewrite)
        if original_node in self._saved_models.calls:
            return self._rewritten(original_node, updated_node, _weights.saved_variables(updated_node))
        if method := self._transformation(original_node):
            return self._rewritten(original_node, updated_node, _calls.apply_transformation(updated_node, method))
        name = self._name(original_node.func)
        if self._is_of_builder(original_node.func, "as_dataset"):
            return self._rewritten(original_node, updated_node, _tfds.as_dataset(updated_node))
        if name is None:
            return self._method_call(original_node, updated_node)
        if name == "range" and self._is_iterated(original_node):
            if self._arrays and any(self._arrays[-1].has_value(a.value) for a in original_node.args):
                self._note("check", original_node, _RANGE_ADVICE)
            return updated_node.with_changes(func=cst.Name("range"))
        if name == "print":
            handler = _calls.print_traced if self._seeds.is_traced else _calls.print_outside
            return self._rewritten(original_node, updated_node, handler(updated_node))
        if name in ("add_n", "math.add_n") and len(updated_node.args) == 1 and "sum" not in self._values:
            return updated_node.with_changes(func=cst.Name("sum"), args=[cst.Arg(updated_node.args[0].value)])
        return self._function_call(name, original_node, updated_node)

    def _function_call(self, name: str, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        if name == "keras.callbacks.ModelCheckpoint" and self._imports_tensorflow:
            updated = cst.ensure_type(self._rewritten(original, updated, _files.weights_file(updated, self._ending_of)), cst.Call)
        if name == "random.uniform":
            rewrite = _functions.uniform(updated)
            if rewrite.node is not None or rewrite.left:
                return self._seeded(original, self._rewritten(original, updated, rewrite))
        if name in BY_NAME:
            new, parameters = BY_NAME[name]
            if new in self._values and new not in self._bound:
                self._leave_alone(original, f"the program has a {new} of its own, which may do the same")
                return updated
            return self._operation(_ops.Op(self._own_name(new), parameters), original, updated)
        if name in _calls.HANDLERS:
            return self._special(name, original, updated)
        if name in _ops.OPS:
            return self._operation(_ops.OPS[name], original, updated)
        return updated

    def _own_name(self, name: str) -> str:
        """The name of a definition in the new program, which has to define it."""
        self.definitions.add(name)
        self.modules.add("keras")
        return name

    def _seeded(self, original: cst.Call, new: cst.BaseExpression) -> cst.BaseExpression:
        """Give a call of keras.random a seed if it needs one."""
        if not isinstance(new, cst.Call) or not code(new.func).startswith("keras.random."):
            return new
        seed = next((a.value for a in new.args if a.keyword is not None and a.keyword.value == "seed"), None)
        if seed is not None and code(seed) != "None":
            if isinstance(seed, cst.Integer):
                self._note("check", original, _SEED_ADVICE)
            return new
        if not self._seeds.is_traced:
            return new
        generator = self._seeds.request()
        if not generator:
            return new
        kept = [a for a in new.args if a.value is not seed]
        return new.with_changes(args=[*kept, _ops.make_argument("seed", cst.parse_expression(generator))])

    def _special(self, name: str, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        func, renamed = original.func, None
        rewrite = _calls.HANDLERS[name](updated)
        if rewrite.node is not None and isinstance(func, cst.Attribute) and _names.target_of(name) is not None:
            renamed = self._renamed(name, func)
            rewrite = _calls.HANDLERS[name](updated.with_changes(func=renamed or updated.func))
        return self._rewritten(original, updated, rewrite)

    def _operation(self, op: _ops.Op, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        arguments = _ops.bind(op, list(updated.args))
        if isinstance(arguments, str):
            self._leave_alone(original, f"{arguments}: write it with keras.ops")
            return updated
        self.translated.add(_root(original.func))
        named = isinstance(original.func, cst.Attribute) or "." not in op.target
        func = self._expression(op.target) if named else updated.func
        return self._seeded(original, updated.with_changes(func=func, args=arguments))

    def _rewritten(self, original: cst.Call, updated: cst.Call, rewrite: Rewrite) -> cst.BaseExpression:
        if rewrite.node is None:
            self._leave_alone(original, rewrite.left)
            return updated
        self.translated.add(_root(original.func))
        self.modules |= rewrite.modules
        if rewrite.check and not (rewrite.check == _files.LOCAL and any(f.advice == _files.LOCAL for f in self.findings)):
            self._note("check", original, rewrite.check)
        return rewrite.node

    def _method_call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        method = original.func.attr.value if isinstance(original.func, cst.Attribute) else ""
        func = updated.func
        if not isinstance(func, cst.Attribute) or not self._uses_tensorflow:
            return updated
        if method == "numpy" and not original.args:
            self.modules.add("numpy")
            self._note("check", original, "np.asarray works for an array, a variable or the value of one replica")
            return cst.parse_expression(f"np.asarray({code(func.value)})")
        if method == "reset_states" and not original.args:
            self._note("check", original, "in Keras 3, the method is called reset_state")
            return updated.with_changes(func=func.with_changes(attr=cst.Name("reset_state")))
        if method in _weights.HANDLERS and self._imports_tensorflow:
            return self._rewritten(original, updated, _weights.HANDLERS[method](updated, self._ending_of, self._own_weights))
        if _weights.is_loaded(func.value):
            return self._of_loaded_weights(method, original, updated)
        if method == "get_shape" and not original.args:
            return func.with_changes(attr=cst.Name("shape"))
        if method == "as_list" and m.matches(original.func, m.Attribute(value=_SHAPE)):
            return cst.parse_expression(f"list({code(func.value)})")
        if method == "save" and original.args:
            self._check_saved_model(original)
        if method == "apply_gradients":
            return self._rewritten(original, updated, _calls.apply_gradients(updated))
        if method in _RENAMED:
            return updated.with_changes(func=func.with_changes(attr=cst.Name(_RENAMED[method])))
        return updated

    def _of_loaded_weights(self, method: str, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """Translate what is done with the status that loading weights returns in TensorFlow."""
        if method in _weights.MATCHED and not original.args:
            return cst.ensure_type(updated.func, cst.Attribute).value
        self._note("left", cst.ensure_type(original.func, cst.Attribute).attr, _weights.STATUS)
        return updated

    def _check_saved_model(self, node: cst.Call) -> None:
        owner, ending = code(node.func).rpartition(".")[0], self._ending_of(node.args[0].value)
        if owner.rpartition(".")[2].lower().endswith("model") and ending is not None and not ending.endswith((".keras", ".h5")):
            self._note("left", node, "in Keras 3, the name must end in .keras, here and in load_model; model.export is for serving")

    def _loads_latest_weights(self, node: cst.Call) -> bool:
        pattern = m.Call(func=m.Attribute(attr=m.Name("load_weights")), args=[m.Arg(value=m.Call(args=[m.Arg()]))])
        return m.matches(node, pattern) and self._name(_inner(node).func) == "train.latest_checkpoint"

    def _transformation(self, node: cst.Call) -> str:
        """The method that does what ``dataset.apply(tf.data.experimental.NAME(...))`` does, or ""."""
        if not m.matches(node, m.Call(func=m.Attribute(attr=m.Name("apply")), args=[m.Arg(value=m.Call())])):
            return ""
        name = self._name(_inner(node).func) or ""
        return _calls.TRANSFORMATIONS.get(name.removeprefix("data.experimental."), "") if name.startswith("data.") else ""

    def _is_iterated(self, node: cst.Call) -> bool:
        return node in self._iterated

    # Statements

    def visit_Module(self, node: cst.Module) -> None:
        self._seeds.start(node)
        self._own_weights.find(node, self._name)
        self._saved_models.find(node, self._name, self._values)
        takers = [call for call in m.findall(node, m.Call()) if self._name(cst.ensure_type(call, cst.Call).func) in _TAKERS]
        self._virtual_from = max(map(self._line, takers), default=0)
        self._iterated = {x.iter for x in m.findall(node, m.For() | m.CompFor()) if isinstance(x, cst.For | cst.CompFor)}

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._kinds.note(target.target, node.value)
            if code(target.target) in self._unused and isinstance(node.value, cst.Call):
                self._dropped.add(node.value.func)

    def visit_WithItem(self, node: cst.WithItem) -> None:
        if node.asname is not None:
            self._kinds.note(node.asname.name, node.item)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._seeds.enter(node)
        if self._seeds.is_traced:
            self._arrays.append(Arrays(node, self._name))

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        if self._seeds.is_traced:
            self._arrays.pop()
        self._seeds.leave()
        return updated_node

    def visit_SimpleStatementSuite(self, node: cst.SimpleStatementSuite) -> None:
        if m.findall(node, m.OneOf(m.Import(), m.ImportFrom())) and m.findall(node, m.Name("tensorflow")):
            self._note("left", node, "write the import on a line of its own, and translate the file again")

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._seeds.enter(node)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        return self._seeds.leave_class(original_node, updated_node)

    def visit_Lambda(self, node: cst.Lambda) -> None:
        self._seeds.enter(node)

    def leave_Lambda(self, original_node: cst.Lambda, updated_node: cst.Lambda) -> cst.Lambda:
        self._seeds.leave()
        return updated_node

    def visit_If(self, node: cst.If) -> None:
        if isinstance(node.orelse, cst.If):
            self._elifs.add(node.orelse)
        self._check_branch(
            node, None if node in self._elifs else _branches.branch(node, self._bound_before(node)), _branches.BRANCH
        )

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        new = _branches.branch(updated_node, self._bound_before(original_node)) if original_node in self._moved else None
        return updated_node if new is None else cst.FlattenSentinel(new)

    def visit_While(self, node: cst.While) -> None:
        self._check_branch(node, _branches.loop(node, self._bound_before(node)), _branches.LOOP)

    def leave_While(
        self, original_node: cst.While, updated_node: cst.While
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        new = _branches.loop(updated_node, self._bound_before(original_node)) if original_node in self._moved else None
        return updated_node if new is None else cst.FlattenSentinel(new)

    def _bound_before(self, node: cst.CSTNode) -> set[str]:
        """The names that the function around a statement binds before it."""
        if not self._arrays:
            return set()
        return self._arrays[-1].parameters | {
            name for name, value in self._arrays[-1].assigned if self._line(value) < self._line(node)
        }

    def _check_branch(self, node: cst.If | cst.While, translated: object, said: str) -> None:
        if not self._arrays or not self._arrays[-1].may_be(node.test):
            return
        if translated is None or not self._imports_tensorflow:
            self._note("check", node.test, _IF_ADVICE)
            return
        self._moved.add(node)
        self.modules.add("keras")
        self._note("check", node.test, said)

    def visit_Comparison(self, node: cst.Comparison) -> None:
        if any(self._name(side) in ("string", "dtypes.string") for side in (node.left, *(t.comparator for t in node.comparisons))):
            self._note("check", node, 'no dtype of NumPy equals str: compare x.dtype.kind with "U" or "O"')

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            if advice := advice_for_package(code(alias.name)):
                self._note("left", node, advice)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        module = code(node.module) if node.module is not None and not node.relative else ""
        if isinstance(node.names, cst.ImportStar) and module.partition(".")[0] == "tensorflow":
            self._note("left", node, "import the names that you use, and translate the file again")
        names = [] if isinstance(node.names, cst.ImportStar) else [f"{module}.{code(alias.name)}" for alias in node.names]
        if module.partition(".")[0] == _tfds.PACKAGE:
            self._note("left", node, f"write import {_tfds.PACKAGE} as tfds, and translate the file again")
        if advice := next((advice for name in [module, *names] if (advice := advice_for_package(name))), ""):
            self._note("left", node, advice)
        return False

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        return not self._why_not_needed(node)

    def _why_not_needed(self, node: cst.SimpleStatementLine) -> str:
        if not m.matches(node, m.SimpleStatementLine(body=[m.Expr(m.Call())])):
            return ""
        call = cst.ensure_type(cst.ensure_type(node.body[0], cst.Expr).value, cst.Call)
        if self._is_of_builder(call.func, "download_and_prepare"):
            return _tfds.NOT_PREPARED
        return _NOT_NEEDED.get(self._name(call.func) or "", "")

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        assign = original_node.body[0]
        if reason := self._why_not_needed(original_node):
            self.translated |= {_root(cst.ensure_type(assign, cst.Expr).value)}
            self._note("check", assign, reason)
            return cst.RemoveFromParent()
        if self._uses_tensorflow and m.matches(original_node, _SET_SHAPE):
            self._note("check", assign, "this was left out: JAX knows all shapes")
            return cst.RemoveFromParent()
        if not isinstance(assign, cst.Assign) or len(original_node.body) > 1:
            return updated_node
        target, new = code(assign.targets[0].target), cst.ensure_type(updated_node.body[0], cst.Assign)
        if target in self._unused and isinstance(assign.value, cst.Call) and self._name(assign.value.func) in _DEVICE_LISTS:
            self._note(
                "check", assign, "this was left out: listing devices starts JAX, but virtual devices must be made before that"
            )
            return cst.RemoveFromParent()
        if code(new.value) == target:
            return cst.RemoveFromParent()  # keras = tf.keras
        if target.replace("'", '"') == 'os.environ["KERAS_BACKEND"]' and code(new.value).strip("'\"") == "tensorflow":
            return updated_node.with_changes(body=[new.with_changes(value=cst.SimpleString('"jax"'))])
        return updated_node


def rewrite(source: str) -> tuple[cst.Module, Rewriter]:
    """Translate a module, except for its imports."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    rewriter = Rewriter(wrapper.module)
    return wrapper.visit(rewriter), rewriter


def _is_dotted(node: cst.CSTNode) -> bool:
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def _inner(node: cst.Call) -> cst.Call:
    return cst.ensure_type(node.args[0].value, cst.Call)


def _root(node: cst.CSTNode) -> str:
    while isinstance(node, cst.Attribute | cst.Call):
        node = node.value if isinstance(node, cst.Attribute) else node.func
    return node.value if isinstance(node, cst.Name) else ""
