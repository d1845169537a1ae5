# cython: language_level=3
"""Numbers, UTF-8 and cache slots at the level of bytes; nothing here knows Python."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy


ctypedef fused code_unit:
    uint8_t
    uint16_t
    uint32_t


cdef inline void store_big(uint8_t *out, uint64_t value, int size) noexcept nogil:
    cdef int at
    for at in range(size):
        out[at] = <uint8_t>(value >> (8 * (size - 1 - at)))


cdef inline uint64_t load_big(const uint8_t *data, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int at
    for at in range(size):
        value = value << 8 | data[at]
    return value


cdef inline void store_little(uint8_t *out, uint64_t value, int size) noexcept nogil:
    cdef int at
    for at in range(size):
        out[at] = <uint8_t>(value >> (8 * at))


cdef inline uint64_t load_little(const uint8_t *data, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int at
    for at in range(size):
        value |= <uint64_t>data[at] << (8 * at)
    return value


cdef inline uint64_t bits_of_double(double value) noexcept nogil:
    cdef uint64_t bits
    memcpy(&bits, &value, 8)
    return bits


cdef inline double double_of_bits(uint64_t bits) noexcept nogil:
    cdef double value
    memcpy(&value, &bits, 8)
    return value


cdef inline uint32_t narrow_to_float32(double value) noexcept nogil:
    """Give the bits of a float32; NaNs not through the FPU, which may change them."""
    cdef uint64_t bits
    cdef float narrow
    cdef uint32_t narrow_bits
    if value != value:
        bits = bits_of_double(value)
        return <uint32_t>(
            (bits >> 32 & 0x80000000U) | 0x7F800000U | (bits >> 29 & 0x7FFFFFU)
        )
    narrow = <float>value
    memcpy(&narrow_bits, &narrow, 4)
    return narrow_bits


cdef inline double widen_float32(uint32_t narrow_bits) noexcept nogil:
    cdef float narrow
    memcpy(&narrow, &narrow_bits, 4)
    if narrow != narrow:
        return double_of_bits(
            (<uint64_t>(narrow_bits & 0x80000000U) << 32)
            | (<uint64_t>0x7FF << 52)
            | (<uint64_t>(narrow_bits & 0x7FFFFFU) << 29)
        )
    return narrow


cdef inline bint fits_float32(double value) noexcept nogil:
    cdef uint64_t bits = bits_of_double(value)
    if value != value:
        return (bits >> 51 & 1) and not bits & 0x1FFFFFFFU
    return bits_of_double(<double><float>value) == bits


cdef inline Py_ssize_t utf8_size(code_unit *text, Py_ssize_t count) noexcept nogil:
    """Count the bytes that the text needs, -1 if it holds a surrogate."""
    cdef Py_ssize_t size = count
    cdef Py_ssize_t at
    cdef uint32_t unit
    cdef uint32_t surrogates = 0
    for at in range(count):
        unit = text[at]
        size += unit >= 0x80
        if code_unit is not uint8_t:
            size += unit >= 0x800
            surrogates |= (unit - 0xD800) < 0x800
        if code_unit is uint32_t:
            size += unit >= 0x10000
    return -1 if surrogates else size


cdef inline void utf8_write(
    code_unit *text, Py_ssize_t count, uint8_t *out
) noexcept nogil:
    cdef Py_ssize_t at
    cdef uint32_t unit
    for at in range(count):
        unit = text[at]
        if unit < 0x80:
            out[0] = <uint8_t>unit
            out += 1
        elif unit < 0x800:
            out[0] = <uint8_t>(0xC0 | unit >> 6)
            out[1] = <uint8_t>(0x80 | unit & 0x3F)
            out += 2
        elif unit < 0x10000:
            out[0] = <uint8_t>(0xE0 | unit >> 12)
            out[1] = <uint8_t>(0x80 | unit >> 6 & 0x3F)
            out[2] = <uint8_t>(0x80 | unit & 0x3F)
            out += 3
        else:
            out[0] = <uint8_t>(0xF0 | unit >> 18)
            out[1] = <uint8_t>(0x80 | unit >> 12 & 0x3F)
            out[2] = <uint8_t>(0x80 | unit >> 6 & 0x3F)
            out[3] = <uint8_t>(0x80 | unit & 0x3F)
            out += 4


cdef inline bint is_ascii(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef uint64_t word
    cdef uint64_t seen = 0
    cdef uint8_t rest = 0
    cdef Py_ssize_t at = 0
    while at + 8 <= size:
        memcpy(&word, data + at, 8)
        seen |= word
        at += 8
    while at < size:
        rest |= data[at]
        at += 1
    return not (seen & <uint64_t>0x8080808080808080U or rest & 0x80)


cdef inline size_t text_slot(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    """Choose the cache slot of a text by its length, first and last bytes."""
    cdef uint64_t head = 0
    cdef uint64_t tail = 0
    if size >= 8:
        memcpy(&head, data, 8)
        memcpy(&tail, data + size - 8, 8)
    elif size >= 4:
        memcpy(&head, data, 4)
        memcpy(&tail, data + size - 4, 4)
    else:
        head = data[0]
        tail = <uint64_t>data[size >> 1] << 8 | data[size - 1]
    head = (head ^ tail << 1 ^ <uint64_t>size << 57) * <uint64_t>0x9E3779B97F4A7C15
    return <size_t>(head >> 56)
