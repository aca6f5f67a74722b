"""Builds the counter of one model: reads its files, calibrates against its server, wires the parts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from gateway.disk import Clerk
from gateway.tokens import nfc
from gateway.tokens.anthropic import Conversion
from gateway.tokens.calibrate import Teacher, calibrate
from gateway.tokens.counter import Counter
from gateway.tokens.files import Files, read_files
from gateway.tokens.images import rules_for
from gateway.tokens.profile import profile_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable
    from pathlib import Path

TOKENIZES_CHATS: Final = (0, 5, 12)
"""SGLang's first version whose tokenize endpoint takes messages and tools; 0.5.6 takes `prompt`."""

TELLS_STRICT: Final = (0, 5, 23)
"""Its first that shows the model, of a tool of an Anthropic body, whether it is strict."""

READ_S: Final = 120.0
"""How long a tokenizer's files may take to be read and made ready: seconds for the largest vocabulary, more
where a cold disk and a busy processor meet. Then the disk hangs, and the server is asked for its counts."""


async def build_counter(
    *,
    tokenizer_dir: Path | None,
    engine_version: str | None,
    remote: Callable[[dict[str, Any]], Awaitable[int]] | None,
    model_type: str | None = None,
    chat_template: str | None = None,
    tool_parser: str | None = None,
    conversion: Conversion | None = None,
    fast: bool = False,
    remote_ids: Callable[[dict[str, Any]], Awaitable[object]] | None = None,
    told: Hashable = None,
) -> Counter:
    """A counter for the model whose files are in `tokenizer_dir`, as `engine_version` counts.

    `remote` posts a body to the server's own /v1/tokenize and returns its `count`, `remote_ids` its
    `tokens`, from which sentences of models without a template are learned; `model_type`
    is what the server says of it, for images (default: as in config.json); `chat_template` the
    server's --chat-template argument, `tool_parser` its --tool-call-parser; `conversion` what only its arguments tell about Anthropic
    bodies; `fast` asks for the optional engine (see `fast`); `told` is the same for servers that say the same of
    themselves: where they alone can count, one of them is asked for all. Never raises: what is missing or
    broken becomes one of the counter's `notes`, and the next best way of counting is used. Takes
    seconds, off the loop.
    """
    files = Files(None, None, None, None, ())
    if tokenizer_dir is not None:
        disk = Clerk("tokenizer files", READ_S)
        try:
            files = await disk.do(read_files, tokenizer_dir, chat_template, tool_parser, fast=fast)
        except OSError as error:
            note = f"The tokenizer files in {tokenizer_dir} cannot be read: {error.strerror}."
            files = Files(None, None, None, None, (note,))
    await asyncio.to_thread(nfc.warm)
    media, notes = rules_for(model_type or files.model_type, files.processor), files.notes
    profile = profile_for(engine_version)
    takes_chats = profile.since >= TOKENIZES_CHATS
    tells_strict = profile.since >= TELLS_STRICT
    if files.text is None:
        way = "the server's tokenize endpoint" if remote is not None else "bytes"
        note = f"No tokenizer files to read here: counting by {way}."
        if remote is not None and not takes_chats:
            note += " This version takes no chats there: chats are estimated from their texts."
        return Counter(
            remote=remote,
            conversion=conversion,
            media=media,
            remote_takes_chats=takes_chats,
            notes=(*notes, note),
            kin=None if remote is None or told is None else (told, conversion, media, takes_chats),
        )
    if conversion is None and files.template is not None:
        conversion = Conversion(
            toggle=files.template.thinking_argument,
            merge_inline_system=not files.template.takes_inline_system,
            tells_strict=tells_strict,
        )
    if conversion is None and files.spec is not None:
        # What their reasoning parsers switch; encoders take system messages at the head alone.
        conversion = Conversion(toggle="thinking", tells_strict=tells_strict)
    teacher = _teacher(files, remote_ids)
    found = await calibrate(
        files.text, files.template, profile, remote, spec=files.spec, teacher=teacher
    )
    found.local.marks = files.marks
    return Counter(
        local=found.local,
        remote=remote,
        conversion=conversion,
        media=media,
        exact=found.exact,
        ids=files.text.ids,
        remote_takes_chats=takes_chats,
        notes=(*notes, *found.notes),
        kin=(found.local.kin, conversion, media, takes_chats),
    )


def _teacher(
    files: Files, remote_ids: Callable[[dict[str, Any]], Awaitable[object]] | None
) -> Teacher | None:
    if remote_ids is None or files.spelling is None:
        return None
    return Teacher(remote_ids, files.spelling)
