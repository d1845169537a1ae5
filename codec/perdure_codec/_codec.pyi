"""The compiled backend; the same promises as `perdure_codec.fallback`."""

def pack(value: object) -> bytes:
    """Turn a state into raw MessagePack, bit- and type-exact.

    Raises:
        EncodeError: With the path of the first thing that cannot be kept.
        RuntimeError: Another thread changed a container meanwhile.
    """

def unpack(raw: bytes | bytearray | memoryview) -> object:
    """Turn raw MessagePack into the value it stands for.

    Raises:
        DecodeError: The bytes are not exactly one value within the limits.
    """
