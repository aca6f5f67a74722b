"""The demonstration: one box, one load, twice; first straight to the servers, then through the gate.

Theory of operation
-------------------
The *box* is two SGLang servers on the cards of a workstation (`box`), played by twins that die as
the real ones did. The *load* is a script drawn from a seed (`script`): people who ask short things
now and then, and agents that send 19,000 tokens, promise themselves 32,000 more and fire again the
moment an answer or an error comes. The *crowd* (`crowd`) performs it over HTTP with the manners of
real clients (`client`). An *act* (`acts`) is one performance, watched by the `ledger` of what was
promised to each pool; `tally` turns it into numbers and `report` into a table and sentences. The
gate of the second act (`front`) is the product itself, `gateway.app.App`, with a policy.

Time runs `clock.SPEED` times faster than on the box. Everything shown is in the box's own seconds,
and the one time of the policy that matters here, the longest wait in the queue, is shortened by the
same factor. What this machine needs for HTTP is stretched by it: a millisecond here shows as thirty
there, in all acts alike.
"""
