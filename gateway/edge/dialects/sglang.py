"""SGLang's native POST /generate: text or ids, single or batch, sampling_params one or many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.edge import voices
from gateway.edge.dialects import (
    FIRST,
    Body,
    Engine,
    Intent,
    Invalid,
    grammars,
    guard,
    hazards,
    native,
)
from gateway.edge.dialects.openai import RANKS_FROM
from gateway.tokens import Kind

if TYPE_CHECKING:
    from gateway.core.model import Grant

CAP = "max_new_tokens"
LEAST = "min_new_tokens"

USUAL = 128
"""What /generate takes an absent max_new_tokens for (0.5.6-0.5.23); null means no limit there."""


NAMED = "token_ids_logprob"
SPELLED = "return_text_in_logprobs"


class Generate:
    """POST /generate."""

    voice: voices.Voice = voices.OPENAI
    since = FIRST
    named = True
    steered = True

    def read(self, body: Body) -> Intent:
        """See `Dialect.read`.

        A batch may bring one `sampling_params` per prompt; each prompt is then charged the
        largest cap and n among them, which is never too little.
        """
        guard.check(body)
        if body.get("text") is None and body.get("input_ids") is None:
            raise Invalid("text or input_ids is missing", "text")
        compile_s = grammars.check(body, "regex", "ebnf")
        many = _params(body)
        hazards.check_number(body.get("sampling_params"), _batch(body))
        hazards.check_stop_patterns(*many)
        compile_s += grammars.check_each(many, "regex", "ebnf", "json_schema", "structural_tag")
        for params in many:
            hazards.check_sampling(params)
            native.understood(params)
            grammars.check_least(params, LEAST)
            hazards.check_stop_ids(params, LEAST)
            if params.get("beam_width") is not None:
                raise Invalid("beam search is not allowed through this gate", "beam_width")
        native.check_both(body)
        native.check_lists(body, _batch(body))
        native.check_start(body)
        n = max(guard.count(params.get("n"), "n") for params in many)
        native.check_media(body, _batch(body), n)
        hazards.check_top(body.get("top_logprobs_num"), "top_logprobs_num")
        caps = [guard.cap(params.get(CAP), CAP, zero_is_unset=False) for params in many]
        sent = [cap for cap in caps if cap is not None]
        unset = len(sent) < len(caps)
        wanted = max([*sent, USUAL] if unset else sent) if sent else None
        return Intent(
            kind=Kind.GENERATE,
            cap=wanted,
            usual=USUAL,
            n=n,
            stream=guard.flag(body.get("stream"), "stream"),
            model=None,
            prompts=_batch(body) or 1,
            heavy=_heavy(body),
            compile_s=compile_s,
        )

    def write(self, body: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:
        """See `Dialect.write`. No prompt gets more than the cap in force."""
        if body.get(NAMED) and hazards.names_kill(engine):
            version = ".".join(map(str, engine.version))
            msg = (
                f"{NAMED} ends SGLang {version} when anything else runs beside it, so it is not sent there; "
                "top_logprobs_num is possible"
            )
            raise Invalid(msg, NAMED)
        out = guard.strip(body)
        limit = grant.demand.cap
        if intent.stream and body.get("return_logprob"):
            tops = body.get("top_logprobs_num")
            told = hazards.HEAVY_TOKENS if intent.heavy else 0
            hazards.check_sent(tops, limit, told, "return_logprob")
            if guard.flag(body.get(SPELLED), SPELLED):
                hazards.check_told(tops, limit, engine, SPELLED)

        def capped(params: dict[str, Any]) -> dict[str, Any]:
            own = guard.cap(params.get(CAP), CAP, zero_is_unset=False)
            new = native.understood(params) | {CAP: limit if own is None else min(own, limit)}
            if own is None and intent.cap is not None:
                new[CAP] = min(USUAL, limit)
            if (least := new.get(LEAST)) is not None:
                new[LEAST] = grammars.least(params, least, new[CAP])
            return new

        params = out.get("sampling_params")
        out["sampling_params"] = (
            [capped(one) for one in _params(body)]
            if isinstance(params, list)
            else capped(_params(body)[0])
        )
        if "stream" in out:
            out["stream"] = intent.stream
        out["rid"] = rid if _batch(out) is None else [f"{rid}_{i}" for i in range(_batch(out) or 0)]
        if engine.ranks > 1:
            field = "routed_dp_rank" if engine.version >= RANKS_FROM else "data_parallel_rank"
            out[field] = grant.pool.rank
        return guard.dump(out)


def _params(body: Body) -> list[dict[str, Any]]:
    params = body.get("sampling_params")
    many = params if isinstance(params, list) else [params]
    if not many:
        raise Invalid("sampling_params is an empty list", "sampling_params")
    for one in many:
        if one is not None and not isinstance(one, dict):
            raise Invalid(
                "sampling_params must be an object or a list of objects", "sampling_params"
            )
    return [one or {} for one in many]


def _batch(body: Body) -> int | None:
    """How many prompts a batch has; None for a single prompt, which takes a single rid."""
    ids = body.get("input_ids")
    if isinstance(ids, list):
        return len(ids) if ids and isinstance(ids[0], list) else None
    text = body.get("text")
    return len(text) if isinstance(text, list) else None


def _heavy(body: Body) -> str | None:
    """Prompt log-probabilities make rows × vocabulary floats: 2,048 rows are 1.7-2.8 GiB."""
    wants = body.get("return_logprob")
    start = body.get("logprob_start_len")
    if not wants or start is None or start == -1:
        return None
    return "return_logprob with logprob_start_len"
