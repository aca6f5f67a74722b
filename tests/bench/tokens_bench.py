"""What counting costs, against `tokenizers` in the same run: `python -m tests.bench.tokens_bench`.

Ratios carry over to other machines, times do not. Uses the Qwen 3 tokenizer that the slow suites
fetch. Medians of several runs on text that no cache has seen, unless said otherwise.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from pydoc_data import topics
from typing import TYPE_CHECKING, Any

import orjson
import tokenizers

from gateway.tokens import Counter, Kind, build_counter
from gateway.tokens.encoder import TiktokenEncoder
from gateway.tokens.vocabulary import read_vocabulary
from tests.tokens import fetch_tokenizers
from tests.tokens.texts import SENTENCES, library

if TYPE_CHECKING:
    from collections.abc import Callable

FAMILY = "qwen3"
SIZES = (1_000, 100_000, 250_000)  # tokens
WORDS = [
    "模型",
    "的",
    "上下文",
    "长度",
    "是",
    "有限",
    "我们",
    "需要",
    "在",
    "服务器",
    "之前",
    "计算",
    "每个",
    "请求",
    "词元",
    "数量",
    "以便",
    "安排",
    "队列",
    "和",
    "内存",
]


def alternating_ms(
    one: Callable[[], object], other: Callable[[], object], runs: int
) -> tuple[float, float]:
    """Median milliseconds of both, run in turns so that a busy machine is unkind to both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(runs + 1):
        for work, kept in zip((one, other), times, strict=True):
            begun = time.perf_counter()
            work()
            if turn:  # the first warms up
                kept.append(time.perf_counter() - begun)
    return statistics.median(times[0]) * 1e3, statistics.median(times[1]) * 1e3


def corpora() -> dict[str, str]:
    """English prose, Chinese and code, each of some megabytes."""
    rng = random.Random(9)
    chinese = "。".join(
        "".join(rng.choices(WORDS, k=rng.randrange(4, 20))) + rng.choice(SENTENCES[5:6])
        for _ in range(40_000)
    )
    return {
        "English": "\n".join(topics.topics.values()) * 4,
        "Chinese": chinese,
        "code": library() * 4,
    }


def of_tokens(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """The beginning of `text` that has about so many tokens."""
    share = len(text) / count(text)
    return text[: int(tokens * share)]


def encoding(content: bytes) -> None:
    """tiktoken against tokenizers, by language and size."""
    reference = tokenizers.Tokenizer.from_buffer(content)
    encoder = TiktokenEncoder(read_vocabulary(orjson.loads(content)))
    print(f"{'text':>9} {'tokens':>8} {'tokenizers':>11} {'ours':>8} {'ratio':>7}")
    for name, text in corpora().items():
        for size in SIZES:
            piece = of_tokens(text, size, encoder.count)
            runs = 5 if size > 1_000 else 50
            theirs, ours = alternating_ms(
                lambda p=piece: reference.encode(p, add_special_tokens=False),  # type: ignore[misc]
                lambda p=piece: encoder.count(p),  # type: ignore[misc]
                runs,
            )
            print(f"{name:>9} {size:>8,} {theirs:>9.2f}ms {ours:>6.2f}ms {theirs / ours:>6.1f}x")


def conversation(count: Callable[[str], int]) -> list[dict[str, Any]]:
    """A hundred turns, 150,000 tokens in all."""
    source = of_tokens(corpora()["English"] + library(), 150_000, count)
    turns = 101
    size = len(source) // turns
    roles = ("user", "assistant")
    return [
        {"role": roles[n % 2], "content": source[n * size : (n + 1) * size]} for n in range(turns)
    ]


async def growing(counter: Counter, count: Callable[[str], int]) -> None:
    """The turns of a growing chat: parse, render and count; and counting alone."""
    messages = conversation(count)
    whole, alone, total = [], [], 0
    for end in range(3, len(messages) + 1, 2):
        raw = orjson.dumps({"messages": messages[:end], "max_tokens": 100})
        begun = time.perf_counter()
        body = orjson.loads(raw)
        counted = await counter.count(Kind.CHAT, body, len(raw))
        whole.append(time.perf_counter() - begun)
        local = counter._local
        text, _ = local.rendered(body)  # type: ignore[union-attr]
        begun = time.perf_counter()
        local._text.count(text)  # type: ignore[union-attr]
        alone.append(time.perf_counter() - begun)
        total = counted.total
    last = slice(-10, None)
    print(
        f"growing chat, {total:,} tokens, last ten turns:"
        f" parse + render + count {statistics.median(whole[last]) * 1e3:.2f} ms,"
        f" counting alone (all seen) {statistics.median(alone[last]) * 1e3:.2f} ms"
    )


async def lag(counter: Counter, text: str) -> None:
    """How late the event loop is while eight prompts of 250,000 tokens are counted."""
    late: list[float] = []
    done = asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - begun - 0.001)

    watching = asyncio.get_running_loop().create_task(watch())
    begun = time.perf_counter()
    bodies = [{"prompt": f"{n} {text}"} for n in range(8)]
    await asyncio.gather(*(counter.count(Kind.COMPLETION, body, len(text)) for body in bodies))
    took = time.perf_counter() - begun
    done.set()
    await watching
    late.sort()
    print(
        f"eight prompts of 250,000 tokens in {took * 1e3:.0f} ms; the loop was late by"
        f" {late[len(late) // 2] * 1e3:.2f} ms (median), {late[len(late) * 99 // 100] * 1e3:.2f} ms"
        f" (p99), {late[-1] * 1e3:.2f} ms (worst of {len(late)})"
    )


async def adversarial(counter: Counter) -> None:
    """Eight megabytes of what is hardest."""
    size = 8_000_000
    cases = {
        "one letter": "a" * size,
        "newlines": "\n" * size,
        "spaces": " " * size,
        "punctuation": "!" * size,
        "CJK": "".join(chr(0x4E00 + n * 7919 % 20_900) for n in range(size // 3)),
        "combining marks": "e" + "\u0316\u0301" * (size // 4),
        "marks in runs": ("e" + "\u0316\u0301" * 500) * (size // 2001),
        "half special tokens": "<|" * (size // 2),
        "special tokens": "<|im_start|>" * (size // 12),
    }
    for name, text in cases.items():
        begun = time.perf_counter()
        counted = await counter.count(Kind.COMPLETION, {"prompt": text}, size)
        took = time.perf_counter() - begun
        print(f"8 MB of {name:>20}: {took:5.2f} s, {counted.total:>9,} ({counted.method})")


async def run() -> None:
    """Everything, in order."""
    directory = fetch_tokenizers.folder() / FAMILY
    content = (directory / "tokenizer.json").read_bytes()
    encoding(content)
    begun = time.perf_counter()
    counter = await build_counter(tokenizer_dir=directory, engine_version="0.5.17", remote=None)
    print(f"loading: {time.perf_counter() - begun:.1f} s, proof included")
    encoder = TiktokenEncoder(read_vocabulary(json.loads(content)))
    await growing(counter, encoder.count)
    await lag(counter, of_tokens(corpora()["English"], 250_000, encoder.count))
    await adversarial(counter)


def main() -> int:
    """Print the table; 1 where the tokenizer cannot be fetched."""
    if fetch_tokenizers.missing() and fetch_tokenizers.main():
        return 1
    asyncio.run(run())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
