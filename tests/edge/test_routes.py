"""What is let through, and that nothing else is, however it is spelled."""

from __future__ import annotations

import json

import pytest

from tests.edge.rig import (
    API_CHAT,
    API_EMBED,
    API_EMBEDDINGS,
    API_GENERATE,
    CHAT,
    COUNT,
    GENERATE,
    TEXT,
    chat,
    request,
)
from tests.fakes.typed import CLASSIFY, EMBEDDINGS, MESSAGES, RERANK, RESPONSES, SCORE

# Every other route of SGLang 0.5.6, 0.5.12, 0.5.17 and 0.5.23, in all of their HTTP faces, and those
# of Ollama that change what is on its disk.
CLOSED = """
/abort_request /add_external_corpus
/api/blobs/sha256:0 /api/copy /api/create /api/delete /api/pull /api/push
/begin_weight_update /classify /clear_hicache_storage_backend /close_session /configure_logging
/continue_generation /destroy_weights_update_group /detokenize /docs
/dump_expert_distribution_record /dumper/reset /encode /end_weight_update /flush_cache /freeze_gc
/gate/activate /generate_from_file /get_hicache_l3_cache_layout /get_load /get_model_info
/get_remote_instance_transfer_engine_info /get_server_info /get_transfer_engine_info
/get_weight_version /get_weights_by_name /health /health_generate /hicache/storage-backend
/hicache/storage-backend/clear /init_weights_send_group_for_remote_instance
/init_weights_update_group /invocations /is_scaling_elastic_ep /list_encoder_urls
/list_external_corpora /load_lora_adapter /load_lora_adapter_from_tensors /metrics /model_info
/open_session /openapi.json /parse_function_call /pause_generation /pd_role_switch /ping /ready
/register_encoder_url /register_transfer_engine_info /release_memory_occupation
/remote_instance_transfer_engine_info /remove_external_corpus /resume_memory_occupation
/scale_elastic_ep /scheduler_receive_meta_data /scheduler_receive_url /send
/send_weights_to_remote_instance /separate_reasoning /server_info /set_internal_state
/set_trace_level /slow_down /start_expert_distribution_record /start_profile
/stop_expert_distribution_record /stop_profile /tokenize /unload_lora_adapter
/unregister_encoder_url /update_weight_version /update_weights_from_disk
/update_weights_from_distributed /update_weights_from_ipc /update_weights_from_tensor
/v1/audio/transcriptions /v1/decisions /v1/detokenize /v1/loads /v1/messages/batches
/v1/models/huge /v1/realtime /v1/responses/r1 /v1/responses/r1/cancel /v1/systemone /v1/tokenize
/vertex_generate
/weight_version /weights_checker /status /readyz /drain /reload
""".split()  # noqa: SIM905 - read as a page

SHOW = "/api/show"
ASKED = ("/api/tags", "/api/ps", "/api/version")
OTHERS = (MESSAGES, COUNT, RESPONSES, EMBEDDINGS, CLASSIFY, SCORE, RERANK)
OTHERS += (API_CHAT, API_GENERATE, API_EMBED, API_EMBEDDINGS, SHOW)

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND")

OPEN = {("GET", "/"), ("HEAD", "/"), ("GET", "/v1/models"), ("POST", CHAT), ("POST", TEXT)}
OPEN |= {("POST", GENERATE)} | {("POST", path) for path in OTHERS}
OPEN |= {("GET", path) for path in ASKED}


async def _statuses(rig, requests: list[bytes]) -> list[int]:
    """The status of each request, sent one after the other on one connection."""
    found = []
    async with rig.socket() as peer:
        for data in requests:
            await peer.send(data)
            status, fields = await peer.head()
            length = int(fields.get("content-length", "0"))
            if not data.startswith(b"HEAD"):
                await peer.reader.readexactly(length)
            found.append(status)
    return found


async def test_every_other_route_of_every_version_is_404_with_every_method(rig) -> None:
    """Class P: the engine's admin surface is closed by an allow-list."""
    before = dict(rig.engine.calls)
    asked = [(method, path) for path in CLOSED for method in METHODS]
    got = await _statuses(rig, [request(path, b"", method=method) for method, path in asked])
    assert {pair: status for pair, status in zip(asked, got, strict=True) if status != 404} == {}
    for path in CLOSED:
        assert rig.engine.calls[path] == before.get(path, 0) or path in ("/v1/loads", "/v1/models")
    assert rig.engine.seen == []


async def test_open_routes_answer_only_their_own_methods(rig) -> None:
    paths = (CHAT, TEXT, GENERATE, *OTHERS, *ASKED, "/v1/models", "/")
    asked = [(m, p) for p in paths for m in METHODS]
    asked = [pair for pair in asked if pair not in OPEN]
    got = await _statuses(rig, [request(path, b"{}", method=method) for method, path in asked])
    assert set(got) == {404}
    assert rig.engine.seen == []


