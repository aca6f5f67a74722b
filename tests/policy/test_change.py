"""What a policy read anew may change while the gate runs, what it may not, and how both are told."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.policy.change import FIXED, FIXED_BACKEND, FIXED_LIMITS, FIXED_OBSERVE, change
from gateway.policy.problems import PolicyError
from gateway.policy.schema import Backend, Client, Limits, Observe, Policy, Quota, Tls

URL = "http://127.0.0.1:30000"


def policy(**fields: Any) -> Policy:
    return Policy(**{"backends": (Backend(url=URL, name="gpu0"),), **fields})


def test_nothing_changed_is_nothing_told() -> None:
    told = change(policy(), policy(), "p.yaml")
    assert (told.policy, told.changed, told.needs_restart) == (policy(), (), ())


def test_what_changes_is_told_by_its_path_and_never_by_its_value() -> None:
    wanted = policy(
        backends=(Backend(url=URL, name="gpu0", slots=3), Backend(url="http://b", name="gpu1")),
        clients=(Client(name="anyone", weight=2.0),),
        limits=Limits(max_n=3),
    )
    told = change(policy(), wanted, "p.yaml")
    assert told.policy == wanted
    assert told.changed == (
        "backends[gpu0].slots",
        "backends[gpu1] (added)",
        "clients[anyone] (added)",
        "limits.max_n",
    )
    back = change(wanted, policy(), "p.yaml")
    assert set(back.changed) == {
        "backends[gpu0].slots",
        "backends[gpu1] (removed)",
        "clients[anyone] (removed)",
        "limits.max_n",
    }


def test_what_is_bound_to_a_socket_a_file_or_a_connection_stays_and_is_named() -> None:
    wanted = policy(
        listen="127.0.0.1:1",
        control="127.0.0.1:2",
        admission="shadow",
        state="s",
        observe=Observe(recent=1, records="r", otlp="http://c:4318", log_level="debug"),
        limits=Limits(connect_s=1.0, stall_s=1.0, max_n=2),
        backends=(Backend(url="http://elsewhere", name="gpu0", tokenizer="t", slots=1),),
    )
    told = change(policy(), wanted, "p.yaml")
    assert set(told.changed) == {"observe.log_level", "limits.max_n", "backends[gpu0].slots"}
    assert set(told.needs_restart) == {
        *("listen", "control", "admission", "state", "observe.recent", "observe.records"),
        "observe.otlp",
        *("limits.connect_s", "limits.stall_s"),
        *("backends[gpu0].url", "backends[gpu0].tokenizer"),
    }
    assert told.policy.backends[0].url == policy().backends[0].url
    # Read again, the difference is still there to be told.
    assert change(told.policy, wanted, "p.yaml").needs_restart == told.needs_restart


def test_a_section_that_was_left_out_is_told_as_one() -> None:
    quota = Client(name="anyone", quota=Quota(tokens=1))
    now, wanted = policy(clients=(Client(name="anyone"),)), policy(clients=(quota,))
    assert change(now, wanted, "p").changed == ("clients[anyone].quota",)
    assert change(wanted, now, "p").changed == ("clients[anyone].quota",)
    tls = policy(tls=Tls(cert="c", key="k"))
    assert change(policy(), tls, "p").needs_restart == ("tls",)
    assert change(tls, policy(), "p").needs_restart == ("tls",)


def test_every_fixed_name_is_a_field() -> None:
    """A field that was renamed would silently become one that changes."""
    assert set(FIXED) <= set(Policy.model_fields)
    assert set(Observe.model_fields) >= FIXED_OBSERVE
    assert set(Limits.model_fields) >= FIXED_LIMITS
    assert set(Backend.model_fields) >= FIXED_BACKEND


def problems(now: Policy, wanted: Policy, **leaving: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        change(now, wanted, "p.yaml", leaving)
    return [str(problem) for problem in caught.value.errors]


def test_a_server_keeps_its_name() -> None:
    """Under another name its pool would be promised twice."""
    (told,) = problems(policy(), policy(backends=(Backend(url=URL, name="new"),)))
    assert told.startswith("p.yaml: backends[0].name = 'new': is another name for the server")
    assert "call it gpu0" in told


@pytest.mark.parametrize("name", ["gpu1", "other"])
def test_a_server_that_still_leaves_does_not_come_back(name: str) -> None:
    wanted = policy(backends=(*policy().backends, Backend(url="http://b", name=name)))
    (told,) = problems(policy(), wanted, gpu1="http://b:80")
    assert "gpu1, which was taken out" in told
    assert "it is tried again" in told


def test_the_outcome_is_checked_as_a_whole() -> None:
    """Without keys the new file listens on loopback, but the socket is open to the network."""
    now = policy(listen="0.0.0.0:80", clients=(Client(name="a", key_env="A"),))
    (told,) = problems(now, policy())
    assert told.startswith("p.yaml: listen = '0.0.0.0:80': is reachable from the network")


def test_what_is_observed_is_either_put_in_force_or_named_as_needing_a_restart() -> None:
    """A new field has to be one of the two: `App.adopt` sets the level of the log, and no more."""
    assert set(Observe.model_fields) - FIXED_OBSERVE == {"log_level"}
