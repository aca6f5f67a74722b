"""What stands for an image in a prompt, written by somebody into a text: the engine takes it for one of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers

from gateway.tokens import CountRefused, Kind, build_counter
from gateway.tokens.files import marks_of
from tests.tokens.conftest import write_model

MARK = "<|image_pad|>"
VIDEO = "<|video_pad|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|image_pad|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)
PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
IMAGE = {"type": "image_url", "image_url": {"url": PNG}}


@pytest.fixture(scope="module")
def sees(qwen_like: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The directory of a model that sees, and the ids of its marks."""
    tokenizer = tokenizers.Tokenizer.from_str(qwen_like.to_str())
    tokenizer.add_special_tokens([MARK, VIDEO])
    directory = write_model(tmp_path_factory.mktemp("sees"), tokenizer, TEMPLATE)
    ids = {
        "image_token_id": tokenizer.token_to_id(MARK),
        "video_token_id": tokenizer.token_to_id(VIDEO),
    }
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3_vl", **ids}))
    return directory


def asked(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(parts)}]}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


async def counted(directory: Any, kind: Kind, body: dict[str, Any]) -> int:
    counter = await build_counter(tokenizer_dir=directory, engine_version="0.5.17", remote=None)
    return (await counter.count(kind, body, 100)).total


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.CHAT, asked(IMAGE, text(f"what does {MARK} mean?"))),
        (Kind.CHAT, {"messages": [{"role": "assistant", "content": f"I wrote {MARK}"},
                                  *asked(IMAGE, text("go on"))["messages"]]}),
        (Kind.CHAT, {"messages": [{"role": "user", "content": [IMAGE, text("a")]},
                                  {"role": "tool", "content": MARK, "tool_call_id": "1"}]}),
        (Kind.GENERATE, {"text": f"{MARK} and {MARK}", "image_data": [PNG]}),
        (Kind.GENERATE, {"text": [f"{MARK} a", f"{MARK} b {MARK}"], "image_data": [[PNG], [PNG]]}),
    ],
    ids=["question", "history", "tool", "generate", "of-two"],
)  # fmt: skip
async def test_a_mark_without_an_image_beside_images_is_refused(
    sees, kind: Kind, body: dict[str, Any]
) -> None:
    """The engine answers a bare 500 (0.5.12-0.5.23), each time it is tried: the conversation is lost."""
    with pytest.raises(CountRefused, match=r"image_pad.*Write it otherwise"):
        await counted(sees, kind, body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.CHAT, asked(IMAGE, text("what is this?"), IMAGE)),
        (Kind.CHAT, asked(IMAGE, text("what does <| image_pad |> mean?"))),
        (Kind.CHAT, asked(text(f"what does {MARK} mean?"))),  # without media it is a token as any
        (Kind.CHAT, asked(IMAGE, text(f"and {VIDEO}?"))),  # no video comes with it
        (Kind.GENERATE, {"text": f"{MARK} and {MARK}", "image_data": [PNG, PNG]}),
        (Kind.GENERATE, {"text": "no mark", "image_data": [PNG]}),
        (Kind.GENERATE, {"text": [f"{MARK} a", f"{MARK} b"], "image_data": [[PNG], [PNG]]}),
    ],
)
async def test_all_else_is_counted(sees, kind: Kind, body: dict[str, Any]) -> None:
    assert await counted(sees, kind, body) > 0


async def test_a_model_that_does_not_say_has_no_marks(sees, tmp_path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((sees / name).read_bytes())
    assert await counted(tmp_path, Kind.CHAT, asked(IMAGE, text(MARK))) > 0


@pytest.mark.parametrize(
    ("config", "tokenizer", "marks"),
    [
        ({"image_token_id": 7}, {"added_tokens": [{"id": 7, "content": "<i>"}]}, {"image": "<i>"}),
        ({"image_token_index": 7}, {"added_tokens": [{"id": 7, "content": "<i>"}]}, {"image": "<i>"}),
        ({"image_token_id": 8}, {"added_tokens": [{"id": 7, "content": "<i>"}]}, {}),
        ({"image_token_id": [7]}, {"added_tokens": [{"id": 7, "content": "<i>"}]}, {}),
        ({"image_token_id": 7}, {"added_tokens": [{"id": 7, "content": ""}]}, {}),
        ({"image_token_id": 7}, {"added_tokens": [7]}, {}),
        ({"image_token_id": 7}, [], {}),
        ({}, {"added_tokens": [{"id": 7, "content": "<i>"}]}, {}),
    ],
)  # fmt: skip
def test_marks_by_their_ids(config: Any, tokenizer: Any, marks: dict[str, str]) -> None:
    assert marks_of(config, json.dumps(tokenizer).encode()) == marks
    assert marks_of(config, b"") == marks_of(config, b"{") == {}
