"""Where a prompt may point from: every place that the engine opens is looked at, and no word of a prompt is."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.edge.dialects import Invalid, pointers
from gateway.policy.bounds import Limits
from gateway.tokens import Kind
from tests.edge.rig import API_CHAT, CHAT, GENERATE, chat

PNG = "iVBORw0KGgo="
PUBLIC = Limits()
BAD = "http://169.254.169.254/latest"
USER = {"role": "user"}


def said(*parts: Any) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "system", "content": "s"},
            {**USER, "content": [{"type": "text", "text": BAD}, *parts]},
        ]
    }


def shown(source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source}


BY_URL = shown({"type": "url", "url": BAD})


@pytest.mark.parametrize(
    ("kind", "body", "where"),
    [
        *(
            (Kind.CHAT, said({"type": kind, kind: value}), f"messages[1].content[1].{kind}{at}")
            for kind in ("image_url", "video_url", "audio_url")
            for value, at in (({"url": BAD}, ".url"), (BAD, ""))
        ),
        (
            Kind.CHAT,
            said({"type": "input_image", "image_url": BAD}),
            "messages[1].content[1].image_url",
        ),
        (
            Kind.CHAT,
            said({"type": "odd", "image_url": {"url": BAD}}),
            "messages[1].content[1].image_url.url",
        ),
        (Kind.CHAT, {**said({"image": BAD}), "input_ids": [1]}, "messages[1].content[1].image"),
        (
            Kind.CHAT,
            {"messages": [{"role": "tool", "content": [{"image_url": BAD}]}]},
            "messages[0].content[0].image_url",
        ),
        (
            Kind.CHAT,
            said({"type": "audio_url", "audio_url": {"url": PNG}}),
            "messages[1].content[1].audio_url.url",
        ),
        (Kind.MESSAGES, said(BY_URL), "messages[1].content[1].source.url"),
        (Kind.MESSAGES, said(shown({"url": BAD})), "messages[1].content[1].source.url"),
        (
            Kind.MESSAGES,
            said({"type": "tool_result", "content": [BY_URL]}),
            "messages[1].content[1].content[0].source.url",
        ),
        (
            Kind.RESPONSES,
            {"input": [{**USER, "content": [{"type": "input_image", "image_url": BAD}]}]},
            "input[0].content[0].image_url",
        ),
        (
            Kind.RESPONSES,
            {"input": [{**USER, "content": [{"type": "input_image", "image_url": {"url": BAD}}]}]},
            "input[0].content[0].image_url.url",
        ),
        (
            Kind.RESPONSES,
            {
                "input": [
                    {
                        "type": "function_call_output",
                        "output": [{"type": "input_image", "image_url": BAD}],
                    }
                ]
            },
            "input[0].output[0].image_url",
        ),
        (
            Kind.RESPONSES,
            {"input": [{"type": "computer_call_output", "output": {"image_url": BAD}}]},
            "input[0].output.image_url",
        ),
        (Kind.GENERATE, {"text": "a", "image_data": BAD}, "image_data"),
        (Kind.GENERATE, {"text": "a", "image_data": [PNG, BAD]}, "image_data[1]"),
        (
            Kind.GENERATE,
            {"text": ["a"], "image_data": [[PNG, {"url": BAD}]]},
            "image_data[0][1].url",
        ),
        (
            Kind.GENERATE,
            {"text": "a", "image_data": {"format": "x", "image": BAD}},
            "image_data.image",
        ),
        (Kind.GENERATE, {"text": "a", "video_data": [[[BAD, PNG]]]}, "video_data[0][0][0]"),
        (
            Kind.GENERATE,
            {"text": "a", "video_data": {"url": PNG, "audio": PNG}},
            "video_data.audio",
        ),
        (Kind.GENERATE, {"text": "a", "audio_data": PNG}, "audio_data"),
        (Kind.GENERATE, {"text": "a", "audio_data": [{"url": "voice.wav"}]}, "audio_data[0].url"),
        (Kind.INPUT, {"input": [{"text": "a"}, {"image": BAD}]}, "input[1].image"),
        (Kind.INPUT, {"input": [{"video": BAD}]}, "input[0].video"),
        (
            Kind.RERANK,
            {"query": [{"type": "image_url", "image_url": {"url": BAD}}], "documents": ["a"]},
            "query[0].image_url.url",
        ),
        (
            Kind.RERANK,
            {"query": "a", "documents": ["b", [{"video_url": BAD}]]},
            "documents[1][0].video_url",
        ),
    ],
)
def test_every_place_is_looked_at_and_named(kind: Kind, body: dict[str, Any], where: str) -> None:
    with pytest.raises(Invalid) as refused:
        pointers.check(kind, body, PUBLIC)
    assert str(refused.value).startswith(f"{where} is ")
    assert refused.value.param == where.partition(".")[0].partition("[")[0]
    assert "169.254" not in str(refused.value)  # a prompt's words reach no log


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.CHAT, said({"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}})),
        (
            Kind.CHAT,
            {
                **said(),
                "tools": [
                    {"function": {"parameters": {"properties": {"image_url": {"url": BAD}}}}}
                ],
            },
        ),
        (
            Kind.CHAT,
            {
                "messages": [
                    {**USER, "content": BAD},
                    {"role": "assistant", "tool_calls": [{"image_url": BAD}]},
                ]
            },
        ),
        (
            Kind.MESSAGES,
            said(
                shown({"type": "base64", "data": PNG, "url": BAD}),
                shown(BAD),
                {"type": "text", "source": {"url": BAD}},
            ),
        ),
        (
            Kind.MESSAGES,
            said(
                {"type": "document", "source": {"type": "url", "url": BAD}},
                {"type": "search_result", "source": BAD},
            ),
        ),
        (
            Kind.MESSAGES,
            said(
                {
                    "type": "tool_use",
                    "input": {"image_url": BAD, "type": "image", "source": {"url": BAD}},
                }
            ),
        ),
        (Kind.MESSAGES, said({"type": "tool_result", "content": BAD})),
        (Kind.RESPONSES, {"input": BAD}),
        (Kind.RESPONSES, {"input": [{"type": "function_call", "arguments": {"image_url": BAD}}]}),
        (Kind.COMPLETION, {"prompt": BAD, "image_url": BAD}),
        (
            Kind.GENERATE,
            {"text": BAD, "image_data": None, "video_data": [None], "audio_data": [[7, True, {}]]},
        ),
        (Kind.INPUT, {"input": [BAD]}),
        (Kind.SCORE, {"query": BAD, "items": [BAD]}),
        (Kind.RERANK, {"query": BAD, "documents": [BAD]}),
        *(
            (kind, {"messages": odd, "input": odd, "documents": odd, "query": odd})
            for kind in Kind
            for odd in (None, 7, {}, [None], [[{}]], [{"content": {}}])
        ),
    ],
)
def test_words_may_name_any_host(kind: Kind, body: dict[str, Any]) -> None:
    pointers.check(kind, body, PUBLIC)


# ---- through a gate ----------------------------------------------------------------------------


def picture(url: str) -> dict[str, Any]:
    return {**chat(max_tokens=5), **said({"type": "image_url", "image_url": {"url": url}})}


async def test_the_engine_is_not_asked_and_the_client_is_told(rig) -> None:
    for path, body in (
        (CHAT, picture(BAD)),
        (CHAT, picture("file:///etc/passwd")),
        ("/v1/messages", {**chat(max_tokens=5), **said(BY_URL)}),
        (GENERATE, {"text": "a", "audio_data": "/etc/passwd"}),
    ):
        got = await rig.post(path, body)
        assert got.status == 400
        assert "data:" in got.json()["error"]["message"]
    assert rig.engine.seen == []
    assert {record["code"] for record in rig.records} == {"invalid_request"}


async def test_pictures_inside_are_for_those_whom_the_policy_lets(start) -> None:
    async with start(
        {"limits": {"media_hosts": "169.254.169.254"}},
        model_type="qwen2_5_vl",
        pool=60_000,
        context=50_000,
    ) as rig:
        assert (await rig.post(CHAT, picture(BAD))).status == 200
        assert (await rig.post(CHAT, picture("http://127.0.0.1/"))).status == 400
        sent = rig.engine.seen[0].body["messages"][1]["content"][1]
        assert sent["image_url"]["url"] == BAD


async def test_while_admission_is_off_nothing_is_looked_into(start) -> None:
    async with start({"admission": "off"}) as rig:
        assert (await rig.post(CHAT, picture(BAD))).status == 200
        assert len(rig.engine.seen) == 1


async def test_pictures_of_ollamas_are_always_sent_themselves(rig) -> None:
    """What is no address becomes a data URL: `/etc/passwd` is a broken picture, and no file."""
    turn = {**USER, "content": "a", "images": ["/etc/passwd"]}
    await rig.post(
        API_CHAT,
        {"model": "tiny", "messages": [turn], "stream": False, "options": {"num_predict": 5}},
    )
    for seen in rig.engine.seen:
        (part, _) = seen.body["messages"][0]["content"]
        assert part["image_url"]["url"].startswith("data:")
