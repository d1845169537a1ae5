# The reader half of `_codec.pyx`, which includes this file.

@cython.final
cdef class _Reader:
    cdef const uint8_t *data
    cdef Py_ssize_t position
    cdef Py_ssize_t end
    cdef Py_ssize_t items
    cdef Py_ssize_t depth
    cdef str code
    cdef Py_ssize_t at
    cdef PyObject *texts[KEY_SLOTS]

    def __dealloc__(self):
        cdef int slot
        for slot in range(KEY_SLOTS):
            Py_XDECREF(self.texts[slot])

    cdef object refuse(self, str code, Py_ssize_t at):
        """Note the fault; `unpack` raises it once the collector is on again."""
        self.code = code
        self.at = at
        raise ValueError

    cdef Py_ssize_t take(self, Py_ssize_t at, Py_ssize_t size) except -1:
        cdef Py_ssize_t start = self.position
        if size > self.end - start:
            self.refuse("TRUNCATED", at)
        self.position = start + size
        return start

    cdef uint64_t number(self, Py_ssize_t at, int size) except? 0:
        return load_big(self.data + self.take(at, size), size)

    cdef object get_value(self, bint in_key):
        cdef Py_ssize_t at = self.position
        cdef uint8_t tag
        if at >= self.end:
            self.refuse("TRUNCATED", at)
        tag = self.data[at]
        self.position = at + 1
        if tag < 0x80:
            return tag
        if tag < 0x90:
            return self.get_mapping(at, tag & 0x0F, in_key)
        if tag < 0xA0:
            return self.get_list(at, tag & 0x0F, in_key)
        if tag < 0xC0:
            return self.get_text(at, tag & 0x1F)
        if tag >= 0xE0:
            return <int>tag - 0x100
        if tag == 0xC0:
            return None
        if tag == 0xC2:
            return False
        if tag == 0xC3:
            return True
        if tag == 0xCB:
            return PyFloat_FromDouble(double_of_bits(self.number(at, 8)))
        if tag == 0xCA:
            return PyFloat_FromDouble(widen_float32(<uint32_t>self.number(at, 4)))
        if 0xCC <= tag <= 0xCF:
            return self.number(at, 1 << (tag - 0xCC))
        return self.get_sized(at, tag, in_key)

    cdef object get_sized(self, Py_ssize_t at, uint8_t tag, bint in_key):
        cdef Py_ssize_t size
        if tag == 0xD0:
            return <signed char>self.number(at, 1)
        if tag == 0xD1:
            return <short>self.number(at, 2)
        if tag == 0xD2:
            return <int>self.number(at, 4)
        if tag == 0xD3:
            return <int64_t>self.number(at, 8)
        if 0xD9 <= tag <= 0xDB:
            return self.get_text(at, self.number(at, 1 << (tag - 0xD9)))
        if 0xC4 <= tag <= 0xC6:
            size = self.number(at, 1 << (tag - 0xC4))
            return PyBytes_FromStringAndSize(
                <char *>self.data + self.take(at, size), size
            )
        if tag == 0xDC or tag == 0xDD:
            return self.get_list(at, self.number(at, 2 << (tag - 0xDC)), in_key)
        if tag == 0xDE or tag == 0xDF:
            return self.get_mapping(at, self.number(at, 2 << (tag - 0xDE)), in_key)
        if 0xC7 <= tag <= 0xC9:
            size = self.number(at, 1 << (tag - 0xC7))
            return self.get_extension(at, size, in_key)
        if 0xD4 <= tag <= 0xD8:
            return self.get_extension(at, 1 << (tag - 0xD4), in_key)
        return self.refuse("UNUSED_TAG", at)

    cdef object get_text(self, Py_ssize_t at, Py_ssize_t size):
        cdef const uint8_t *data = self.data + self.take(at, size)
        cdef PyObject *found
        cdef size_t slot
        cdef object text
        if size == 0:
            return ""
        if size <= MAX_CACHED_BYTES:
            slot = text_slot(data, size)
            found = self.texts[slot]
            if (
                found is not NULL
                and PyUnicode_GET_LENGTH(<object>found) == size
                and memcmp(PyUnicode_DATA(<object>found), data, size) == 0
            ):
                return <object>found
        if not is_ascii(data, size):
            self.code = "INVALID_UTF8"
            self.at = at
            return PyUnicode_DecodeUTF8(<const char *>data, size, NULL)
        text = PyUnicode_New(size, 127)
        memcpy(PyUnicode_DATA(text), data, size)
        if size <= MAX_CACHED_BYTES:
            Py_XDECREF(self.texts[slot])
            Py_INCREF(text)
            self.texts[slot] = <PyObject *>text
        return text

    cdef int enter(
        self, Py_ssize_t at, Py_ssize_t items, Py_ssize_t least_bytes
    ) except -1:
        """Check the bounds of a container before anything of it is built."""
        if self.depth >= _MAX_DEPTH:
            self.refuse("TOO_DEEP", at)
        self.items += items
        if self.items > _MAX_ITEMS:
            self.refuse("TOO_MANY_ITEMS", at)
        if least_bytes > self.end - self.position:
            self.refuse("TRUNCATED", at)
        self.depth += 1
        return 0

    cdef object get_list(self, Py_ssize_t at, Py_ssize_t count, bint in_key):
        cdef list values
        cdef Py_ssize_t index
        cdef object item
        if in_key:
            self.refuse("INVALID_KEY", at)
        self.enter(at, count, count)
        values = PyList_New(count)
        for index in range(count):
            item = self.get_value(False)
            Py_INCREF(item)
            PyList_SET_ITEM(values, index, item)
        self.depth -= 1
        return values

    cdef object get_mapping(self, Py_ssize_t at, Py_ssize_t count, bint in_key):
        cdef dict values
        cdef Py_ssize_t index
        cdef object hashes = None
        if in_key:
            self.refuse("INVALID_KEY", at)
        self.enter(at, 2 * count, 2 * count)
        values = {}
        for index in range(count):
            key = self.get_value(True)
            if count > _MAX_EQUAL_HASHES and _may_collide(key):
                hashes = self.note(key, hashes, at)
            PyDict_SetItem(values, key, self.get_value(False))
        if PyDict_Size(values) != count:
            self.refuse("DUPLICATE_KEY", at)
        self.depth -= 1
        return values

    cdef object note(self, object key, object hashes, Py_ssize_t at):
        """Count the key's hash before the dict has to compare it with its equals."""
        if hashes is None:
            hashes = KeyHashes()
        if not hashes.add(key):
            self.refuse("TOO_MANY_COLLISIONS", at)
        return hashes

    cdef object get_extension(self, Py_ssize_t at, Py_ssize_t size, bint in_key):
        cdef uint8_t code = self.data[self.take(at, 1)]
        cdef Py_ssize_t start = self.take(at, size)
        if code == _FLOAT_VECTOR:
            if in_key:
                self.refuse("INVALID_KEY", at)
            return self.get_vector(at, start, size)
        if code == _TUPLE:
            return self.get_tuple(at, start, size, in_key)
        if code == _BIG_INTEGER:
            return self.get_big_integer(at, start, size)
        return self.refuse("UNKNOWN_EXTENSION", at)

    cdef object get_big_integer(self, Py_ssize_t at, Py_ssize_t start, Py_ssize_t size):
        cdef Py_ssize_t shortest
        data = PyBytes_FromStringAndSize(<char *>self.data + start, size)
        value = int.from_bytes(data, "big", signed=True)
        shortest = (value if value > 0 else ~value).bit_length() // 8 + 1
        if -(2**63) <= value < 2**64 or size != shortest:
            self.refuse("INVALID_EXTENSION", at)
        return value

    cdef object get_tuple(
        self, Py_ssize_t at, Py_ssize_t start, Py_ssize_t size, bint in_key
    ):
        cdef Py_ssize_t outer_end = self.end
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t index
        cdef object item
        cdef uint8_t tag = self.data[start] if size else 0
        cdef tuple values
        self.end = start + size
        self.position = start + 1
        if 0x90 <= tag < 0xA0:
            count = tag & 0x0F
        elif tag == 0xDC or tag == 0xDD:
            count = self.number(at, 2 << (tag - 0xDC))
        else:
            self.refuse("INVALID_EXTENSION", at)
        self.enter(at, count, count)
        values = PyTuple_New(count)
        for index in range(count):
            item = self.get_value(in_key)
            Py_INCREF(item)
            PyTuple_SET_ITEM(values, index, item)
        if self.position != self.end:
            self.refuse("INVALID_EXTENSION", at)
        self.end = outer_end
        self.depth -= 1
        return values

    cdef object get_vector(self, Py_ssize_t at, Py_ssize_t start, Py_ssize_t size):
        cdef const uint8_t *data = self.data + start
        cdef Py_ssize_t count
        cdef Py_ssize_t index
        cdef object item
        cdef int width
        cdef int padding
        cdef list values
        if size < VECTOR_HEAD_BYTES or (data[0] != 4 and data[0] != 8) or data[1]:
            self.refuse("INVALID_EXTENSION", at)
        width = data[0]
        padding = data[2]
        size -= VECTOR_HEAD_BYTES + padding
        if (
            size < 0
            or size & (width - 1)
            or padding != (-(start + VECTOR_HEAD_BYTES) & (width - 1))
        ):
            self.refuse("INVALID_EXTENSION", at)
        data += VECTOR_HEAD_BYTES
        for index in range(padding):
            if data[index]:
                self.refuse("INVALID_EXTENSION", at)
        data += padding
        count = size // width
        self.enter(at, count, 0)
        values = PyList_New(count)
        for index in range(count):
            if width == 4:
                item = widen_float32(<uint32_t>load_little(data + 4 * index, 4))
            else:
                item = double_of_bits(load_little(data + 8 * index, 8))
            Py_INCREF(item)
            PyList_SET_ITEM(values, index, item)
        self.depth -= 1
        return values
