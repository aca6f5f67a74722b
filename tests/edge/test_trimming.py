"""Which turns may go: whatever the conversation, nothing is parted, and no more goes than must."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.edge import trimming

OPENAI, ANTHROPIC = "openai", "anthropic"


@dataclass
class Talk:
    """A conversation, and what its makers know of it."""

    shape: str
    messages: list[Any] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)  # a call and its result, by place
    said: list[int] = field(default_factory=list)  # where the user's own words are
    both: list[int] = field(default_factory=list)  # ... of these, beside results of tools

    def say(self, words: str = "do") -> None:
        self.said.append(len(self.messages))
        self.messages.append({"role": "user", "content": words})

    def system(self, role: str = "system") -> None:
        self.messages.append({"role": role, "content": "rules"})

    def work(self, words: str = "done") -> None:
        self.messages.append({"role": "assistant", "content": words})

    def call(
        self, idents: list[str], between: int = 0, *, words: bool = False, late: bool = False
    ) -> None:
        """Calls in one message, and their results, after so many messages of the system.

        `late`: after more of user and model as well.
        """
        at = len(self.messages)
        if self.shape == OPENAI:
            calls = [{"id": one, "type": "function", "function": {"name": "f"}} for one in idents]
            self.messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        else:
            blocks = [{"type": "tool_use", "id": one, "name": "f", "input": {}} for one in idents]
            self.messages.append({"role": "assistant", "content": blocks})
        for _ in range(between):
            self.system()
        if late:
            self.say()
            self.work()
        if self.shape == OPENAI:
            for one in idents:
                self.pairs.append((at, len(self.messages)))
                self.messages.append({"role": "tool", "tool_call_id": one, "content": "r"})
        else:
            self.pairs.append((at, len(self.messages)))
            results: list[Any] = [
                {"type": "tool_result", "tool_use_id": one, "content": "r"} for one in idents
            ]
            if words:
                self.said.append(len(self.messages))
                self.both.append(len(self.messages))
                results.append({"type": "text", "text": "and now?"})
            self.messages.append({"role": "user", "content": results})


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    talk = Talk(draw(st.sampled_from([OPENAI, ANTHROPIC])))
    idents = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)  # used again
    for step in draw(st.lists(st.sampled_from("susswwcccbl"), max_size=25)):
        match step:
            case "s":
                talk.system(draw(st.sampled_from(["system", "developer"])))
            case "u":
                talk.say()
            case "w":
                talk.work()
            case _:
                between = draw(st.integers(0, 1))
                talk.call(draw(idents), between, words=step == "b", late=step == "l")
    if draw(st.booleans()) or not talk.messages:
        talk.say()
    return talk


def run(coroutine: Any) -> Any:
    """What a coroutine that waits for nothing returns."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value


def least(talk: Talk, costs: list[int], limit: int, stride: int = 1) -> tuple[Any, list[Any], int]:
    """(what was found, the places it was found among, counts taken)."""
    cost = {id(one): tokens for one, tokens in zip(talk.messages, costs, strict=True)}
    counted = []

    async def count(cut: trimming.Cut) -> int:
        counted.append(cut)
        return sum(cost[id(one)] for one in trimming.kept(talk.messages, cut))

    sizes = [len(json.dumps(one)) for one in talk.messages]
    places = trimming.cuts(talk.messages, sizes, stride)
    if not places:
        return None, [], 0
    return run(trimming.least(places, limit, sum(costs), count)), places, len(counted)


def places_of(messages: list[Any], talk: Talk) -> set[int]:
    """Where in the conversation these messages are."""
    where = {id(one): at for at, one in enumerate(talk.messages)}
    found = [where[id(one)] for one in messages]
    assert found == sorted(set(found)), "in their order, and none twice"
    return set(found)


def role(message: Any) -> str:
    return str(message["role"])


@given(talks(), st.integers(1, 400))
def test_whatever_goes_nothing_is_parted(talk: Talk, stride: int) -> None:
    sizes = [len(json.dumps(one)) for one in talk.messages]
    before = set(range(len(talk.messages)))
    for cut in trimming.cuts(talk.messages, sizes, stride):
        left = trimming.kept(talk.messages, cut)
        stay = places_of(left, talk)
        assert stay < before, "each takes more than the one before, and nothing it left"
        gone = set(range(len(talk.messages))) - stay
        assert cut.gone == sum(sizes[at] for at in gone)
        for call, result in talk.pairs:
            assert (call in stay) == (result in stay)
        assert not {at for at in gone if role(talk.messages[at]) in {"system", "developer"}}
        assert len(talk.messages) - 1 in stay
        assert not talk.said or talk.said[-1] in stay, "the last that the user said"
        begins = [one for one in talk.messages if role(one) not in {"system", "developer"}]
        first = next(one for one in left if role(one) not in {"system", "developer"})
        if role(begins[0]) == "user" and begins[0]["content"] == "do":
            assert first["content"] == "do", "it begins with a request where it did"
        before = stay


