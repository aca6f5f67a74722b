"""The data plane: a request's way from socket to socket.

`handler` is that way, top to bottom, in one file. The rest are its tools: `routes` (what is let
through at all), `body` (reading it within bounds), `dialects` (which fields decide cost, how the
cap is written, how errors are spoken), `replies` and `voices` (every refusal as an answer), `backends` (the
servers behind), `reaper` (requests whose client left).

*In*: `face` (the HTTP server), `cors`, `ids`, `callers` (whose it is), `allowed`, `counting`, `tickets` (what the
core is told), `work` (what is kept while it waits), `lobby` (no server is known yet), `retries`, `overflow` with
`trimming` and `talks` (too long). *Back*: `flight` and `booked` (what is known and held meanwhile), `relay`,
`pieces` and `wire` (the stream), `heartbeat`, `truncations`, `trip` (what is recorded), `underway` (what runs when
the gate goes down). *Other ways*: `models` (routes that generate nothing), `catalogue` and `names` (lists),
`open_door` and `shadow` (`admission`). *Servers*: `backend`, `deaths` with `crashes` and `marks`, `failures`,
`signals`, `elsewhere`, `overruns`, `memory` (kept over a restart); `leases` and `common` with other gates. `lookout`
sees all of it.
"""
