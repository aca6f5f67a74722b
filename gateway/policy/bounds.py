"""What a policy may say of bounds: how much may wait, how large and slow a request may be, its caps."""

from __future__ import annotations

from typing import Literal

from gateway.policy.hosts import Hosts  # noqa: TC001 - pydantic reads it
from gateway.policy.section import Section
from gateway.policy.types import Count, CountOrOff, Seconds  # noqa: TC001 - pydantic reads it


class Queue(Section):
    """How much may wait, and how long. A request that meets a full queue gets 429 at once."""

    max_requests: Count = 256
    """Requests waiting. Default 256: twice what a server that starts one request a second can
    start within max_wait_s, so that a burst of short ones still finds room."""

    max_tokens: Count = 4_000_000
    """KV tokens the waiting requests need together. Default 4,000,000: sixty times the pool of a
    24 GB card (67,375); to start more within max_wait_s, it would have to be emptied and filled
    anew every two seconds."""

    max_bytes: Count = 512 << 20
    """Bytes of request bodies held for waiting requests. Default 512 MiB: eight bodies of the
    largest size allowed, and little enough for the memory of a small machine."""

    max_wait_s: Seconds = 120.0
    """Longest wait, seconds; then 503 queue_timeout with Retry-After. Default 120: agents and SDKs
    give up at 600 s or later, so half a minute of prefill and a long answer still fit behind it;
    an interactive user has left long before."""

    first_token_s: Seconds | None = None
    """A first token that comes later than this after arrival, seconds, is of no use: a request that
    can no longer make it is refused with 429 deadline_unreachable instead of being run for nobody.
    Default none: the timeout a client names in its headers, where it names one, is its deadline."""

    retry_budget: CountOrOff = 4
    """How many refused requests of one client that come back before they were told to, within some ten
    seconds, are read, counted and judged as any, beside one for every five new requests. More than that
    are told to wait twice as long, then four times, up to 59 s, and where there is no room still are
    refused without being counted. Who comes when told to is never meant, and where there is room nobody
    is refused for this. Default 4: two requests of an SDK that tries each twice more. off: every retry is
    read as if it were new. Each worker has its own."""

    heartbeat_s: Seconds | None = None
    """How often a waiting stream is told, as its API does it (mostly an SSE comment), that it waits, in the
    queue, for its first event, or for the next one where its server has been silent for as long, seconds. Its headers are out by the first: it is a 200 whatever comes, errors
    are one event in it, and what is not known by then is in no header. Default none: SDKs act on status and
    Retry-After; set it where a proxy cuts connections that are silent."""


class Limits(Section):
    """Bounds on single requests and on the way to the server."""

    body_bytes: Count = 64 << 20
    """Largest request body, bytes; more gets 413. Default 64 MiB: several base64 images; the
    longest text prompt any served context takes is below 10 MiB."""

    body_s: Seconds = 120.0
    """Longest time for a request body to arrive, seconds; then 408. Default 120: 64 MiB at 5 Mbit/s;
    who sends a byte now and then holds a connection and nothing else, and not for ever."""

    max_n: Count = 128
    """Largest `n`. Default 128, the OpenAI API's own limit; the demand is charged n times, so most
    pools refuse sooner, with the numbers."""

    max_prompts: Count = 1024
    """Prompts in one request (completions and /generate take lists). Default 1,024: batch scripts
    send hundreds; each prompt is charged in full, so the pool refuses sooner."""

    media: Literal["public", "any", "data"] = "public"
    """Which addresses of pictures, videos and sounds are passed on, for the server to fetch them from where it
    stands. public, the default: those whose host is one of the open internet by its letters (names are not
    resolved, and a server follows redirects wherever they lead); any: all of http and https; data: none, the thing
    itself must be sent. Files of the server's own are never opened. Default public: a prompt that names
    169.254.169.254 reads the machine's cloud keys, and one that names localhost the engine's own pages."""

    media_hosts: Hosts = ()
    """Hosts whose addresses are passed on in any case: a name, *.name or an address, with :PORT or for every
    port. For pictures that lie inside; with `media: data` these are the only ones. Default none: which hosts
    may be read by whoever may ask is not for us to guess."""

    image_pixels: Count = 1 << 29
    """Most pixels of all images of one request together, where they come in its body. The engine unpacks all
    of them into its main memory before it makes them smaller, 3 bytes a pixel and a copy, and it is killed where that is
    not there; a few kilobytes of PNG are enough. Default 536,870,912: 44 photographs of 12 million, some 2.6 GB."""

    connect_s: Seconds = 5.0
    """Longest wait for a TCP connection to the server, seconds. Default 5: a listening server
    accepts in milliseconds even while its scheduler is busy; two lost SYNs fit (they are sent again after 1 and 3 s)."""

    first_byte_s: Seconds = 900.0
    """Longest wait for the first byte of a streamed answer, counted from dispatch, seconds; time in
    the gate's queue does not count. Default 900: since SGLang 0.5.12 headers come with the first
    token, so this covers a whole prefill: 262,000 tokens at 300 tokens/s take 873 s."""

    answer_s: Seconds = 3600.0
    """Longest wait for an answer that is not streamed, counted from dispatch, seconds. Default
    3,600: nothing is sent before the last token, and 32,000 tokens at 10 tokens/s take 3,200 s."""

    idle_s: Seconds = 300.0
    """Longest silence within a stream that has begun, seconds. Default 300: a request that SGLang
    retracts is silent until it is prefilled again; 95 s was measured on a small pool. Longer, up to
    `answer_s`, where the server's own count still has all that was sent to it: many of its parsers keep
    a tool's arguments back until they are whole, so that a file of 9,000 tokens is five minutes of
    silence at 30 tokens/s."""

    stall_s: Seconds = 30.0
    """How long a server with work of ours may show no sign of its scheduler (no byte of any answer,
    no new count of what it holds) before nothing new is sent there, seconds. What runs is not cut.
    Default 30: one prefill step of 8,192 tokens at 300 tokens/s takes 27 s."""

    release_grace_s: Seconds = 15.0
    """How long the reservation of an abandoned request is kept when the server does not confirm
    that it is gone, seconds. Default 15: SGLang notices a closed connection at polls 4 s apart
    (10 s where SGLANG_REQUEST_STATE_WAIT_TIMEOUT is raised so) and finishes its step first; 2.0 to
    3.3 s were measured."""


class Caps(Section):
    """Rules for output caps."""

    useful_floor: Count = 256
    """Smallest output worth starting, tokens: where context or pool leave less (and the client
    asked for more), the request is refused with 400 context_length_exceeded instead of being cut
    to a stub. Default 256: a tool call or a short paragraph."""
