"""Texts and chats to count: generated from a seed, and real ones from this Python's own library.

Shared by the exactness suites and the suite against the real engine, so that both see the same.
"""

from __future__ import annotations

import json
import random
import sysconfig
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SENTENCES = (
    "The year 2026 isn't over; they'd say it's 12,345.67 days too early (or not)?",
    "Der Übermut tut selten gut — äußerst selten, heißt es in Köln für 3,50 €.",
    "Où est passé l'été ? Ça dépend de la façon dont on l'a vécu.",
    "¿Dónde está la biblioteca? Mañana será otro día, señor.",
    "Всё смешалось в доме; №7 на улице Ленина — 100 рублей.",
    "模型的上下文长度是有限的，请不要超过二十万个词元。２０２６年！",
    "日本語のテストです。カタカナ・ひらがな、漢字を混ぜて「引用」する。ｶﾞ",
    "한국어 시험입니다. 토큰을 정확하게 세어 주세요!",
    "اللُّغَةُ العَرَبِيَّةُ جميلةٌ، وعددُها ١٢٣٤.",
    "שָׁלוֹם עולם, מה שלומך היום?",
    "हिन्दी में परीक्षण: क्षत्रिय, ज्ञान, २०२६।",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ ทดสอบการนับ",
    "Tiếng Việt có dấu: nghiêng, huyền, sắc, hỏi, ngã, nặng.",
    "Ελληνικά: Καλημέρα κόσμε· τι κάνεις;",
    "👩🏽\u200d🚀🚀 🇩🇪🇯🇵 ❤️\u200d🔥 ¯\\_(ツ)_/¯ ∑∫√∞ ≠ ½ ⅔ Ⅻ ㎏",
    "def f(x: int) -> dict[str, Any]:\n    return {'a': [x ** 2, None], \"b\": x // 3}  # ok\n",
    "SELECT u.id, COUNT(*) FROM users AS u WHERE name LIKE '%O''Brien%' GROUP BY 1;\r\n",
    '<div class="a-b"><p>&nbsp;x &lt; y</p></div>\t\t\n\n\n',
    "https://example.org/a/b?c=1&d=%20#frag user@example.com 192.168.0.1:8080",
    "aGVsbG8gd29ybGQhIFRoaXMgaXMgYmFzZTY0Lg== 0xDEADBEEF 550e8400-e29b-41d4-a716-446655440000",
)


def library() -> str:
    """Some megabyte of real code and prose: modules of the standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    names = ("argparse", "ast", "decimal", "difflib", "doctest", "inspect", "typing", "turtle")
    return "\n".join(
        (root / f"{name}.py").read_text() for name in names if (root / f"{name}.py").is_file()
    )


def texts(seed: int, specials: Sequence[str]) -> Iterator[str]:
    """Texts without end: sentences, code, random characters, decomposed, cut and whole specials."""
    rng = random.Random(seed)
    source = library()
    blocks = ((0x20, 0x7F), (0x80, 0x600), (0x600, 0x1000), (0x1000, 0x3100), (0x3100, 0xD7FF),
              (0xE000, 0x10000), (0x10000, 0x20000), (0x20000, 0x110000))  # fmt: skip

    def characters() -> str:
        low, high = rng.choice(blocks)
        return "".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 12)))

    def excerpt() -> str:
        start = rng.randrange(len(source) - 600)
        return source[start : start + rng.randrange(1, 600)]

    def special() -> str:
        word = rng.choice(specials)
        return word if rng.random() < 0.6 else word[: rng.randrange(1, len(word) + 1)]

    def spaces() -> str:
        return "".join(rng.choices(" \n\t\r\u00a0\u3000", k=rng.randrange(1, 8)))

    def repeated() -> str:
        return rng.choice("aA1 .-=\n的\u0301é") * rng.randrange(1, 90)

    def sentence() -> str:
        text = rng.choice(SENTENCES)
        return unicodedata.normalize("NFD", text) if rng.random() < 0.15 else text

    makers = (sentence, sentence, sentence, excerpt, characters, special, spaces, repeated)
    while True:
        yield "".join(rng.choice(makers)() for _ in range(rng.randrange(1, 9)))


TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Looks up the <weather> & more in a "city".',
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "北京 or Zürich"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"description": None, "name": "noop", "strict": True}},
    {"type": "function", "function": {"parameters": {}, "name": "search", "description": ""}},
)


def chats(  # noqa: C901 - one small maker for each thing a chat can have
    seed: int, specials: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Chat bodies without end: turns, tools, system, parts, thinking, continued last messages."""
    rng = random.Random(seed)
    some = texts(seed, specials)

    def content() -> Any:
        if rng.random() < 0.15:
            return [{"type": "text", "text": next(some)} for _ in range(rng.randrange(1, 4))]
        return next(some)

    def called() -> dict[str, Any]:
        arguments = {"q": next(some)[:60], "n": rng.randrange(99), "f": rng.random(), "z": None}
        text = json.dumps(arguments, ensure_ascii=rng.random() < 0.5)
        function = {"name": rng.choice(TOOLS)["function"]["name"], "arguments": text}
        return {"id": f"call_{rng.randrange(1 << 30):x}", "type": "function", "function": function}

    def answered() -> list[dict[str, Any]]:
        """An assistant's turn, perhaps with calls and their results before it."""
        answer: dict[str, Any] = {"role": "assistant", "content": content()}
        if rng.random() < 0.3:
            answer["reasoning_content"] = next(some)
        if rng.random() >= 0.3:
            return [answer]
        answer["tool_calls"] = [called() for _ in range(rng.randrange(1, 3))]
        answer["content"] = rng.choice([None, "", next(some)])
        ids = [call["id"] for call in answer["tool_calls"]]
        results = [{"role": "tool", "tool_call_id": name, "content": content()} for name in ids]
        return [answer, *results, {"role": "assistant", "content": next(some)}]

    def options(last_role: str) -> Iterator[tuple[str, Any]]:
        if last_role == "assistant" and rng.random() < 0.5:
            yield "continue_final_message", True
        if rng.random() < 0.4:
            yield "tools", list(TOOLS[: rng.randrange(1, 4)])
            named = {"type": "function", "function": {"name": "get_weather"}}
            choice = rng.choice([None, "auto", "none", "required", named])
            if choice is not None:
                yield "tool_choice", choice
        if rng.random() < 0.3:
            yield "chat_template_kwargs", {"enable_thinking": rng.random() < 0.5}
        if rng.random() < 0.15:
            yield "reasoning_effort", rng.choice(["none", "low", "high"])

    while True:
        messages: list[dict[str, Any]] = []
        if rng.random() < 0.5:
            messages.append({"role": "system", "content": content()})
        for _ in range(rng.randrange(0, 4)):
            messages.append({"role": "user", "content": content(), "name": "bob"})
            messages += answered()
        if rng.random() < 0.8 or not messages or messages[-1]["role"] == "system":
            messages.append({"role": "user", "content": content()})
        yield {"messages": messages, **dict(options(messages[-1]["role"]))}
