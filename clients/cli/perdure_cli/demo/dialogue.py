"""One dialogue in the making: Chat Completions messages in order."""

import json
from random import Random
from typing import Any, Final

_ID_CHARACTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"

JsonObject = dict[str, Any]


class Dialogue:
    """Collects the messages of one conversation.

    Args:
        chance: Source of every choice, seeded by the caller.
        system: The system prompt.
    """

    def __init__(self, chance: Random, system: str) -> None:
        self.chance = chance
        self.messages: list[JsonObject] = [{"role": "system", "content": system}]

    def user(self, *wordings: str) -> None:
        """Let the customer say one of the wordings."""
        self.messages.append({"role": "user", "content": self.chance.choice(wordings)})

    def agent(self, *wordings: str) -> None:
        """Let the agent answer with one of the wordings."""
        content = self.chance.choice(wordings)
        self.messages.append({"role": "assistant", "content": content})

    def agent_goes_on(self, *wordings: str) -> None:
        """Add one of the wordings to what the agent just said, or let it answer."""
        if self.messages[-1]["role"] == "assistant":
            self.messages[-1]["content"] += " " + self.chance.choice(wordings)
        else:
            self.agent(*wordings)

    def call(self, name: str, arguments: JsonObject, result: object) -> None:
        """Let the agent call one tool and get its result."""
        self.call_together([(name, arguments, result)])

    def call_together(self, calls: list[tuple[str, JsonObject, object]]) -> None:
        """Let the agent call several tools in one message."""
        ids = [self._call_id() for _ in calls]
        tool_calls = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for call_id, (name, arguments, _) in zip(ids, calls, strict=True)
        ]
        self.messages.append(
            {"role": "assistant", "content": None, "tool_calls": tool_calls}
        )
        for call_id, (name, _, result) in zip(ids, calls, strict=True):
            text = result if isinstance(result, str) else _compact(result)
            self.messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call_id,
                    "name": name,
                    "content": text,
                }
            )

    def _call_id(self) -> str:
        return "call_" + "".join(self.chance.choices(_ID_CHARACTERS, k=20))


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
