"""Which body the engine gets, and that the ledger knows the same numbers."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from tests.edge.rig import CHAT, GENERATE, TEXT, chat

ROOM, REFUSED, AUTO = "all that is left", "a 400", "the default"

# What is sent as the cap → what the engine is told on chat.
ODD: list[tuple[str, Any, Any]] = [
    ("null", "null", AUTO),
    ("zero", "0", AUTO),
    ("-1", "-1", AUTO),
    ("-950", "-950", REFUSED),
    ("text 40", '"40"', 40),
    ("text -1", '"-1"', AUTO),
    ("40.0", "40.0", 40),
    ("40.5", "40.5", REFUSED),
    ("1e9", "1e9", ROOM),
    ("2**63", str(2**63), ROOM),
    ("2**64", str(2**64), ROOM),
    ("1e999", "1e999", REFUSED),
    ("list", "[]", REFUSED),
    ("object", "{}", REFUSED),
    ("true", "true", REFUSED),
    ("false", "false", REFUSED),
    ("word", '"abc"', REFUSED),
    ("empty", '""', REFUSED),
    ("arabic digits", '"٤٠"', REFUSED),
    ("long text", '"' + "9" * 5000 + '"', REFUSED),
    ("NaN", "NaN", REFUSED),
    ("40", "40", 40),
    ("one", "1", 1),
]


def body_with(body: dict[str, Any], field: str, value: str) -> bytes:
    """A body with `value`, which is JSON text or nearly so, under `field`."""
    return json.dumps(body | {field: "@"}).replace('"@"', value).encode()


async def _room(rig) -> int:
    """The largest cap for a prompt of 20 tokens here."""
    limits = rig.app.gate.view().pools[0].limits
    return limits.kv_tokens - 20 - limits.page


@pytest.mark.parametrize("version", ["0.5.6", "0.5.17"])
async def test_a_cap_of_any_type_is_a_number_or_a_400(start, version: str) -> None:
    """Class L, the table in `guard`; class A: what is forwarded is what is reserved."""
    async with start(version=version) as rig:
        room = await _room(rig)
        for name, text, wanted in ODD:
            for field in ("max_tokens", "max_completion_tokens"):
                before = len(rig.engine.seen)
                ids = {"input_ids": list(range(20))} if version == "0.5.6" else {}
                got = await rig.post(CHAT, body_with(chat() | ids, field, text))
                case = f"{field}: {name} on {version}"
                if wanted is REFUSED:
                    assert (got.status, got.code) == (400, "invalid_request"), case
                    assert got.headers["x-should-retry"] == "false", case
                    assert len(rig.engine.seen) == before, case
                    continue
                assert got.status == 200, case
                told = rig.engine.seen[-1].body
                other = {"max_tokens", "max_completion_tokens"} - {field}
                assert not other & told.keys(), f"{case}: a second field"
                cap = told[field]
                assert isinstance(cap, int), case
                record = rig.records[0]
                assert cap == record["cap_forwarded"], case
                assert record["kv_reserved"] == 20 + cap + 1, case
                assert got.headers["x-kvgate-max-tokens"] == str(cap), case
                if wanted is AUTO:
                    assert record["cap_source"] == "injected", case
                    assert got.headers["x-kvgate-clamped-from"] == "none", case
                elif wanted is ROOM:
                    assert cap == room, case
                    assert record["cap_source"] == "clamped", case
                    assert int(got.headers["x-kvgate-clamped-from"]) > room, case
                else:
                    assert (cap, record["cap_source"]) == (wanted, "asked"), case
                    assert "x-kvgate-clamped-from" not in got.headers, case


@pytest.mark.parametrize(
    ("version", "binding"), [("0.5.6", "max_tokens"), ("0.5.17", "max_completion_tokens")]
)
async def test_of_two_caps_the_smaller_counts_and_the_binding_field_carries_it(
    start, version: str, binding: str
) -> None:
    """Class L: whichever field the server obeys, it cannot make more than was reserved."""
    async with start(version=version) as rig:
        for old, new, wanted in [(100_000, 50, 50), (50, 100_000, 50), (0, 7, 7), (None, 7, 7)]:
            ids = {"input_ids": list(range(20))} if version == "0.5.6" else {}
            got = await rig.chat(**ids, max_tokens=old, max_completion_tokens=new)
            assert got.status == 200
            told = rig.engine.seen[-1].body
            assert {k: v for k, v in told.items() if k.startswith("max_")} == {binding: wanted}


@pytest.mark.parametrize(
    ("text", "cap"),
    [
        ("null", 16), ("-1", 16), ("0", 0), ('"7"', 7), ("7.0", 7), ("-2", None), ("true", None),
        ("[]", None), ("1e9", 2005), ("9", 9),
    ],
)  # fmt: skip
async def test_caps_of_text_completions(rig, text: str, cap: int | None) -> None:
    """0 stays 0 (scoring with echo); absent and -1 are the endpoint's own 16."""
    body = body_with({"model": "tiny", "prompt": list(range(20))}, "max_tokens", text)
    got = await rig.post(TEXT, body)
    if cap is None:
        assert got.status == 400
        assert rig.engine.seen == []
        return
    assert got.status == 200
    assert rig.engine.seen[0].body["max_tokens"] == min(cap, await _room(rig))