ODD = [
    "//flush_cache",
    "/v1//chat/completions",
    "//v1/chat/completions",
    "/v1/chat/completions/",
    "/V1/chat/completions",
    "/v1/chat/Completions",
    "/v1%2fchat/completions",
    "/v1/chat%2Fcompletions",
    "/%76%31/chat/completions",
    "/v1/chat/completions;x=1",
    "/v1/chat/completions%00",
    "/v1/chat/completions%0d%0aX: y",
    "/v1/chat/../chat/completions",
    "/./v1/chat/completions",
    "/v1/chat/completions/../../../flush_cache",
    "/v1/chat/completions/%2e%2e/%2e%2e/flush_cache",
    "/generate/",
    "/generate%20",
    "/%67enerate",
    "/generate/..",
    "/flush_cache?/generate",
    "/flush_cache#/generate",
    "/flush_cache?x=/v1/chat/completions",
    "http://gate/flush_cache",
    "http://127.0.0.1:30000/flush_cache",
    "http://gate//generate",
    "*",
]


@pytest.mark.parametrize("target", ODD)
async def test_there_is_no_second_spelling_of_a_route(rig, target: str) -> None:
    """A path is compared as it came: encoded, doubled and dotted spellings do not exist."""
    answer = await rig.raw(request(target, chat(), "connection: close"))
    assert answer.split(b" ")[1] in (b"404", b"400"), answer
    assert b"x-kvgate-error-source: gateway" in answer.lower(), "the engine was not even asked"
    assert rig.engine.seen == []
    assert rig.engine.calls["/flush_cache"] == 0


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("/v1/messages/", "/v1/messages"),
        ("/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("/v1/api/chat", "/api/chat"),
        ("/openai/v1/embeddings", "/v1/embeddings"),
        ("/x" * 4000 + "/messages/count_tokens", "/v1/messages/count_tokens"),
    ],
)
async def test_who_missed_a_route_by_its_base_address_is_told_which(rig, path, meant) -> None:
    got = await rig.post(path, chat())
    message = got.json()["error"]
    message = message["message"] if isinstance(message, dict) else message
    assert (got.status, f"do you mean {meant}?" in message) == (404, True), message
    assert rig.engine.seen == []


async def test_what_is_like_no_route_is_not_guessed_and_anthropic_hears_its_own_words(rig) -> None:
    for path in ("/health", "/flush_cache", "/v1/audio/transcriptions"):
        assert "do you mean" not in (await rig.post(path)).error["message"]
    told = (await rig.post("/v1/messages/batches")).json()
    assert (told["type"], told["error"]["type"]) == ("error", "not_found_error")


async def test_absolute_form_of_an_open_route_is_the_route_and_only_its_path_goes_on(rig) -> None:
    """RFC 9112 3.2.2: a server must take it. Where it points to means nothing to us."""
    target = "http://elsewhere.example:1/v1/chat/completions?a=1"
    answer = await rig.raw(request(target, chat(max_tokens=2), "connection: close"))
    assert answer.startswith(b"HTTP/1.1 200")
    assert rig.engine.seen[0].received.target == "/v1/chat/completions?a=1"


