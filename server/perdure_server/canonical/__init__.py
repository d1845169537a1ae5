"""The canonical record: messages checked at the edge and projected for people.

Pure: bytes and messages in, values out. The stored body is never changed here.
"""