async def test_absent_caps(rig) -> None:
    """Class A: an absent cap is always given a number, on every endpoint."""
    await rig.post(TEXT, {"prompt": "a b c"})
    assert rig.engine.seen[-1].body["max_tokens"] == 16
    await rig.post(GENERATE, {"text": "a b c"})
    assert rig.engine.seen[-1].body["sampling_params"] == {"max_new_tokens": 128}
    got = await rig.chat()
    cap = rig.engine.seen[-1].body["max_tokens"]
    assert got.headers["x-kvgate-max-tokens"] == str(cap)
    assert cap <= rig.app.gate.view().pools[0].limits.kv_tokens // 4


@pytest.mark.parametrize(
    ("body", "prompts", "sequences"),
    [
        ({"prompt": "a b c", "n": 3}, 9, 3),
        ({"prompt": ["a b", "a b c d"]}, 6, 2),
        ({"prompt": ["a b", "a b c d"], "n": "2"}, 12, 4),
        ({"prompt": [1, 2, 3]}, 3, 1),
        ({"prompt": [[1, 2, 3], [4]], "n": 2.0}, 8, 4),
    ],
)
async def test_prompt_lists_and_n_are_charged_in_full(
    rig, body: dict[str, Any], prompts: int, sequences: int
) -> None:
    """Class B and G: every prompt times n reaches the ledger."""
    got = await rig.post(TEXT, body | {"max_tokens": 5})
    assert got.status == 200, got.body
    assert rig.records[0]["kv_reserved"] == prompts + sequences * 6


