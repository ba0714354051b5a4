"""What a program says about its names before anything is translated."""

from collections.abc import Iterable

import libcst as cst
import libcst.matchers as m

from .tables._rewrite import code

_FUNCTION = (m.Attribute(attr=m.Name("function")), m.Name("function"))
_RUN = m.Attribute(attr=m.OneOf(m.Name("run"), m.Name("experimental_run_v2")))
# Keras calls these methods of a model or layer in compiled code.
TRACED_METHODS = {"call", "compute_loss", "predict_step", "test_step", "train_step"}


def module_aliases(module: cst.Module) -> dict[str, str]:
    """The names at the top of the module that stand for a name in TensorFlow, as in ``layers = tf.keras.layers``."""
    names = {"tensorflow": "tensorflow", **_imported(module)}
    aliases: dict[str, str] = {}
    for statement in module.body:
        assign = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(assign, cst.Assign) and len(assign.targets) == 1 and isinstance(assign.targets[0].target, cst.Name):
            root, dot, rest = code(assign.value).partition(".")
            if isinstance(assign.value, cst.Attribute) and root in names:
                aliases[assign.targets[0].target.value] = names[root] + dot + rest
    return aliases


def _imported(module: cst.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in m.findall(module, m.ImportAlias(asname=m.AsName())):
        alias = cst.ensure_type(node, cst.ImportAlias)
        if alias.asname is not None and code(alias.name).partition(".")[0] == "tensorflow":
            found[code(alias.asname.name)] = code(alias.name)
    return found


def from_imports(module: cst.Module) -> dict[str, str]:
    """The names that an import binds to something in TensorFlow, as in ``from tensorflow.keras import layers``."""
    found = {name: full for name, full in _imported(module).items() if "." in full}
    for node in m.findall(module, m.ImportFrom()):
        statement = cst.ensure_type(node, cst.ImportFrom)
        prefix = code(statement.module) if statement.module else ""
        if prefix.partition(".")[0] == "tensorflow" and not isinstance(statement.names, cst.ImportStar):
            for alias in statement.names:
                name = code(alias.name)
                found[code(alias.asname.name) if alias.asname else name] = f"{prefix}.{name}"
    return found


def traced_functions(module: cst.Module) -> set[str]:
    """The names of the functions whose code is traced.

    They are those that ``tf.function`` decorates or takes, those that are passed to ``run``, the methods that Keras compiles, and
    whatever is called in one of these.
    """
    decorated = m.Decorator(decorator=m.OneOf(*_FUNCTION, m.Call(func=m.OneOf(*_FUNCTION))))
    functions = [cst.ensure_type(x, cst.FunctionDef) for x in m.findall(module, m.FunctionDef())]
    found = {cst.ensure_type(x, cst.FunctionDef).name.value for x in m.findall(module, m.FunctionDef(decorators=[decorated]))}
    for node in m.findall(module, m.Call(func=m.OneOf(_RUN, *_FUNCTION))):
        found |= {a.value.value for a in cst.ensure_type(node, cst.Call).args[:1] if isinstance(a.value, cst.Name)}
    for node in m.findall(module, m.ClassDef(bases=[m.AtLeastN(n=1)])):
        found |= {
            f.name.value for f in cst.ensure_type(node, cst.ClassDef).body.body if isinstance(f, cst.FunctionDef)
        } & TRACED_METHODS
    calls = {function.name.value: _called(function) for function in functions}
    new = set(found)
    while new:
        new = {name for caller in new for name in calls.get(caller, ()) if name in calls} - found
        found |= new
    return found


def _called(function: cst.FunctionDef) -> set[str]:
    """The names of the functions and methods that a function calls."""
    names: set[str] = set()
    for node in m.findall(function.body, m.Call()):
        func = cst.ensure_type(node, cst.Call).func
        if isinstance(func, cst.Name):
            names.add(func.value)
        elif isinstance(func, cst.Attribute):
            names.add(func.attr.value)
    return names


def only_for_virtual_devices(module: cst.Module, takers: Iterable[str]) -> set[str]:
    """The names that are assigned once and then used only in ``set_logical_device_configuration``."""

    def count(nodes: Iterable[cst.CSTNode]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for node in nodes:
            for name in m.findall(node, m.Name()):
                value = cst.ensure_type(name, cst.Name).value
                counts[value] = counts.get(value, 0) + 1
        return counts

    names = [name.rpartition(".")[2] for name in takers]
    calls = m.findall(module, m.Call(func=m.Attribute(attr=m.OneOf(*(m.Name(name) for name in names)))))
    inside = count(cst.ensure_type(call, cst.Call).args[0] for call in calls)
    everywhere = count([module])
    return {name for name, number in inside.items() if everywhere[name] == number + 1}


def bound_names(module: cst.Module) -> dict[str, list[cst.BaseExpression | None]]:
    """All names that are bound somewhere, with the values that are assigned to them. None means any other binding."""
    found: dict[str, list[cst.BaseExpression | None]] = {}
    for node in m.findall(module, m.Assign() | m.FunctionDef() | m.ClassDef() | m.Param() | m.ImportAlias() | m.AsName() | m.For()):
        if isinstance(node, cst.Assign):
            for target in node.targets:
                single = isinstance(target.target, cst.Name)
                for name in m.findall(target.target, m.Name()):
                    found.setdefault(cst.ensure_type(name, cst.Name).value, []).append(node.value if single else None)
            continue
        named = isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Param | cst.ImportAlias | cst.AsName)
        bound = node.target if isinstance(node, cst.For) else node.name if named else node
        for name in m.findall(bound, m.Name()):
            found.setdefault(cst.ensure_type(name, cst.Name).value, []).append(None)
    return found
