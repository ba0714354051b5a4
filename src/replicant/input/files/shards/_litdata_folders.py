"""Several folders of LitData's chunks, which are read as one."""

from ....errors import ArgumentError, DatasetError
from ._litdata import LitItems, LitTokens
from ._litdata_index import METHOD, LitIndex, read_index
from ._litdata_leaves import Leaf


def litdata_format(
    folders: list[str], names: tuple[str, ...] | None, block_size: int | None, *, skips: bool, max_chunk_bytes: int
) -> tuple[LitItems | LitTokens, list[str]]:
    """Return the format of the chunks in some folders, and their paths.

    Raises:
        ArgumentError: If an argument does not fit the folders.
        DatasetError: If an index is missing or damaged, or says something else than the first.
    """
    indexes = [index for index in map(read_index, folders) if index.chunks]
    chunks = {chunk.path: chunk for index in indexes for chunk in index.chunks}
    files = [chunk.path for index in indexes for chunk in index.chunks]
    if not indexes:
        return LitItems(names, (), {}, 0, {}, {}, max_chunk_bytes, skips=skips), []
    first = indexes[0]
    for index in indexes[1:]:
        if (index.tree, index.formats, index.of_tokens) != (first.tree, first.formats, first.of_tokens):
            raise DatasetError(
                f"{METHOD}: {index.path!r} has other items than {first.path!r}: {list(index.formats)} instead of "
                f"{list(first.formats)}. Make a dataset of each, and choose from them by `sample_from_datasets` or `concatenate`."
            )
    if first.of_tokens:
        return _of_tokens(first, indexes, names, block_size, skips=skips), files
    if block_size is not None:
        raise ArgumentError(f"{METHOD}: {first.path!r} holds items, and block_size is for chunks of TokensLoader. Leave it out.")
    tree, leaves = first.leaves(names)
    levels = {chunk.path: index.level for index in indexes for chunk in index.chunks}
    return LitItems(names, tree, leaves, len(first.formats), levels, chunks, max_chunk_bytes, skips=skips), files


def _of_tokens(
    first: LitIndex, indexes: list[LitIndex], names: tuple[str, ...] | None, block_size: int | None, *, skips: bool
) -> LitTokens:
    if block_size is None or names is not None:
        raise ArgumentError(
            f"{METHOD}: {first.path!r} holds token ids, one behind the other. Give block_size, the length of a window, and no "
            f"columns."
        )
    leaf: Leaf | None = first.leaves(None)[1].get(0) if len(first.formats) == 1 else None
    if leaf is None or leaf.kind != "flat" or leaf.dtype is None or any(index.level for index in indexes):
        raise DatasetError(
            f"{METHOD}: {first.path!r} holds token ids as {list(first.formats)}, compressed or not, and arrays and tensors of one "
            "dimension that are not compressed are read. Write the folder again."
        )
    chunks = {chunk.path: chunk for index in indexes for chunk in index.chunks}
    return LitTokens(block_size, leaf.dtype, chunks, skips=skips)
