"""Four bytes a token, whatever the prompt is made of."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.twin import tokenizer


@given(st.text())
def test_the_count_is_the_number_of_ids(text):
    prompt = text.encode()
    assert tokenizer.count(prompt) == len(tokenizer.ids(prompt)) == -(-len(prompt) // 4)


@given(st.lists(st.integers(0, 151_935)))
def test_token_ids_count_themselves_and_come_back(ids):
    prompt = tokenizer.from_ids(ids)
    assert tokenizer.count(prompt) == len(ids)
    assert tokenizer.ids(prompt) == ids


def test_generated_text_costs_what_it_says():
    assert tokenizer.count(tokenizer.text(3, 0, 50).encode()) == 50
    assert tokenizer.text(3, 0, 50) == tokenizer.text(3, 0, 20) + tokenizer.text(3, 20, 50)


@given(st.binary(max_size=200), st.binary(max_size=50), st.binary(max_size=50))
def test_equal_beginnings_have_equal_blocks_and_different_ones_have_not(start, left, right):
    one, two = tokenizer.blocks(start + left, 2), tokenizer.blocks(start + right, 2)
    shared = len(start) // 8
    assert one[:shared] == two[:shared]
    for a, b in zip(one, two, strict=False):
        if a != b:
            break
    else:
        shorter = min(len(one), len(two)) * 8
        assert (start + left)[:shorter] == (start + right)[:shorter]


def test_a_chat_counts_its_template_tools_and_images():
    messages = [{"role": "user", "content": "x" * 400}]
    bare = tokenizer.count(tokenizer.render(messages))
    assert 100 < bare < 112
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": "b" * 400}}}
    assert tokenizer.count(tokenizer.render(messages, [tool])) > bare + 100
    picture = [
        {"type": "text", "text": "x" * 400},
        {"type": "image_url", "image_url": {"url": "u"}},
    ]
    seen = tokenizer.count(tokenizer.render([{"role": "user", "content": picture}]))
    assert seen == bare + 256
