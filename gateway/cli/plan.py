"""`kvgate plan`: from a card's memory to KV pool, context and headroom, and what to set.

    kvgate plan --available-gib 23.2 --weights-gib 17.67 --state-gib 0.7 --cell-bytes 32768
    kvgate plan --card rtx3090 --weights-gib 17.67 --model config.json --kv-dtype fp8_e5m2 …
    kvgate plan … --want-context 100000 --prompt-tokens 19000 --requests 3
    kvgate plan … --measured 0.95:120079:0.65 --measured 0.93:105256:1.09

Exit codes: 0 ok; 1 what was wanted does not fit, or no fraction leaves a pool; 2 usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from gateway.cli.usage import UsageError, engine_version
from gateway.plan.advice import REQUESTS, Advice, Wish, advise
from gateway.plan.cards import CARDS, DESKTOP_GIB, default_chunk
from gateway.plan.chain import OVERHEAD_GIB, Chain, ChainError, Measured, Row, calibrate
from gateway.plan.model import KV_BYTES, Model, ModelError, chunk_gib, read_model, state_gib
from gateway.plan.risk import risk
from gateway.plan.traffic import HIDDEN, INTERMEDIATE

FRACTIONS: Final = (0.80, 0.85, 0.88, 0.90, 0.91, 0.92, 0.93, 0.94, 0.95)
"""Shown where none is given: from SGLang's own choice for small cards to the boldest seen."""

OK, SHORT, USAGE = 0, 1, 2
POINT: Final = 3  # parts of --measured: fraction, pool, headroom


class _Usage(Exception):
    """One sentence for the person who called."""


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = argparse.ArgumentParser(
        prog="kvgate plan", description="From a card's memory to KV pool, context and headroom."
    )
    memory = p.add_argument_group("memory")
    memory.add_argument("--available-gib", type=float, metavar="A", help="free before the load")
    memory.add_argument("--card", choices=sorted(CARDS), help="instead: an estimate for this card")
    memory.add_argument("--desktop", action="store_true", help=f"less {DESKTOP_GIB} GiB of --card")
    memory.add_argument("--weights-gib", type=float, metavar="W", help="of this rank")
    memory.add_argument(
        "--state-gib", type=float, metavar="S", help="mamba or linear-attention state"
    )
    memory.add_argument("--cell-bytes", type=float, metavar="C", help="KV bytes of a token")
    memory.add_argument(
        "--overhead-gib", type=float, default=OVERHEAD_GIB, help="graphs, workspaces"
    )
    memory.add_argument("--page-size", type=int, default=1, metavar="TOKENS")
    memory.add_argument("--fraction", type=float, action="append", metavar="F")
    memory.add_argument(
        "--measured",
        action="append",
        default=[],
        metavar="F:POOL[:HEADROOM]",
        help="a start of this server, twice or more: calibrates the chain",
    )
    model = p.add_argument_group("model, instead of --cell-bytes")
    model.add_argument("--model", type=Path, metavar="CONFIG_JSON", help="or its directory")
    model.add_argument("--kv-dtype", default="auto", choices=sorted(KV_BYTES))
    model.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks")
    model.add_argument("--state-slots", type=int, metavar="N", help="--max-mamba-cache-size")
    model.add_argument("--state-dtype", metavar="DTYPE", help="--mamba-ssm-dtype")
    wish = p.add_argument_group("what is wanted")
    wish.add_argument("--want-context", type=int, metavar="TOKENS")
    wish.add_argument("--prompt-tokens", type=int, metavar="P", help="a usual prompt")
    wish.add_argument(
        "--requests", type=int, default=REQUESTS, metavar="N", help="that many at once"
    )
    wish.add_argument("--chunk", type=int, metavar="TOKENS", help="--chunked-prefill-size")
    wish.add_argument(
        "--engine-version",
        metavar="X.Y.Z",
        help="whose chunk it is where none is given (before 0.5.23)",
    )
    p.add_argument("--json", metavar="PATH", help="write the result there; - for standard output")
    return p


def run(argv: list[str]) -> int:
    """Compute and show."""
    options = parser().parse_args(argv)
    try:
        model = None if options.model is None else _model(options)
        chain = _chain(options, model)
        rows = [chain.row(f) for f in options.fraction or FRACTIONS]
        chunk = _chunk_tokens(options, chain)
        hidden = HIDDEN if model is None else model.hidden
        step = chunk_gib(chunk, hidden, INTERMEDIATE if model is None else model.intermediate)
        wish = Wish(options.want_context, options.prompt_tokens, options.requests)
        advice = advise(chain, step, wish)
        if options.json is not None:
            _write(options.json, _result(chain, rows, (chunk, step), advice))
    except (_Usage, UsageError, ChainError, ModelError) as error:
        sys.stderr.write(f"kvgate plan: {error}\n")
        return USAGE
    except BrokenPipeError:
        raise  # whoever reads the output has read enough
    except OSError as error:
        sys.stderr.write(f"kvgate plan: {error.filename or 'the output'}: {error.strerror}.\n")
        return USAGE
    if options.json != "-":
        _show(chain, rows, (chunk, step), advice)
    if options.want_context is not None:
        return OK if advice is not None and advice.reached else SHORT
    return OK if any(row.pool_tokens for row in rows) else SHORT


def _model(options: argparse.Namespace) -> Model:
    path: Path = options.model / "config.json" if options.model.is_dir() else options.model
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        needed = f"{path} must be a model's config.json."
        raise _Usage(needed) from None
    if not isinstance(config, dict):
        needed = f"{path} must hold a JSON object."
        raise _Usage(needed)
    return read_model(
        config, kv_dtype=options.kv_dtype, tp=options.tp, state_dtype=options.state_dtype
    )


