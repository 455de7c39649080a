"""The index of SQLite's write-ahead log, which all processes that have a database open share."""

import ctypes
from typing import Any

import apsw

# Places in the index: https://sqlite.org/walformat.html#the_wal_index_file_format
_SALTS = slice(32, 40)  # changed when the log begins again
_MOVED = slice(96, 100)  # the number of frames that were moved into the file
_TO_MOVE = slice(128, 132)  # set before the first of them is moved
_LENGTH = 136
_REGION = 32 * 1024

# Members of `sqlite3_io_methods`, and what its locks take: https://sqlite.org/c3ref/io_methods.html
_MAP = 13
_LOCK = 14
_RELEASE_EXCLUSIVE = 1 | 8
_TAKE_EXCLUSIVE = 2 | 8
_OF_CHECKPOINTS = 1

_Pointers = ctypes.POINTER(ctypes.c_void_p)
_Method = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_int] * 3)


class LogIndex:
    """Shows what connections have moved from the log into the file, or are moving now.

    A checkpoint says how far it will go, writes to the file, and then says that it is done. One
    that fails or is killed leaves the first number above the second, without the lock."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._file = ctypes.c_void_p()
        address = ctypes.addressof(self._file)
        connection.file_control("main", apsw.SQLITE_FCNTL_FILE_POINTER, address)
        self._methods = ctypes.cast(ctypes.cast(self._file, _Pointers)[0], _Pointers)
        self._start = ctypes.c_void_p()
        if self._methods[_MAP]:  # a database in memory has no log
            self._call(_MAP, 0, _REGION, 0, ctypes.byref(self._start))

    def moves(self) -> bytes:
        """Numbers that change with every checkpoint; empty while one runs, or without an index."""
        if not self._start:
            return b""
        index = ctypes.string_at(self._start, _LENGTH)
        if index[_MOVED] != index[_TO_MOVE]:
            if self._call(_LOCK, _OF_CHECKPOINTS, 1, _TAKE_EXCLUSIVE):
                return b""
            self._call(_LOCK, _OF_CHECKPOINTS, 1, _RELEASE_EXCLUSIVE)
            # A checkpoint that ended before the lock was taken is seen now.
            index = ctypes.string_at(self._start, _LENGTH)
        return index[_SALTS] + index[_MOVED] + index[_TO_MOVE]

    def _call(self, method: int, *arguments: Any) -> Any:
        return _Method(self._methods[method])(self._file, *arguments)
