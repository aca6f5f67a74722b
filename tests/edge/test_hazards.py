"""Values with which one request ends the engine for everybody, or makes it answer 500 for a mistake.

Each was seen at a genuine server (sgl-project/sglang#22144, #27398, #28088, #40076), and none of them
is in any shape that the engine's own reader refuses in all versions that the gate stands before.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from gateway.edge.dialects.hazards import (
    LONGEST_STOPS,
    MOST_STOP_TEXTS,
    MOST_TOP,
    SAMPLING,
    check_stop_patterns,
)
from tests.edge.rig import API_CHAT, CHAT, GENERATE, TEXT, chat
from tests.fakes.behaviour import Behaviour
from tests.fakes.typed import MESSAGES, SCORE

BODIES: dict[str, Any] = {CHAT: chat(max_tokens=2), TEXT: {"prompt": "a", "max_tokens": 2}}
LISTED = {"input_ids": [[1], [2]], "return_logprob": True}
MILLION = 10**6  # ids beyond every vocabulary


def generate(**params: Any) -> Any:
    return {"text": "a", "sampling_params": params}


def native(**fields: Any) -> Any:
    return {"text": "a", "return_logprob": True, **fields}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CHAT, BODIES[CHAT] | {"logprobs": True, "top_logprobs": MOST_TOP + 1}, "top_logprobs"),
        (CHAT, BODIES[CHAT] | {"logprobs": True, "top_logprobs": "1000"}, "top_logprobs"),
        (CHAT, BODIES[CHAT] | {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (TEXT, BODIES[TEXT] | {"logprobs": MILLION}, "logprobs"),
        (GENERATE, native(top_logprobs_num=MILLION), "top_logprobs_num"),
        (GENERATE, LISTED | {"top_logprobs_num": [1, MILLION]}, "top_logprobs_num"),
        (API_CHAT, chat(logprobs=True, top_logprobs=MILLION), "top_logprobs"),
    ],
)
async def test_more_alternatives_than_any_vocabulary_has_are_refused(
    rig, path: str, body: Any, field: str
) -> None:
    """The engine asks for the k largest of a row: more than there are raises in its scheduler."""
    got = await rig.post(path, body)
    assert (got.status, got.code) == (400, "invalid_request"), got.body
    assert field in got.body.decode()
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, BODIES[CHAT] | {"stop_token_ids": [1, MILLION]}),
        (CHAT, BODIES[CHAT] | {"stop_token_ids": [-1]}),
        (CHAT, BODIES[CHAT] | {"stop_token_ids": ["999999999"]}),
        (TEXT, BODIES[TEXT] | {"stop_token_ids": [MILLION]}),
        (GENERATE, generate(stop_token_ids=[None])),
        (GENERATE, generate(stop_token_ids=[2.5])),
        (GENERATE, generate(stop_token_ids=7)),
        (GENERATE, generate(min_new_tokens=2, stop_token_ids=[MILLION])),
        (GENERATE, {"text": ["a", "b"], "sampling_params": [{}, {"stop_token_ids": [None]}]}),
        (GENERATE, native(token_ids_logprob=[MILLION])),
        (GENERATE, native(token_ids_logprob=[[0], [1, 2]])),
        (GENERATE, LISTED | {"token_ids_logprob": [[1], [-1]]}),
        (GENERATE, LISTED | {"token_ids_logprob": [[1], 2]}),
    ],
)
async def test_ids_that_index_into_nothing_are_refused(rig, path: str, body: Any) -> None:
    """They become indices of rows as wide as the vocabulary, in the batch of everybody."""
    got = await rig.post(path, body)
    assert (got.status, got.code) == (400, "invalid_request"), got.body
    assert "token id" in got.error["message"].lower()
    assert rig.engine.seen == []


def told(path: str, cap: int, top: int, *, stream: bool = True) -> Any:
    match path:
        case "/v1/chat/completions":
            return chat(max_tokens=cap, stream=stream, logprobs=True, top_logprobs=top)
        case "/v1/completions":
            return {"prompt": "a", "max_tokens": cap, "stream": stream, "logprobs": top}
    params = {"max_new_tokens": cap}
    fields = {"top_logprobs_num": top, "return_text_in_logprobs": True, "stream": stream}
    return native(sampling_params=params, **fields)


THREE = pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE])


@THREE
async def test_alternatives_that_are_spelled_out_anew_for_each_token_are_bounded(
    start, path: str
) -> None:
    """sgl-project/sglang#17005: 626 ms for everybody at each token, of 2,000 with 20 alternatives."""
    async with start(version="0.5.6") as rig:
        for cap, top in ((1_000, 5), (309, 20), (1_420, 0)):
            got = await rig.post(path, told(path, cap, top))
            assert (got.status, got.code) == (400, "invalid_request"), (cap, top, got.body)
            assert "do not stream" in got.body.decode()
        assert rig.engine.seen == []
        for cap, top in ((577, 5), (300, 20), (1_400, 0)):
            assert (await rig.post(path, told(path, cap, top))).status == 200, (cap, top)
        assert (await rig.post(path, told(path, 1_000, 20, stream=False))).status == 200


