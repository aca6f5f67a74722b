"""Ollama's /api/chat and /api/generate, asked of the engine as chats and completions.

SGLang has routes of these names since 0.5.12, and they are not used: they know eight options, no
tools, images, schemas or thoughts, put no template around a prompt to /api/generate, and take an
absent `num_predict` for 2,048 (0.5.12-0.5.23). In the words of /v1/chat/completions and
/v1/completions the same request runs on every version, is counted as any other chat, and its cap,
end and usage are told. What is written is listed here field by field: whatever else a body holds
goes nowhere, as with Ollama.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.edge import voices
from gateway.edge.dialects import FIRST, Body, Engine, Instead, Intent, Invalid, guard
from gateway.edge.dialects.ollama_turns import pictured, turns
from gateway.edge.dialects.openai import Chat, Text
from gateway.edge.dialects.teller import OllamaTeller, Shape, nothing
from gateway.tokens import Kind

if TYPE_CHECKING:
    from gateway.core.model import Grant

CAP = "num_predict"
CHAT, TEXT = Chat(), Text()
CHATS, TEXTS = "/v1/chat/completions", "/v1/completions"

UNCOUNTED: Final = 2_048
"""What a raw prompt without a cap gets while admission is off: the engine's completions would take it
for 16. Its own /api/generate has the same number."""

OPEN_ENDED: Final = (-1, -2)
"""No limit, and as much as the context holds: for both, what there is room for decides."""

SAMPLING: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
}
"""Options and the engine's names for them. The others are about how Ollama loads a model (`num_ctx`
and `num_gpu` among them: here the server's start has decided that), or samplers SGLang has not."""

EFFORTS: Final = ("low", "medium", "high", "max")
JSON_OBJECT: Final = '{"type": "object"}'


