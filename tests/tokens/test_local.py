"""Counting with a model's files: whole bodies, off the loop, within bounds; calibration; loading."""

import asyncio
import json
import threading

import pytest

from gateway.tokens import Busy, Kind, Method, build_counter, find_tokenizer
from gateway.tokens import local as module
from gateway.tokens.calibrate import CHATS
from gateway.tokens.counter import Counter
from gateway.tokens.encoder import load_text_counter
from gateway.tokens.files import read_files
from gateway.tokens.local import LocalCounter
from gateway.tokens.profile import PROFILES, profile_for
from gateway.tokens.request import Request
from tests.tokens.conftest import train, with_start_token, write_model

LARGE = module.INLINE_BYTES + 1
CHAT = {"messages": [{"role": "user", "content": "naïve 词表 <|im_end|> isn't"}]}


@pytest.fixture
async def counter(model_dir):
    return await build_counter(tokenizer_dir=model_dir, engine_version="0.5.17", remote=None)


async def test_chats_count_as_their_rendering(counter, hf_count):
    text = "<|im_start|>user\nnaïve 词表 <|im_end|> isn't<|im_end|>\n<|im_start|>assistant\n"
    for size in (100, LARGE):
        counted = await counter.count(Kind.CHAT, CHAT, size)
        assert (counted.total, counted.method) == (hf_count(text), Method.EXACT)
    continued = {
        "messages": [*CHAT["messages"], {"role": "assistant", "content": "It is"}],
        "continue_final_message": True,
    }
    counted = await counter.count(Kind.CHAT, continued, 100)
    assert counted.total == hf_count(text) + hf_count("It is")


async def test_texts_and_lists(counter, hf_count):
    one, two = "The quick", "词表 brown"
    counted = await counter.count(Kind.COMPLETION, {"prompt": [one, two]}, 100)
    assert counted.prompts == (hf_count(one), hf_count(two))
    counted = await counter.count(Kind.GENERATE, {"text": one}, 100)
    assert (counted.prompts, counted.method) == ((hf_count(one),), Method.EXACT)
    assert sum(n for _, n in counter.segments(Kind.GENERATE, {"text": one})) == hf_count(one)


async def test_anthropic_and_openai_bodies_of_one_chat_count_alike(counter):
    openai = {"messages": [{"role": "system", "content": "s"}, *CHAT["messages"]]}
    anthropic = {"system": "s", **CHAT, "max_tokens": 5}
    ours = await counter.count(Kind.MESSAGES, anthropic, 100)
    assert ours == await counter.count(Kind.CHAT, openai, 100)


async def test_plain_text_gets_the_model_s_start_token(tmp_path):
    directory = write_model(tmp_path, with_start_token(train()))
    counter = await build_counter(tokenizer_dir=directory, engine_version=None, remote=None)
    text = await counter.count(Kind.GENERATE, {"text": "fox"}, 10)
    reference = with_start_token(train())
    assert (
        text.total
        == len(reference.encode("fox"))
        == len(reference.encode("fox", add_special_tokens=False)) + 1
    )


async def test_a_refused_rendering_leaves_the_bound(tmp_path, qwen_like):
    directory = write_model(tmp_path, qwen_like, "{{ raise_exception('no') }}")
    counter = await build_counter(tokenizer_dir=directory, engine_version=None, remote=None)
    counted = await counter.count(Kind.CHAT, CHAT, 100)
    assert counted.method is Method.BOUND
    assert counter.fallbacks == {"template_error": 1}


async def test_tools_are_tried_the_other_way_as_the_engine_does(tmp_path, qwen_like):
    template = "{% for t in tools %}{{ t.name + '' }}{% endfor %}{{ messages[0].content }}"
    directory = write_model(tmp_path, qwen_like, template)
    counter = await build_counter(tokenizer_dir=directory, engine_version="0.5.17", remote=None)
    body = {**CHAT, "tools": [{"type": "function", "function": {"name": "weather"}}]}
    rendered = "weather" + CHAT["messages"][0]["content"]
    counted = await counter.count(Kind.CHAT, body, 100)
    assert counted.total == len(qwen_like.encode(rendered, add_special_tokens=False))


