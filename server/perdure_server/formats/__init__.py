"""Native message formats: one module each, pure.

A format checks a provider's own object and derives role and blocks from it;
the object itself is never changed.
"""