@pytest.mark.parametrize(
    ("cap", "fields", "fits"),
    [
        (8_000, {}, True),
        (8_001, {}, False),
        (1_745, {"top_logprobs_num": 20}, True),
        (1_746, {"top_logprobs_num": 20}, False),
        (1_746, {"top_logprobs_num": 20, "stream": False}, True),
        (1_746, {"top_logprobs_num": 20, "return_logprob": False}, True),
        (644, {"top_logprobs_num": 20, "logprob_start_len": 0}, False),
        (643, {"top_logprobs_num": 20, "logprob_start_len": 0}, True),
        (1_746, {"text": ["a", "b"], "top_logprobs_num": [0, 20]}, False),
    ],
)
async def test_pieces_that_hold_all_of_an_answer_are_bounded(
    start, cap: int, fields: dict[str, Any], fits: bool
) -> None:
    """sgl-project/sglang#21583: the text of each piece is new, its log-probabilities are all there are."""
    async with start(pool=40_000, context=20_000, version="0.5.17") as rig:
        rig.engine.default = Behaviour(tokens=2)
        params = {"max_new_tokens": cap}
        body = native(**{"sampling_params": params, "stream": True, **fields})
        got = await rig.post(GENERATE, body)
        assert got.status == (200 if fits else 400), got.body
        assert fits or "do not stream" in got.body.decode()
        assert len(rig.engine.seen) == fits


@THREE
async def test_later_ones_spell_them_out_once(start, path: str) -> None:
    async with start(version="0.5.12") as rig:
        assert (await rig.post(path, told(path, 1_000, 20))).status == 200


async def test_without_log_probabilities_there_is_nothing_to_spell_out(start) -> None:
    async with start(version="0.5.6") as rig:
        for body in (
            chat(max_tokens=1_900, stream=True),
            chat(max_tokens=1_900, stream=True, logprobs=False),
        ):
            assert (await rig.post(CHAT, body)).status == 200


MANY = [f"stop {i}" for i in range(MOST_STOP_TEXTS + 1)]
LONG = "x" * (LONGEST_STOPS + 1)


def stopping(path: str, stops: Any) -> Any:
    match path:
        case "/generate":
            return generate(stop=stops)
        case "/v1/messages":
            return chat(max_tokens=2, stop_sequences=stops)
        case "/api/chat":
            return chat(stream=False, options={"stop": stops, "num_predict": 2})
    return BODIES[path] | {"stop": stops}


ALL_THAT_STOP = pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE, MESSAGES, API_CHAT])


@ALL_THAT_STOP
@pytest.mark.parametrize("stops", [MANY, [LONG], ["y", LONG[:1000], LONG[:1001]]])
async def test_more_stops_than_people_write_are_refused(rig, path: str, stops: Any) -> None:
    """The scheduler looks for each in all that was written, after each token of everybody."""
    got = await rig.post(path, stopping(path, stops))
    assert (got.status, got.code) == (400, "invalid_request"), got.body
    assert "at most" in got.body.decode() or "characters in all" in got.body.decode()
    assert rig.engine.seen == []


@pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE])
async def test_one_long_stop_that_is_no_list_is_refused_too(rig, path: str) -> None:
    assert (await rig.post(path, stopping(path, LONG))).status == 400


@ALL_THAT_STOP
async def test_stops_as_people_write_them_pass(rig, path: str) -> None:
    for stops in ([], ["\n\n", "User:"], MANY[1:], [LONG[1:]]):
        assert (await rig.post(path, stopping(path, stops))).status == 200, stops


async def test_each_set_of_parameters_has_stops_of_its_own(rig) -> None:
    each = [{"stop": MANY[1:]}, {"stop": MANY}]
    got = await rig.post(GENERATE, {"text": ["a", "b"], "sampling_params": each})
    assert (got.status, got.code) == (400, "invalid_request")
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CHAT, BODIES[CHAT] | {"response_format": "json"}, "response_format"),
        (TEXT, BODIES[TEXT] | {"response_format": []}, "response_format"),
        (CHAT, BODIES[CHAT] | {"cache_salt": ["a"]}, "cache_salt"),
        (TEXT, BODIES[TEXT] | {"extra_key": ["a"]}, "extra_key"),
        (GENERATE, generate(stop=5), "stop"),
        (GENERATE, generate() | {"input_ids": [[1]]}, "input_ids"),
        (GENERATE, {"text": ["a", "b"], "audio_data": [None]}, "audio_data"),
        (GENERATE, {"text": ["a"], "video_data": []}, "video_data"),
        (GENERATE, generate(n=2) | {"video_data": []}, "video_data"),
        (GENERATE, {"text": ["a", "b"], "modalities": ["image"]}, "modalities"),
        (GENERATE, generate(n=2) | {"modalities": ["image"]}, "modalities"),
        *(
            (CHAT, BODIES[CHAT] | {"chat_template_kwargs": {name: value}}, "chat_template_kwargs")
            for name, value in (
                ("tokenize", True),
                ("tools", [1]),
                ("messages", []),
                ("padding", "max_length"),
            )
        ),
        (GENERATE, {"text": ["a", "b"], "input_ids": [1, 2]}, "input_ids"),
        (GENERATE, {"text": ["a", "b"], "input_ids": [[1]]}, "input_ids"),
        (GENERATE, generate(stop=["a", 5]), "stop"),
        (GENERATE, {"text": "a", "sampling_params": [{}]}, "sampling_params"),
        (GENERATE, {"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
    ],
)
async def test_what_makes_the_engine_answer_500_is_a_400(
    rig, path: str, body: Any, field: str
) -> None:
    """A bare "Internal Server Error" tells nobody what is wrong, and counts against the server."""
    got = await rig.post(path, body)
    assert (got.status, got.code, got.error["param"]) == (400, "invalid_request", field)
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"max_tokens": 3}, "sampling_params.max_tokens is nothing that SGLang knows; did you mean max_new_tokens?"),
        ({"unheard_of": None}, "sampling_params.unheard_of is nothing that SGLang knows. Correct"),
        ([{}, {"temprature": 1}], "did you mean temperature?"),
        ({"is_normalized": True}, "sampling_params.is_normalized is nothing"),
        ({"stop_regex_strs": "(a+)+b", "is_normalized": True}, "is nothing that SGLang knows"),
        ({"stop_strs": "x"}, "sampling_params.stop_strs is nothing"),
        ({"lora_path": "x"}, "sampling_params.lora_path is nothing"),
        ({"a secret sentence": 1}, "sampling_params has a name that SGLang does not know"),
        ({"a" * 41: 1}, "sampling_params has a name that SGLang does not know"),
    ],
)  # fmt: skip
async def test_a_name_that_no_version_knows_is_refused(rig, params: Any, told: str) -> None:
    """It is a keyword that the engine's own function does not expect, and so a bare 500; or a note that
    the engine keeps for itself, with which it looks at nothing else any more."""
    many = isinstance(params, list)
    got = await rig.post(GENERATE, {"text": ["a", "b"] if many else "a", "sampling_params": params})
    assert (got.status, got.code, got.error["param"]) == (400, "invalid_request", "sampling_params")
    assert told in got.error["message"]
    assert "secret" not in got.error["message"]
    assert rig.engine.seen == []


