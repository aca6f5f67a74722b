"""What counting costs, against `tokenizers` in the same run: `python -m tests.bench.tokens_bench`.

Ratios carry over to other machines, times do not. Uses the Qwen 3 tokenizer that the slow suites
fetch. Medians of several runs, each on text made for it alone.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import statistics
import sysconfig
import time
from functools import partial
from pathlib import Path
from pydoc_data import topics
from typing import TYPE_CHECKING, Any

import orjson
import tokenizers

from gateway.tokens import Counter, Kind, build_counter
from gateway.tokens.encoder import load_text_counter
from gateway.tokens.vocabulary import read_vocabulary
from tests.bench.fresh_text import code, english, makers
from tests.tokens import fetch_tokenizers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gateway.tokens.encoder import TextCounter
    from tests.bench.fresh_text import Maker

FAMILY = "qwen3"
SIZES = (1_000, 10_000, 100_000, 250_000)  # tokens
IN_A_ROW = 20_000  # tokens of a turn, at least one text


def alternating_ms(
    works: Sequence[Callable[[str], object]], fresh: Callable[[], str], runs: int, in_a_row: int
) -> list[float]:
    """Median milliseconds of each work, in turns, so that a busy machine is unkind to all alike.

    Every call gets a text of its own: no cache of either side has seen it. A turn is `in_a_row`
    texts, and its time that of one of them: between two turns the others have had the processor's
    caches for themselves, which for a short text is half of what is measured.
    """
    times: list[list[float]] = [[] for _ in works]
    for turn in range(runs + 1):
        for work, kept in zip(works, times, strict=True):
            texts = [fresh() for _ in range(in_a_row)]
            begun = time.perf_counter()
            for text in texts:
                work(text)
            if turn:  # the first warms up
                kept.append((time.perf_counter() - begun) / in_a_row)
    return [statistics.median(kept) * 1e3 for kept in times]


def seen_again(kind: str) -> Maker:
    """Real English (Python's own manual) or code (its library): other excerpts, the same words."""
    if kind == "code":
        root = Path(sysconfig.get_paths()["stdlib"])
        source = "".join(path.read_text() for path in sorted(root.glob("[a-m]*.py")))
    else:
        source = "\n".join(topics.topics.values())

    def make(rng: random.Random, characters: int) -> str:
        at = rng.randrange(len(source))
        return (source[at:] + source * (1 + characters // len(source)))[:characters]

    return make


def fast_counter(content: bytes) -> TextCounter | None:
    """The same with fastokens, None where that is not installed or does not count alike."""
    counter, _ = load_text_counter(content, {})
    note = counter.use_fast(content)
    print(note)
    return counter if note.startswith("Counting") else None


def encoding(content: bytes) -> None:
    """Ours against both of `tokenizers`' calls, one thread each, by kind of text and size."""
    reference = tokenizers.Tokenizer.from_buffer(content)
    counter, _ = load_text_counter(content, {})
    fast = fast_counter(content)
    works: list[Callable[[str], object]] = [
        lambda text: reference.encode(text, add_special_tokens=False),
        lambda text: reference.encode_batch_fast([text], add_special_tokens=False),
        counter.count,
    ]
    works += [fast.count] if fast else []
    print("| text | tokens | encode ms | batch_fast ms | ours ms | ratios | fast ms | ratios |")
    print("|---|---|---|---|---|---|---|---|")
    rng = random.Random(9)
    kinds = makers(read_vocabulary(orjson.loads(content)).ranks)
    kinds |= {f"{kind}, words seen": seen_again(kind) for kind in ("English", "code")}
    for name, make in kinds.items():
        sample = make(rng, 400_000)
        share = len(sample) / counter.count(sample)
        for size in SIZES:
            runs = min(21, max(7, 60_000 // size))
            fresh = partial(make, rng, int(size * share))
            encode, batch, ours, *rest = alternating_ms(
                works, fresh, runs, max(1, IN_A_ROW // size)
            )
            row = f"| {name} | {size:,} | {encode:.2f} | {batch:.2f} | {ours:.2f}"
            row += f" | {encode / ours:.1f} / {batch / ours:.1f}"
            row += "".join(f" | {ms:.2f} | {encode / ms:.0f} / {batch / ms:.0f}" for ms in rest)
            print(row + " |", flush=True)


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


async def lag(name: str, work: Callable[[], Awaitable[object]]) -> None:
    """How late the event loop is while `work` runs."""
    late: list[float] = []
    done = asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - begun - 0.001)

    watching = asyncio.get_running_loop().create_task(watch())
    begun = time.perf_counter()
    await work()
    took = time.perf_counter() - begun
    done.set()
    await watching
    late.sort()
    print(
        f"{name}: {took * 1e3:.0f} ms; the loop was late by"
        f" {late[len(late) // 2] * 1e3:.2f} ms (median), {late[len(late) * 99 // 100] * 1e3:.2f} ms"
        f" (p99), {late[-1] * 1e3:.2f} ms (worst of {len(late)})"
    )


async def eight(counter: Counter, text: str) -> None:
    """Count eight prompts at once."""
    bodies = [{"prompt": f"{n} {text}"} for n in range(8)]
    await asyncio.gather(*(counter.count(Kind.COMPLETION, body, len(text)) for body in bodies))


def hardest(size: int = 8_000_000) -> dict[str, str]:
    """Eight megabytes of UTF-8 each of what is hardest."""
    rng = random.Random(12)
    blob = base64.b64encode(rng.randbytes(size * 3 // 4)).decode()
    return {
        "one letter": "a" * size,
        "base64": blob,
        "base64 in lines": "\n".join(blob[at : at + 76] for at in range(0, len(blob), 76)),
        "hexadecimal": rng.randbytes(size // 2).hex(),
        "digits": "".join(rng.choices("0123456789", k=size)),
        "newlines": "\n" * size,
        "spaces": " " * size,
        "punctuation": "!" * size,
        "CJK without a space": "".join(chr(0x4E00 + n * 7919 % 20_900) for n in range(size // 3)),
        "kana without a space": "".join(rng.choices("あいうえおかきくけこアイウエオ", k=size // 3)),
        "combining marks": "e" + "\u0316\u0301" * (size // 4),
        "marks in runs": ("e" + "\u0316\u0301" * 500) * (size // 2001),
        "emoji": "".join(rng.choices("😀🚀👩🏽\u200d🇩❤", k=size // 4)),
        "half special tokens": "<|" * (size // 2),
        "special tokens": "<|im_start|>" * (size // 12),
        "English": english(rng, size),
    }


async def adversarial(counter: Counter) -> None:
    """How long each of them takes, and what is answered."""
    print("| 8 MB of | s | tokens | |")
    print("|---|---|---|---|")
    slowest = 0.0
    for name, text in hardest().items():
        begun = time.perf_counter()
        counted = await counter.count(Kind.COMPLETION, {"prompt": text}, len(text.encode()))
        took = time.perf_counter() - begun
        slowest = max(slowest, took)
        print(f"| {name} | {took:.2f} | {counted.total:,} | {counted.method} |", flush=True)
    print(f"slowest: {slowest:.2f} s; why not exact: {dict(counter.fallbacks)}")


async def run() -> None:
    """Everything, in order."""
    directory = fetch_tokenizers.folder() / FAMILY
    content = (directory / "tokenizer.json").read_bytes()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    encoding(content)
    begun = time.perf_counter()
    counter = await build_counter(tokenizer_dir=directory, engine_version="0.5.17", remote=None)
    print(f"loading: {time.perf_counter() - begun:.1f} s, proof included")
    text, _ = load_text_counter(content, {})
    await growing(counter, text.count)
    prose = english(random.Random(11), 1_100_000)
    print(f"load average {os.getloadavg()[0]:.1f}")
    await lag("nothing at all", partial(asyncio.sleep, 1.0))
    size = f"eight prompts of {text.count(prose):,} tokens"
    await lag(size, partial(eight, counter, prose))
    await adversarial(counter)
    print(f"load average {os.getloadavg()[0]:.1f}")


def main() -> int:
    """Print the table; 1 where the tokenizer cannot be fetched."""
    if fetch_tokenizers.missing() and fetch_tokenizers.main():
        return 1
    asyncio.run(run())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
