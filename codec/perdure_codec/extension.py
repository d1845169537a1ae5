"""The extension codes of format version 1, whole; SPEC.md section 4 is normative."""

from __future__ import annotations

from enum import IntEnum


class Extension(IntEnum):
    """A MessagePack extension code; values never change and are never reused.

    Version 1 of the code reads and writes FLOAT_VECTOR, BIG_INTEGER and TUPLE. The
    others are reserved: refused in both directions until they are specified.
    """

    FLOAT_VECTOR = 1
    BIG_INTEGER = 2
    UUID = 3
    DECIMAL = 4
    DATETIME = 5
    BLOB_REFERENCE = 6
    MESSAGE_RANGE_REFERENCE = 7
    FACT_REFERENCE = 8
    SENSITIVE = 9
    ERASED = 10

    TUPLE = 32
    SET = 33
    FROZENSET = 34
    DATE = 35
    TIME = 36
    TIMEDELTA = 37
    COMPLEX = 38
    BYTEARRAY = 39
    ENUM = 40
    DATACLASS = 41
    NDARRAY = 42
