"""Loading: sources and their order, all mistakes at once, in words that are pinned."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.callers import Route
from gateway.policy.load import load_policy
from gateway.policy.problems import PolicyError, Problem, dotted, shown
from gateway.policy.schema import Backend, Client, HeaderMatch, Limits, Policy, Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

URL = "http://127.0.0.1:30000"
ROUTES = ", ".join(map(repr, get_args(Route)[:-1])) + f" or {get_args(Route)[-1]!r}"
SHA_OF_K1 = hashlib.sha256(b"k1").hexdigest()


def write(folder: Path, text: str) -> Path:
    path = folder / "p.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(
    path: Path | None = None, env: dict[str, str] | None = None, **options: Any
) -> list[Problem]:
    with pytest.raises(PolicyError) as caught:
        load_policy(path, env=env or {}, **options)
    return caught.value.errors


# ---- sources --------------------------------------------------------------------------------


def test_backends_alone_make_the_same_policy_as_a_file_that_lists_them(tmp_path: Path) -> None:
    path = write(tmp_path, f"backends: [{{url: '{URL}'}}]")
    assert load_policy(backends=[URL], env={}) == load_policy(path, env={})


def test_option_over_environment_over_file(tmp_path: Path) -> None:
    path = write(
        tmp_path, f"backends: [{{url: '{URL}'}}]\nlisten: 127.0.0.1:1\ncontrol: 127.0.0.1:2\n"
    )
    env = {"KVGATE_POLICY": str(path), "KVGATE_LISTEN": "127.0.0.1:3", "KVGATE_LOG": "DEBUG"}
    policy = load_policy(env=env)
    assert (policy.listen, policy.control) == ("127.0.0.1:3", "127.0.0.1:2")
    assert policy.observe.log_level == "debug"
    policy = load_policy(env=env, listen="127.0.0.1:4", control="127.0.0.1:5")
    assert (policy.listen, policy.control) == ("127.0.0.1:4", "127.0.0.1:5")


def test_an_empty_variable_counts_as_unset() -> None:
    env = {"KVGATE_POLICY": "", "KVGATE_LISTEN": "", "KVGATE_LOG": ""}
    assert load_policy(env=env, backends=[URL]) == load_policy(env={}, backends=[URL])


def test_backend_options_replace_the_list_and_keep_settings_of_known_urls(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"backends:\n- {{url: '{URL}/', name: a, slots: 3}}\n- {{url: 'http://b', name: b}}\n",
    )
    policy = load_policy(path, env={}, backends=["http://c", URL])
    assert [(b.name, b.slots) for b in policy.backends] == [("c:80", "auto"), ("a", 3)]


def test_paths_in_the_file_count_from_the_file_and_options_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path / "etc" / "tok", tmp_path / "here" / "tok"):
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "here")
    path = write(
        tmp_path / "etc",
        f"backends: [{{url: '{URL}', tokenizer: tok}}]\nobserve: {{records: r.jsonl}}",
    )
    policy = load_policy(path, env={})
    assert policy.backends[0].tokenizer == tmp_path / "etc" / "tok"
    assert policy.observe.records == tmp_path / "etc" / "r.jsonl"
    assert (
        load_policy(path, env={}, tokenizer="tok").backends[0].tokenizer
        == tmp_path / "here" / "tok"
    )


# ---- mistakes -------------------------------------------------------------------------------

MANY = """\
backends:
  - {name: gpu0, url: http://127.0.0.1:30000/v1, max_output_token: 16384}
  - {name: gpu1, url: localhost:3000, default_output_tokens: "400", api_key: sk-PLANTED-123}
  - url: http://me:sekret@box:1
  - {url: http://x:1, name: gpu3, kv_slack: 2}
listen: 0.0.0.0:8080
listen: 0.0.0.0:8082
max_wait_s: 3
queue: {max_wait: 3, max_requests: 0}
clients:
  - {name: a b, key_env: sk-planted-abc}
  - {name: c}
  - {name: d, key_env: NOPE, key_file: /nope}
  - 7
limits: []
observe: {log_level: loud}
flavour: blue
"""
MANY_FOUND = """\
policy not usable, 20 mistakes:
  p.yaml:2: backends[0].url = 'http://127.0.0.1:30000/v1': ends in /v1; give the server's root without /v1; the gate adds the routes
  p.yaml:2: backends[0].max_output_token = 16384: is not a known key; did you mean max_output_tokens?
  p.yaml:3: backends[1].url = 'localhost:3000': is a URL without a scheme; write http://HOST:PORT
  p.yaml:3: backends[1].default_output_tokens = '400': must be a whole number above 0, or the word auto; write a number without quotes, or leave the line out
  p.yaml:3: backends[1].api_key = (not shown: may be a secret): is not a known key; keys are never written here: name the place of the key in api_key_env or api_key_file
  p.yaml:4: backends[2].url = 'http://(not shown)@box:1': holds credentials, and URLs end up in logs; take them out and name the key in api_key_env or api_key_file
  p.yaml:5: backends[3].kv_slack = 2: must be at most 0.5; lower it or leave the line out
  p.yaml:7: listen: was already said in line 6; keep one of the two
  p.yaml:8: max_wait_s = 3: is not a known key; it belongs in queue.max_wait_s
  p.yaml:9: queue.max_requests = 0: must be above 0; raise it or leave the line out
  p.yaml:9: queue.max_wait = 3: is not a known key; did you mean max_wait_s?
  p.yaml:11: clients[0].name = 'a b': is not usable as a name: names appear in headers and metric labels; use letters, digits, '.', '_', ':' and '-', at most 64
  p.yaml:11: clients[0].key_env = (not shown: may be a secret): is not the name of an environment variable; write the variable's name (capitals, digits, '_'), not the key itself
  p.yaml:12: clients[1].name = 'c': names a client that nothing would recognise; add key_env, key_file, key_sha256, header or address; only anyone goes without
  p.yaml:13: clients[2].key_env = 'NOPE': is not set; export NOPE=… before starting the gate
  p.yaml:13: clients[2].key_file = '/nope': cannot be read: no such file or directory; check path and permissions
  p.yaml:14: clients[3] = 7: must be a mapping; write indented lines NAME: VALUE below it
  p.yaml:15: limits = a list of 0: must be a mapping; write indented lines NAME: VALUE below it
  p.yaml:16: observe.log_level = 'loud': must be 'debug', 'info', 'warning' or 'error'; write one of these
  p.yaml:17: flavour = 'blue': is not a known key; known keys here: backends, clients, models, routes, queue, limits, caps, observe, reservation, state, leases, admission, workers, listen, tls, cors, control, control_hosts, allow_open, drain_s\
"""


def test_every_mistake_is_told_at_once_with_place_value_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, MANY)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError) as caught:
        load_policy("p.yaml", env={})
    assert str(caught.value) == MANY_FOUND


@pytest.mark.parametrize(
    ("text", "path", "wrong"),
    [
        ("backends: [{url: 'http://a', name: x}, {url: 'http://b', name: x}]", "backends[1].name",
         "is already used by backends[0]"),
        ("backends: [{url: 'http://a'}, {url: 'http://A:80/', name: y}]", "backends[1].url",
         "is already used by backends[0]"),
        ("backends: [{url: 'http://127.0.0.1:3'}, {url: 'http://localhost:3'}]", "backends[1].url",
         "is already used by backends[0]"),
        ("clients: [{name: x, key_env: K}, {name: y, key_env: K}]", "clients[1].key_env",
         "holds the same key as clients[0]"),
        ("clients: [{name: x, key_env: K}, {name: y, key_env: SAME}]", "clients[1].key_env",
         "holds the same key as clients[0]"),
        ("clients: [{name: x, key_env: EMPTY}]", "clients[0].key_env", "is an environment variable that is empty"),
        ("clients: [{name: x, key_file: .}]", "clients[0].key_file", "cannot be read: is a directory"),
        ("clients: [{name: x, key_file: blank}]", "clients[0].key_file", "holds no key"),
        ("backends: [{url: 'http://${HOST}:30000'}]", "backends[0].url", "holds a placeholder, and nothing is filled in here"),
        ("backends: [{url: 'http://{{ .Values.host }}:30000'}]", "backends[0].url", "holds a placeholder, and nothing is filled in here"),
        ("backends: [{url: 'http://<engine-host>:30000'}]", "backends[0].url", "holds a placeholder, and nothing is filled in here"),
        ("state: $HOME/state.json", "state", "holds a placeholder, and nothing is filled in here"),
        ("observe: {records: '%APPDATA%/records.jsonl'}", "observe.records", "holds a placeholder, and nothing is filled in here"),
        ("listen: '$ADDRESS:8080'", "listen", "holds a placeholder, and nothing is filled in here"),
        ("leases: {url: 'redis://${REDIS}:6379/0'}", "leases.url", "holds a placeholder, and nothing is filled in here"),
        ("clients: [{name: x, key_file: binary}]", "clients[0].key_file", "cannot be read: not text"),
        ("clients: [{name: anyone, key_env: K}]", "clients[0].key_env",
         "cannot belong to anyone, who is everybody not known otherwise"),
        ("clients: [{name: x, key_env: K}, {name: anyone}, {name: anyone}]", "clients[2].name",
         "is already used by clients[1]"),
        ("clients: [{name: x, header: {name: X-A, value: b}}, {name: y, header: {name: x-a, value: b}}]",
         "clients[1].header", "is already used by clients[0]"),
        ("clients: [{name: x, header: {name: 'a b', value: b}}]", "clients[0].header[0].name",
         "is not the name of a header"),
        ("clients: [{name: x, address: 10.0.0.0/8}, {name: y, address: ['::1', 10.0.0.0/8]}]",
         "clients[1].address", "is already used by clients[0]"),
        ("clients: [{name: x, address: 10.1.2.3/8}]", "clients[0].address[0]",
         "has digits set beyond its prefix, so it is not clear what is meant"),
        ("clients: [{name: x, address: [10.1.2.3, home]}]", "clients[0].address[1]",
         "is not a network or address"),
        ("clients: [{name: x, key_sha256: abc}]", "clients[0].key_sha256[0]",
         "is not a SHA-256 in hexadecimal"),
        ("clients: [{name: x, key_sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}]",
         "clients[0].key_sha256[0]", "is the SHA-256 of nothing: the variable was empty when it was made"),
        (f"clients: [{{name: x, key_env: K}}, {{name: y, key_sha256: {SHA_OF_K1}}}]",
         "clients[1].key_sha256", "holds the same key as clients[0]"),
        ("clients: [{name: x, key_env: K, max_output_tokens: 5, default_output_tokens: 6}]",
         "clients[0].default_output_tokens", "is above max_output_tokens (5)"),
        ("clients: [{name: x, key_env: K, quota: {}}]", "clients[0].quota.tokens", "is missing"),
        ("clients: [{name: x, key_env: K, routes: /v1/chat}]", "clients[0].routes[0]",
         f"must be {ROUTES}"),
        ("clients: [{name: x, key_env: K, models: ['a b']}]", "clients[0].models[0]",
         "is not usable as a model's name"),
        ("routes: [{to: gpu9}]", "routes[0].to", "is not the name of a server"),
        ("routes: [{when: {client: bob}, to: '127.0.0.1:30000'}]", "routes[0].when.client",
         "is not the name of a client"),
        ("routes: [{to: '127.0.0.1:30000'}, {when: {images: true}, to: '127.0.0.1:30000'}]", "routes[1]",
         "is never reached: routes[0] takes every request"),
        ("routes: [{when: {images: true}}]", "routes[0].to", "is missing"),
        ("models: {a: b, b: c}", "models.a", "is an alias itself"),
        ("models: {a: c, b: [d, a]}", "models.b", "is an alias itself"),
        ("models: {a: [b, c, b]}", "models.a", "stands there twice, and is tried once"),
        ("models: {a: []}", "models.a", "must not be empty"),
        ("models: {a: [b, 'c d']}", "models.a[1]", "is not usable as a model's name"),
        ("clients: [{name: x, key_env: K, overflow: cut}]", "clients[0].overflow",
         "must be 'refuse' or 'trim'"),
        ("clients: [{name: x, key_env: K, overflow: trim, routes: [/v1/completions]}]",
         "clients[0].overflow", "has nothing to trim: this client may call no route with turns"),
        ("routes: [{to: '127.0.0.1:30000', overflow: larger}]", "routes[0].overflow",
         "must be 'refuse' or 'trim'"),
        ("tls: {cert: nowhere, key: key}", "tls.cert", "cannot be read: no such file or directory"),
        ("tls: {cert: key, key: key}", "tls.cert", "cannot be used: certificate or key is not PEM, or damaged"),
        ("backends: [{url: 'http://a', api_key_env: GONE}]", "backends[0].api_key_env", "is not set"),
        ("backends: [{url: 'http://a', api_key_env: K, api_key_file: key}]", "backends[0].api_key_file",
         "stands beside api_key_env"),
        ("backends: [{url: 'http://a', max_output_tokens: 5, default_output_tokens: 6}]",
         "backends[0].default_output_tokens", "is above max_output_tokens (5)"),
        ("backends: [{url: 'http://a', tokenizer: nowhere}]", "backends[0].tokenizer",
         "is not a directory with a tokenizer.json"),
        ("backends: [{name: x}]", "backends[0].url", "is missing"),
        ("backends: [{url: 'http://a'}, {url: 'http://a'}]", "backends[1].url", "is already used by backends[0]"),
        ("backends: [{url: 'http://a'}, {url: 'http://b', name: 'a:80'}]", "backends[1].name",
         "is already used by backends[0]"),
        ("listen: 2026-99-99", "listen", "is not a value YAML knows"),
        ("listen: 0.0.0.0:80", "listen", "is reachable from the network and no client has a key"),
        ("clients: [{name: x, header: {name: x-a, value: b}}]\nlisten: box:80", "listen",
         "is reachable from the network and no client has a key"),
        (f"listen: {'a' * 64}.example:80\nallow_open: true", "listen", "is not an address to listen on"),
        ("listen: 127.0.0.1:80\ncontrol: 127.0.0.1:80", "control", "is the data plane's address too"),
        ("listen: 127.0.0.1:80\ncontrol: localhost:80", "control", "is the data plane's address too"),
        ("listen: 0.0.0.0:80\nallow_open: true\ncontrol: 127.0.0.1:80", "control",
         "is the data plane's address too"),
        ("backends: [{url: 'http://127.0.0.1:8080'}]", "backends[0].url", "is this gate's own address"),
        ("backends: [{url: 'http://localhost:8081'}]", "backends[0].url", "is this gate's own address"),
        ("backends: [{url: 'http://[::1]:90'}]\nlisten: '[::]:90'\nallow_open: true", "backends[0].url",
         "is this gate's own address"),
        (f"queue: {{max_requests: {10**20}}}", "queue.max_requests", "must be at most 9007199254740991"),
        (f"backends: [{{url: 'http://a', slots: {10**20}}}]", "backends[0].slots", "must be at most 9007199254740991"),
        (f"queue: {{retry_budget: {10**20}}}", "queue.retry_budget", "must be at most 9007199254740991"),
        (f"observe: {{records_keep: {10**20}}}", "observe.records_keep", "must be at most 9007199254740991"),
        (f"backends: [{{url: 'http://{'a' * 64}.example'}}]", "backends[0].url", "has a host that no name server can be asked for"),
        ("backends: [{url: 'http://a..b:1'}]", "backends[0].url", "has a host that no name server can be asked for"),
        ('backends: [{url: "http://\\ud800:1"}]', "backends[0].url", "has a host that no name server can be asked for"),
        ('clients: [{name: x, key_file: "a\\0b"}]', "clients[0].key_file", "holds a null character, which no path has"),
        ('state: "a\\0b"', "state", "holds a null character, which no path has"),
        ("state: ~nobody-of-this-name/x", "state", "begins with a home directory that is not known"),
        ("backends: [{url: 'http://a:0'}]", "backends[0].url", "has port 0, which no server has"),
        ("reservation: hopeful", "reservation", "must be 'forecast' or 'declared'"),
        ("queue: {max_requests: 1.5}", "queue.max_requests", "must be a whole number"),
        ("queue: {max_wait_s: fast}", "queue.max_wait_s", "must be a number"),
        ("queue: {max_requests: 1e6}", "queue.max_requests", "must be a whole number"),
        ("allow_open: 1", "allow_open", "must be true or false"),
        ("backends: 7", "backends", "must be a list"),
        ("- 7", "", "is not a mapping"),
        ("backends: []", "backends", "is empty: there is no server to stand in front of"),
    ],
)  # fmt: skip
def test_one_mistake_is_one_finding(tmp_path: Path, text: str, path: str, wrong: str) -> None:
    (tmp_path / "blank").write_text("\n \n")
    (tmp_path / "key").write_text("k\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfa")
    if "backends" not in text and not text.startswith("-"):
        text = f"backends: [{{url: '{URL}'}}]\n{text}"
    found = mistakes(write(tmp_path, text), env={"K": "k1", "SAME": "k1", "EMPTY": " "})
    assert [(f.path, f.wrong) for f in found] == [(path, wrong)]
    assert found[0].remedy


@pytest.mark.parametrize("value", ["1e6", "60s", "'60'", "1.5"])
def test_a_number_that_yaml_takes_for_text_is_told_how_to_be_written(
    tmp_path: Path, value: str
) -> None:
    text = f"backends: [{{url: '{URL}'}}]\nqueue: {{max_requests: {value}}}"
    (found,) = mistakes(write(tmp_path, text))
    assert "in digits, such as 60, without quotes, unit or exponent and without a fraction" in (
        found.remedy
    )


def test_another_machine_with_the_gates_port_is_a_server(tmp_path: Path) -> None:
    text = (
        "backends: [{url: 'http://10.0.0.7:8080'}, {url: 'http://gpu:8081'}]\nlisten: 10.0.0.8:8080"
    )
    policy = load_policy(write(tmp_path, text + "\nallow_open: true"), env={})
    assert len(policy.backends) == 2
    text = "backends: [{url: 'http://127.0.0.1:1'}]\nlisten: 127.0.0.1:0\ncontrol: 127.0.0.1:0"
    assert load_policy(write(tmp_path, text), env={})  # any free ports


def test_what_came_from_an_option_or_the_environment_is_told_so() -> None:
    found = mistakes(
        None, env={"KVGATE_LISTEN": "x", "KVGATE_LOG": "loud"}, backends=[URL, "y"], control="z"
    )
    assert {(f.where, f.path) for f in found} == {
        ("KVGATE_LISTEN", "listen"),
        ("KVGATE_LOG", "observe.log_level"),
        ("--backend", "backends[1].url"),
        ("--control", "control"),
    }


def test_without_anything_the_remedy_names_the_option() -> None:
    assert str(mistakes()[0]) == (
        "command line: backends: is empty: there is no server to stand in front of; "
        "list one there, or give --backend http://HOST:PORT"
    )


def test_a_file_that_cannot_be_read_is_one_mistake(tmp_path: Path) -> None:
    assert [f.wrong for f in mistakes(tmp_path / "gone.yaml")] == [
        "cannot be read: no such file or directory"
    ]
    (tmp_path / "latin").write_bytes(b"name: \xe9")
    assert [f.wrong for f in mistakes(tmp_path / "latin")] == ["cannot be read: not utf-8 text"]


def test_an_open_port_is_allowed_with_a_key_or_by_word(tmp_path: Path) -> None:
    head = f"backends: [{{url: '{URL}'}}]\nlisten: 0.0.0.0:80\n"
    keyed = load_policy(write(tmp_path, head + "clients: [{name: x, key_env: K}]"), env={"K": "k"})
    assert keyed.listen == "0.0.0.0:80"
    assert load_policy(write(tmp_path, head + "allow_open: true"), env={}).allow_open


# ---- secrets --------------------------------------------------------------------------------

SECRET = "sk-PLANTED9f8e7d6c5b4a"
FULL: dict[str, Any] = {
    "backends": [
        {
            "url": URL,
            "name": "a",
            "api_key_env": "K",
            "slots": 1,
            "kv_slack": 0.1,
            "tokenizer": "/x",
        }
    ],
    "clients": [
        {"name": "c", "key_env": "K2", "weight": 1.0},
        {"name": "d", "header": {"name": "x-a", "value": "b"}},
    ],
    "queue": {"max_wait_s": 1.0},
    "observe": {"log_level": "info", "records": "/r"},
    "admission": "on",
    "listen": "127.0.0.1:1",
    "allow_open": False,
    "drain_s": 1.0,
}


def planted(data: Any) -> Iterator[Any]:
    """`data` with the secret as each value, as each key, and added to each mapping."""
    yield SECRET
    yield [SECRET]
    if isinstance(data, dict):
        yield {**data, SECRET: 1}
        for name in ("key", "api_key", "authorization", "keyy"):
            yield {**data, name: SECRET}
        for key, value in data.items():
            yield {**{k: v for k, v in data.items() if k != key}, SECRET: value}
            for inner in planted(value):
                yield {**data, key: inner}
    elif isinstance(data, list):
        for i, value in enumerate(data):
            for inner in planted(value):
                yield [*data[:i], inner, *data[i + 1 :]]
    elif isinstance(data, str):
        yield f"http://user:{SECRET}@box"
        yield f"http://box?key={SECRET}"
        yield f"Bearer {SECRET}"


def test_a_key_pasted_anywhere_is_never_shown(tmp_path: Path) -> None:
    refusals = []
    for data in planted(FULL):
        path = write(tmp_path, yaml.safe_dump(data))
        try:
            # The key itself is where it belongs: in the environment.
            load_policy(path, env={"K": SECRET, "K2": SECRET})
        except PolicyError as error:
            refusals.append(error)
    assert len(refusals) > 150
    assert not [text for e in refusals if "PLANTED" in (text := f"{e} {e.errors!r}")]


def test_a_broken_line_with_a_key_is_not_quoted(tmp_path: Path) -> None:
    for text in (
        f"a: [{SECRET}",
        f"a: '{SECRET}",
        f"a: {SECRET}: b",
        f"a: *{SECRET}",
        f"a: !{SECRET} b",
        f"{SECRET}",
    ):
        assert "PLANTED" not in str([str(f) for f in mistakes(write(tmp_path, text))])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        (True, "true"),
        (1.5, "1.5"),
        ("short", "'short'"),
        ("word " * 20, f"'{('word ' * 20)[:60]}…'"),
        ({"a": 1}, "a mapping"),
        (b"x", "\"b'x'\""),
        ("abcdefghij0123456789", "(not shown: may be a secret)"),
    ],
)
def test_how_values_are_shown(value: object, text: str) -> None:
    assert shown(("x",), value) == text


def test_a_password_in_a_url_is_not_shown_whatever_it_looks_like() -> None:
    assert (
        shown(("url",), "http://me:pass@box/x?key=pass") == "'http://(not shown)@box/x?(not shown)'"
    )


def test_both_of_two_mistakes_at_one_key_are_told(tmp_path: Path) -> None:
    found = mistakes(write(tmp_path, f"backends: [{{url: '{URL}'}}]\nlisten: a:1\nlisten: b\n"))
    assert [f.wrong for f in found] == [
        "was already said in line 2",
        "is not an address to listen on",
    ]


NAMES = sorted(
    {
        name
        for kind in (Policy, Backend, Client, HeaderMatch, Queue, Limits)
        for name in kind.model_fields
    }
)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.dates()
    | st.sampled_from([URL, "auto", "on", "127.0.0.1:1", "PATH", "x"])
)
ANYTHING = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=25,
)


@given(ANYTHING | st.dictionaries(st.sampled_from(sorted(Policy.model_fields)), ANYTHING))
def test_no_file_makes_it_raise_anything_but_a_policy_error(data: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), yaml.safe_dump(data))
        try:
            policy = load_policy(path, env={"PATH": "x"})
        except PolicyError as error:
            policy = None
            assert all(str(e) for e in error.errors)  # noqa: PT017
    assert policy is None or policy.backends


def test_dotted_paths() -> None:
    assert dotted(("a", 0, "b", "c")) == "a[0].b.c"
    assert dotted(()) == ""


def test_the_repr_of_a_policy_holds_no_key(tmp_path: Path) -> None:
    (tmp_path / "k").write_text(f"{SECRET}\n")
    text = f"backends: [{{url: '{URL}', api_key_file: k}}]\nclients: [{{name: c, key_env: K}}]"
    policy = load_policy(write(tmp_path, text), env={"K": f"{SECRET}2"})
    assert isinstance(policy, Policy)
    assert "PLANTED" not in repr(policy) + policy.model_dump_json()
