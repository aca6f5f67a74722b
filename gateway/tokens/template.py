"""A model's chat template, rendered as Hugging Face renders it, within bounds.

The environment is `apply_chat_template`'s: jinja2's immutable sandbox with trimmed blocks, loop
controls, a `generation` block that prints its body, `tojson` that leaves HTML characters and
non-ASCII text alone, and the two helpers that templates call. The template is the model's, the
data a client's: the data never becomes a template, and rendering stops at a size and a time.
"""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.runtime
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from jinja2.parser import Parser

RENDER_SECONDS: Final = 2.0
"""200 messages take 1 to 7 ms; this is for templates that are quadratic in what a client sends."""
RENDER_CHARACTERS: Final = 32 << 20
"""Far above any context (128 bytes is the longest token in use: at least 262,144 tokens)."""
MOST_MESSAGES: Final = 10_000
"""Some templates concatenate in loops that produce no output to check the time at."""

ContentFormat = Literal["string", "openai"]


class RenderError(Exception):
    """The template refused the messages, or took too long. The engine will say it better."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's own tokens for training; here it only prints them."""

    tags = {"generation"}  # noqa: RUF012 - declared that way by jinja2

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the signature templates call
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    # The engine prints its own local date; ours has as many tokens.
    return datetime.now().strftime(pattern)  # noqa: DTZ005


# What a dict has besides its keys. Jinja prefers these to keys of the same name.
_DICT_ATTRIBUTES: Final = frozenset(dir(dict))
_ABSENT: Final = object()
# Types of which the sandbox forbids nothing but names with an underscore in front.
_HARMLESS: Final = frozenset({str, jinja2.runtime.LoopContext, jinja2.utils.Namespace})
# Those of strings that the sandbox replaces by its own.
_FORMATS: Final = frozenset({"format", "format_map"})


class _Sandbox(ImmutableSandboxedEnvironment):
    """The same answers for what messages are made of, by a shorter way.

    `message.role` first fails as an attribute of a dict, and each use of a string, a loop or a
    namespace is looked for in the abstract classes of mutable containers: half the time of
    rendering a long chat.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - jinja2's own signature
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            found = obj.get(attribute, _ABSENT)
            return found if found is not _ABSENT else self.undefined(obj=obj, name=attribute)
        if type(obj) in _HARMLESS and attribute not in _FORMATS and not attribute.startswith("_"):
            found = getattr(obj, attribute, _ABSENT)
            if found is not _ABSENT:
                return found
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401
        if type(obj) in _HARMLESS:
            return not attr.startswith("_")
        return super().is_safe_attribute(obj, attr, value)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


class ChatTemplate:
    """One compiled template. Thread-safe."""

    def __init__(self, source: str, special_tokens: Mapping[str, object]) -> None:
        """Compile `source`; jinja2.TemplateSyntaxError where it is none.

        `special_tokens` are the names templates use for them, such as `bos_token`.
        """
        environment = _environment()
        self._template = environment.from_string(source)
        # A chain of mappings otherwise, which each rendering copies name by name.
        self._template.globals = dict(self._template.globals)
        self._special_tokens = dict(special_tokens)
        self.kin: Hashable = source, repr(sorted(self._special_tokens.items()))
        """The same for two that render alike."""
        tree = environment.parse(source)
        self.content_format: ContentFormat = _content_format(source, tree)
        self._arguments = jinja2.meta.find_undeclared_variables(tree)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        arguments: Mapping[str, Any],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt; RenderError where the template raises or a bound is passed."""
        if len(messages) > MOST_MESSAGES:
            raise RenderError("more messages than are rendered")
        context = {
            **self._special_tokens,
            **arguments,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return "".join(bounded(self._template.generate(context)))
        except RenderError:
            raise
        except Exception as error:  # noqa: BLE001 - a template may raise anything
            # The type alone: the message may hold the client's text.
            raise RenderError(type(error).__name__) from None

    @property
    def takes_inline_system(self) -> bool:
        """Whether a system message in mid-conversation is printed where it stands.

        SGLang tries it out this way before it decides to merge such messages into the first.
        """
        sentinel = "inline-system-sentinel"
        texts = (("system", "t"), ("user", "t"), ("system", sentinel), ("user", "t"))
        messages = [{"role": role, "content": text} for role, text in texts]
        try:
            return sentinel in self.render(messages, None, {}, add_generation_prompt=False)
        except RenderError:
            return False

    @property
    def thinking_argument(self) -> str | None:
        """The argument with which the template switches thinking, None if it has no such switch."""
        wanted = ("enable_thinking", "thinking")
        return next((name for name in wanted if name in self._arguments), None)


def bounded(pieces: Iterable[str]) -> Iterator[str]:
    """The same pieces, until they are too many or took too long."""
    size, deadline = 0, time.monotonic() + RENDER_SECONDS
    for piece in pieces:
        size += len(piece)
        if size > RENDER_CHARACTERS or time.monotonic() > deadline:
            raise RenderError("more than is rendered")
        yield piece


def _content_format(source: str, tree: jinja2.nodes.Template) -> ContentFormat:
    """Whether the template takes lists of parts: SGLang's rule (parser/jinja_template_utils.py)."""
    if any(word in source for word in ("image", "audio", "video", "vision")):
        return "openai"
    for loop in tree.find_all(jinja2.nodes.For):
        if _is_content(loop.iter):
            return "openai"
    return "string"


def _is_content(node: jinja2.nodes.Node | None) -> bool:
    """Whether `node` is `message.content` (or of `msg`, `m`), filtered, tested or sliced."""
    while True:
        if isinstance(node, jinja2.nodes.Filter | jinja2.nodes.Test) or (
            isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Slice)
        ):
            node = node.node
            continue
        break
    if isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Const):
        owner, key = node.node, node.arg.value
    elif isinstance(node, jinja2.nodes.Getattr):
        owner, key = node.node, node.attr
    else:
        return False
    names = ("message", "msg", "m")
    return key == "content" and isinstance(owner, jinja2.nodes.Name) and owner.name in names
