"""What counting costs, against `tokenizers` in the same run: `python -m tests.bench.tokens_bench`.

Ratios carry over to other machines, times do not. Uses the Qwen 3 tokenizer that the slow suites
fetch. Medians of several runs, each on text made for it alone.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import tokenizers

from gateway.tokens import Counter, Kind, build_counter
from gateway.tokens.encoder import load_text_counter
from gateway.tokens.vocabulary import read_vocabulary
from tests.bench.fresh_text import code, english, makers
from tests.tokens import fetch_tokenizers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FAMILY = "qwen3"
SIZES = (1_000, 10_000, 100_000, 250_000)  # tokens


def alternating_ms(
    works: Sequence[Callable[[str], object]], fresh: Callable[[], str], runs: int
) -> list[float]:
    """Median milliseconds of each work, in turns, so that a busy machine is unkind to all alike.

    Every call gets a text of its own: no cache of either side has seen it.
    """
    times: list[list[float]] = [[] for _ in works]
    for turn in range(runs + 1):
        for work, kept in zip(works, times, strict=True):
            text = fresh()
            begun = time.perf_counter()
            work(text)
            if turn:  # the first warms up
                kept.append(time.perf_counter() - begun)
    return [statistics.median(kept) * 1e3 for kept in times]


def encoding(content: bytes) -> None:
    """Ours against both of `tokenizers`' calls, by kind of text and size, on text never seen."""
    reference = tokenizers.Tokenizer.from_buffer(content)
    counter, _ = load_text_counter(content, {})
    works = (
        lambda text: reference.encode(text, add_special_tokens=False),
        lambda text: reference.encode_batch_fast([text], add_special_tokens=False),
        counter.count,
    )
    print(f"{'text':>8} {'tokens':>8} {'encode':>10} {'batch_fast':>10} {'ours':>9} {'ratios':>12}")
    rng = random.Random(9)
    for name, make in makers(read_vocabulary(orjson.loads(content)).ranks).items():
        sample = make(rng, 400_000)
        share = len(sample) / counter.count(sample)
        for size in SIZES:
            runs = max(7, 60_000 // size)
            fresh = partial(make, rng, int(size * share))
            encode, batch, ours = alternating_ms(works, fresh, runs)
            print(
                f"{name:>8} {size:>8,} {encode:>8.2f}ms {batch:>8.2f}ms {ours:>7.2f}ms"
                f" {encode / ours:>5.1f}x {batch / ours:>4.1f}x"
            )


def conversation(count: Callable[[str], int]) -> list[dict[str, Any]]:
    """A hundred turns, 150,000 tokens in all: half prose, half code."""
    rng = random.Random(10)
    turns, roles = 101, ("user", "assistant")
    size = int(150_000 / turns * 3.7)
    made = [
        {"role": roles[n % 2], "content": (english if n % 4 < 2 else code)(rng, size)}
        for n in range(turns)
    ]
    scale = 150_000 / sum(count(message["content"]) for message in made)
    return [{**m, "content": m["content"][: int(len(m["content"]) * scale)]} for m in made]


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
    text, _ = load_text_counter(content, {})
    await growing(counter, text.count)
    prose = english(random.Random(11), 1_100_000)
    print(f"a prompt of {text.count(prose):,} tokens, eight times:")
    await lag(counter, prose)
    await adversarial(counter)


def main() -> int:
    """Print the table; 1 where the tokenizer cannot be fetched."""
    if fetch_tokenizers.missing() and fetch_tokenizers.main():
        return 1
    asyncio.run(run())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
