"""Where an exception came from, without what it says.

Messages of the database and of parsers quote the values that they refuse, and a log
holds no stored content.
"""

import traceback


def stack_of(exc: BaseException) -> str:
    """Return types and frames of an exception, its causes and its group."""
    kind = f"{type(exc).__module__}.{type(exc).__qualname__}"
    sqlstate = getattr(exc, "sqlstate", None)
    lines = [f"{kind} {sqlstate}" if sqlstate else kind, "\n"]
    lines += traceback.format_tb(exc.__traceback__)
    within = exc.exceptions if isinstance(exc, BaseExceptionGroup) else ()
    for other in (exc.__cause__ or exc.__context__, *within):
        if other is not None:
            lines.append(stack_of(other))
    return "".join(lines)
