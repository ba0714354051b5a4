"""``tensorflow_datasets``: its folders are read by `replicant.data.tfds_folder`, and its builders become the paths of folders."""

from collections.abc import Callable

import libcst as cst
import libcst.matchers as m

from ._rewrite import Rewrite, by_name, code

PACKAGE = "tensorflow_datasets"
BUILDER = f"{PACKAGE}.core.DatasetBuilder"  # a kind of object (`_kinds`)

_PREPARED = (
    "the folder is read, and nothing is downloaded: prepare the dataset once with tensorflow_datasets. Of several versions, the "
    "newest is read"
)
_DEFAULT_FOLDER = "~/tensorflow_datasets"
_LOAD = "split", "data_dir", "batch_size", "shuffle_files", "download", "as_supervised", "decoders", "read_config", "with_info"
_LEFT_OUT = {"download", "download_and_prepare_kwargs", "try_gcs"}  # they say how to prepare the folder
_ASKED = "split", "batch_size", "shuffle_files", "decoders", "read_config", "as_supervised"  # arguments of as_dataset
_SAME = "split", "decoders", "as_supervised", "shuffle_files"
_NO_EFFECT = {"try_autocache", "skip_prefetch", "num_parallel_calls_for_decode", "num_parallel_calls_for_interleave_files"}


def _is(node: cst.BaseExpression | None, text: str) -> bool:
    return node is None or code(node) == text


class _NotTranslated(Exception):
    """A call has an argument that has no translation. The message says what to write."""


def _path_of(name: cst.BaseExpression, folder: cst.BaseExpression | None) -> str:
    """The code of the folder of a dataset, which TFDS calls ``name/config:version``."""
    where = f'"{_DEFAULT_FOLDER}"' if _is(folder, "None") or folder is None else code(folder)
    if not isinstance(name, cst.SimpleString):
        return f"os.path.join({where}, {code(name)})"
    text = str(name.evaluated_value)
    if "*" in text or text.startswith(("huggingface:", "mlcroissant:")):
        raise _NotTranslated("replicant.data.tfds_folder(path, split), with the path of the folder of a version")
    parts = text.replace(":", "/")
    return f'"{_DEFAULT_FOLDER}/{parts}"' if where == f'"{_DEFAULT_FOLDER}"' else f'os.path.join({where}, "{parts}")'


def _reading(path: str, given: dict[str, cst.BaseExpression]) -> str:
    """The code that reads a folder, with these arguments of ``as_dataset``."""
    kept = {name: code(given[name]) for name in _SAME if name in given}
    kept |= _settings(given.get("read_config"))
    arguments = [path, *(f"{name}={value}" for name, value in kept.items())]
    whole = f"replicant.data.tfds_folder({', '.join(arguments)})"
    size = given.get("batch_size")
    if size is None or code(size) == "None":
        return whole
    if code(size) == "-1" or not isinstance(given.get("split"), cst.SimpleString):
        raise _NotTranslated("replicant.data.tfds_folder(path, split).padded_batch(n), for each split; -1 stands for all examples")
    return f"{whole}.padded_batch({code(size)})"


def _settings(config: cst.BaseExpression | None) -> dict[str, str]:
    """The arguments that say what ``tfds.ReadConfig(...)`` says."""
    if config is None or code(config) == "None":
        return {}
    advice = "shuffle_seed=number instead of read_config, or read_order='files' for interleave_cycle_length=1"
    if not m.matches(config, m.Call(func=m.Attribute(attr=m.Name("ReadConfig")))):
        raise _NotTranslated(advice)
    found: dict[str, str] = {}
    for argument in cst.ensure_type(config, cst.Call).args:
        name, value = argument.keyword.value if argument.keyword else "", code(argument.value)
        if name == "shuffle_seed":
            found["shuffle_seed"] = value
        elif name == "interleave_cycle_length" and value == "1":
            found["read_order"] = '"files"'
        elif name not in _NO_EFFECT:
            raise _NotTranslated(advice)
    return found


def _translating(translate: Callable[[cst.Call], Rewrite]) -> Callable[[cst.Call], Rewrite]:
    """Return a handler that leaves a call alone where there is an argument without a translation."""

    def rewrite(call: cst.Call) -> Rewrite:
        try:
            return translate(call)
        except _NotTranslated as error:
            return Rewrite(left=str(error))

    return rewrite


def _named(call: cst.Call, first: str, names: tuple[str, ...]) -> dict[str, cst.BaseExpression]:
    """The arguments by name, without those that say how to prepare a folder."""
    kept = [a for a in call.args if a.keyword is None or a.keyword.value not in _LEFT_OUT - {*names}]
    given = by_name(kept, first, *names)
    if given is None or first not in given:
        raise _NotTranslated("replicant.data.tfds_folder(path, split)")
    return {name: value for name, value in given.items() if name not in _LEFT_OUT}


