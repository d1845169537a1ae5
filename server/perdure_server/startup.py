"""The one error of a start that cannot work; __main__ prints it and exits."""

from __future__ import annotations


class StartupError(Exception):
    """A start-up that cannot work.

    The message is one line that says what is wrong and what to do about it. It
    never contains a password.
    """

    def __init__(self, message: str) -> None:
        """Take the line that the operator sees."""
        super().__init__(" ".join(message.split()))
