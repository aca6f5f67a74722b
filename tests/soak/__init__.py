"""A soak: mixed overload on the twin with random faults, and what must still hold at the end.

`python -m tests.soak --minutes 20 --seed 1` prints a report and exits 1 where a promise broke. The
gate runs in a process of its own (`gate`), so that its memory is its own; the twin, whose engine is
the truth the ledger is compared with, and the clients run here.
"""