@_translating
def _load(call: cst.Call) -> Rewrite:
    """Translate ``tfds.load``."""
    given = _named(call, "name", _LOAD)
    path = _path_of(given["name"], given.get("data_dir"))
    new = _reading(path, given)
    if "with_info" in given and code(given["with_info"]) != "False":
        if code(given["with_info"]) != "True":
            raise _NotTranslated("replicant.data.tfds_folder(path, split), and replicant.data.tfds_info(path) for the info")
        new = f"({new}, replicant.data.tfds_info({path}))"
    return _made(new)


def _made(new: str, check: str = _PREPARED) -> Rewrite:
    modules = {"replicant"} if "replicant." in new else set()
    return Rewrite(cst.parse_expression(new), frozenset(modules | ({"os"} if "os.path" in new else set())), check)


@_translating
def _builder(call: cst.Call) -> Rewrite:
    """Translate ``tfds.builder`` to the path of the folder."""
    given = _named(call, "name", ("data_dir",))
    return _made(_path_of(given["name"], given.get("data_dir")))


@_translating
def _builder_from_directory(call: cst.Call) -> Rewrite:
    """Translate ``tfds.builder_from_directory`` to the path of the folder."""
    return _made(code(_named(call, "builder_dir", ())["builder_dir"]), check="")


@_translating
def as_dataset(call: cst.Call) -> Rewrite:
    """Translate ``builder.as_dataset(...)``, where the builder has become a path."""
    given = by_name(call.args, *_ASKED)
    if given is None:
        raise _NotTranslated("replicant.data.tfds_folder(path, split)")
    return _made(_reading(code(cst.ensure_type(call.func, cst.Attribute).value), given), check="")


def configs_of(call: cst.Call) -> list[cst.BaseExpression]:
    """The ``tfds.ReadConfig`` in the arguments of a call, whose own arguments are translated with it."""
    configs = [a.value for a in call.args if a.keyword is not None and a.keyword.value == "read_config"]
    return [config.func for config in configs if isinstance(config, cst.Call)]


def info(builder: cst.BaseExpression) -> cst.BaseExpression:
    """Translate ``builder.info``, where the builder has become a path."""
    return cst.parse_expression(f"replicant.data.tfds_info({code(builder)})")


def _as_numpy(call: cst.Call) -> Rewrite:
    """Translate ``tfds.as_numpy``: datasets give NumPy arrays by themselves."""
    given = by_name(call.args, "dataset")
    return Rewrite(given["dataset"]) if given else Rewrite(left="the dataset itself, whose elements are NumPy arrays")


NAMES = {
    f"{PACKAGE}.decode.SkipDecoding": "replicant.data.SkipDecoding",
    **{f"{PACKAGE}.Split.{name.upper()}": f'"{name}"' for name in ("train", "test", "validation", "all")},
}
HANDLERS: dict[str, Callable[[cst.Call], Rewrite]] = {
    f"{PACKAGE}.load": _load,
    f"{PACKAGE}.builder": _builder,
    f"{PACKAGE}.builder_from_directory": _builder_from_directory,
    f"{PACKAGE}.core.builder_from_directory": _builder_from_directory,
    f"{PACKAGE}.as_numpy": _as_numpy,
    f"{PACKAGE}.dataset_as_numpy": _as_numpy,
}
ADVICE = {
    PACKAGE: "it needs TensorFlow: replicant.data.tfds_folder(path, split) reads its folders, and tfds_info(path) describes them",
    f"{PACKAGE}.ReadConfig": "shuffle_seed=number of tfds_folder, or read_order='files' for interleave_cycle_length=1",
    f"{PACKAGE}.core.ReadInstruction": "write the split as text, such as 'train[:10%]'",
    f"{PACKAGE}.decode": "SkipDecoding() for what stays as it is stored; decode and choose features in dataset.map",
    f"{PACKAGE}.even_splits": "the splits as text, such as 'train[:50%]'; strategies share datasets among workers by themselves",
    f"{PACKAGE}.split_for_jax_process": "'train': strategies share datasets among workers by themselves",
}
# What builders have, whose translations are paths.
OF_BUILDERS = {
    "as_data_source": "replicant.data.tfds_folder(path, split, read_order='files')",
    "download_and_prepare": "prepare the dataset once with tensorflow_datasets",
}
NOT_PREPARED = "this was left out: datasets are not downloaded here. Prepare the dataset once with tensorflow_datasets"
