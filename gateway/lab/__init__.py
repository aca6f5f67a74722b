"""The laboratory: policies compared on the twin, under real arrivals, in virtual time.

Theory of operation
-------------------
A `traces.Trace` is a list of arrivals. A gate (`gates`) decides when each may go to the engine and
with what cap; the product's own is `coregate`, which runs the very `core.admission` of live
traffic. `simulate` plays arrivals through a gate into a twin process and records what became of
each request; `measures` turns that into numbers; `evaluate` runs scenarios x policies x seeds in
parallel and reports medians with intervals. Every policy of a seed sees the same arrivals and the
same true lengths; only the oracles may look at the lengths.
"""
