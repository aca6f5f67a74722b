"""Reads a tokenizer directory: vocabulary, settings, chat template. Blocking; meant for a thread."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import jinja2
import orjson

from gateway.tokens.encoders import Spec, spec_of
from gateway.tokens.shared import text_counter
from gateway.tokens.spelling import Spelling
from gateway.tokens.template import ChatTemplate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gateway.tokens.encoder import TextCounter


_UNKNOWN: Final = ("KimiK3", "InklingForConditionalGeneration")
"""Architectures whose chats are written by code that is not followed here, whatever template the
files hold: Kimi K3 by the model's own, Inkling by SGLang's (chat_encoding.py, 0.5.23)."""


@dataclass(frozen=True, slots=True)
class Files:
    """What a directory held. `notes` says in words what was missing or is not exact."""

    text: TextCounter | None
    template: ChatTemplate | None
    processor: Mapping[str, Any] | None
    model_type: str | None
    notes: tuple[str, ...]
    spec: Spec | None = None  # the encoder that writes chats instead of a template
    spelling: Spelling | None = None  # with an encoder: what it learns from is read with it
    marks: Mapping[str, str] = field(default_factory=dict)  # see `marks_of`


def read_files(
    directory: Path,
    chat_template: str | None = None,
    tool_parser: str | None = None,
    *,
    fast: bool = False,
) -> Files:
    """Everything that counting needs from `directory`; what cannot be read becomes a note.

    `chat_template` is the server's --chat-template argument: a .jinja file that replaces the
    model's own, or the name of one of SGLang's built-in conversations, which are not Jinja.
    `tool_parser` is its --tool-call-parser, which may decide how chats are written. With `fast`, texts are counted by fastokens if it is installed and counts alike.
    """
    notes: list[str] = []
    config = read_json(directory / "tokenizer_config.json") or {}
    text, content = None, b""
    try:
        content = (directory / "tokenizer.json").read_bytes()
        text, said = text_counter(content, config, fast=fast)
        notes += said
    except OSError as error:
        notes.append(f"tokenizer.json in {directory} cannot be read: {error.strerror}.")
    except Exception as error:  # noqa: BLE001 - whatever the file holds, the gate starts
        notes.append(f"tokenizer.json in {directory} cannot be used: {type(error).__name__}.")
    template = None
    source, spec = _chats(directory, config, chat_template, tool_parser, notes)
    if source is not None:
        try:
            template = ChatTemplate(source, special_tokens(config))
        except jinja2.TemplateError as error:
            notes.append(f"The chat template does not compile: {error.message}.")
    processor = read_json(directory / "preprocessor_config.json")
    _, named = _model(directory)
    spelling = Spelling(content) if text is not None and spec is not None else None
    marks = marks_of(read_json(directory / "config.json") or {}, content)
    return Files(text, template, processor, named or None, tuple(notes), spec, spelling, marks)


def marks_of(config: Mapping[str, Any], tokenizer: bytes) -> dict[str, str]:
    """By modality, the token that stands in a prompt for an image, a video or a sound, as text. `config` is
    config.json, which names it by its id; `tokenizer` the bytes of tokenizer.json."""
    named = {
        modality: number
        for modality in ("image", "video", "audio")
        for name in (f"{modality}_token_id", f"{modality}_token_index")
        if isinstance(number := config.get(name), int)
    }
    if not named or not tokenizer:
        return {}
    try:
        added = orjson.loads(tokenizer).get("added_tokens") or ()
        texts = {token["id"]: token["content"] for token in added}
    except (ValueError, AttributeError, TypeError, KeyError):
        return {}
    return {modality: texts[number] for modality, number in named.items() if texts.get(number)}


def special_tokens(config: Mapping[str, Any]) -> dict[str, object]:
    """The names by which a template may use special tokens, with their text."""
    found: dict[str, object] = {}
    for name, value in config.items():
        if name.endswith("_token") and (text := _content(value)) is not None:
            found[name] = text
    extra = config.get("additional_special_tokens")
    if isinstance(extra, list):
        found["additional_special_tokens"] = [_content(token) for token in extra]
    return found


def _content(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _model(directory: Path) -> tuple[str, str]:
    """(architecture, model type) of config.json, empty where it says none."""
    config = read_json(directory / "config.json") or {}
    listed, named = config.get("architectures"), config.get("model_type")
    architecture = str(listed[0]) if isinstance(listed, list) and listed else ""
    return architecture, named if isinstance(named, str) else ""


def _chats(
    directory: Path,
    config: Mapping[str, Any],
    chat_template: str | None,
    tool_parser: str | None,
    notes: list[str],
) -> tuple[str | None, Spec | None]:
    """(the template in force, the encoder that is used instead): one of them at most."""
    if chat_template is not None and not _is_jinja(directory / chat_template):
        notes.append("The server's --chat-template is not a .jinja file here: chats are estimated.")
        return None, None
    try:
        source = _template_source(directory, config, chat_template)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        notes.append(
            f"The chat template in {directory} cannot be read: {why}. Chats are estimated."
        )
        return None, None
    architecture, model_type = _model(directory)
    spec = spec_of(architecture, model_type, tool_parser or "", has_template=source is not None)
    if spec is not None:
        notes.append(f"SGLang writes these chats with its encoder {spec}, not with a template.")
        return None, spec
    if tool_parser == "kimi_k3" or any(name in architecture for name in _UNKNOWN):
        notes.append(
            f"SGLang renders chats of {architecture} without a template: the server is asked for"
            " their tokens, or they are estimated."
        )
        return None, None
    if source is None:
        notes.append(f"No chat template in {directory}: chats are estimated.")
    return source, None


def _is_jinja(path: Path) -> bool:
    return path.suffix == ".jinja" and path.is_file()


def _template_source(
    directory: Path, config: Mapping[str, Any], chat_template: str | None
) -> str | None:
    """The template: the server's argument, else a file of its own, else the settings."""
    if chat_template is not None:
        # The engine unescapes line ends of such a file (template_manager.py). An absolute path
        # stays itself.
        return (directory / chat_template).read_text("utf-8").strip("\n").replace("\\n", "\n")
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    holder = read_json(directory / "chat_template.json") or config
    source = holder.get("chat_template")
    if isinstance(source, list):  # named templates: [{"name": ..., "template": ...}]
        source = {entry.get("name"): entry.get("template") for entry in source}
    if isinstance(source, dict):
        source = next(iter(source.values()), None)  # the engine takes the first
    return source if isinstance(source, str) else None


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`; None where there is none to read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
