"""How one value of a policy is read: addresses, URLs, names, paths, numbers that may be `auto`.

Each type refuses with a sentence and a remedy (see `bad`), never with pydantic's own words, and
never repeats the value: whoever prints the refusal decides whether the value is fit to be shown.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WrapValidator
from pydantic_core import PydanticCustomError, ValidationError

OWN_ERROR = "kvgate"
"""The error type of every refusal made here; its context holds `remedy`."""


def bad(wrong: str, remedy: str) -> PydanticCustomError:
    """A refusal in plain words. Neither text may repeat the value."""
    return PydanticCustomError(OWN_ERROR, "{wrong}", {"wrong": wrong, "remedy": remedy})


# ---- numbers ------------------------------------------------------------------------------


MOST = (1 << 53) - 1
"""The largest whole number: what every reader of JSON keeps exactly, and /status, metrics and log are
written in. Who wants no limit writes a row of nines."""


def _not_too_large(value: object) -> None:
    """Said here, as a choice of numbers and words has no room for it."""
    if isinstance(value, int) and value > MOST:
        wrong = f"must be at most {MOST}"
        raise bad(wrong, "lower it or leave the line out")


def _whole_or_auto(value: object, inner: Any) -> Any:  # noqa: ANN401  # pydantic's own signature
    _not_too_large(value)
    try:
        return inner(value)
    except ValidationError:
        raise bad(
            "must be a whole number above 0, or the word auto",
            "write a number without quotes, or leave the line out",
        ) from None


Count = Annotated[int, Field(gt=0, le=MOST)]
Seconds = Annotated[float, Field(gt=0)]
CountOrAuto = Annotated[Count | Literal["auto"], WrapValidator(_whole_or_auto)]


# ---- switches -----------------------------------------------------------------------------


def _yaml_switch(value: object) -> object:
    """YAML 1.1 reads a bare `on` or `off` as a boolean; people mean the word."""
    if value is True:
        return "on"
    if value is False:
        return "off"
    return value


def _or_off(number: str) -> WrapValidator:
    """A number, or a bare `off`, which YAML reads as a boolean."""

    wrong = f"must be a {number} above 0, or the word off"

    def read(value: object, inner: Any) -> Any:  # noqa: ANN401  # pydantic's own signature
        _not_too_large(value)
        try:
            return inner(_yaml_switch(value))
        except ValidationError:
            raise bad(wrong, "write a number without quotes, or leave the line out") from None

    return WrapValidator(read)


CountOrOff = Annotated[Count | Literal["off"], _or_off("whole number")]
SecondsOrOff = Annotated[Seconds | Literal["off"], _or_off("number")]

Overflow = Literal["refuse", "trim"]
"""What becomes of a chat that fits none of the servers it may go to."""
Admission = Annotated[Literal["on", "off", "shadow"], BeforeValidator(_yaml_switch)]


# ---- names --------------------------------------------------------------------------------

_DIGEST = re.compile(r"[0-9a-f]{64}")
_OF_NOTHING = frozenset(
    {
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",  # ""
        "01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b",  # a line's end
    }
)
"""What sha256sum says where the variable was empty: a digest that lets nobody in, or everybody who
sends nothing."""
_MODEL = re.compile(r"[^\x00-\x20\x7f]{1,256}")
_NAME = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:-]{0,63}")
_ENV = re.compile(r"[A-Z_][A-Z0-9_]*")
_HEADER = re.compile(r"[a-z0-9][a-z0-9-]*")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise bad(
            "is not usable as a name: names appear in headers and metric labels",
            "use letters, digits, '.', '_', ':' and '-', at most 64",
        )
    return value


def _env_name(value: str) -> str:
    # Upper case only: a key pasted here by mistake is then almost never taken for a name.
    if not _ENV.fullmatch(value):
        raise bad(
            "is not the name of an environment variable",
            "write the variable's name (capitals, digits, '_'), not the key itself",
        )
    return value


def _header_name(value: str) -> str:
    value = value.lower()
    if not _HEADER.fullmatch(value):
        raise bad("is not the name of a header", "write a name such as x-team")
    return value


def _key_digest(value: str) -> str:
    value = value.strip().lower()
    if not _DIGEST.fullmatch(value):
        raise bad(
            "is not a SHA-256 in hexadecimal",
            'make one with: printf %s "$KEY" | sha256sum (64 digits)',
        )
    if value in _OF_NOTHING:
        raise bad(
            "is the SHA-256 of nothing: the variable was empty when it was made",
            'make it again with: printf %s "$KEY" | sha256sum',
        )
    return value


def _model_name(value: str) -> str:
    if not _MODEL.fullmatch(value):
        raise bad(
            "is not usable as a model's name",
            "write it as clients send it, without blanks, at most 256 characters",
        )
    return value


def listed(value: object) -> list[object] | tuple[object, ...]:
    """One value where several may stand is a list of one."""
    return value if isinstance(value, list | tuple) else (value,)


Name = Annotated[str, AfterValidator(_name)]
KeyDigest = Annotated[str, AfterValidator(_key_digest)]
ModelName = Annotated[str, AfterValidator(_model_name)]
ModelNames = Annotated[
    tuple[ModelName, ...],
    BeforeValidator(listed, json_schema_input_type=ModelName | list[ModelName]),
    Field(strict=False, min_length=1),
]
EnvName = Annotated[str, AfterValidator(_env_name)]
HeaderName = Annotated[str, AfterValidator(_header_name)]


# ---- paths --------------------------------------------------------------------------------

_LEFT_OPEN = re.compile(r"\$\{?[A-Za-z_]|\$\(|\{\{|%\w+%|<[A-Za-z_][\w -]*>")
"""What a shell, compose, Helm, Windows or a reader of the documentation would fill in."""


def filled(value: str) -> None:
    """Refuse a placeholder: it would be looked up as a name, or be made as a folder of that name."""
    if _LEFT_OPEN.search(value):
        raise bad(
            "holds a placeholder, and nothing is filled in here",
            "write the value itself; servers may come from --backend, addresses from KVGATE_LISTEN and "
            "KVGATE_CONTROL",
        )


def _anchored(path: Path, info: ValidationInfo) -> Path:
    """A relative path counts from the policy file, so that the two move together."""
    filled(str(path))
    if "\0" in str(path):
        raise bad("holds a null character, which no path has", "write it without")
    try:
        path = path.expanduser()
    except (
        RuntimeError
    ):  # nobody's, or of a user that this machine does not know, as in a container
        raise bad("begins with a home directory that is not known", "write all of it") from None
    base = (info.context or {}).get("base")
    return path if path.is_absolute() or base is None else Path(base) / path


FilePath = Annotated[Path, Field(strict=False), AfterValidator(_anchored)]


# ---- addresses ----------------------------------------------------------------------------


def _is_host(name: str) -> bool:
    """Whether a resolver can be asked for it: asyncio's raises no OSError where it can not."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


