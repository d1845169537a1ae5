"""How many agents are read together."""

from dataclasses import dataclass

from perdure_server.restore.grouping import GROUP_AGENTS, GROUP_BYTES, grouped


@dataclass(frozen=True)
class Chain:
    chain_bytes: int


def sizes(*chain_bytes: int) -> list[int]:
    return [len(group) for group in grouped([Chain(each) for each in chain_bytes])]


def test_small_agents_are_read_together_up_to_a_number() -> None:
    assert sizes(*[10] * (2 * GROUP_AGENTS + 1)) == [GROUP_AGENTS, GROUP_AGENTS, 1]


def test_a_group_ends_before_its_bytes_pass_the_limit() -> None:
    half = GROUP_BYTES // 2

    assert sizes(half, half, 1) == [2, 1]


def test_a_large_agent_is_read_alone_and_keeps_its_place() -> None:
    assert sizes(1, 3 * GROUP_BYTES, 1) == [1, 1, 1]


def test_nothing_makes_no_group() -> None:
    assert sizes() == []
