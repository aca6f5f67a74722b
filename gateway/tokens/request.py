"""Finds the prompts in a body: the same few fields for every way of counting them.

A body becomes a `Request`: either plain prompts (text, or the length of a list of token ids,
which needs no counting) or a chat in OpenAI's shape, plus the media that the engine will expand.
Only shapes that no engine version takes are refused; whatever else is odd is left for the engine
to judge, because its answer is the one the client should read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from gateway.tokens import grammar_ids
from gateway.tokens.anthropic import chat_from_messages, left_out, thinks_back
from gateway.tokens.model import CountRefused, Kind
from gateway.tokens.responses import chat_from_responses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.tokens.anthropic import Conversion

TEMPLATE: Final = 160
"""Tokens that a reranker's or an embedder's template may put around a prompt: Qwen3-Reranker's, the
longest of those in use, has about 75."""

SEAM: Final = 1
"""Tokens that two texts may have more where they are joined."""

Prompt = str | int
"""Text to count, or the number of token ids given instead of text."""


@dataclass(frozen=True, slots=True)
class Media:
    """One image, sound or video in a body. `source` is its URL, data URL or base64 text."""

    modality: str  # "image", "audio" or "video"
    source: str = field(repr=False)
    prompt: int = 0  # which of the prompts it belongs to
    resized: bool = False  # the client moved the processor's bounds


@dataclass(frozen=True, slots=True)
class Request:
    """What has to be counted. `chat` is a body in OpenAI's shape, or None.

    Where `shared`, the first prompt is a query that the engine puts before each of the others; they
    are counted apart, since a long query before a thousand items would be a long text. `frame` is
    what may come around each prompt, tokens.
    """

    prompts: tuple[Prompt, ...] = ()
    chat: Mapping[str, Any] | None = None
    media: tuple[Media, ...] = ()
    largest_id: int = -1  # of the token ids in the body, prompts or not; -1: there are none
    shared: bool = False
    frame: int = 0
    rough: bool = False  # the engine's way from body to prompt is not followed to the last token
    lead: list[tuple[int, int]] = field(default_factory=list, compare=False)
    """Filled as the prompt is counted, where there is one: see `TextCounter.count`."""


def read(kind: Kind, body: Mapping[str, Any], conversion: Conversion | None = None) -> Request:
    """Find the prompts of `body`; CountRefused where there is nothing of a type that can be one."""
    if kind is Kind.MESSAGES:
        # Earlier thoughts are counted; a server without a reasoning parser drops them.
        made, sent = chat_from_messages(body, conversion), body.get("messages")
        if isinstance(sent, list) and sent and not made["messages"]:
            raise CountRefused(left_out(sent))
        request = replace(_chat(made), rough=thinks_back(body))
    else:
        request = _READERS[kind](body)
    named = _named_ids(body)
    return replace(request, largest_id=named) if named > request.largest_id else request


_NAMED = ("stop_token_ids", "token_ids_logprob", "label_token_ids")
"""Ids that are no prompt: the engine looks up columns of its logits by them, in a batch that others are
in as well, and its scheduler ends where there is none (0.5.6-0.5.17; sgl-project/sglang#27398, #28088)."""


def _named_ids(body: Mapping[str, Any]) -> int:
    """The largest of them, -1 where there are none; CountRefused for what is no id.

    A list of prompts may have a list of ids for each, or none; for a single prompt a list of lists ends
    the scheduler as well.
    """
    params = body.get("sampling_params")
    holders = [body, *(params if isinstance(params, list) else [params])]
    largest = -1
    for holder in holders:
        for name in _NAMED if isinstance(holder, dict) else ():
            given = holder.get(name)
            if given is None:
                continue
            lists = [given]
            each = isinstance(given, list) and any(isinstance(one, list) for one in given)
            if each and _is_listed(body):
                lists = [ids for ids in given if ids is not None]
            if not all(isinstance(ids, list) and _all_of(ids, int) for ids in lists):
                needed = f"`{name}` must be a list of token ids, whole numbers from 0 on."
                raise CountRefused(needed)
            largest = max(largest, *(_largest_id(name, ids) for ids in lists), -1)
        if isinstance(holder, dict):
            largest = max(largest, grammar_ids.largest(holder))
    return largest


def _is_listed(body: Mapping[str, Any]) -> bool:
    """Whether a body of /generate has a list of prompts, of one perhaps."""
    ids = body.get("input_ids")
    if ids is None:
        return isinstance(body.get("text"), list)
    return isinstance(ids, list) and bool(ids) and isinstance(ids[0], list)


def _responses(body: Mapping[str, Any]) -> Request:
    chat = chat_from_responses(body)
    if not chat["messages"]:
        if isinstance(given := body.get("input"), list) and given:
            raise CountRefused(
                "`input` must have an item for the model: these are empty, or no objects."
            )
        raise CountRefused("`input` must be text or a list with at least one item.")
    return replace(_chat(chat), rough=True)


def _chat(body: Mapping[str, Any]) -> Request:
    ids = body.get("input_ids")
    if ids is not None:  # since 0.5.17 they bypass the template
        return _plain("input_ids", ids)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise CountRefused("`messages` must be a list with at least one message.")
    arguments = body.get("chat_template_kwargs")
    if isinstance(arguments, dict) and "chat_template" in arguments:
        # Up to 0.5.17 the engine renders it: a loop in it costs any time and makes any length.
        raise CountRefused("`chat_template_kwargs.chat_template`: the server's own is used here.")
    media: list[Media] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            needed = f"`messages[{index}]` must be an object with `role` and `content`."
            raise CountRefused(needed)
        content = message.get("content")
        if isinstance(content, list):
            media.extend(found for part in content if (found := media_of(part, body)) is not None)
        elif content is not None and not isinstance(content, str):
            needed = f"`messages[{index}].content` must be a string or a list of parts."
            raise CountRefused(needed)
    return Request(chat=body, media=tuple(media))


# The part types that SGLang expands, and the field that holds each one's source.
_MEDIA_FIELDS = {
    "image_url": "image",
    "image": "image",
    "video_url": "video",
    "video": "video",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio": "audio",
}


# Fields with which a client moves an image's size: in the body, or (0.5.17) beside its URL.
_RESIZING = ("mm_processor_kwargs", "max_dynamic_patch", "min_pixels", "max_pixels")


def media_of(part: object, body: Mapping[str, Any] | None = None) -> Media | None:
    """The media of a content part, None where it is text or something else."""
    if not isinstance(part, dict) or not isinstance(kind := part.get("type"), str):
        return None
    modality = _MEDIA_FIELDS.get(kind)
    if modality is None:
        return None
    value = part.get(kind)
    fields = value if isinstance(value, dict) else {}
    source = fields.get("url") or fields.get("data") if fields else value
    resized = any(
        source.get(name) is not None for source in (body or {}, fields) for name in _RESIZING
    )
    return Media(modality, source if isinstance(source, str) else "", resized=resized)


def _generate(body: Mapping[str, Any]) -> Request:
    # Where a body holds both, the engine runs the ids.
    if body.get("input_ids") is not None:
        prompts = _texts_or_ids("input_ids", body["input_ids"])
    elif body.get("text") is not None:
        prompts = _texts_or_ids("text", body["text"])
    elif isinstance(embeds := body.get("input_embeds"), list) and embeds:
        # One prompt is positions × width; a third level makes it a list of prompts.
        nested = all(isinstance(e, list) and e and isinstance(e[0], list) for e in embeds)
        prompts = tuple(len(e) for e in embeds) if nested else (len(embeds),)
    else:
        raise CountRefused("One of `text`, `input_ids` and `input_embeds` must be given.")
    media: list[Media] = []
    for modality in ("image", "video", "audio"):
        data = body.get(f"{modality}_data")
        # With several prompts, item i of the list belongs to prompt i.
        each = isinstance(data, list) and len(data) == len(prompts) > 1
        groups = data if isinstance(data, list) and each else [data]
        for prompt, group in enumerate(groups):
            media.extend(Media(modality, source, prompt) for source in _sources(group))
    return Request(
        prompts=prompts,
        media=tuple(media),
        largest_id=_largest_id("input_ids", body.get("input_ids")),
    )


def _input(body: Mapping[str, Any]) -> Request:
    """Texts, ids, or objects of text, image and video: those go through the chat template."""
    given = body.get("input")
    if not (isinstance(given, list) and given and _all_of(given, dict)):
        return _plain("input", given)
    texts: list[Prompt] = []
    media: list[Media] = []
    for index, item in enumerate(given):
        text = item.get("text")
        texts.append(text if isinstance(text, str) else "")
        for modality in ("image", "video"):
            media.extend(Media(modality, one, index) for one in _sources(item.get(modality)))
    return Request(prompts=tuple(texts), media=tuple(media), frame=TEMPLATE, rough=True)


def _scored(body: Mapping[str, Any]) -> Request:
    query, items = body.get("query"), body.get("items")
    first = _texts_or_ids("query", query)
    rest = _texts_or_ids("items", items)
    if len(first) != 1:
        raise CountRefused("`query` must be text or a list of token ids.")
    if not first[0] and not all(rest):  # a seam is counted between them, and nothing is there
        raise CountRefused(
            "`query` and an item of `items` are both empty: there is nothing to read."
        )
    largest = max(_largest_id("query", query), _largest_id("items", items))
    return Request(prompts=(*first, *rest), largest_id=largest, shared=True, frame=SEAM, rough=True)


def _reranked(body: Mapping[str, Any]) -> Request:
    documents = body.get("documents")
    if not isinstance(documents, list) or not documents:
        raise CountRefused("`documents` must be a list with at least one document.")
    query, seen = _content("query", body.get("query"))
    instruct = body.get("instruct")
    if isinstance(instruct, str):
        query = f"{query} {instruct}"
    texts: list[Prompt] = [query]
    media: list[Media] = []
    for index, document in enumerate(documents):
        text, own = _content("documents", document)
        texts.append(text)
        media.extend(replace(one, prompt=index) for one in (*seen, *own))
    return Request(
        prompts=tuple(texts), media=tuple(media), shared=True, frame=TEMPLATE, rough=True
    )


def _content(name: str, value: object) -> tuple[str, list[Media]]:
    """Text and media of a text or a list of parts."""
    if isinstance(value, str):
        return value, []
    if not isinstance(value, list):
        needed = f"`{name}` must be text or a list of parts."
        raise CountRefused(needed)
    texts = [part.get("text") for part in value if isinstance(part, dict)]
    media = [found for part in value if (found := media_of(part)) is not None]
    return " ".join(text for text in texts if isinstance(text, str)), media


def _sources(value: object) -> Iterator[str]:
    """Every source in an `image_data`-like field: a string, an object, or (nested) lists of them."""
    stack: list[object] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(reversed(item))
        elif isinstance(item, dict):
            stack.append(item.get("url") or item.get("data") or "")
        elif item is not None:
            yield item if isinstance(item, str) else ""


def _texts_or_ids(name: str, value: object) -> tuple[Prompt, ...]:
    """Prompts of a field that takes text, a list of texts, token ids or a list of lists of ids."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if _all_of(value, int):
            return (len(value),)
        if _all_of(value, str):
            return tuple(value)
        if _all_of(value, list) and all(_all_of(ids, int) for ids in value):
            return tuple(len(ids) for ids in value)
    needed = f"`{name}` must be text, a list of texts, token ids or a list of lists of token ids."
    raise CountRefused(needed)


def _plain(name: str, value: object) -> Request:
    return Request(prompts=_texts_or_ids(name, value), largest_id=_largest_id(name, value))


def _largest_id(name: str, value: object) -> int:
    """The largest token id of a field; -1 where it holds text. A negative one kills the scheduler
    (0.5.17: an index error in its embedding), as one beyond the vocabulary does."""
    if not isinstance(value, list) or not value or isinstance(value[0], str):
        return -1
    lists = value if isinstance(value[0], list) else [value]
    if any(ids and min(ids) < 0 for ids in lists):
        msg = f"`{name}` holds a negative token id."
        raise CountRefused(msg)
    return max((max(ids) for ids in lists if ids), default=-1)


def _all_of(values: list[Any], wanted: type) -> bool:
    # set(map(type, ...)) runs in C: a list of 100k ids costs 1 ms, a generator of isinstance 6 ms.
    # bool is not int here, as pydantic's strict integers would have it.
    return set(map(type, values)) <= {wanted}


_READERS: Final[Mapping[Kind, Callable[[Mapping[str, Any]], Request]]] = {
    Kind.CHAT: _chat,
    Kind.COMPLETION: lambda body: _plain("prompt", body.get("prompt")),
    Kind.GENERATE: _generate,
    Kind.TEXT: lambda body: _plain("text", body.get("text")),
    Kind.RESPONSES: _responses,
    Kind.INPUT: _input,
    Kind.SCORE: _scored,
    Kind.RERANK: _reranked,
}