WEBSOCKET = (
    "connection: upgrade",
    "upgrade: WebSocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)


@pytest.mark.parametrize("path", ["/v1/realtime", "/flush_cache", "/v1/response"])
async def test_an_upgrade_header_opens_nothing(rig, path: str) -> None:
    async with rig.socket() as peer:
        await peer.send(request(path, b"", *WEBSOCKET, method="GET"))
        status, _ = await peer.head()
    assert status == 404


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/generate"])
async def test_who_would_speak_by_a_websocket_is_told_to_post_and_does_not_ask_again(
    rig, path: str
) -> None:
    answer = await rig.raw(request(path, b"", *WEBSOCKET, method="GET"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 426")
    fields = {line.lower() for line in head.decode().split("\r\n")}
    assert {"upgrade: http/1.1", "connection: upgrade, close"} <= fields
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == ("not_found", "not_found_error")
    assert "this route takes POST" in body.decode().replace("This", "this")
    assert rig.engine.seen == []


async def test_connect_is_no_way_through(rig) -> None:
    async with rig.socket() as peer:
        await peer.send(b"CONNECT 127.0.0.1:30000 HTTP/1.1\r\nhost: x\r\n\r\n")
        status, _ = await peer.head()
    assert status == 404


async def test_the_root_answers_probes_of_agents(rig) -> None:
    get, head = request("/", b"", method="GET"), request("/", b"", method="HEAD")
    async with rig.socket() as peer:
        for data in (head, get, head):
            await peer.send(data)
            status, fields = await peer.head()
            assert status == 200
            if data is get:
                await peer.reader.readexactly(int(fields["content-length"]))
    assert rig.handled == 0


async def test_models_are_those_of_ready_servers(rig) -> None:
    async with rig.http.get(rig.app.listen_url + "/v1/models") as answer:
        listed = await answer.json()
    assert [(m["id"], m["max_model_len"]) for m in listed["data"]] == [("tiny", 8192)]
    assert listed["object"] == "list"


async def test_one_model_opens_for_get_only_and_leads_nowhere_else(rig) -> None:
    """The one path that is not compared as a whole: what follows is a name, and goes to no engine."""
    asked = [(method, "/v1/models/tiny") for method in METHODS]
    asked += [("GET", f"/v1/models{closed}") for closed in CLOSED]
    asked += [("GET", f"/v1/models/..{closed}") for closed in CLOSED]
    asked += [("GET", f"/v1/models/%2e%2e%2f{closed[1:]}") for closed in CLOSED]
    before = dict(rig.engine.calls)
    got = await _statuses(rig, [request(path, b"", method=method) for method, path in asked])
    opened = [pair for pair, status in zip(asked, got, strict=True) if status not in (404, 400)]
    assert opened == [("GET", "/v1/models/tiny")]
    for path in set(CLOSED) - {
        "/v1/loads",
        "/v1/models",
        "/server_info",
        "/model_info",
        "/metrics",
    }:
        assert rig.engine.calls[path] == before.get(path, 0), path
    assert rig.engine.seen == []


async def test_404_says_what_is_here(rig) -> None:
    got = await rig.post("/v1/decisions", {"input": "x"})
    assert (got.status, got.code, got.error["type"]) == (404, "not_found", "not_found_error")
    assert got.headers["x-should-retry"] == "false"
    async with rig.http.put(rig.app.listen_url + CHAT, json=chat()) as answer:
        assert "POST" in (await answer.json())["error"]["message"]


def _spellings(path: str) -> list[str]:
    """Ways to write a path that some server, proxy or framework takes for the same one."""
    bare = path.lstrip("/")
    every = "".join(f"%{ord(letter):02x}" for letter in bare)
    return [
        f"/%{ord(bare[0]):02x}{bare[1:]}",
        f"/{every}",
        f"/{every.upper()}",
        f"/%25{ord(bare[0]):02x}{bare[1:]}",
        f"/{bare.upper()}",
        f"//{bare}",
        f"/{bare}/",
        f"/./{bare}",
        f"/v1/../{bare}",
        f"/v1/chat/completions/../../../{bare}",
        f"/generate/%2e%2e/{bare}",
        f"/generate/..%2f{bare}",
        f"/generate%2f..%2f{bare}",
        f"/\\{bare}",
        f"/{bare}%00",
        f"/{bare};/generate",
        f"/{bare}?/generate",
        f"http://gate/{bare}",
    ]


async def test_no_spelling_of_a_closed_route_reaches_the_engine(rig) -> None:
    """What counts is what the engine was asked; 404 or 400 is all that a client sees."""
    before = dict(rig.engine.calls)
    spellings = [spelling for path in CLOSED for spelling in _spellings(path)]
    asked = [(("GET", "POST")[index % 2], spelling) for index, spelling in enumerate(spellings)]
    got = await _statuses(rig, [request(path, b"{}", method=m) for m, path in asked])
    odd = {pair: status for pair, status in zip(asked, got, strict=True) if status != 404}
    assert set(odd.values()) <= {400}
    own = {"/v1/loads", "/v1/models", "/server_info", "/get_server_info", "/metrics", "/get_load"}
    grew = {path for path, times in rig.engine.calls.items() if times > before.get(path, 0)}
    assert grew <= own, "the gate's own questions"
    assert rig.engine.seen == []


@pytest.mark.parametrize("protocol", ["websocket", "h2c", "HTTP/2.0"])
async def test_no_closed_route_opens_by_an_upgrade(rig, protocol: str) -> None:
    before = dict(rig.engine.calls)
    for path in CLOSED:
        for method in ("GET", "POST"):
            fields = ("connection: upgrade, http2-settings", f"upgrade: {protocol}")
            more = ("http2-settings: AAMAAABkAAQAAP__", "sec-websocket-key: dGhlIHNhbXBsZQ==")
            async with rig.socket() as peer:
                await peer.send(request(path, b"", *fields, *more, method=method))
                assert (await peer.head())[0] == 404, path
    for path in set(CLOSED) - {"/v1/loads", "/v1/models", "/server_info", "/metrics"}:
        assert rig.engine.calls[path] == before.get(path, 0), path
