"""What of a body is a turn, whatever a client sent."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.edge.dialects.ollama import OllamaChat, OllamaGenerate
from gateway.edge.dialects.responses import Responses
from gateway.edge.talks import talk
from gateway.tokens.responses import chat_from_responses

USER = {"role": "user", "content": "do"}
SAID = {"type": "message", "role": "assistant", "content": "done"}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}


def call(ident: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": ident, "name": "f", "arguments": "{}"}


def result(ident: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": ident, "output": "r"}


def places(body: dict[str, Any], dialect: Any = Responses) -> list[Any]:
    """What is left of a body at each place where it may be cut."""
    found = talk(dialect().read(body), body)
    assert found is not None
    return [found.less(cut) for cut in found.cuts(1)]


def test_what_the_model_did_in_a_row_is_one_turn_as_the_engine_has_it() -> None:
    items = [USER, THOUGHT, SAID, call("a"), call("b"), result("b"), result("a"), SAID, USER]
    body = {"input": items, "instructions": "brief", "seed": 3}
    left = places(body)
    assert [one["input"] for one in left] == [[USER, SAID, USER], [USER]]
    assert all(one == {**body, "input": one["input"]} for one in left)
    intent = Responses().read(body)
    found = talk(intent, body)
    assert found is not None
    assert len(found.messages) == len(chat_from_responses({"input": items})["messages"])


def test_a_result_that_comes_late_keeps_its_call() -> None:
    items = [USER, SAID, USER, call("a"), USER, SAID, result("a"), SAID, USER]
    left = [one["input"] for one in places({"input": items})]
    assert left == [items[2:], [USER, SAID, USER], [USER]], "not between the call and its result"


def test_rules_stay_where_they_were() -> None:
    rules = {"role": "developer", "content": "kind"}
    assert [one["input"] for one in places({"input": [USER, rules, SAID, USER]})] == [[rules, USER]]


@given(
    st.lists(
        st.one_of(
            st.sampled_from([USER, SAID, THOUGHT, call("a"), result("a"), call(7), result([])]),
            st.none(),
            st.text(),
            st.fixed_dictionaries(
                {},
                optional={
                    "type": st.one_of(st.text(), st.lists(st.none())),
                    "role": st.integers(0, 9),
                },
            ),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_odd_items_are_the_engine_s_to_judge_and_none_is_lost(items: list[Any]) -> None:
    body = {"input": items}
    found = talk(Responses().read(body), body)
    assert found is not None
    assert [one for part in found.parts for one in part] == items
    for cut in found.cuts(1):
        left = found.less(cut)["input"]
        assert left[-1] == items[-1]
        assert 0 < len(left) < len(items)


def test_ollama_s_messages_stay_as_they_came() -> None:
    named = [{"function": {"name": "f", "arguments": {}}}]
    answer = {"role": "assistant", "content": "", "tool_calls": named, "thinking": "hm"}
    came = {"role": "tool", "tool_name": "f", "content": "r", "images": []}
    messages = [USER, answer, came, USER, {"role": "assistant", "content": "x"}, USER]
    left = places({"messages": messages, "options": {}}, OllamaChat)
    assert [one["messages"] for one in left] == [messages[3:], messages[5:]]
    assert all(one["options"] == {} for one in left)


def test_a_prompt_is_no_conversation_whatever_stands_beside_it() -> None:
    body = {"prompt": "do", "system": "brief", "messages": [USER, SAID, USER]}
    assert talk(OllamaGenerate().read(body), body) is None
    assert talk(OllamaGenerate().read(body | {"raw": True, "system": ""}), body) is None
    assert talk(Responses().read({"input": "do"}), {"input": "do"}) is None