async def test_without_a_template_chats_are_estimated_above_their_texts(
    tmp_path, qwen_like, hf_count
):
    directory = write_model(tmp_path, qwen_like)
    (directory / "tokenizer_config.json").write_text("{}")
    counter = await build_counter(tokenizer_dir=directory, engine_version=None, remote=None)
    assert "chats are estimated" in counter.notes[0]
    counted = await counter.count(Kind.CHAT, CHAT, 100)
    assert counted.method is Method.ESTIMATE
    own = hf_count(CHAT["messages"][0]["content"])
    assert own < counted.total < own + 600


class Blocked:
    """A text counter that works until it is let go."""

    prefix = 0

    def __init__(self):
        self.begun, self.go = threading.Semaphore(0), threading.Event()
        self.threads = set()

    def count(self, text, until, lead):
        self.threads.add(threading.current_thread().name)
        self.begun.release()
        assert self.go.wait(30)
        return 1


def asked(counter, client, size=LARGE, prompt="x" * 99):
    return asyncio.ensure_future(counter.count(Kind.COMPLETION, {"prompt": prompt}, size, client))


async def begun(blocked, number):
    for _ in range(number):
        await asyncio.to_thread(blocked.begun.acquire)


async def test_large_bodies_leave_the_loop_and_waiting_is_bounded():
    blocked = Blocked()
    local = LocalCounter(blocked, None, profile_for(None))
    counter = Counter(local=local)
    size = module.QUEUED_BYTES // 4
    running = [asked(counter, "abcd"[at], size) for at in range(4)]
    await begun(blocked, 3)
    refused = await asked(
        counter, "e", size
    )  # it has nothing here: others' bodies are no fault of it
    assert refused.method is Method.BOUND
    assert not blocked.begun.acquire(blocking=False)  # three threads, no more
    blocked.go.set()
    assert [counted.total for counted in await asyncio.gather(*running)] == [1] * 4
    assert all(name.startswith("count") for name in blocked.threads)
    assert counter.fallbacks == {"queue_full": 1}
    again = await asked(counter, "a", size)
    assert (again.total, again.method) == (1, Method.EXACT)
    assert (local._line.bytes, local._line.waiting) == (0, 0)
    local.close()


async def test_one_client_has_two_threads_at_most_and_another_does_not_wait_for_them():
    """The report is K09: fifty bodies of a megabyte, and others are counted meanwhile."""
    blocked = Blocked()
    local = LocalCounter(blocked, None, profile_for(None))
    counter = Counter(local=local)
    flood = [asked(counter, "greedy", 1 << 20) for _ in range(50)]
    await begun(blocked, 2)
    assert local._line.waiting == 48
    other = asked(counter, "other", 1 << 20)
    await begun(blocked, 1)  # at once, while all of the flood's first ones are still at work
    third = asked(counter, "third", 1 << 20)
    await asyncio.sleep(0)
    assert not blocked.begun.acquire(blocking=False)
    blocked.go.set()
    assert {counted.total for counted in await asyncio.gather(other, third, *flood)} == {1}
    assert (local._line.bytes, local._line.waiting) == (0, 0)
    local.close()


async def test_when_too_much_waits_who_has_most_of_it_gives_way():
    blocked = Blocked()
    local = LocalCounter(blocked, None, profile_for(None))
    counter = Counter(local=local)
    size = module.QUEUED_BYTES // 8
    flood = [asked(counter, "greedy", size) for _ in range(8)]
    await begun(blocked, 2)
    with pytest.raises(Busy) as told:
        await asked(counter, "greedy", size)
    assert told.value.waiting == 6
    other = asked(counter, "other", size)
    await begun(blocked, 1)
    with pytest.raises(Busy):
        await flood[-1]  # its last has made room
    assert local._line.waiting == 5
    assert local._line.bytes == module.QUEUED_BYTES
    blocked.go.set()
    await asyncio.gather(other, *flood[:-1])
    assert counter.fallbacks == {}
    local.close()


async def test_who_waits_too_long_behind_its_own_is_told_so(monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 0.05)
    blocked = Blocked()
    local = LocalCounter(blocked, None, profile_for(None))
    counter = Counter(local=local)
    first = [asked(counter, "greedy") for _ in range(2)]
    await begun(blocked, 2)
    with pytest.raises(Busy):
        await asked(counter, "greedy")
    assert {counted.method for counted in await asyncio.gather(*first)} == {Method.BOUND}
    assert local._line.waiting == 0
    assert local._line.bytes == 2 * LARGE
    blocked.go.set()
    while local._line.bytes:
        await asyncio.sleep(0)
    local.close()


