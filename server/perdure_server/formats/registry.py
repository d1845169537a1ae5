"""The formats that this server knows, by name."""

from perdure_server.formats import chat_completions
from perdure_server.formats.derived import Format


def find_format(name: str) -> Format | None:
    """Return the format of this name, None for one that is only kept."""
    return _FORMATS.get(name)


_FORMATS: dict[str, Format] = {
    chat_completions.FORMAT: chat_completions.ChatCompletions()
}
