"""The conversations that the demo replays: of a file, else of the generator."""

from pathlib import Path
from typing import Final

from perdure_cli.conversation_file import (
    LineFault,
    SourceConversation,
    parse_lines,
    read_lines,
)
from perdure_cli.demo.scenarios import write_dialogue

SEED: Final = 7401
MAX_FAULTS: Final = 10
"""Faults told of one file; the rest are counted."""

__all__ = ["ConversationFileError", "SourceConversation", "load_conversations"]


class ConversationFileError(Exception):
    """A file cannot be used. The text names each fault with its line."""


def load_conversations(
    path: Path | None, count: int
) -> tuple[str, list[SourceConversation]]:
    """Return the name of the source and its first conversations.

    Args:
        path: A JSONL file. None: the generator writes them, the same each time.
        count: How many to return; a file with fewer gives what it has.

    Raises:
        ConversationFileError: The file cannot be read or has a faulty line before
            the last conversation that is wanted.
    """
    if path is None:
        written = [
            SourceConversation(f"rail-{index:04}", write_dialogue(SEED, index))
            for index in range(count)
        ]
        return f"generator (seed {SEED})", written
    return str(path), _load_file(path, count)


def _load_file(path: Path, count: int) -> list[SourceConversation]:
    conversations: list[SourceConversation] = []
    faults: list[LineFault] = []
    try:
        for item in parse_lines(read_lines(path)):
            if isinstance(item, LineFault):
                faults.append(item)
            else:
                conversations.append(item)
            if len(conversations) >= count:
                break
    except OSError as exc:
        raise ConversationFileError(f"{path}: {exc.strerror or exc}") from exc
    if faults:
        told = [f"{path}: {fault}" for fault in faults[:MAX_FAULTS]]
        if len(faults) > MAX_FAULTS:
            told.append(f"{path}: {len(faults) - MAX_FAULTS} more faulty lines")
        raise ConversationFileError("\n".join(told))
    if not conversations:
        raise ConversationFileError(f"{path}: holds no conversation")
    return conversations