def _chain(options: argparse.Namespace, model: Model | None) -> Chain:
    _whole_numbers(options)
    cell = options.cell_bytes or (None if model is None else model.cell_bytes)
    if cell is None:
        raise _Usage("The bytes of a token are needed: give --cell-bytes C or --model CONFIG_JSON.")
    points = [_measured(text) for text in options.measured]
    available = options.available_gib
    if available is None and options.card is not None:
        available = CARDS[options.card].available_gib - (DESKTOP_GIB if options.desktop else 0)
    weights = options.weights_gib
    if points:  # they tell both; the values only have to be possible
        available = 1.0 if available is None else available
        weights = 0.0 if weights is None else weights
    if available is None:
        raise _Usage("The free memory is needed: give --available-gib A, or --card NAME.")
    if weights is None:
        raise _Usage("The weights are needed: give --weights-gib W (the log: Load weight end).")
    chain = Chain(
        available_gib=available,
        weights_gib=weights,
        state_gib=_state(options, model),
        cell_bytes=cell,
        page=options.page_size,
        overhead_gib=options.overhead_gib,
        longest=None if model is None else model.longest,
    )
    return calibrate(chain, points) if points else chain


def _whole_numbers(options: argparse.Namespace) -> None:
    for name in ("want_context", "prompt_tokens", "requests", "chunk", "tp", "state_slots"):
        value = getattr(options, name)
        if value is not None and value < 1:
            needed = f"--{name.replace('_', '-')} must be at least 1; {value} was given."
            raise _Usage(needed)


def _state(options: argparse.Namespace, model: Model | None) -> float:
    if options.state_gib is not None:
        return float(options.state_gib)
    if model is None or model.state_bytes == 0:
        return 0.0
    if options.state_slots is None:
        mib = model.state_bytes / 2**20
        needed = (
            f"This model keeps {mib:.0f} MiB of state per slot: give --state-slots N "
            "(its --max-mamba-cache-size, three or more per running request) or --state-gib S."
        )
        raise _Usage(needed)
    return state_gib(model, options.state_slots)


def _chunk_tokens(options: argparse.Namespace, chain: Chain) -> int:
    if options.chunk is not None:
        return int(options.chunk)
    card = CARDS.get(options.card or "")
    named = options.engine_version
    return default_chunk(
        chain.available_gib if card is None else card.total_mib / 1024,
        None if named is None else engine_version(named),
    )


def _measured(text: str) -> Measured:
    parts = text.split(":")
    try:
        fraction, pool, *rest = parts
        point = Measured(float(fraction), int(pool), float(rest[0]) if rest else None)
    except ValueError:
        point = None
    if point is None or len(parts) > POINT or not 0 < point.fraction < 1:
        raise _Usage(
            "--measured takes FRACTION:POOL or FRACTION:POOL:HEADROOM, as 0.93:105256:1.09."
        )
    return point


def _result(
    chain: Chain, rows: list[Row], chunk: tuple[int, float], advice: Advice | None
) -> dict[str, Any]:
    """What `--json` writes. `rows` is a stable contract; `chunk` is tokens and GiB."""
    tokens, step = chunk
    return {
        "rows": [_rounded(row) for row in rows],
        "risk": [risk(row.headroom_gib, step).value for row in rows],
        "chain": asdict(chain),
        "chunk": {"tokens": tokens, "gib": round(step, 4)},
        "advice": None if advice is None else asdict(advice) | {"row": _rounded(advice.row)},
    }


def _write(path: str, result: dict[str, Any]) -> None:
    text = json.dumps(result, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text, encoding="utf-8")


def _rounded(row: Row) -> dict[str, float]:
    return asdict(row) | {"headroom_gib": round(row.headroom_gib, 4)}


def _show(chain: Chain, rows: list[Row], chunk: tuple[int, float], advice: Advice | None) -> None:
    tokens, step = chunk
    out = sys.stdout.write
    out(
        f"{chain.available_gib:.2f} GiB free - {chain.weights_gib:.2f} weights "
        f"- {chain.state_gib:.2f} state; {chain.cell_bytes:,.0f} bytes a token; a prefill step of "
        f"{tokens:,} tokens takes {step:.2f} GiB\n\n"
    )
    out("fraction      pool  headroom   context  risk\n")
    for row in rows:
        level = risk(row.headroom_gib, step) if row.pool_tokens else "no pool"
        out(
            f"{row.fraction:>8.3f}{row.pool_tokens:>10,}{row.headroom_gib:>9.2f}G"
            f"{row.context_tokens:>10,}  {level}\n"
        )
    if advice is None:
        out(
            "\nNo fraction leaves a pool: the weights and the state need a larger card, or fewer bits.\n"
        )
        return
    out(f"\n{'Set' if advice.reached else 'Falls short, the nearest is'}:\n")
    out(f"  --mem-fraction-static {advice.row.fraction:g} --context-length {advice.context_length}")
    out(f" --max-running-requests {advice.max_running} --chunked-prefill-size {tokens}\n")
    out(f"  policy: max_output_tokens: {advice.max_output}, ")
    out(f"default_output_tokens: {advice.default_output}\n")
    out(
        f"  so that {advice.requests} prompts of {advice.prompt:,} fit with their answers at once.\n"
    )
    out(f"  {advice.why} Risk: {advice.risk}.\n")