@given(talks(), st.data())
def test_no_more_goes_than_must(talk: Talk, data: st.DataObject) -> None:
    costs = data.draw(
        st.lists(st.integers(0, 50), min_size=len(talk.messages), max_size=len(talk.messages))
    )
    limit = data.draw(st.integers(-1, max(0, sum(costs) - 1)))
    stride = data.draw(st.sampled_from([1, 1, 100, 500]))
    found, places, counts = least(talk, costs, limit, stride)
    if found is None:
        return
    assert counts <= trimming.MOST_COUNTS
    stay = places_of(trimming.kept(talk.messages, found.cut), talk)
    assert found.tokens == sum(costs[at] for at in stay)
    if found.tokens > limit:
        assert found.cut == places[-1], "nothing fits"
        return
    at = places.index(found.cut)
    if at:
        more = places_of(trimming.kept(talk.messages, places[at - 1]), talk)
        assert sum(costs[one] for one in more) > limit, "with what went last it would not fit"


def agent(rounds: int, shape: str = OPENAI) -> Talk:
    """One request and many calls, as agents work."""
    talk = Talk(shape)
    talk.system()
    talk.say()
    for _ in range(rounds):
        talk.call(["call_0"])
    return talk


@pytest.mark.parametrize("shape", [OPENAI, ANTHROPIC])
def test_an_agent_s_one_request_stays_and_its_old_calls_go(shape: str) -> None:
    talk = agent(50, shape)
    found, _, _ = least(talk, [1] * len(talk.messages), 12)
    left = trimming.kept(talk.messages, found.cut)
    assert left == [*talk.messages[:2], *talk.messages[-10:]]
    assert (found.tokens, found.cut.turns) == (12, 45)


def test_turns_go_with_all_their_results_and_are_counted_without_them() -> None:
    talk = agent(3)
    talk.work()
    talk.say("next")
    talk.call(["call_0", "call_1"])
    found, _, _ = least(talk, [1] * len(talk.messages), 5)
    assert trimming.kept(talk.messages, found.cut) == [talk.messages[0], *talk.messages[-4:]]
    assert found.cut.turns == 1 + 3 + 1


def test_words_beside_results_stay_with_the_call_they_stand_by() -> None:
    talk = Talk(ANTHROPIC)
    talk.say()
    talk.call(["a"])
    talk.call(["b"], words=True)  # the user broke in
    for _ in range(5):
        talk.call(["c"])
    _, places, _ = least(talk, [1] * len(talk.messages), 0)
    assert [cut.start for cut in places] == [3]


def test_a_history_that_grows_is_cut_where_it_was_cut_before() -> None:
    """Or the server would find nothing of it in its cache, turn after turn."""
    limit, where = 300, []
    for rounds in range(160, 240):
        talk = agent(rounds)
        stride = sum(len(json.dumps(one)) for one in agent(20).messages)
        found, _, counts = least(talk, [1] * len(talk.messages), limit, stride)
        assert limit - 2 * 21 <= found.tokens <= limit
        assert counts <= 6
        where.append(found.cut.start)
    assert len(set(where)) <= 80 // 20 + 1
    assert where == sorted(where)


@pytest.mark.parametrize("giant", [0, 1, 40, 75, 140, 149])
@pytest.mark.parametrize("part", [0.001, 0.5, 0.99])
def test_counts_stay_few_however_badly_bytes_foretell(giant: int, part: float) -> None:
    """All turns are alike in bytes, and nearly all tokens are in one of them."""
    talk = Talk(OPENAI)
    for _ in range(151):
        talk.say()
        talk.work()
    costs = [10_000 if at == 2 * giant else 1 for at in range(len(talk.messages))]
    limit = int(sum(costs) * part)
    found, places, counts = least(talk, costs, limit)
    assert (len(places), found.tokens <= limit) == (150, True)
    assert counts <= trimming.MOST_COUNTS
    at = places.index(found.cut)
    more = trimming.kept(talk.messages, places[at - 1])
    stay = {id(one) for one in more}
    weight = sum(c for c, one in zip(costs, talk.messages, strict=True) if id(one) in stay)
    assert not at or weight > limit


def test_results_without_ids_belong_to_the_last_that_the_model_said() -> None:
    talk = Talk(OPENAI)
    talk.say()
    talk.work()
    talk.say()
    talk.messages.append({"role": "assistant", "content": "", "function_call": {"name": "f"}})
    talk.say()
    talk.messages.append({"role": "function", "name": "f", "content": "r"})
    talk.say()
    _, places, _ = least(talk, [1] * len(talk.messages), 0)
    assert [cut.start for cut in places] == [2, 6]


def test_what_was_asked_in_several_messages_is_one_request() -> None:
    talk = Talk(OPENAI)
    talk.say()
    talk.work()
    talk.say("first")
    talk.say("second")
    talk.call(["a"])
    talk.call(["b"])
    _, places, _ = least(talk, [1] * len(talk.messages), 0)
    assert [(cut.start, cut.also) for cut in places] == [(2, ()), (6, (2, 3))]


@given(
    st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.sampled_from(["user", "tool", "a", ""]),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        [
                            "role",
                            "content",
                            "tool_calls",
                            "id",
                            "type",
                            "tool_use_id",
                            "tool_call_id",
                        ]
                    ),
                    inner,
                )
            ),
            max_leaves=8,
        ),
        max_size=8,
    )
)
def test_anything_a_client_may_send_is_cut_or_left(messages: list[Any]) -> None:
    for cut in trimming.cuts(messages, [1] * len(messages)):
        assert 0 < len(trimming.kept(messages, cut)) < len(messages)
