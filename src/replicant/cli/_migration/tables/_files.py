"""Calls that read, write or name files."""

from collections.abc import Callable

import libcst as cst
import libcst.matchers as m

from ._rewrite import Rewrite, by_name, code

LOCAL = "for files on this machine; open those of gs:// and the like with fsspec"


def _local(target: str, *names: str, more: str = "") -> Callable[[cst.Call], Rewrite]:
    """Return the translation of a function of ``tf.io.gfile`` to one of Python.

    Args:
        target: The name in Python.
        names: The arguments. Those in brackets are left out.
        more: An argument to add.
    """

    def rewrite(call: cst.Call) -> Rewrite:
        given = by_name(call.args, *(name.strip("[]") for name in names))
        if given is None:
            return Rewrite(left=f"{target}(...)")
        kept = [code(given[name]) for name in names if name in given]
        new = cst.parse_expression(f"{target}({', '.join([*kept, *([more] if more else [])])})")
        return Rewrite(new, frozenset({target.partition(".")[0]} - {"open"}), LOCAL)

    return rewrite


def _join(call: cst.Call) -> Rewrite:
    return Rewrite(call.with_changes(func=cst.parse_expression("os.path.join")), frozenset({"os"}))


def _replacing(target: str) -> Callable[[cst.Call], Rewrite]:
    """Return the translation of a function that overwrites a file only if it is told to, which Python's always does."""

    def rewrite(call: cst.Call) -> Rewrite:
        given = by_name(call.args, "src", "dst", "overwrite")
        if given is None or code(given.get("overwrite", cst.Name("False"))) != "True":
            return Rewrite(left=f"{target}(source, target), which overwrites: check os.path.exists(target) before")
        return _local(target, "src", "dst", "[overwrite]")(call)

    return rewrite


def _glob(call: cst.Call) -> Rewrite:
    if len(call.args) != 1 or isinstance(call.args[0].value, cst.List):
        return Rewrite(left="glob.glob(pattern), for each pattern")
    return _local("glob.glob", "pattern")(call)


def read_file(call: cst.Call) -> Rewrite:
    """Translate ``tf.io.read_file``."""
    given = by_name(call.args, "filename", "name")
    if given is None or "filename" not in given:
        return Rewrite(left="pathlib.Path(name).read_bytes()")
    new = cst.parse_expression(f"pathlib.Path({code(given['filename'])}).read_bytes()")
    return Rewrite(new, frozenset({"pathlib"}), LOCAL)


def weights_file(call: cst.Call, ending_of: Callable[[cst.BaseExpression], str | None]) -> Rewrite:
    """Translate ``ModelCheckpoint``: in Keras 3, the suffix of the file must say what it contains."""
    names = ("filepath", "monitor", "verbose", "save_best_only", "save_weights_only", "mode", "save_freq")
    given = by_name([a for a in call.args if a.keyword is None or a.keyword.value in names], *names)
    if given is None or "filepath" not in given:
        return Rewrite(call)
    weights = "save_weights_only" in given and code(given["save_weights_only"]) != "False"
    ending = ".weights.h5" if weights else ".keras"
    return _with_ending(call, next(a for a in call.args if a.value is given["filepath"]), ending, ending_of)


def saved_weights(call: cst.Call, ending_of: Callable[[cst.BaseExpression], str | None]) -> Rewrite:
    """Translate ``model.save_weights`` and ``load_weights``: in Keras 3, the name of the file must end in .weights.h5."""
    path = next((a for a in call.args if a.keyword is None or a.keyword.value == "filepath"), None)
    if path is None or path.star or isinstance(path.value, cst.Call):
        return Rewrite(call)
    if m.matches(call.func, m.Attribute(attr=m.Name("load_weights"))) and (ending_of(path.value) or ".h5").endswith(
        (".h5", ".keras")
    ):
        return Rewrite(call)
    return _with_ending(call, path, ".weights.h5", ending_of)


def _with_ending(call: cst.Call, argument: cst.Arg, ending: str, ending_of: Callable[[cst.BaseExpression], str | None]) -> Rewrite:
    """Append what the name of a file must end in, unless it ends so."""
    path, last = argument.value, ending_of(argument.value)
    if last is not None and last.endswith(ending):
        return Rewrite(call)
    if last is None and not isinstance(path, cst.Name | cst.Attribute):
        return Rewrite(call, check=f"in Keras 3, the name of the file must end in {ending}")
    text = code(path)
    if isinstance(path, cst.SimpleString):
        quotes = len(path.quote)
        new = f"{text[:-quotes]}{ending}{text[-quotes:]}"
    elif last is not None:
        new = f'{text} + "{ending}"'
    else:
        new = f'{text} if str({text}).endswith("{ending}") else f"{{{text}}}{ending}"'
    changed = call.with_deep_changes(argument, value=cst.parse_expression(new))
    return Rewrite(changed, check=f"in Keras 3, the name of the file must end in {ending}")


class Endings:
    """Finds the text in which the name of a file ends.

    Args:
        values: The values that the names of the program get, as `bound_names` returns them.
    """

    def __init__(self, values: dict[str, list[cst.BaseExpression | None]]) -> None:
        self._values = values

    def __call__(self, node: cst.BaseExpression, depth: int = 0) -> str | None:
        """The text in which an expression ends, or None if the program does not say. A path is not a text that can be added to."""
        if isinstance(node, cst.SimpleString):
            return str(node.evaluated_value)
        if isinstance(node, cst.ConcatenatedString):
            return self(node.right, depth)
        if isinstance(node, cst.FormattedString):
            last = node.parts[-1] if node.parts else None
            return last.value if isinstance(last, cst.FormattedStringText) else ""
        if isinstance(node, cst.BinaryOperation):
            return self(node.right, depth) if isinstance(node.operator, cst.Add | cst.Modulo) else None
        if isinstance(node, cst.IfExp):
            return self(node.orelse, depth)
        if isinstance(node, cst.Name) and depth < 10:
            values = self._values.get(node.value, [])
            value = values[0] if len(values) == 1 else None
            return None if value is None else self(value, depth + 1)
        if m.matches(node, m.Call(func=m.Attribute(attr=m.Name("join")), args=[m.AtLeastN(n=1)])):
            return self(cst.ensure_type(node, cst.Call).args[-1].value, depth)
        if m.matches(node, m.Call(func=m.Attribute(value=m.SimpleString(), attr=m.Name("format")))):
            return self(cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value, depth)
        return None


_GFILE = {
    "GFile": _local("open", "name", "mode"),
    "copy": _replacing("shutil.copyfile"),
    "exists": _local("os.path.exists", "path"),
    "glob": _glob,
    "isdir": _local("os.path.isdir", "path"),
    "join": _join,
    "listdir": _local("os.listdir", "path"),
    "makedirs": _local("os.makedirs", "path", more="exist_ok=True"),
    "mkdir": _local("os.mkdir", "path"),
    "remove": _local("os.remove", "path"),
    "rename": _replacing("os.replace"),
    "rmtree": _local("shutil.rmtree", "path"),
    "walk": _local("os.walk", "top", "topdown", "onerror"),
}
HANDLERS = {
    **{f"io.gfile.{name}": handler for name, handler in _GFILE.items()},
    "io.matching_files": _glob,
    "io.read_file": read_file,
}
