"""A verdict in words, English and Chinese: the evidence with its numbers, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.observe.verdict import (
    ALWAYS,
    BACKLOG_S,
    IDLE_PERCENT,
    NEAR_LIMIT,
    TAKEN,
    Kind,
    Verdict,
    Words,
    judge,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.observe.looks import CardLook, ServerLook
    from gateway.observe.verdict import Facts


def verdict(
    looks: Sequence[ServerLook],
    *,
    before: ServerLook | None = None,
    cards: Sequence[CardLook] = (),
    usual: float | None = None,
) -> Verdict:
    """The verdict on one server's looks; see `judge`."""
    facts, kinds = judge(looks, before=before, cards=cards, usual=usual)
    sentence, change = _SAID[kinds[0]](facts)
    return Verdict(kinds[0], facts.server, sentence, change, kinds[1:])


def worst(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict on a gate: the worst of its servers', the first of equals."""
    order = list(Kind)
    return min(verdicts, key=lambda one: order.index(one.kind), default=None)


def number(value: float) -> str:
    """As people write it: 208,013; 31; 2.5."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"  # noqa: PLR2004


def _requests(count: float, verb: str = "") -> str:
    """A number of requests, and what they do: 1 request waits, 2.5 requests wait."""
    if number(count) == "1":
        return f"1 request {verb}s" if verb else "1 request"
    return f"{number(count)} requests {verb}".rstrip()


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


_STATES = {
    "starting": "启动中",
    "connecting": "尚未连通",
    "stalled": "调度器停滞",
    "down": "已停止",
    "held": "反复崩溃后暂停使用",
    "ready": "就绪",
}


def _down(f: Facts) -> tuple[Words, Words]:
    died = f"; it died {_times(f.deaths)} with requests in flight" if f.deaths else ""
    died_zh = f"；其间在有请求运行时崩溃 {f.deaths} 次" if f.deaths else ""
    return (
        Words(
            f"{f.server} took no work at {f.down} of {f.looks} looks (last: {f.state}){died}.",
            f"{f.server} 在 {f.looks} 次检查中有 {f.down} 次不可用（最后状态：{_STATES.get(f.state, f.state)}）{died_zh}。",
        ),
        Words(
            "Look at the server's own log and at the crash reports (observe.crash_reports); "
            "`kvgate audit` tells whether its arguments leave too little memory beside the pool.",
            "查看该服务自身的日志和崩溃报告（observe.crash_reports）；用 kvgate audit 检查启动参数给池外留的显存是否过少。",
        ),
    )


def _kv(f: Facts) -> tuple[Words, Words]:
    use = _percent(f.kv_taken)
    took = f"the engine took memory back from {_requests(f.retracted)}; " if f.retracted else ""
    took_zh = f"引擎从 {f.retracted} 个请求收回了显存；" if f.retracted else ""
    waiting = f.waiting_kv or f.waiting
    oldest = f"; the longest wait is {number(f.oldest_s)} s" if f.oldest_s else ""
    oldest_zh = f"；最长已等 {number(f.oldest_s)} 秒" if f.oldest_s else ""
    return (
        Words(
            f"{took}{_requests(waiting, 'wait')} for KV memory, {use} of {number(f.pool)} tokens are in use "
            f"or promised{oldest}.",
            f"{took_zh}{number(waiting)} 个请求在等待 KV 显存，{number(f.pool)} 个 Token 的池已占用或预留 {use}{oldest_zh}。",
        ),
        Words(
            "Shorter histories or a lower max_output_tokens let more fit; `kvgate plan` tells whether a "
            "larger pool fits the card; else a second server.",
            "缩短历史或调低 max_output_tokens 可容纳更多请求；用 kvgate plan 看显卡能否放下更大的池；否则增加一台服务。",
        ),
    )


def _prefill(f: Facts) -> tuple[Words, Words]:
    queue = queue_zh = ""
    if f.waiting_most:
        queue = f"; {_requests(f.waiting_most, 'wait')} at most"
        queue_zh = f"；最多 {f.waiting_most} 个请求在等待"
    if max(f.unread_s, f.backlog_s) < BACKLOG_S:
        time = f"; a prompt was being read at {_percent(f.reading)} of the looks"
        time_zh = f"；{_percent(f.reading)} 的检查中有输入正在计算"
    elif f.unread_s > f.backlog_s:
        time = f"; the oldest of them has waited {number(f.unread_s)} s"
        time_zh = f"；最早的已等 {number(f.unread_s)} 秒"
    else:
        time = f"; at {number(f.rate or 0)} tokens/s that takes {number(f.backlog_s)} s"
        time_zh = f"；按每秒 {number(f.rate or 0)} 个需要 {number(f.backlog_s)} 秒"
    if f.speed is not None and f.reading >= ALWAYS:
        queue += f"; those that write meanwhile get {number(f.speed)} tok/s"
        queue_zh += f"；其间生成中的请求每秒 {number(f.speed)} Token"
    cards = "" if f.busy is None else f"; GPUs {f.busy:.0f} % busy"
    cards_zh = "" if f.busy is None else f"；GPU 利用率 {f.busy:.0f} %"
    return (
        Words(
            f"{number(f.pending)} prompt tokens have still to be read, {number(f.pending_most)} at the "
            f"peak{time}{queue}{cards}.",
            f"还有 {number(f.pending)} 个输入 Token 待计算，峰值 {number(f.pending_most)}{time_zh}{queue_zh}{cards_zh}。",
        ),
        Words(
            "Trim histories or keep their beginnings unchanged so that the prefix cache hits; send long "
            "prompts to a server of their own (max_prompt_tokens on the others). A larger "
            "--chunked-prefill-size reads faster where `kvgate audit` sees the memory for it; "
            "--enable-mixed-chunk lets the others write meanwhile.",
            "精简历史，或保持开头不变以命中前缀缓存；把长输入交给单独的服务（其他服务设 max_prompt_tokens）。kvgate audit 认为显存足够时，增大 --chunked-prefill-size 可加快计算；--enable-mixed-chunk 让其他请求同时生成。",
        ),
    )


def _decode(f: Facts) -> tuple[Words, Words]:
    speed = number(f.speed or 0.0)
    long = "" if f.context is None else f" of {number(f.context)} tokens each"
    long_zh = "" if f.context is None else f"（平均 {number(f.context)} Token）"
    if f.usual is not None and f.usual > (f.speed or 0.0):
        fell = f"speed per request fell from {number(f.usual)} to {speed} tok/s"
        fell_zh = f"单请求速度从每秒 {number(f.usual)} 降到 {speed} Token"
    else:
        fell = f"each gets {speed} tok/s"
        fell_zh = f"每个请求每秒只有 {speed} Token"
    near = near_zh = ""
    if f.slots and f.running >= NEAR_LIMIT * f.slots:
        near = f"; {number(f.running)} of {number(f.slots)} that may run do"
        near_zh = f"；允许并发 {number(f.slots)}，已运行 {number(f.running)}"
    return (
        Words(
            f"{_requests(f.writing)}{long} decode at once; {fell}{near}.",
            f"{number(f.writing)} 个请求{long_zh}同时生成；{fell_zh}{near_zh}。",
        ),
        Words(
            f"Let fewer run at once: `slots: {f.fitting}` for {f.server} (or its --max-running-requests); "
            "the others wait their turn instead of all crawling. Shorter contexts help each of them.",
            f"降低并发：为 {f.server} 设 slots: {f.fitting}（或其 --max-running-requests），其余排队等待，而不是一起变慢；缩短上下文也有帮助。",
        ),
    )


def _queue(f: Facts) -> tuple[Words, Words]:
    idle = f.busy is not None and f.busy < IDLE_PERCENT
    speed = "" if f.speed is None else f"; each that runs gets {number(f.speed)} tok/s"
    speed_zh = "" if f.speed is None else f"；运行中的请求每秒 {number(f.speed)} Token"
    cards = "" if f.busy is None else f"; GPUs {f.busy:.0f} % busy"
    cards_zh = "" if f.busy is None else f"；GPU 利用率 {f.busy:.0f} %"
    of = f" of {number(f.slots)} that may" if f.slots else ""
    of_zh = f"（允许 {number(f.slots)}）" if f.slots else ""
    sentence = Words(
        f"{_requests(f.waiting, 'wait')} ({f.waiting_most} at the peak) while only "
        f"{_percent(f.kv_part)} of the pool is in use: not memory, but computing or scheduling; "
        f"{number(f.running)}{of} run{speed}{cards}.",
        f"{number(f.waiting)} 个请求在等待（峰值 {f.waiting_most}），而池只用了 {_percent(f.kv_part)}：不是显存，而是计算或调度；正在运行 {number(f.running)}{of_zh}{speed_zh}{cards_zh}。",
    )
    if idle:
        return sentence, Words(
            "The cards are not busy: look at the server's CPU (tokenizer, detokenizer, grammar), its "
            "images, and the network before its GPUs.",
            "GPU 并不忙：先查服务的 CPU（分词、解码、语法约束）、图片处理和网络。",
        )
    return sentence, Words(
        "A queue here keeps those that run at their pace. If that pace is better than it need be, "
        "raise `slots`, `tpot_s` or --max-running-requests; else it takes another server.",
        "排队保证了运行中请求的速度。若速度有余，可调高 slots、tpot_s 或 --max-running-requests；否则需要增加服务。",
    )


def _client(f: Facts) -> tuple[Words, Words]:
    whose = f.client or "a client"
    return (
        Words(
            f"{_requests(f.limited)} of {whose} held back by that client's own limits or share; "
            f"{_percent(f.kv_part)} of the pool is in use.",
            f"{f.client or '某客户端'} 的 {number(f.limited)} 个请求在等待其自身的限额或份额；池已用 {_percent(f.kv_part)}。",
        ),
        Words(
            "That is what the policy says. Where there is room for more, raise this client's "
            "max_inflight, max_held_tokens or weight.",
            "这是策略的规定。若仍有余量，可调高该客户端的 max_inflight、max_held_tokens 或 weight。",
        ),
    )


def _calm(f: Facts) -> tuple[Words, Words]:
    static = static_zh = ""
    idle = f.busy is not None and f.busy < IDLE_PERCENT
    if idle and f.memory is not None and f.memory >= TAKEN:
        static = (
            f"; the cards' memory is {_percent(f.memory)} taken while they idle: weights and pool are set "
            "aside at start, that is no load"
        )
        static_zh = (
            f"；显存已占 {_percent(f.memory)} 而 GPU 空闲：这是权重和池的静态预分配，不代表繁忙"
        )
    speed = "" if f.speed is None else f", each at {number(f.speed)} tok/s"
    speed_zh = "" if f.speed is None else f"，每个每秒 {number(f.speed)} Token"
    return (
        Words(
            f"{_requests(f.running, 'run')}{speed}; no queue to speak of; {_percent(f.kv_part)} of the "
            f"pool is in use{static}.",
            f"{number(f.running)} 个请求在运行{speed_zh}；基本无排队；池已用 {_percent(f.kv_part)}{static_zh}。",
        ),
        Words(),
    )


_SAID: dict[Kind, Callable[[Facts], tuple[Words, Words]]] = {
    Kind.ENGINE_DOWN: _down,
    Kind.KV_EXHAUSTION: _kv,
    Kind.PREFILL_BACKLOG: _prefill,
    Kind.DECODE_COMPETITION: _decode,
    Kind.COMPUTE_QUEUE: _queue,
    Kind.CLIENT_LIMITED: _client,
    Kind.CALM: _calm,
}