async def test_what_is_cancelled_while_it_waits_gives_its_place_back():
    blocked = Blocked()
    local = LocalCounter(blocked, None, profile_for(None))
    counter = Counter(local=local)
    running = [asked(counter, "a") for _ in range(2)]
    await begun(blocked, 2)
    waits = [asked(counter, "a") for _ in range(3)]
    await asyncio.sleep(0)
    for one in waits[:2]:
        one.cancel()
    await asyncio.wait(waits[:2])
    assert (local._line.waiting, local._line.bytes) == (1, 3 * LARGE)
    blocked.go.set()
    assert len(await asyncio.gather(*running, waits[2])) == 3
    assert (local._line.waiting, local._line.bytes) == (0, 0)
    local.close()


async def test_a_counter_that_is_closed_meanwhile_holds_no_place():
    local = LocalCounter(Blocked(), None, profile_for(None))
    counter = Counter(local=local)
    local.close()
    assert (await asked(counter, "a")).method is Method.BOUND
    assert local._line.bytes == 0


async def test_the_server_is_asked_for_clients_in_turn():
    """Without a tokenizer the places are those of the server's own counting."""
    asked_for, go = [], asyncio.Event()

    async def remote(body):
        asked_for.append(body["prompt"])
        await go.wait()
        return 7

    counter = Counter(remote=remote)
    flood = [asked(counter, "greedy", prompt="g") for _ in range(9)]
    await asyncio.sleep(0)
    other = asked(counter, "other", prompt="o")
    await asyncio.sleep(0)
    assert asked_for == ["g", "g"]
    go.set()
    assert (await other).total == 7
    assert asked_for.index("o") <= 3, "one more of the flood's, then its turn"
    await asyncio.gather(*flood)
    assert counter._remote_line.bytes == 0


async def test_time_is_bounded_and_the_bytes_stay_counted_until_the_thread_ends(monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 0.01)
    blocked = Blocked()
    local = LocalCounter(blocked, None, profile_for(None))
    counter = Counter(local=local)
    counted = await counter.count(Kind.COMPLETION, {"prompt": "hello"}, LARGE)
    assert (counted.method, counted.total) == (Method.BOUND, 7)
    assert counter.fallbacks == {"timeout": 1}
    assert local._line.bytes == LARGE
    blocked.go.set()
    while local._line.bytes:
        await asyncio.sleep(0)
    local.close()