async def test_what_goes_with_one_prompt_or_with_each_passes(rig) -> None:
    for body in (
        {"text": "a", "video_data": [], "audio_data": [None], "modalities": ["image"]},
        {"text": ["a", "b"], "video_data": [None, None], "audio_data": None, "modalities": []},
        {"text": ["a", "b"], "modalities": ["image", "image"]},
    ):
        got = await rig.post(GENERATE, body | {"sampling_params": {"max_new_tokens": 2}})
        assert got.status == 200, got.body
    kwargs = {"enable_thinking": False, "documents": [], "anything": 1}
    assert (await rig.chat(max_tokens=2, chat_template_kwargs=kwargs)).status == 200


async def test_no_number_of_answers_is_one(rig) -> None:
    """The engine compares null with 1, and answers 500."""
    got = await rig.post(GENERATE, generate(n=None, max_new_tokens=2))
    assert got.status == 200, got.body
    assert rig.engine.seen[0].body["sampling_params"] == {"max_new_tokens": 2}


async def test_names_that_only_some_versions_know_pass(rig) -> None:
    """Each as its default, so that nothing else is wrong with it."""
    texts = dict.fromkeys(("json_schema", "regex", "ebnf", "structural_tag", "stop", "stop_regex"))
    numbers = dict.fromkeys(SAMPLING - texts.keys()) | {"n": 1, "max_new_tokens": 2}
    got = await rig.post(GENERATE, generate(**texts, **numbers))
    assert got.status == 200
    assert rig.engine.seen[0].body["sampling_params"] == texts | numbers
    assert {"watermark", "stream_interval", "custom_params"} < SAMPLING


FLOATS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty")
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


@pytest.mark.parametrize(
    ("path", "params"),
    [
        *((CHAT, {name: value}) for name in FLOATS for value in ("NaN", "inf", " -Infinity ")),
        *(
            (path, {"temperature": "nan"})
            for path in (TEXT, GENERATE, MESSAGES, RESPONSES, API_CHAT)
        ),
        *((path, {"repetition_penalty": 0}) for path in (CHAT, TEXT, GENERATE)),
        *((path, {"repetition_penalty": 1e-46}) for path in (CHAT, TEXT, GENERATE)),
        *((CHAT, {"repetition_penalty": value}) for value in ("0", " 0.0", "1e-999", 1e-12)),
        *((path, {"temperature": 1e39}) for path in (CHAT, GENERATE, MESSAGES, API_CHAT)),
        *((CHAT, {"temperature": value}) for value in ("1e999", "1e39", "-1e39")),
        *((path, {"top_k": 2**31}) for path in (CHAT, TEXT, GENERATE, MESSAGES, API_CHAT)),
        (CHAT, {"top_k": 1e10}),
        (CHAT, {"top_k": "2147483648"}),
        *((path, {"seed": 2**63}) for path in (CHAT, TEXT, API_CHAT)),
        (CHAT, {"seed": 1e20}),
        (GENERATE, {"sampling_seed": 2**63}),
        (GENERATE, {"sampling_seed": "100"}),
        (GENERATE, {"temperature": "0.5"}),
        (GENERATE, {"top_k": "5"}),
    ],
)
async def test_numbers_that_no_tensor_holds_are_refused(rig, path: str, params: Any) -> None:
    """sgl-project/sglang#17646, #28153, #28960: they are put into tensors of 32 or 64 bits and of
    probabilities, in the scheduler."""
    body = {
        **BODIES,
        MESSAGES: chat(max_tokens=2),
        RESPONSES: {"input": "a"},
        GENERATE: generate(**params),
        API_CHAT: chat(options=params),
    }[path]
    got = await rig.post(path, body if path in (GENERATE, API_CHAT) else body | params)
    assert (got.status, got.code) == (400, "invalid_request"), got.body
    assert next(iter(params)).removeprefix("sampling_") in got.body.decode()
    assert rig.engine.seen == []


@pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE])
@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        ["end", "([a-z]*x)*y"],
        "(?:a{1,9}b?){2,}",
        "((a+))+$",
        "((?:a+)b)*",
        "(?P<x>(a+))+",
        "(a?a)+$",
        "(a?){30}a{30}",
        "(a|a)*$",
        "(a|aa)+$",
        "((a|ab)c)+",
        r"(\w|\d)+!",
        "(.|a)*",
        "(?i)(a|A)*",
        "(?i)(\u0131|i)*",
        "(?i:a|a)*",
        "([)]a+)+",
        "(a+(?#()b)+",
        "(?x)(a+ #)\n)+",
        "(",
        "a{2,1}",
        "(" * 500 + ")" * 500,
        "a" * 1001,
        ["a" * 500, "b" * 500],
        [""] * 1002,
        ".*.*=",
        ["a", r"\s*\n\s*User:"],
        7,
        [None],
    ],
)
async def test_a_pattern_that_may_never_end_is_refused(rig, path: str, pattern: Any) -> None:
    """The scheduler itself looks for it, after each token and with a matcher that tries all ways: it
    stands still for everybody. What is no pattern at all is a 500 of the engine's."""
    body = (
        generate(stop_regex=pattern) if path == GENERATE else BODIES[path] | {"stop_regex": pattern}
    )
    got = await rig.post(path, body)
    assert (got.status, got.code, got.error["param"]) == (400, "invalid_request", "stop_regex")
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, BODIES[CHAT] | {"stop_regex": r"\n\s*(user|human):", "top_logprobs": None}),
        (TEXT, BODIES[TEXT] | {"stop_regex": ["a+b*", r"\(x+\)+", "[[a]"]}),
        (GENERATE, generate(stop_regex="(foo|bar)+[.!?]")),
        (CHAT, BODIES[CHAT] | {"stop_regex": ["a" * 499, "b" * 500]}),
        (CHAT, BODIES[CHAT] | {"stop_regex": ["[一-龥]" * 12 + "。", "(?i)[À-ÿ]+:"]}),
        (
            CHAT,
            BODIES[CHAT]
            | {"stop_regex": [r"\n\s*\n", r"Observation:\s*", r"</?\w+>", r"\d+\.\d*"]},
        ),
        (
            CHAT,
            BODIES[CHAT]
            | {"stop_regex": ["(a+)?(b+|c)", "[(a+)]+", r"(\(a\+\))+", "(用户|助手)+"]},
        ),
        (CHAT, BODIES[CHAT] | {"temperature": "1.5", "repetition_penalty": "1e-2", "min_p": 0}),
        (CHAT, BODIES[CHAT] | {"logprobs": True, "top_logprobs": MOST_TOP}),
        (CHAT, BODIES[CHAT] | {"stop_token_ids": [], "response_format": {"type": "json_object"}}),
        (CHAT, BODIES[CHAT] | {"stop_token_ids": [5, 9], "response_format": None}),
        (TEXT, BODIES[TEXT] | {"logprobs": 5, "stop_token_ids": [0]}),
        (GENERATE, generate(stop=["a", "b"], stop_token_ids=[7])),
        (GENERATE, generate(stop="a", stop_token_ids=None)),
        (GENERATE, native(top_logprobs_num=5, token_ids_logprob=[1, 2])),
        (GENERATE, LISTED | {"top_logprobs_num": [1, 2], "token_ids_logprob": [[1], None]}),
        (CHAT, BODIES[CHAT] | {"temperature": "0.7", "top_k": -1, "seed": -1, "top_p": None}),
        (CHAT, BODIES[CHAT] | {"temperature": 0, "top_k": 2**31 - 1, "seed": 2**63 - 1}),
        (GENERATE, generate(temperature=0.5, top_k=5, sampling_seed=7, repetition_penalty=1.1)),
        (GENERATE, native(text=["a"], token_ids_logprob=[[1, 2]])),
        (GENERATE, LISTED | {"top_logprobs_num": 3, "token_ids_logprob": [1, 2]}),
        (API_CHAT, chat(logprobs=True, top_logprobs=5)),
    ],
)
async def test_what_clients_really_send_passes(start, path: str, body: Any) -> None:
    async with start(version="0.5.23") as rig:  # the last of them, which survives all
        assert (await rig.post(path, body)).status == 200
        assert len(rig.engine.seen) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"prompt": ""}),
        (TEXT, {"prompt": ["a", ""]}),
        (TEXT, {"prompt": [[1], []]}),
        (GENERATE, {"text": ""}),
        (GENERATE, {"text": ["", "a"]}),
        (GENERATE, {"input_ids": [[]]}),
        ("/v1/embeddings", {"input": ["a", ""]}),
        ("/v1/classify", {"input": ""}),
        ("/v1/score", {"query": "", "items": ["a", ""]}),
        ("/v1/score", {"query": [], "items": [[1], []]}),
    ],
)
async def test_a_prompt_without_a_token_is_refused(rig, path: str, body: Any) -> None:
    """In a batch with others it ends the scheduler: sgl-project/sglang#2011."""
    got = await rig.post(path, body)
    assert (got.status, got.code) == (400, "invalid_request"), got.body
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    "pattern",
    [
        "(?i)" + "[Ā-\uffff]" * 190,
        ["[Ā-\uffff]" * 3, "[一-\uffff]" * 3],
        "(?a)(?u)b",
        "(?i)[Ā-\U0010ffff]+=(?<!a*)",
    ],
)
async def test_a_pattern_that_is_long_to_read_or_breaks_its_reader_is_refused(rig, pattern) -> None:
    """Python looks at each character of a range: 1.7 s for the first, here and in the scheduler."""
    got = await rig.post(CHAT, BODIES[CHAT] | {"stop_regex": pattern})
    assert (got.status, got.code, got.error["param"]) == (400, "invalid_request", "stop_regex")
    assert rig.engine.seen == []


