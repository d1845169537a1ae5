# The writer half of `_codec.pyx`, which includes this file.

cdef struct Step:
    # Where the writer is inside one container; linked through the C stack, so that
    # a path costs nothing until something is refused. `key` is NULL in a sequence.
    Step *outer
    PyObject *key
    Py_ssize_t index
    bint in_key


@cython.final
cdef class _Writer:
    cdef uint8_t *data
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity
    cdef Py_ssize_t items

    def __cinit__(self):
        self.capacity = 4096
        self.data = <uint8_t *>PyMem_Malloc(self.capacity)
        if self.data is NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int refuse(self, Step *step, reason) except -1:
        cdef list segments = []
        while step is not NULL:
            if step.key is NULL:
                segments.append(("index", step.index))
            elif step.in_key:
                segments.append(("key", step.index))
            else:
                segments.append(("member", <object>step.key))
            step = step.outer
        segments.reverse()
        raise _errors.EncodeError(render(segments), reason)

    cdef uint8_t *grow(self, Py_ssize_t size) except NULL:
        """Return room for `size` bytes at the end; `used` is already past them."""
        cdef Py_ssize_t at = self.used
        cdef Py_ssize_t capacity
        cdef uint8_t *data
        if size > self.capacity - at:
            capacity = max(2 * self.capacity, at + size)
            data = <uint8_t *>PyMem_Realloc(self.data, capacity)
            if data is NULL:
                raise MemoryError
            self.data = data
            self.capacity = capacity
        self.used = at + size
        return self.data + at

    cdef int put_head(self, uint8_t tag, uint64_t value, int size) except -1:
        """Write a tag and a big-endian number of `size` bytes."""
        cdef uint8_t *out = self.grow(1 + size)
        out[0] = tag
        store_big(out + 1, value, size)
        return 0

    cdef int put_value(self, object value, Step *step, Py_ssize_t depth) except -1:
        cdef bint in_key = step is not NULL and step.in_key
        if PyUnicode_CheckExact(value):
            self.put_text(value, step)
        elif value is None:
            self.put_head(0xC0, 0, 0)
        elif value is True:
            self.put_head(0xC3, 0, 0)
        elif value is False:
            self.put_head(0xC2, 0, 0)
        elif PyLong_CheckExact(value):
            self.put_integer(value, step)
        elif PyFloat_CheckExact(value):
            self.put_head(0xCB, bits_of_double(PyFloat_AS_DOUBLE(value)), 8)
        elif PyBytes_CheckExact(value):
            self.put_octets(value, step)
        elif PyTuple_CheckExact(value):
            self.put_tuple(value, step, depth)
        elif PyDict_CheckExact(value) and not in_key:
            self.put_mapping(value, step, depth)
        elif PyList_CheckExact(value) and not in_key:
            self.put_list(value, step, depth)
        else:
            self.refuse(step, _errors.reason_for_type(type(value), as_key=in_key))
        if self.used > _MAX_RAW_BYTES:
            self.refuse(step, _errors.REASON_TOO_LARGE)
        return 0

    cdef int put_text(self, object text, Step *step) except -1:
        cdef Py_ssize_t count = PyUnicode_GET_LENGTH(text)
        cdef Py_ssize_t size = count
        cdef void *data = PyUnicode_DATA(text)
        cdef int kind = PyUnicode_KIND(text)
        cdef uint8_t *out
        if count > _MAX_RAW_BYTES:
            self.refuse(step, _errors.REASON_TOO_LARGE)
        if PyUnicode_IS_COMPACT_ASCII(text):
            kind = 0
        elif kind == PyUnicode_1BYTE_KIND:
            size = utf8_size(<uint8_t *>data, count)
        elif kind == PyUnicode_2BYTE_KIND:
            size = utf8_size(<uint16_t *>data, count)
        else:
            size = utf8_size(<uint32_t *>data, count)
        if size < 0:
            self.refuse(step, _errors.REASON_SURROGATE)
        if size > _MAX_RAW_BYTES:
            self.refuse(step, _errors.REASON_TOO_LARGE)
        if size < 32:
            self.put_head(<uint8_t>(0xA0 | size), 0, 0)
        elif size < 0x100:
            self.put_head(0xD9, size, 1)
        elif size < 0x10000:
            self.put_head(0xDA, size, 2)
        else:
            self.put_head(0xDB, size, 4)
        out = self.grow(size)
        if kind == 0:
            memcpy(out, data, size)
        elif kind == PyUnicode_1BYTE_KIND:
            utf8_write(<uint8_t *>data, count, out)
        elif kind == PyUnicode_2BYTE_KIND:
            utf8_write(<uint16_t *>data, count, out)
        else:
            utf8_write(<uint32_t *>data, count, out)
        return 0

    cdef int put_octets(self, object value, Step *step) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value)
        if size > _MAX_RAW_BYTES:
            self.refuse(step, _errors.REASON_TOO_LARGE)
        if size < 0x100:
            self.put_head(0xC4, size, 1)
        elif size < 0x10000:
            self.put_head(0xC5, size, 2)
        else:
            self.put_head(0xC6, size, 4)
        memcpy(self.grow(size), PyBytes_AS_STRING(value), size)
        return 0

    cdef int put_integer(self, object value, Step *step) except -1:
        cdef int overflow = 0
        cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow > 0 and value < 2**64:
            self.put_head(0xCF, value, 8)
        elif overflow:
            self.put_big_integer(value, step)
        elif number >= 0:
            if number < 0x80:
                self.put_head(<uint8_t>number, 0, 0)
            elif number < 0x100:
                self.put_head(0xCC, number, 1)
            elif number < 0x10000:
                self.put_head(0xCD, number, 2)
            elif number < 0x100000000:
                self.put_head(0xCE, number, 4)
            else:
                self.put_head(0xCF, number, 8)
        elif number >= -0x20:
            self.put_head(<uint8_t>number, 0, 0)
        elif number >= -0x80:
            self.put_head(0xD0, number, 1)
        elif number >= -0x8000:
            self.put_head(0xD1, number, 2)
        elif number >= -<int64_t>0x80000000:
            self.put_head(0xD2, number, 4)
        else:
            self.put_head(0xD3, number, 8)
        return 0

    cdef int put_big_integer(self, object value, Step *step) except -1:
        cdef Py_ssize_t size
        cdef bytes data
        cdef uint8_t *out
        size = (value if value > 0 else ~value).bit_length() // 8 + 1
        if size > _MAX_RAW_BYTES:
            self.refuse(step, _errors.REASON_TOO_LARGE)
        data = value.to_bytes(size, "big", signed=True)
        if size == 16:
            self.put_head(0xD8, _BIG_INTEGER, 1)
        elif size < 0x100:
            self.put_head(0xC7, size << 8 | _BIG_INTEGER, 2)
        elif size < 0x10000:
            self.put_head(0xC8, size << 8 | _BIG_INTEGER, 3)
        else:
            self.put_head(0xC9, size << 8 | _BIG_INTEGER, 5)
        out = self.grow(size)
        memcpy(out, PyBytes_AS_STRING(data), size)
        return 0

    cdef int enter(self, Py_ssize_t items, Step *step, Py_ssize_t depth) except -1:
        if depth >= _MAX_DEPTH:
            self.refuse(step, _errors.REASON_TOO_DEEP)
        self.items += items
        if self.items > _MAX_ITEMS:
            self.refuse(step, _errors.REASON_TOO_MANY_ITEMS)
        return 0

    cdef int put_array_head(self, Py_ssize_t count) except -1:
        if count < 16:
            return self.put_head(<uint8_t>(0x90 | count), 0, 0)
        if count < 0x10000:
            return self.put_head(0xDC, count, 2)
        return self.put_head(0xDD, count, 4)

    cdef int put_tuple(self, tuple values, Step *step, Py_ssize_t depth) except -1:
        cdef Py_ssize_t count = PyTuple_GET_SIZE(values)
        cdef Py_ssize_t length_at = self.used + 1
        cdef Step here
        self.enter(count, step, depth)
        self.put_head(0xC9, _TUPLE, 5)
        self.put_array_head(count)
        here.outer = step
        here.in_key = step is not NULL and step.in_key
        here.key = NULL
        for here.index in range(count):
            item = <object>PyTuple_GET_ITEM(values, here.index)
            self.put_value(item, &here, depth + 1)
        store_big(self.data + length_at, self.used - length_at - 5, 4)
        return 0

    cdef int put_list(self, list values, Step *step, Py_ssize_t depth) except -1:
        cdef Py_ssize_t count = PyList_GET_SIZE(values)
        cdef Step here
        self.enter(count, step, depth)
        if count >= _MIN_VECTOR_ITEMS and self.put_vector(values, count):
            return 0
        self.put_array_head(count)
        here.outer = step
        here.in_key = False
        here.key = NULL
        here.index = 0
        while here.index < PyList_GET_SIZE(values):
            item = <object>PyList_GET_ITEM(values, here.index)
            self.put_value(item, &here, depth + 1)
            here.index += 1
        if here.index != count:
            raise RuntimeError("a list changed while it was encoded")
        return 0

    cdef int put_vector(self, list values, Py_ssize_t count) except -1:
        """Write the list as a float vector and return 1, or 0 if it is none."""
        cdef Py_ssize_t at
        cdef int width = 4
        cdef int padding
        cdef uint8_t *out
        cdef double number
        for at in range(count):
            if not PyFloat_CheckExact(<object>PyList_GET_ITEM(values, at)):
                return 0
            number = PyFloat_AS_DOUBLE(<object>PyList_GET_ITEM(values, at))
            if width == 4 and not fits_float32(number):
                width = 8
        padding = <int>(
            -(self.used + EXTENSION_32_BYTES + VECTOR_HEAD_BYTES) & (width - 1)
        )
        self.put_head(
            0xC9,
            <uint64_t>(VECTOR_HEAD_BYTES + padding + count * width) << 8
            | _FLOAT_VECTOR,
            5,
        )
        out = self.grow(VECTOR_HEAD_BYTES + padding + count * width)
        memset(out, 0, VECTOR_HEAD_BYTES + padding)
        out[0] = <uint8_t>width
        out[2] = <uint8_t>padding
        out += VECTOR_HEAD_BYTES + padding
        for at in range(count):
            number = PyFloat_AS_DOUBLE(<object>PyList_GET_ITEM(values, at))
            if width == 4:
                store_little(out + 4 * at, narrow_to_float32(number), 4)
            else:
                store_little(out + 8 * at, bits_of_double(number), 8)
        return 1

    cdef int put_mapping(self, dict values, Step *step, Py_ssize_t depth) except -1:
        cdef Py_ssize_t count = PyDict_Size(values)
        cdef Py_ssize_t at = 0
        cdef PyObject *key_pointer
        cdef PyObject *item_pointer
        cdef Step here
        self.enter(2 * count, step, depth)
        if count < 16:
            self.put_head(<uint8_t>(0x80 | count), 0, 0)
        elif count < 0x10000:
            self.put_head(0xDE, count, 2)
        else:
            self.put_head(0xDF, count, 4)
        if count > _MAX_EQUAL_HASHES and not _hashes_spread(values):
            self.refuse(step, _errors.REASON_COLLISIONS)
        here.outer = step
        here.index = 0
        while PyDict_Next(values, &at, &key_pointer, &item_pointer):
            key = <object>key_pointer
            item = <object>item_pointer
            here.key = key_pointer
            here.in_key = True
            self.put_value(key, &here, depth + 1)
            here.in_key = False
            self.put_value(item, &here, depth + 1)
            here.index += 1
        if here.index != count:
            raise RuntimeError("a dict changed while it was encoded")
        return 0


cdef bint _hashes_spread(dict values) except -1:
    """Check the bound on keys that share a hash; only unusual keys cost anything."""
    cdef Py_ssize_t at = 0
    cdef PyObject *key_pointer
    cdef PyObject *item_pointer
    cdef bint unusual = False
    while not unusual and PyDict_Next(values, &at, &key_pointer, &item_pointer):
        unusual = _may_collide(<object>key_pointer)
    if unusual:
        hashes = KeyHashes()
        for key in list(values):
            if _may_collide(key) and not hashes.add(key):
                return False
    return True
