"""What the gate tells about itself: a log line, a record and metrics for each request.

Theory of operation
-------------------
Each request has one `record.Record`, filled while it lives and closed once. `journal.Journal` is
the one place that turns a closed record into a log line, metrics and a line in the records file,
and that counts the core's transitions. Nothing here may fail a request: what goes wrong is counted
and the relay goes on.

No prompt, reply or key ever gets here: records hold numbers, names from the policy and words of our
own. `log` redacts all the same, since libraries log too.

Beside requests, every five seconds is looked at as a whole: `collector` takes a look (`looks`) at
books, servers and cards, `minutes` adds looks up, `verdict` and `words` say what was wrong in each
minute, and `store` keeps it in files.

Modules: `record` (the numbers of a request), `recorder` (records file, ring of recent ones),
`metrics` (Prometheus), `log` (structlog), `shadow` (what admission: shadow would have done),
`journal` (all of them, once a request); `rotated`, `background` and `aside` (files that grow, the log,
and who writes them); `cards` (NVML), and those of the paragraph above.
"""
