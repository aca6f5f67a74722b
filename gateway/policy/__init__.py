"""The operator's wishes: one file, read once, checked whole, turned into the core's plain values.

Theory of operation
-------------------
A policy file and the command line say the same things in the same words: `load` merges them, finds
every mistake at once and answers with a frozen `schema.Policy`, or raises `PolicyError`, whose text
is written for the person who has to mend the file. `clients` reads the keys that the policy only
names, keeps their hashes, and tells who a request comes from. `compile` turns policy and the facts
a server reports into the core's dataclasses: pydantic objects go no further than this package.

Modules: `schema`, `callers` and `routing` (what may be written), `types` (how one value is read), `checks` (what
must hold between values), `problems` (how a mistake is told), `document` (YAML with line numbers),
`load` (the whole), `source` (to read it again), `change` (from one policy to the next), `clients`
(keys and identity), `certificate` (TLS), `compile` (to the core).
"""