async def test_patterns_of_a_batch_are_bounded_together(rig) -> None:
    """One for each of 16,000 prompts would be read for minutes, and nothing else done."""
    many = [{"stop_regex": f"{n:04}" + "x" * 200} for n in range(5)]
    got = await rig.post(GENERATE, {"text": ["a"] * 5, "sampling_params": many})
    assert (got.status, got.code, got.error["param"]) == (400, "invalid_request", "stop_regex")
    assert "in all of a request" in got.error["message"]
    check_stop_patterns(*many[:4], {}, {"stop_regex": None})
    check_stop_patterns(*[{"stop_regex": ["b" * 400, "c" * 598]} for _ in range(9)])  # mostly alike


TOKEN_TAG = {"type": "structural_tag", "format": {"type": "token", "token": MILLION}}
HIDDEN = {
    "type": "sequence",
    "elements": [{"type": "tag", "begin": {"type": "token", "token": MILLION}, "end": "a"}],
}


def of_tokens(**form: Any) -> str:
    return json.dumps({"type": "structural_tag", "format": form})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, BODIES[CHAT] | {"ebnf": f"root ::= Token({MILLION})"}),
        (TEXT, BODIES[TEXT] | {"ebnf": f"root ::= ExcludeToken(1, {MILLION})"}),
        (GENERATE, generate(ebnf=f"root ::= Token({'9' * 5000})")),
        (CHAT, BODIES[CHAT] | {"response_format": TOKEN_TAG}),
        (TEXT, BODIES[TEXT] | {"response_format": {"type": "structural_tag", "format": HIDDEN}}),
        (GENERATE, generate(structural_tag=json.dumps(TOKEN_TAG))),
        (GENERATE, generate(structural_tag=of_tokens(type="token", token=float(MILLION)))),
        (GENERATE, generate(structural_tag=of_tokens(type="token", token=1e300))),
        (GENERATE, generate(structural_tag=of_tokens(type="any_tokens", exclude_tokens=[MILLION]))),
        (GENERATE, generate(structural_tag=of_tokens(type="x", trigger_tokens=["a", MILLION]))),
        (GENERATE, generate(structural_tag=of_tokens(type="token_dispatch", rules=[[MILLION, {}]]))),
        (GENERATE, generate(structural_tag=of_tokens(type="grammar", grammar=f"root ::= Token({MILLION})"))),
        (SCORE, {"query": "a", "items": ["b"], "label_token_ids": [MILLION]}),
        (SCORE, {"query": "a", "items": ["b"], "label_token_ids": [-1]}),
    ],
)  # fmt: skip
async def test_tokens_that_a_grammar_names_are_of_the_vocabulary(rig, path: str, body: Any) -> None:
    """xgrammar 0.2.1 reads beyond a table while it compiles them: no exception, the process is gone."""
    got = await rig.post(path, body)
    assert (got.status, got.code) == (400, "invalid_request"), got.body
    assert "token id" in got.error["message"].lower()
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    "params",
    [
        {"ebnf": 'root ::= "a"{1,1000000} | "1000000"'},
        {"ebnf": "root ::= ExcludeToken(1, 2)"},
        {"structural_tag": of_tokens(type="any_tokens", exclude_tokens=[7])},
        {"structural_tag": of_tokens(type="repeat", min=0, max=MILLION, content={"type": "any_text"})},
        {"structural_tag": of_tokens(type="json_schema", json_schema={"rules": [MILLION], "token": {"const": MILLION}})},
    ],
)  # fmt: skip
async def test_other_numbers_in_grammars_are_no_tokens(rig, params: Any) -> None:
    got = await rig.post(GENERATE, generate(**params))
    assert got.status == 200, got.body


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02"
    return "data:image/png;base64," + base64.b64encode(head).decode()


