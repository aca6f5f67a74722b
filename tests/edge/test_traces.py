"""The client's `traceparent` on its way through, and traces that reach a collector."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from tests.edge.rig import CHAT, READY_S, chat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{PARENT}-01"


@pytest.mark.parametrize("admission", ["on", "off"])
@pytest.mark.parametrize("sent", [HEADER, "00-nonsense-01", f"{HEADER}-more", "x" * 9000])
async def test_traceparent_reaches_the_server_as_it_came(start, admission: str, sent: str) -> None:
    async with start(policy={"admission": admission}) as rig:
        headers = {"traceparent": sent, "tracestate": "vendor=1"}
        got = await rig.post(CHAT, chat(16, max_tokens=4), headers=headers)
        assert got.status == 200
        received = rig.engine.seen[-1].received.headers
        assert (received["traceparent"], received["tracestate"]) == (sent, "vendor=1")
        assert rig.records[0]["traceparent"] == (sent if sent == HEADER else None)


async def test_a_record_says_how_long_it_took_to_read_and_count(start, monkeypatch) -> None:
    async with start() as rig:
        counter = rig.app.fleet.backends["gpu0"].counter
        count = counter.count

        async def slowly(*args: Any, **more: Any) -> Any:
            await asyncio.sleep(0.005)  # the loop's clock has ticks of a millisecond
            return await count(*args, **more)

        monkeypatch.setattr(counter, "count", slowly)
        await rig.chat(16, max_tokens=4)
        record = rig.records[0]
        assert 3 < record["door_ms"] <= record["e2e_ms"] - record["queue_ms"]


@asynccontextmanager
async def collector(status: int = 200) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An OTLP/HTTP receiver on loopback: its URL and the bodies it got."""
    bodies: list[bytes] = []

    async def take(request: web.Request) -> web.Response:
        assert request.path == "/v1/traces"
        assert request.content_type == "application/x-protobuf"
        bodies.append(await request.read())
        return web.Response(status=status, content_type="application/x-protobuf")

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return await take(request)  # type: ignore[arg-type]

    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", bodies
    finally:
        await runner.cleanup()


@pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry") is None,
    reason="opentelemetry-sdk is not here: pip install kvgate[otel]",
)
async def test_a_collector_gets_numbers_and_no_words(start) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    async with collector() as (url, bodies), start(policy={"observe": {"otlp": url}}) as rig:
        await rig.until(lambda: bodies, READY_S)  # the question whether it is there
        body: Any = chat(16, max_tokens=4, stream=True)
        body["messages"][0]["content"] = "zebra " * 16
        headers = {"traceparent": HEADER, "authorization": "Bearer sk-of-somebody"}
        assert (await rig.post(CHAT, body, headers=headers)).status == 200
        assert (await rig.post(CHAT, b"{", headers=headers)).status == 400
        await rig.stop()
        server = rig.app.fleet.backends[rig.records[0]["backend"] or "gpu0"].url
    sent = ExportTraceServiceRequest()
    for data in bodies:
        assert b"zebra" not in data
        assert b"sk-of" not in data
        sent.MergeFromString(data)
    spans = [one for r in sent.resource_spans for scope in r.scope_spans for one in scope.spans]
    resource = {a.key: a.value.string_value for a in sent.resource_spans[0].resource.attributes}
    assert resource["service.name"] == "kvgate"
    roots = [one for one in spans if one.parent_span_id.hex() == PARENT]
    assert {one.trace_id.hex() for one in spans} == {TRACE}
    assert sorted(one.status.message for one in roots) == ["", "invalid_request"]
    (good,) = (one for one in roots if not one.status.message)
    phases = [one for one in spans if one.parent_span_id == good.span_id]
    assert [one.name for one in phases] == ["door", "queue", "prefill", "decode"]
    assert phases[0].start_time_unix_nano == good.start_time_unix_nano
    assert phases[-1].end_time_unix_nano == good.end_time_unix_nano
    attributes = {a.key: a.value for a in good.attributes}
    assert attributes["gen_ai.usage.output_tokens"].int_value == 4
    assert attributes["server.address"].string_value in server


@pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry") is None,
    reason="opentelemetry-sdk is not here: pip install kvgate[otel]",
)
@pytest.mark.parametrize("there", [True, False])
async def test_a_collector_that_takes_nothing_costs_one_warning(
    start, there: bool, monkeypatch, capfd, caplog
) -> None:
    monkeypatch.setenv(
        "OTEL_EXPORTER_OTLP_TIMEOUT", "1"
    )  # less than the first pause before a retry
    text = ""

    def warned() -> int:
        nonlocal text
        text += "".join(capfd.readouterr())
        return text.count("traces_not_delivered")

    async with collector(status=404) as (url, _):
        to = url if there else "http://127.0.0.1:9"  # the discard port: nobody listens
        async with start(policy={"observe": {"otlp": to}}) as rig:
            await rig.until(warned, READY_S)
            for _ in range(3):
                assert (await rig.chat(16, max_tokens=4)).status == 200
            await rig.stop()
    assert warned() == 1
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