@pytest.mark.parametrize(
    ("body", "caps", "reserved"),
    [
        ({"text": "a b", "sampling_params": {"max_new_tokens": 7}}, [7], 2 + 8),
        ({"text": "a b", "sampling_params": {"max_new_tokens": None}}, [128], 2 + 129),
        ({"text": "a b", "sampling_params": {"max_new_tokens": 999_999}}, [2023], 2 + 2024),
        ({"text": ["a", "b c"], "sampling_params": {"max_new_tokens": 7}}, [7], 3 + 2 * 8),
        ({"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 7, "n": 2}}, [7], 6 + 16),
    ],
)  # fmt: skip
async def test_generate_batches_and_their_sampling_params(
    rig, body: dict[str, Any], caps: list[int], reserved: int
) -> None:
    got = await rig.post(GENERATE, body)
    sent = rig.engine.seen[0].body if rig.engine.seen else None
    assert sent is not None, got.body
    params = sent["sampling_params"]
    many = params if isinstance(params, list) else [params]
    assert [one["max_new_tokens"] for one in many] == caps
    assert rig.records[0]["kv_reserved"] == reserved


async def test_a_batch_gets_one_id_for_each_prompt_all_with_our_beginning(rig) -> None:
    await rig.post(GENERATE, {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 1}})
    rids = rig.engine.seen[0].body["rid"]
    assert len(set(rids)) == 2
    assert all(rid.startswith(rig.records[0]["id"]) for rid in rids)


STRIPPED: dict[str, Any] = {
    "rid": "x",
    "priority": 9,
    "bootstrap_host": "h",
    "bootstrap_port": 1,
    "bootstrap_room": 2,
    "data_parallel_rank": 3,
    "routed_dp_rank": 3,
    "return_hidden_states": True,
    "return_routed_experts": True,
    "disagg_prefill_dp_rank": 1,
    "encoder_urls": ["http://10.0.0.1"],
    "kv_router_hint": {"source_control_endpoint": "http://10.0.0.1"},
    "kv_hints": {"protocol_version": 1, "actions": []},
    "token_indices_to_pool": [10**6],
    "decision_layout": [1],
    "http_worker_ipc": "ipc:///tmp/x",
    "need_wait_for_mm_inputs": True,
    "received_time": 1.0,
    "custom_labels": {"a": "b"},
    "background": True,
    "mm_hashes": ["00"],
}


@pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE])
async def test_fields_no_client_may_set_are_removed_and_the_rest_passes(rig, path: str) -> None:
    """Class P: a unique id of ours for each request; everything unknown is left alone."""
    odd = {"x_unknown": {"a": [1, 2.5, None, "ü\u2028"]}, "temperature": 0.25, "user": "u"}
    body = {CHAT: chat(), TEXT: {"prompt": "a"}, GENERATE: {"text": "a"}}[path]
    for _ in range(2):
        assert (await rig.post(path, body | STRIPPED | odd)).status == 200
    first, second = (seen.body for seen in rig.engine.seen)
    assert not (STRIPPED.keys() - {"rid"}) & first.keys()
    assert odd.items() <= first.items()
    assert first["rid"] != second["rid"]
    assert len(first["rid"]) == len(second["rid"]) == 32
    assert "x" not in first["rid"]


@pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session_params", {"id": "s"}),
        ("custom_logit_processor", "code"),
        ("lora_path", "a"),
        ("lora_id", "a"),
        ("beam_width", 8),
        ("positional_embed_overrides", {"a": 1}),
        ("regex", ""),
        ("ebnf", ""),
        ("chat_template_kwargs", {"chat_template": "{{ x }}"}),
    ],
)
async def test_fields_that_are_refused_name_themselves(rig, path: str, field: str, value) -> None:
    """Class C: an empty grammar hangs the engine. Class P: nothing that steps past the ledger."""
    body = {CHAT: chat(), TEXT: {"prompt": "a"}, GENERATE: {"text": "a"}}[path]
    got = await rig.post(path, body | {field: value})
    assert (got.status, got.code, got.error["param"]) == (400, "invalid_request", field)
    assert rig.engine.seen == []


async def test_an_empty_grammar_in_sampling_params_is_refused(rig) -> None:
    body = {"text": "a", "sampling_params": {"regex": ""}}
    assert (await rig.post(GENERATE, body)).status == 400


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        (CHAT, chat(max_tokens=10, min_tokens=50), "min_tokens"),
        (CHAT, chat(max_tokens=99_999, min_tokens=50_000), "min_tokens"),
        (TEXT, {"prompt": "a", "min_tokens": "50"}, "min_tokens"),
    ],
)
async def test_a_minimum_is_never_above_the_cap(rig, path: str, body, where: str) -> None:
    """The engine refuses such a request, and the gate lowered the cap: so it lowers both."""
    assert (await rig.post(path, body)).status == 200
    sent = rig.engine.seen[0].body
    assert sent[where] == sent["max_tokens"]


async def test_a_minimum_is_never_above_the_cap_on_generate(rig) -> None:
    params = {"max_new_tokens": 10, "min_new_tokens": 50}
    assert (await rig.post(GENERATE, {"text": "a", "sampling_params": params})).status == 200
    sent = rig.engine.seen[0].body["sampling_params"]
    assert sent == {"max_new_tokens": 10, "min_new_tokens": 10}


