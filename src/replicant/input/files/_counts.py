"""When the elements of files are counted before they are read."""

import os

from ...errors import DatasetError
from ...storage._retry import RemoteError
from ...storage._store import facts_of
from ...storage._urls import is_url
from ._file_names import FileNames

_MOST_COUNTED, _MOST_COUNTED_AT_URLS = 256, 16  # files whose elements are counted before they are read


def may_count(node: FileNames) -> bool:
    """Return whether the files of a node are few enough to open all of them. At URLs, each takes a few answers of a store."""
    urls = sum(is_url(path) for path in {*node.tables[0].tolist()})
    return node.size <= _MOST_COUNTED and urls <= _MOST_COUNTED_AT_URLS


def facts_for_counts(method: str, path: str, what: str) -> object:
    """Return something that is another one once a file has changed, for what keeps the number of its elements.

    Raises:
        DatasetError: If a store does not answer.
    """
    if is_url(path):
        try:
            return facts_of([path])[0]
        except RemoteError as error:
            raise DatasetError(f"{method}: cannot count the {what} of {path!r}: {error}. Check the URL and the store.") from error
    try:
        found = os.stat(path)  # noqa: PTH116 - names may be anything
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
