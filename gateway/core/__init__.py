"""The admission core: pure, synchronous, single-writer.

Theory of operation
-------------------
A server promises memory it does not have: SGLang admits on an estimate that is clipped at 4,096
output tokens and scaled down to a tenth (0.5.6-0.5.23), and pays for the difference with
retractions or its life. The core keeps one *ledger* per KV pool (a data-parallel rank of one
server) with everything in flight, and lets a request go upstream only when all of its demand fits at
once:

- KV tokens, in whole pages: every prompt × n, each with its whole output cap and one page. Where all
  of these fit, that is all; where they do not, `declared` lets nothing more in, and `forecast` what
  answers are likely to take together, with a margin that is learned from what went wrong,
- prompt tokens in prefill, freed at the first token,
- running slots,
- its client's share.

A request is a `Ticket`. `Admission.submit` either grants it, queues it or refuses it; from then on
the caller reports what happened (`first_token`, `true_up`, `settle`, `abandon`, `requeue`) and the
core returns *transitions*. The shell logs, counts and wakes waiters from those; the core never
does. `now` is always passed in, and `next_wakeup` says when to come back.

Invariants (each held by a property test in tests/core)
- under `declared` the reservations of a pool never add up to more than its limit, under `forecast` no
  grant takes what it is planned to come to beyond it; except after `resize` to less than is held: then
  nothing is admitted there until enough has ended;
- a grant is a reservation: it is in the ledger before the transition is returned;
- each request ends once, and its reservation is released once; a ledger at rest is zero, and a
  counter that would go negative raises;
- the cap in the grant is the cap in the ledger;
- a waiting request that fits everything runs; a blocked one is passed by a bounded amount of
  service only.

Modules: `model` (values), `caps` (what cap, what demand), `ledger` (what is reserved of one pool), `pools`
(the pool around it, and where its server is in its work), `mirror`, `lengths`, `outlook` and `confidence`
(what it is likely to come to), `ttft` (when a first token will come), `unseen` (where nobody sees it), `flows`
(clients, shares, order), `books` (all state and the moves between), `choice` (who starts next), `placement`
(which pool), `reasons` (what keeps one waiting), `drainrate` (Retry-After). Every decision is in three
classes, each built on the one before: `turns` (the moves), `bounds` (what may wait), `admission` (the rest).
Of requests that were refused: `recall` (their place in line), `retries` (how often they may come too early),
`crowd` (whether they would be refused again).

Where several gates share a server: `amount` (a vector over the ledgers), `appetite` (what the books hold
and want), `lease` (the table of shares), `witness` (who is gone), `tenant` (one gate's side). They meet
the books in one place: `Admission.ceiling` bounds what may be granted of a pool, not who may wait.
What processes only hear of each other is in `others`; `quota`, `flows` and `quarantine` count it.
"""
