# cython: language_level=3, boundscheck=False, wraparound=False
# cython: initializedcheck=False, cdivision=True
"""`pack` and `unpack`, compiled; `fallback.py` is the reference they must agree with.

Neither runs Python code while it holds pointers into a container, except for the hash
of an unusual key: there every object in use is held by a reference of its own.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_CheckExact, PyDict_Next, PyDict_SetItem, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact, PyFloat_FromDouble
from cpython.list cimport (
    PyList_CheckExact,
    PyList_GET_ITEM,
    PyList_GET_SIZE,
    PyList_New,
    PyList_SET_ITEM,
)
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.tuple cimport (
    PyTuple_CheckExact,
    PyTuple_GET_ITEM,
    PyTuple_GET_SIZE,
    PyTuple_New,
    PyTuple_SET_ITEM,
)
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from perdure_codec._bits cimport (
    bits_of_double,
    double_of_bits,
    fits_float32,
    is_ascii,
    load_big,
    load_little,
    narrow_to_float32,
    store_big,
    store_little,
    text_slot,
    utf8_size,
    utf8_write,
    widen_float32,
)

from perdure_codec import errors as _errors
from perdure_codec.collision import KeyHashes
from perdure_codec.extension import Extension
from perdure_codec.limits import (
    MAX_DEPTH,
    MAX_EQUAL_HASHES,
    MAX_ITEMS,
    MAX_RAW_BYTES,
    MIN_VECTOR_ITEMS,
)
from perdure_codec.path import render


cdef extern from "Python.h":
    enum: PyUnicode_1BYTE_KIND
    enum: PyUnicode_2BYTE_KIND
    bint PyUnicode_CheckExact(object text)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    int PyUnicode_KIND(object text)
    void *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 maxchar)
    object PyUnicode_DecodeUTF8(const char *data, Py_ssize_t size, const char *errors)
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    int PyGC_Disable()
    int PyGC_Enable()


cdef enum:
    KEY_SLOTS = 256       # power of two; a slot is one pointer, cleared on each call
    MAX_CACHED_BYTES = 32
    EXTENSION_32_BYTES = 6
    VECTOR_HEAD_BYTES = 3

cdef Py_ssize_t _MAX_RAW_BYTES = MAX_RAW_BYTES
cdef Py_ssize_t _MAX_ITEMS = MAX_ITEMS
cdef Py_ssize_t _MAX_DEPTH = MAX_DEPTH
cdef Py_ssize_t _MAX_EQUAL_HASHES = MAX_EQUAL_HASHES
cdef Py_ssize_t _MIN_VECTOR_ITEMS = MIN_VECTOR_ITEMS
cdef uint8_t _FLOAT_VECTOR = Extension.FLOAT_VECTOR
cdef uint8_t _BIG_INTEGER = Extension.BIG_INTEGER
cdef uint8_t _TUPLE = Extension.TUPLE


cdef bint _may_collide(object key) except -1:
    cdef int overflow = 0
    if PyTuple_CheckExact(key):
        return True
    if PyLong_CheckExact(key):
        PyLong_AsLongLongAndOverflow(key, &overflow)
        return overflow != 0
    return False


include "_writer.pxi"
include "_reader.pxi"


def pack(value):
    """See the stub: `_codec.pyi`."""
    cdef _Writer writer = _Writer()
    writer.put_value(value, NULL, 0)
    return PyBytes_FromStringAndSize(<char *>writer.data, writer.used)


def unpack(raw):
    """See the stub: `_codec.pyi`."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(raw, &buffer, PyBUF_SIMPLE)
    try:
        return _unpack_bytes(<const uint8_t *>buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)


cdef object _unpack_bytes(const uint8_t *data, Py_ssize_t size):
    cdef _Reader reader = _Reader()
    cdef int was_enabled
    if size > _MAX_RAW_BYTES:
        raise _errors.DecodeError("TOO_LARGE", 0)
    reader.data = data
    reader.end = size
    # Nothing here makes garbage in cycles, so the cyclic collector could only cost.
    was_enabled = PyGC_Disable()
    try:
        value = reader.get_value(False)
        if reader.position != reader.end:
            reader.refuse("TRAILING_BYTES", reader.position)
    except ValueError:
        fault = _errors.DecodeError(reader.code, reader.at)
    else:
        return value
    finally:
        if was_enabled:
            PyGC_Enable()
    raise fault