_LAST_PORT = 65_535
_ADDRESS_REMEDY = "write HOST:PORT, for example 127.0.0.1:8080 or [::1]:8080"


def _address(value: str) -> str:
    filled(value)
    host, colon, port = value.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _LAST_PORT:
        raise bad("is not an address to listen on", _ADDRESS_REMEDY)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise bad("is an IPv6 address without brackets", _ADDRESS_REMEDY)
    if not _is_host(host.strip("[]")):
        raise bad("is not an address to listen on", _ADDRESS_REMEDY)
    if not host:  # ":8080" means every interface nearly everywhere
        host = "0.0.0.0"  # noqa: S104  # said by the operator; `checks` asks for keys
    return f"{host.lower()}:{int(port)}"


Address = Annotated[str, AfterValidator(_address)]


def host_port(address: str) -> tuple[str, int]:
    """Split a validated `Address` into the host, without brackets, and the port (0: any free)."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether a validated `Address` can be reached from this machine only."""
    host, _ = host_port(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # another name: whatever it resolves to, do not take it for loopback


def is_here(address: str, host: str, port: int) -> bool:
    """Whether who connects to `host` and `port` reaches a listener on a validated `Address`, as far as
    that can be told without asking a resolver. Port 0 is any free one, which nobody else has."""
    own, own_port = host_port(address)
    if own_port != port or port == 0:
        return False
    return own == host or (_is_near(own) and _is_near(host))


def _is_near(host: str) -> bool:
    """Whether it is this machine under a name that it always has, or all of its addresses."""
    return host in {"0.0.0.0", "::"} or is_loopback(f"[{host}]:0" if ":" in host else f"{host}:0")  # noqa: S104 - compared, not bound


def _network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value.strip()))
    except ValueError:
        pass
    try:
        wider = ipaddress.ip_interface(value.strip()).network
    except ValueError:
        raise bad(
            "is not a network or address", "write 10.1.0.0/16, 192.168.1.7 or fd00::/8"
        ) from None
    raise bad(
        "has digits set beyond its prefix, so it is not clear what is meant",
        f"write {wider} for the network, or the address without a prefix",
    )


Network = Annotated[str, AfterValidator(_network)]


# ---- URLs ---------------------------------------------------------------------------------

_DEFAULT_PORT = {"http": 80, "https": 443}


def _server_url(value: str) -> str:
    """Normalise a server's root URL: lower-case host, explicit port, no trailing slash."""
    text = value.strip()
    filled(text)
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise bad("is a URL without a scheme", "write http://HOST:PORT")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise bad("is not a URL", "write http://HOST:PORT") from None
    if port == 0:  # nothing can be reached there, and it would be taken for "not said"
        raise bad("has port 0, which no server has", "write http://HOST:PORT")
    if parts.scheme not in _DEFAULT_PORT:
        raise bad("is not an http or https URL", "write http://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise bad(
            "holds credentials, and URLs end up in logs",
            "take them out and name the key in api_key_env or api_key_file",
        )
    if not parts.hostname or re.search(r"\s", text):
        raise bad("is a URL without a host", "write http://HOST:PORT")
    if not _is_host(parts.hostname):
        raise bad(
            "has a host that no name server can be asked for",
            "write an address, or a name with at most 63 characters from dot to dot",
        )
    if parts.query or parts.fragment:
        raise bad("has a query or fragment", "give the server's root: http://HOST:PORT")
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        raise bad("ends in /v1", "give the server's root without /v1; the gate adds the routes")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or _DEFAULT_PORT[parts.scheme]}{path}"


ServerUrl = Annotated[str, AfterValidator(_server_url)]


def _collector_url(value: str) -> str:
    return _server_url(re.sub(r"/v1/traces/?$", "", value.strip()))  # some write the route as well


CollectorUrl = Annotated[str, AfterValidator(_collector_url)]


def name_of_url(url: str) -> str:
    """The name of a backend that was given none: its host and port."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}{parts.path.replace('/', '.')}"
