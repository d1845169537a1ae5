import json
from itertools import pairwise
from pathlib import Path

import pytest

from perdure_cli.conversation_file import LineFault, parse_lines
from perdure_cli.demo.conversations import ConversationFileError, load_conversations

GOOD = b'{"id": "a", "messages": [{"role": "user", "content": "x"}]}\n'


def test_the_generator_writes_the_same_conversations_each_time() -> None:
    name, first = load_conversations(None, 200)
    assert name.startswith("generator")
    assert load_conversations(None, 200)[1] == first
    assert load_conversations(None, 20)[1] == first[:20]
    assert len({conversation.conversation_id for conversation in first}) == 200


def test_the_generated_conversations_differ_and_are_as_long_as_real_ones() -> None:
    conversations = load_conversations(None, 200)[1]
    assert len({json.dumps(c.messages[1:]) for c in conversations}) == 200
    lengths = [len(c.messages) for c in conversations]
    assert min(lengths) >= 10
    assert max(lengths) <= 60
    assert 15 <= sum(lengths) / 200 <= 40


def test_generated_turns_alternate_and_begin_with_the_customer() -> None:
    for conversation in load_conversations(None, 200)[1]:
        spoken = [m["role"] for m in conversation.messages if m.get("content")]
        talk = [role for role in spoken if role != "tool"]
        assert talk[:2] == ["system", "user"]
        assert talk[-1] == "assistant"
        assert all(a != b for a, b in pairwise(talk))


def test_a_file_gives_its_conversations_in_order(tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    path.write_bytes(GOOD + b"\n" + GOOD.replace(b'"a"', b'"b"').rstrip())
    name, conversations = load_conversations(path, 5)
    assert name == str(path)
    assert [c.conversation_id for c in conversations] == ["a", "b"]
    assert conversations[0].messages == [{"role": "user", "content": "x"}]
    assert len(load_conversations(path, 1)[1]) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON at column 2"),
        (b'{"id": "a"} x', "not JSON at column 13"),
        (b'{"id": "a", "messages": [NaN]}', "NaN is not JSON"),
        (b"[]", "not an object"),
        (b'{"messages": [{"role": "user"}]}', '"id"'),
        (b'{"id": 7, "messages": [{"role": "user"}]}', '"id"'),
        (b'{"id": "a"}', '"messages"'),
        (b'{"id": "a", "messages": []}', '"messages"'),
        (b'{"id": "a", "messages": ["x"]}', "messages[0]"),
        (b'{"id": "a", "messages": [{"role": "user"}, {}]}', "messages[1]"),
        (b'{"id": "a\xff", "messages": []}', "not UTF-8 at byte 10"),
        (b'{"id": "\\ud83d", "messages": []}', "lone surrogate"),
        (b'{"id": "a", "messages": ' + b"[" * 100_000, "nested too deep"),
    ],
)
def test_a_bad_line_is_a_fault_and_the_next_is_read(line: bytes, reason: str) -> None:
    fault, good = list(parse_lines([line + b"\n", GOOD]))
    assert isinstance(fault, LineFault)
    assert fault.line == 1
    assert reason in fault.reason
    assert not isinstance(good, LineFault)


def test_an_id_that_stands_twice_is_a_fault_that_names_both_lines() -> None:
    items = list(parse_lines([GOOD, b"\n", GOOD]))
    assert str(items[1]) == 'line 3: id "a" stands on line 1 already'


def test_a_byte_order_mark_before_the_first_line_is_no_fault() -> None:
    assert not isinstance(next(parse_lines([b"\xef\xbb\xbf" + GOOD])), LineFault)


def test_a_file_with_bad_lines_is_refused_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(GOOD + b"{\n" * 12)
    with pytest.raises(ConversationFileError) as caught:
        load_conversations(path, 5)
    told = str(caught.value).splitlines()
    assert told[0].startswith(f"{path}: line 2: not JSON")
    assert told[-1] == f"{path}: 2 more faulty lines"


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_a_file_without_conversations_is_refused(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConversationFileError, match="no conversation"):
        load_conversations(path, 5)


def test_a_file_that_is_missing_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConversationFileError, match=r"gone.jsonl: No such file"):
        load_conversations(tmp_path / "gone.jsonl", 5)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversationFileError, match="directory"):
        load_conversations(tmp_path, 5)