class OllamaChat:
    """POST /api/chat."""

    voice: voices.Voice = voices.OLLAMA_CHAT
    since = FIRST
    named = True
    steered = True

    def read(self, body: Body) -> Intent:
        """See `Dialect.read`."""
        asked = _common(body)
        given = body.get("messages")
        if not (given is None or isinstance(given, list)):
            raise Invalid("messages must be a list", "messages")
        if not given:  # a client that wants the model loaded
            return _loaded(body, Shape.CHAT)
        asked["messages"] = turns(given)
        tools = body.get("tools")
        if tools:
            if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
                raise Invalid("tools must be a list of objects", "tools")
            asked["tools"] = tools
        return _chat(asked, body, Shape.CHAT)

    def write(self, body: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:
        """See `Dialect.write`."""
        return CHAT.write(body, intent, grant, rid, engine)


class OllamaGenerate:
    """POST /api/generate: a prompt in the model's template, or (`raw`) as it stands."""

    voice: voices.Voice = voices.OLLAMA
    since = FIRST
    named = True
    steered = True

    def read(self, body: Body) -> Intent:
        """See `Dialect.read`."""
        asked = _common(body)
        _refuse_kept(body)
        prompt = text_in(body, "prompt")
        if not prompt:
            return _loaded(body, Shape.GENERATE)
        if guard.flag(body.get("raw"), "raw"):
            return _raw(asked, body, prompt)
        system = text_in(body, "system")
        first = [{"role": "system", "content": system}] if system else []
        turn = {"role": "user", "content": pictured(prompt, body.get("images"))}
        asked["messages"] = [*first, turn]
        return _chat(asked, body, Shape.GENERATE)

    def write(self, body: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:
        """See `Dialect.write`."""
        asked = CHAT if "messages" in body else TEXT
        return asked.write(body, intent, grant, rid, engine)


def _chat(asked: Body, body: Body, shape: Shape) -> Intent:
    """The intent of a request that becomes a chat."""
    _think(asked, body.get("think"))
    given = body.get("format")
    if given == "json":
        asked["response_format"] = {"type": "json_object"}
    elif (schema := _schema(given)) is not None:
        asked["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "format", "schema": schema},
        }
    if guard.flag(body.get("logprobs"), "logprobs"):
        asked["logprobs"] = True
        if (top := guard.whole(body.get("top_logprobs"), "top_logprobs")) is not None:
            asked["top_logprobs"] = top
    return _intent(CHAT.read(asked), CHATS, asked, body, shape)


def _raw(asked: Body, body: Body, prompt: str) -> Intent:
    """The intent of a request that becomes a completion."""
    for field in ("system", "images", "logprobs"):
        if body.get(field):
            msg = f"{field} is not possible with raw: the prompt goes to the model as it stands"
            raise Invalid(msg, field)
    asked["prompt"] = prompt
    given = body.get("format")
    if given == "json":
        asked["json_schema"] = JSON_OBJECT
    elif (schema := _schema(given)) is not None:
        asked["json_schema"] = guard.dump(schema).decode()
    return _intent(TEXT.read(asked), TEXTS, asked, body, Shape.RAW)


def _intent(read: Intent, target: str, asked: Body, body: Body, shape: Shape) -> Intent:
    teller = partial(OllamaTeller, shape, str(asked.get("model") or ""))
    cap = _cap(_options(body).get(CAP))
    # For the day when nobody counts: `write` puts the cap in force in its place.
    if cap is not None or shape is Shape.RAW:
        asked["max_tokens"] = UNCOUNTED if cap is None else cap
    return replace(read, cap=cap, usual=None, instead=Instead(target, asked, teller))


def _common(body: Body) -> Body:
    """What both kinds of request have: the model, whether it streams, how it is sampled."""
    streams = body.get("stream")
    stream = True if streams is None else guard.flag(streams, "stream")
    asked: Body = {"stream": stream}
    if (model := model_in(body)) is not None:
        asked["model"] = model
    if stream:
        asked["stream_options"] = {"include_usage": True}
    options = _options(body)
    _cap(options.get(CAP))  # a client that is answered without the engine is told as well
    for name, theirs in SAMPLING.items():
        if (value := options.get(name)) is not None:
            asked[theirs] = value
    top_k = asked.get("top_k")
    if isinstance(top_k, int | float) and top_k <= 0:
        asked["top_k"] = -1  # no limit, in SGLang's words
    seed = asked.get("seed")
    if isinstance(seed, int) and seed < 0:
        del asked["seed"]  # any, which is what the engine takes where there is none
    return asked


def model_in(body: Body) -> str | None:
    """The name it is served under. What is left of a tag would select an adapter of the engine."""
    model = guard.name(body.get("model"))
    if model is None:
        return None
    if ":" in (model := guard.untagged(model)):
        words = "this model is not here under that name and tag; GET /api/tags lists those that are"
        raise Invalid(words, "model")
    return model


def _options(body: Body) -> dict[str, Any]:
    options = body.get("options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise Invalid("options must be an object", "options")
    return options


def _cap(value: object) -> int | None:
    """The cap of `num_predict`; None where there is to be none, or it is not said. Raises Invalid.

    0 counts as not said: Ollama's own runners have taken it for no limit, SGLang's chats do.
    """
    number = guard.whole(value, f"options.{CAP}")
    if number in OPEN_ENDED:
        return None
    return guard.cap(number, f"options.{CAP}", zero_is_unset=True)


def _think(asked: Body, think: object) -> None:
    """Thoughts on or off, or how many. Templates call the switch by one of two names."""
    if think is None:
        return
    if not isinstance(think, bool) and think not in EFFORTS:
        msg = f"think must be true, false or one of {', '.join(EFFORTS)}"
        raise Invalid(msg, "think")
    on = think is not False
    asked["chat_template_kwargs"] = {"enable_thinking": on, "thinking": on}
    if not isinstance(think, bool):
        asked["reasoning_effort"] = think


def _schema(given: object) -> dict[str, Any] | None:
    if given is None or given == "":
        return None
    if not isinstance(given, dict):
        raise Invalid('format must be "json" or a JSON schema', "format")
    return given


def _refuse_kept(body: Body) -> None:
    """Fields that stand for a prompt nobody here can count. Raises Invalid."""
    reasons = {
        "context": "conversations are not kept as token ids here; send the turns to /api/chat",
        "template": "the model's own template is used here; for another one send the whole with raw",
        "suffix": "its marks depend on the model; send them with the prompt, and raw",
    }
    for field, why in reasons.items():
        if body.get(field):
            msg = f"{field} is not allowed through this gate: {why}"
            raise Invalid(msg, field)


def text_in(body: Body, field: str) -> str:
    value = body.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        msg = f"{field} must be a text"
        raise Invalid(msg, field)
    return value


def _loaded(body: Body, shape: Shape) -> Intent:
    """A request without a prompt loads a model, or unloads it. Here it is there, and stays."""
    model, kept = model_in(body), body.get("keep_alive")
    left = kept in (0, "0", "0s") and kept is not False
    told = nothing(shape, model or "", voices.wall_time(), "unload" if left else "load")
    return Intent(
        Kind.CHAT, cap=0, usual=None, n=1, stream=False, model=model, known=orjson.dumps(told)
    )
