"""The data plane: a request's way from socket to socket.

`handler` is that way, top to bottom, in one file. The rest are its tools: `routes` (what is let
through at all), `body` (reading it within bounds), `dialects` (which fields decide cost, how the
cap is written, how errors are spoken), `replies` (every refusal as an answer), `backends` (the
servers behind), `reaper` (requests whose client left).
"""