def pictured(path: str, *sources: str) -> Any:
    if path == GENERATE:
        return {"text": "a", "image_data": list(sources), "sampling_params": {"max_new_tokens": 2}}
    parts = [{"type": "image_url", "image_url": {"url": source}} for source in sources]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 2}


async def test_an_image_of_unknown_size_is_not_told_to_be_smaller(start) -> None:
    """Four small AVIFs "have 715,827,880 pixels", and were to be made smaller, which does not help."""
    avif = "data:image/avif;base64," + base64.b64encode(b"\0\0\0\x20ftypavif" + bytes(90)).decode()
    async with start(pool=400_000, context=400_000) as rig:
        got = await rig.post(CHAT, pictured(CHAT, *[avif] * 4, png(10, 10)))
        assert (got.status, got.code) == (400, "invalid_request"), got.body
        words = got.body.decode()
        assert "4 of them are of no size that is known here" in words, words
        assert "PNG, JPEG, GIF, WebP or BMP" in words, words
        got = await rig.post(CHAT, pictured(CHAT, *[png(13_000, 13_000)] * 4))
        assert "known here" not in got.body.decode()


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_images_that_fill_main_memory_are_refused(start, path: str) -> None:
    """21,840 bytes of PNG took 5 s and 868 MiB at the engine, before any of its limits on sizes."""
    limits = {"limits": {"image_pixels": 2_000_000}}
    async with start(limits, pool=400_000, context=400_000) as rig:
        for sources in ([png(1_000, 2_001)], [png(1_000, 1_000)] * 3, [png(20_000, 20_000)]):
            got = await rig.post(path, pictured(path, *sources))
            assert (got.status, got.code) == (400, "invalid_request"), got.body
            assert "pixels" in got.body.decode()
        assert rig.engine.seen == []
        got = await rig.post(path, pictured(path, *[png(1_000, 1_000)] * 2))
        assert got.status == 200, got.body
