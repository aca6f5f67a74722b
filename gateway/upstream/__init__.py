"""The way to the servers: a small HTTP/1.1 client, what it sees pass, and who the servers are.

*The client*: `client` (pool), `way` (addresses), `connection`, `exchange`, `reply` (an answer as it arrives),
`headers`, `errors`. *What passes*: `first_event` (how a stream begins), `sse` (the tap on it), `events` (what
both know of events), `answer` (what an engine's JSON says), `between` (what is no engine's answer), `abort`.
*The servers*: `watch` is the life of one, by `discover` (who it is: `facts`), `starts` (which process of it),
`polls` and `loads` (what it holds), `failing` and `door` (when it is gone); `ask` asks one question, `fields`
reads what came, `scrape` the metrics, `life` has the words.
"""
