"""A twin of SGLang: the same scheduler arithmetic and the same HTTP face, without a GPU.

Theory of operation
-------------------
Three layers, each usable without the one above.

`engine` is the scheduler alone: pure, driven by a clock that the caller passes in. It holds a paged
KV pool (`pool`), a radix cache (`radix`), what waits (`line`), the admission arithmetic of SGLang's
PrefillAdder (`budget`, by which `intake` plans a `prefill`), the running `batch`, and prices each step with a
roofline (`steps`). Requests go in, events come out; nothing
sleeps, nothing reads a clock, the same inputs give the same events.

`process` wraps an engine in the life of a server process: it dies in silence, refuses, and comes
back with another pool; it freezes; it drains.

`server` puts SGLang's HTTP face before a process on asyncio, in real time or faster: routes,
statuses, bodies, headers that come with the first token, and the ways it breaks.

What a box is (memory, speed, pool, how it dies) is a `profiles.Profile`; how the versions differ is
a `versions.Traits`.
"""