async def test_a_nonsense_minimum_is_a_400_before_anything_is_reserved(rig) -> None:
    for value in ("many", 1.5, [], True):
        got = await rig.chat(max_tokens=10, min_tokens=value)
        assert (got.status, got.error["param"]) == (400, "min_tokens")
    assert (await rig.status())["totals"]["admitted"] == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(n=0)),
        (CHAT, chat(n=-1)),
        (CHAT, chat(n="two")),
        (CHAT, chat(n=129)),
        (CHAT, chat(n=2**63)),
        (CHAT, chat(stream="perhaps")),
        (CHAT, chat(stream=[])),
        (CHAT, chat(stream=True, stream_options=[])),
        (CHAT, chat(stream=True, stream_options={"include_usage": "maybe"})),
        (CHAT, chat(model=7)),
        (CHAT, {"model": "tiny"}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": "hello"}),
        (CHAT, {"messages": ["hello"]}),
        (CHAT, {"messages": [{"role": "user", "content": 7}]}),
        (TEXT, {"prompt": None}),
        (TEXT, {"prompt": []}),
        (TEXT, {"prompt": [1, "a"]}),
        (TEXT, {"prompt": {"a": 1}}),
        (TEXT, {"prompt": [True, False]}),
        (GENERATE, {}),
        (GENERATE, {"text": 7}),
        (GENERATE, {"text": "a", "sampling_params": []}),
        (GENERATE, {"text": "a", "sampling_params": "x"}),
        (GENERATE, {"text": "a", "sampling_params": [7]}),
        (GENERATE, {"text": "a", "sampling_params": {"beam_width": 2}}),
        (GENERATE, {"input_embeds": [[0.5]]}),
    ],
)
async def test_what_the_engine_would_refuse_is_a_400_here(rig, path: str, body: Any) -> None:
    """Class G: refused before anything is taken, so nothing has to be given back."""
    got = await rig.post(path, body)
    assert (got.status, got.code) == (400, "invalid_request"), got.body
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    ("path", "body"), [(TEXT, {"prompt": ["a"] * 1025}), (GENERATE, {"input_ids": [[1]] * 1025})]
)
async def test_too_many_prompts_are_refused_before_the_engine_is_asked_to_count_them(
    rig, path: str, body: Any
) -> None:
    got = await rig.post(path, body)
    assert got.status == 400
    assert "1025" in got.error["message"]
    assert rig.engine.tokenized == []


async def test_impossible_requests_are_refused_at_once_with_their_numbers(rig) -> None:
    """Class B: never queued, never sent."""
    got = await rig.post(TEXT, {"prompt": list(range(3000)), "max_tokens": 10})
    assert (got.status, got.code) == (400, "context_length_exceeded")
    assert got.headers["x-should-retry"] == "false"
    assert "retry-after" not in got.headers
    assert got.error["needed"] == 3000
    assert got.error["available"] == 2041
    got = await rig.chat(n=100, max_tokens=100)
    assert (got.status, got.code) == (400, "context_length_exceeded")
    assert got.error["needed"] > got.error["available"]
    assert rig.engine.seen == []


async def test_prompt_logprobs_over_long_prompts_are_refused(start) -> None:
    """Class C: they take memory outside the pool."""
    async with start(pool=8192) as rig:
        for tokens, status in ((2000, 200), (2100, 400)):
            ids = [1] * tokens
            heavy = {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0}
            assert (await rig.post(GENERATE, heavy)).status == status
            heavy = {"prompt": ids, "echo": True, "logprobs": 5, "max_tokens": 0}
            assert (await rig.post(TEXT, heavy)).status == status
        assert len(rig.engine.seen) == 2


async def test_a_message_that_is_continued_has_one_before_it(rig) -> None:
    """The engine takes it out, and trips over a chat without messages: a bare 500 (0.5.17)."""
    turn = {"role": "assistant", "content": "and so"}
    end = {"max_tokens": 5}
    for content in ("and so", "", None, [{"type": "text", "text": ""}]):
        alone = {"messages": [turn | {"content": content}], **end, "continue_final_message": True}
        got = await rig.post(CHAT, alone)
        assert (got.status, got.error["param"]) == (400, "continue_final_message")
    assert rig.engine.seen == []
    asked = {"role": "user", "content": "why"}
    for body in (
        {"messages": [turn], **end},
        {"messages": [turn], **end, "continue_final_message": False},
        {"messages": [asked], **end, "continue_final_message": True},
        {"messages": [asked, turn], **end, "continue_final_message": "true"},
    ):
        assert (await rig.post(CHAT, body)).status == 200


