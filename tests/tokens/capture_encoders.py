"""Write down what an installed SGLang makes of the chats in `chats` and of the probes, for `test_encoders`.

    python -m tests.tokens.capture_encoders [FOLDER]

Run with the Python of that install (`python -m tests.real.install` makes one without a GPU; 0.5.23
needs deepseek-recipe, too, and all need tiktoken). SGLang's own request classes and its own `_process_messages` do all of
the work; only the tokenizer is ours: it hands texts back as they are, or, where deepseek-recipe
makes ids itself, has one token a byte beside the special ones. The result goes to
data/encoders-VERSION.json: for each encoder and chat the parts of the prompt, null where the
engine refuses. Special tokens that the engine marked as such are lists of one.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.tokens.chats import chats

SPECIALS = (
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜System｜>", "<｜User｜>", "<｜Assistant｜>",
    "<｜latest_reminder｜>", "<think>", "</think>", "｜DSML｜", "<｜deepseek_image｜>", "<｜action｜>",
    "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>",
)  # fmt: skip


class Echo:
    """A tokenizer whose tokens are whole texts."""

    chat_template = None
    bos_token_id = None

    def encode(self, text: str, **_options: object) -> list[str]:
        return [text]


def byte_tokenizer() -> Any:
    """One token a byte, and the special ones."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE({each: at for at, each in enumerate(alphabet)}, [])
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIALS))
    return SimpleNamespace(backend_tokenizer=backend, chat_template=None, bos_token_id=None)


def parts_of(backend: Any, ids: list[int]) -> list[Any]:
    """Ids as texts, and special tokens as lists of one."""
    special = {backend.token_to_id(text): text for text in SPECIALS}
    found: list[Any] = []
    run: list[int] = []
    for each in [*ids, -1]:
        if each >= 0 and each not in special:
            run.append(each)
            continue
        if run:
            found.append(backend.decode(run, skip_special_tokens=False))
        run = []
        if each >= 0:
            found.append([special[each]])
    return found


def serving_for(spec: str) -> Any:
    """SGLang's own handler of chats, without a server around it."""
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

    class Serving(OpenAIServingChat):
        def __init__(self) -> None:
            pass

        def __getattr__(self, name: str) -> object:
            return None  # every switch off that the parts used here ask for

    serving = Serving()
    serving.chat_encoding_spec = spec
    serving.tool_call_parser = serving.reasoning_parser = None
    serving.default_chat_template_kwargs = {}
    serving.template_manager = SimpleNamespace(
        chat_template_name=None, jinja_template_content_format="string", reasoning_config=None
    )
    config = SimpleNamespace(is_multimodal=False)
    args = SimpleNamespace(reasoning_parser=None, context_length=None)
    serving.tokenizer_manager = SimpleNamespace(
        tokenizer=Echo(), server_args=args, model_config=config
    )
    try:
        from sglang.srt.entrypoints.openai.serving_deepseek_recipe import (
            DeepSeekRecipeChatEncodingAdapter as Adapter,
        )
    except ImportError:
        return serving
    if spec != "dsv32":
        tokenizer = serving.tokenizer_manager.tokenizer = byte_tokenizer()
        serving._encoding_adapter = Adapter(
            chat_encoding_spec=spec, tokenizer=tokenizer, reasoning_parser=None,
            tool_call_parser=None, chat_hooks=None, default_chat_template_kwargs=None,
        )  # fmt: skip
    return serving


def prompt(serving: Any, chat: dict[str, Any]) -> list[Any] | None:
    """The parts of the prompt; None where the engine refuses the chat."""
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    try:
        request = ChatCompletionRequest(model="m", **copy.deepcopy(chat))
        if lacks_tools(request):
            return None
        # What a served chat goes through before (_convert_to_internal_request).
        own = (request.chat_template_kwargs or {}).pop("reasoning_effort", None)
        request.reasoning_effort = request.reasoning_effort if own is None else own
        ids = serving._process_messages(request, False).prompt_ids
    except Exception as error:  # noqa: BLE001 - each version has its own ways to refuse
        print(f"  {type(error).__name__}: {str(error)[:110]!r}", file=sys.stderr)
        return None
    if ids and isinstance(ids[0], int):
        return parts_of(serving.tokenizer_manager.tokenizer.backend_tokenizer, ids)
    return ids


def lacks_tools(request: Any) -> bool:
    """Whether `_validate_request` would refuse: it needs more of a server than there is here."""
    choice = request.tool_choice
    return not request.tools and choice not in (None, "none", "auto")


def main() -> int:
    """Capture all encoders of the SGLang that this Python imports."""
    # What SGLang on a CPU without triton needs.
    os.environ.update(SGLANG_USE_CPU_ENGINE="1", TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1")
    from gateway.tokens.encoders.learn import PROBES
    from tests.real import launch  # answers for the packages that need a GPU

    assert launch.ABSENT
    import sglang

    version = sglang.__version__
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("data")
    specs = ["dsv32", "dsv4"] + (["dsv41"] if version >= "0.5.23" else [])
    captured: dict[str, Any] = {"sglang": version, "lines": [], "prompts": {}, "probes": {}}
    known: dict[str, int] = {}
    for spec in specs:
        serving = serving_for(spec)
        asked = [chat for probe in PROBES for chat in probe.chats]
        for name, several in (("prompts", chats()), ("probes", asked)):
            rows = []
            for chat in several:
                found = prompt(serving, chat)
                # Every prompt with tools has the same thirty lines: they are kept once.
                rows.append(found and [_lines(part, known) for part in found])
            captured[name][spec] = rows
            print(spec, name, len(rows), "chats,", rows.count(None), "refused")
    captured["lines"] = list(known)
    path = folder / f"encoders-{version}.json"
    path.write_text(json.dumps(captured, ensure_ascii=False, separators=(",", ":")) + "\n")
    return 0


def _lines(part: Any, known: dict[str, int]) -> Any:
    if isinstance(part, list):
        return part[0]  # a special token is a string, a text a list of line numbers
    return [known.setdefault(line, len(known)) for line in part.splitlines(keepends=True)]


if __name__ == "__main__":
    sys.exit(main())
