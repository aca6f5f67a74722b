"""What differs between the SGLang versions the gate meets, as data instead of scattered `if`s.

Read in the sources of 0.5.6, 0.5.12, 0.5.17 and 0.5.23; a version between two of them behaves as
the older one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traits:
    """How one version behaves. Field comments name the version that changed it."""

    version: str
    charges_page: bool  # 0.5.12: admission adds one page a request
    clips_to_pool: (
        bool  # 0.5.12: the cap is clipped to pool - prompt - page - 1, not only to length
    )
    last_request_aborts: (
        bool  # 0.5.12: one request alone too large is aborted; before: assert, death
    )
    total_may_equal_context: bool  # 0.5.12: prompt + cap == context is accepted
    headers_with_first_token: bool  # 0.5.12: a stream's headers wait for its first event
    max_completion_tokens_wins: bool  # 0.5.12: over max_tokens; before, the reverse
    aborts_streamed_n: bool  # 0.5.17: a disconnect aborts a stream with n > 1
    has_new_tokens_limit: bool  # 0.5.17: SGLANG_MAX_NEW_TOKENS_LIMIT
    has_loads: bool  # 0.5.12: /v1/loads
    snapshot_loads: bool  # 0.5.17: /v1/loads from shared memory; before, a scheduler round trip
    has_get_load: bool  # gone in 0.5.23
    has_messages: bool  # 0.5.12: /v1/messages and its count_tokens
    tokenizes_messages: bool  # 0.5.12: /tokenize takes messages
    empty_rid_aborts_all: bool  # until 0.5.12
    leaks_refusals: bool  # 0.5.12: a refusal for length leaks a request, SIGTERM drains for ever
    newest_bodies: bool  # 0.5.23: weight_versions, completion_tokens_details, no null tool_calls
    mid_chunk_abort: bool  # 0.5.17: an abort stops the remaining chunks of a long prompt


def _parse(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def traits_of(version: str) -> Traits:
    """The traits of `version`, three dotted numbers. Raises ValueError on anything else."""
    try:
        number = _parse(version)
    except ValueError:
        message = f"engine version {version!r} is not three dotted numbers, such as 0.5.17"
        raise ValueError(message) from None
    from_12, from_17, from_23 = (number >= (0, 5, patch) for patch in (12, 17, 23))
    return Traits(
        version=version,
        charges_page=from_12,
        clips_to_pool=from_12,
        last_request_aborts=from_12,
        total_may_equal_context=from_12,
        headers_with_first_token=from_12,
        max_completion_tokens_wins=from_12,
        aborts_streamed_n=from_17,
        has_new_tokens_limit=from_17,
        has_loads=from_12,
        snapshot_loads=from_17,
        has_get_load=not from_23,
        has_messages=from_12,
        tokenizes_messages=from_12,
        empty_rid_aborts_all=not from_17,
        leaks_refusals=from_12 and not from_17,
        newest_bodies=from_23,
        mid_chunk_abort=from_17,
    )