@pytest.mark.parametrize("logprobs", [0, "0", 0.0, False])
async def test_an_echo_without_log_probabilities_at_each_token_is_refused(start, logprobs) -> None:
    """A bare 500 of 0.5.17, whose answer then has none of the prompt; 0.5.23 answers."""
    text = {"prompt": "a", "max_tokens": 2}
    bare = text | {"echo": True, "logprobs": logprobs}
    async with start(version="0.5.17") as rig:
        got = await rig.post(TEXT, bare)
        assert (got.status, got.error["param"]) == (400, "logprobs")
        assert rig.engine.seen == []
        for fine in ({"echo": False, "logprobs": logprobs}, {"echo": True, "logprobs": 1}):
            assert (await rig.post(TEXT, text | fine)).status == 200
    async with start(version="0.5.23", pool=8192) as rig:
        assert (await rig.post(TEXT, bare)).status == 200
        assert rig.engine.seen[0].body["echo"] is True
        # Nothing of the prompt is computed: it may be a long one.
        assert (await rig.post(TEXT, bare | {"prompt": [1] * 2100})).status == 200


@pytest.mark.parametrize("dp", [2])
async def test_the_rank_is_the_ledgers_choice(start, dp: int) -> None:
    """Each rank has a pool and a ledger of its own, and the body names the rank."""
    for version, field in (("0.5.17", "routed_dp_rank"), ("0.5.6", "data_parallel_rank")):
        async with start(dp=dp, version=version) as rig:
            headers = {"x-data-parallel-rank": "1"}
            for _ in range(4):
                body = {"prompt": [1] * 20, "max_tokens": 5, "routed_dp_rank": 9}
                assert (await rig.post(TEXT, body, headers=headers)).status == 200
            for seen, record in zip(rig.engine.seen, reversed(rig.records), strict=True):
                assert seen.body[field] == record["rank"]
                assert seen.headers["x-data-parallel-rank"] == str(record["rank"]), (
                    "not the client's"
                )
            assert {record["rank"] for record in rig.records} <= {0, 1}


async def test_stream_options_of_another_type_are_a_400(rig) -> None:
    """Streamed or not: the engine's own parser refuses it, so it is refused here."""
    for stream in (True, False):
        got = await rig.chat(stream=stream, stream_options=5)
        assert (got.status, got.json()["error"]["param"]) == (400, "stream_options")
    assert rig.engine.seen == []


@pytest.mark.parametrize(("model_type", "status"), [("qwen2_5_vl", 200), ("qwen3", 400)])
async def test_an_image_costs_what_the_served_model_makes_of_it(
    start, model_type: str, status: int
) -> None:
    """Qwen-VL: 28 pixels a token side, so 8 x 8 of 224 x 224. Of an unknown model: the ceiling."""
    picture = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 224, 224) + b"\x08\x02"
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]
    async with start(model_type=model_type) as rig:
        plain = await rig.chat(max_tokens=5)
        assert plain.status == 200
        text = rig.records[0]["prompt_tokens"]
        got = await rig.post(
            CHAT, {**chat(max_tokens=5), "messages": [{"role": "user", "content": parts}]}
        )
        assert got.status == status
        if status == 200:
            assert 64 <= rig.records[0]["prompt_tokens"] <= 64 + text + 10


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        (CHAT, chat(n=None, stream=None, max_tokens=2), {"n": 1, "stream": False}),
        (TEXT, {"prompt": "a", "n": None, "stream": None}, {"n": 1, "stream": False}),
        ("/v1/messages", chat(stream=None, max_tokens=2), {"stream": False}),
        (GENERATE, {"text": "a", "stream": None}, {"stream": False}),
        ("/v1/responses", {"input": "a", "stream": None}, {"stream": False}),
    ],
)
async def test_null_is_told_as_it_was_understood(rig, path: str, body: Any, told: Any) -> None:
    """The engine's own reader takes no null for what it has a number or a choice for."""
    assert (await rig.post(path, body)).status == 200
    assert rig.engine.seen[0].body.items() >= told.items()
