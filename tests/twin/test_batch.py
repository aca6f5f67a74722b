"""Counting steps once for a whole batch gives what touching every job would."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.twin.batch import Batch
from gateway.twin.jobs import Job

steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(1, 40), st.integers(1, 60)),
        st.tuples(st.just("rejoin"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 30), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(page=st.sampled_from([1, 4, 16]), script=steps)
def test_a_batch_counts_like_its_jobs(page, script):
    batch, out, filled, left = Batch(page), {}, {}, []
    for number, (what, first, second) in enumerate(script):
        if what == "join":
            job = Job(f"g{number}", first, want=second + 1, cap=None)
            job.limit, job.own_out, job.own_filled = 1 << 30, 1, first
            batch.join(job)
            out[job], filled[job] = 1, first
        elif what == "leave" and batch.jobs:
            job = list(batch.jobs.values())[first % len(batch)]
            batch.leave(job)
            left.append((job, out.pop(job), filled.pop(job)))
        elif what == "rejoin" and left:
            job, made, held = left.pop(first % len(left))
            assert (job.out, job.filled) == (made, held)
            batch.join(job)
            out[job], filled[job] = made, held
        elif what == "step" and batch.jobs:
            count = min(first, batch.until_end())
            pages = sum(-(-(filled[job] + count) // page) - -(-filled[job] // page) for job in out)
            assert batch.opens(count) == pages * page
            batch.begin(count)
            over = batch.end(count)
            for job in out:
                out[job] += count
                filled[job] += count
            assert over == [job for job in out if out[job] == job.length]
            for job in over:
                batch.leave(job)
                del out[job], filled[job]
        assert {job: job.out for job in batch.jobs.values()} == out
        assert {job: job.filled for job in batch.jobs.values()} == filled
        assert batch.filled == sum(filled.values())
        if batch.jobs:
            assert batch.until_end() == min(job.length - out[job] for job in out)


def test_one_that_left_and_came_back_does_not_end_when_it_would_have():
    """A retracted request: what it missed in between it has still to do."""
    batch = Batch(1)
    back, other = Job("back", 10, want=11), Job("other", 10, want=100)
    for job in (back, other):
        job.limit, job.own_out, job.own_filled = 1 << 30, 1, 10
        batch.join(job)
    batch.leave(back)
    batch.begin(5)
    assert batch.end(5) == []
    batch.join(back)
    batch.begin(6)
    assert batch.end(6) == []
    assert (back.out, batch.until_end()) == (7, 4)
    batch.begin(4)
    assert batch.end(4) == [back]