async def test_a_text_no_context_could_hold_is_not_encoded(counter, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_TEXT", 100)
    counted = await counter.count(Kind.COMPLETION, {"prompt": "x" * 101}, 101)
    assert (counted.method, counter.fallbacks) == (Method.BOUND, {"too_long": 1})


def server_of(model_dir, profile, *, offset=0, takes_chats=True):
    """A /v1/tokenize that counts with the same files as another SGLang would."""
    files = read_files(model_dir)
    files.text.prefix = 0
    local = LocalCounter(files.text, files.template, profile)

    async def tokenize(body):
        if "prompt" in body:
            return local.count_now(Request(prompts=(body["prompt"],)))[0] + offset
        if not takes_chats:
            raise ValueError("422")
        return local.count_now(Request(chat=body))[0]

    return tokenize


@pytest.mark.parametrize("profile", PROFILES)
async def test_calibration_finds_the_version_that_is_served(model_dir, profile):
    counter = await build_counter(
        tokenizer_dir=model_dir, engine_version="0.5.17", remote=server_of(model_dir, profile)
    )
    files = read_files(model_dir)
    expected = LocalCounter(files.text, files.template, profile)
    for chat in CHATS:
        counted = await counter.count(Kind.CHAT, chat, 100)
        assert counted.method is Method.EXACT
        assert counted.prompts == expected.count_now(Request(chat=chat))


async def test_calibration_takes_over_the_start_token(model_dir):
    remote = server_of(model_dir, profile_for("0.5.17"), offset=1)
    counter = await build_counter(tokenizer_dir=model_dir, engine_version="0.5.17", remote=remote)
    plain = await build_counter(tokenizer_dir=model_dir, engine_version="0.5.17", remote=None)
    body = {"prompt": "The quick"}
    with_start = await counter.count(Kind.COMPLETION, body, 10)
    assert with_start.total == (await plain.count(Kind.COMPLETION, body, 10)).total + 1
    assert with_start.method is Method.EXACT


async def test_another_tokenizer_makes_an_estimate_and_is_said(model_dir, tmp_path):
    other = write_model(tmp_path, train((r"\p{L}+|[^\p{L}]",)))
    counter = await build_counter(
        tokenizer_dir=model_dir,
        engine_version="0.5.17",
        remote=server_of(other, profile_for("0.5.17")),
    )
    counted = await counter.count(Kind.CHAT, CHAT, 100)
    assert counted.method is Method.ESTIMATE
    assert any("tokenizer differs" in note for note in counter.notes)


async def test_a_server_without_chats_or_answers_leaves_what_the_files_say(model_dir):
    async def silent(body):
        raise OSError("refused")

    old = server_of(model_dir, profile_for("0.5.6"), takes_chats=False)
    for remote, said in ((old, "takes no chats"), (silent, "did not answer")):
        counter = await build_counter(
            tokenizer_dir=model_dir, engine_version="0.5.6", remote=remote
        )
        assert any(said in note for note in counter.notes)
        assert (await counter.count(Kind.CHAT, CHAT, 100)).method is Method.EXACT


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"[]", b'{"model": {}}', b'{"model": {"type": "BPE"}}']
)
async def test_broken_files_become_notes(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    counter = await build_counter(tokenizer_dir=tmp_path, engine_version=None, remote=None)
    assert counter.notes
    assert (await counter.count(Kind.CHAT, CHAT, 100)).method is Method.BOUND


def test_templates_are_found_where_the_engine_finds_them(tmp_path, qwen_like):
    directory = write_model(tmp_path, qwen_like, "config {{ eos_token }}")

    def rendered(argument=None):
        template = read_files(directory, argument).template
        return None if template is None else template.render([], None, {})

    assert rendered() == "config <|im_end|>"
    config = json.loads((directory / "tokenizer_config.json").read_text())
    named = [{"name": "a", "template": "first"}, {"name": "tool_use", "template": "second"}]
    (directory / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": named}))
    assert rendered() == "first"
    (directory / "chat_template.json").write_text('{"chat_template": "processor"}')
    assert rendered() == "processor"
    (directory / "chat_template.jinja").write_text("file")
    assert rendered() == "file"
    (directory / "own.jinja").write_text("own\\n!")
    assert rendered("own.jinja") == "own\n!"
    assert rendered(str(directory / "own.jinja")) == "own\n!"
    assert rendered("chatml") is None
    (directory / "chat_template.jinja").write_text("{% if %}")
    files = read_files(directory)
    assert files.template is None
    assert "does not compile" in files.notes[-1]


def test_find_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    model, policy = tmp_path / "model", tmp_path / "policy"
    snapshots = tmp_path / "hub" / "models--org--name" / "snapshots"
    for directory in (model, policy, snapshots / "aaa", snapshots / "bbb"):
        directory.mkdir(parents=True)
        (directory / "tokenizer.json").write_text("{}")
    (snapshots.parent / "refs").mkdir()
    (snapshots.parent / "refs" / "main").write_text("bbb")
    assert find_tokenizer(str(model), policy) == policy
    assert find_tokenizer(str(model), policy / "tokenizer.json") == policy
    assert find_tokenizer(str(model), tmp_path / "absent") == model
    assert find_tokenizer("org/name", None) == snapshots / "bbb"
    assert find_tokenizer("org/other", None) is None
    assert find_tokenizer("x" * 5000, None) is None
    assert find_tokenizer(None, None) is None


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    """A number that no passwd file knows, as containers have: its server was never opened."""
    for name in ("HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}["no such user"])
    assert find_tokenizer("org/name", None) is None


@pytest.mark.parametrize("name", ["chat_template.jinja", "other.jinja"])
def test_a_template_that_is_no_text_is_told(tmp_path, qwen_like, name):
    directory = tmp_path / "broken"
    directory.mkdir()
    (directory / "tokenizer.json").write_text(qwen_like.to_str())
    (directory / name).write_bytes(b"{{ messages }}\xff")
    files = read_files(directory, name if name.startswith("other") else None)
    assert (files.text is not None, files.template) == (True, None)
    assert "cannot be read: it is not UTF-8 text" in files.notes[-1]


def test_a_template_is_read_as_utf_8_whatever_the_locale(tmp_path, qwen_like, monkeypatch):
    monkeypatch.setattr("io.text_encoding", lambda encoding, *_: encoding or "ascii")
    directory = tmp_path / "chinese"
    directory.mkdir()
    (directory / "tokenizer.json").write_bytes(qwen_like.to_str().encode())
    (directory / "chat_template.jinja").write_bytes("你好{{ messages }}".encode())
    assert read_files(directory).template is not None


def test_loading_says_why_not_tiktoken(qwen_like):
    tokenizer = json.loads(qwen_like.to_str())
    tokenizer["normalizer"] = {"type": "NFKC"}
    _, reason = load_text_counter(json.dumps(tokenizer).encode(), {})
    assert reason == "normalizer other than NFC"


@pytest.mark.parametrize(
    "architecture", ["InklingForConditionalGeneration", "KimiK3ForConditionalGeneration"]
)
async def test_chats_that_the_engine_renders_in_code_are_never_called_exact_from_a_template(
    tmp_path, qwen_like, architecture
):
    """The files may hold a template; the engine does not use it."""
    directory = write_model(tmp_path, qwen_like)
    (directory / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    alone = await build_counter(tokenizer_dir=directory, engine_version="0.5.23", remote=None)
    assert any(f"renders chats of {architecture}" in note for note in alone.notes)
    counted = await alone.count(Kind.CHAT, CHAT, 100)
    assert counted.method is Method.ESTIMATE
    text = CHAT["messages"][0]["content"]
    plain = await alone.count(Kind.COMPLETION, {"prompt": text}, 100)
    assert plain.method is Method.EXACT
    assert counted.total > plain.total

    async def tokenize(body):
        if "prompt" in body:
            return len(qwen_like.encode(body["prompt"]))
        return 4_711

    asking = await build_counter(tokenizer_dir=directory, engine_version="0.5.23", remote=tokenize)
    counted = await asking.count(Kind.CHAT, CHAT, 100)
    assert (counted.total, counted.method) == (4_711, Method.EXACT)


async def test_work_ends_after_its_seconds_and_the_bytes_bound_the_rest(model_dir, monkeypatch):
    counter = await build_counter(tokenizer_dir=model_dir, engine_version="0.5.17", remote=None)
    monkeypatch.setattr(module, "WORK_SECONDS", -1.0)
    for kind, body in ((Kind.CHAT, CHAT), (Kind.COMPLETION, {"prompt": "plain text"})):
        counted = await counter.count(kind, body, 100)
        assert counted.method is Method.BOUND
    assert counter.fallbacks == {"timeout": 2}


def pairs(counted):
    return list(zip(counted.lead.marks, counted.lead.tokens, strict=True))


async def test_two_turns_of_a_chat_begin_with_the_same_marks(counter):
    turn = {"role": "assistant", "content": "It is a token counter."}
    first = {"messages": [*CHAT["messages"]]}
    later = {"messages": [*first["messages"], turn, {"role": "user", "content": "And then?"}]}
    other = {"messages": [{"role": "user", "content": "something else"}]}
    for size in (100, LARGE):
        one = await counter.count(Kind.CHAT, first, size)
        two = await counter.count(Kind.CHAT, later, size)
        shared = [a for a, b in zip(pairs(one), pairs(two), strict=False) if a == b]
        assert len(shared) >= 2
        depth = shared[-1][1]
        assert 0.5 * one.total <= depth <= one.total, (
            "the prompt of the first turn is in the second"
        )
        assert list(two.lead.tokens) == sorted(two.lead.tokens)
        assert two.lead.tokens[-1] <= two.total + 1
        three = await counter.count(Kind.CHAT, other, size)
        assert all(a != b for a, b in zip(pairs(one), pairs(three), strict=False) if a[1] > 4)


async def test_several_prompts_have_no_beginning_in_common_to_tell(counter):
    one = await counter.count(Kind.COMPLETION, {"prompt": "naïve 词表"}, 100)
    assert len(one.lead) == 1
    several = await counter.count(Kind.COMPLETION, {"prompt": ["a b", "a b c"]}, 100)
    assert len(several.lead) == 0
