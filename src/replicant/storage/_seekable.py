"""The position in an object that is read like a file."""

import abc
import io


class Seekable(io.RawIOBase, abc.ABC):
    """A file that is open for reading, of known size, at any place of which reading can go on."""

    _at = 0

    @property
    @abc.abstractmethod
    def _size(self) -> int:
        """The number of bytes of the object."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at
