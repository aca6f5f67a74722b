"""Who reaches the server, and what they learn or may do there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.plan.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.plan.settings import Settings
    from gateway.plan.traffic import Traffic

ADMIN_SINCE = (0, 5, 12)
"""From here --admin-api-key exists. Before, one key opened everything."""

ADMIN = "flush the cache, abort every request, pause the engine, replace the weights"


def doors(settings: Settings, _traffic: Traffic) -> Iterator[Finding]:
    """Open ports, admin routes."""
    levels = settings.version is None or settings.version >= ADMIN_SINCE
    if not settings.keyed and not settings.admin_keyed:
        yield Finding(
            Severity.NOTE if settings.loopback else Severity.ERROR,
            "no_key",
            "--api-key",
            f"It listens on {_shown(settings.host)} without a key: whoever reaches the port passes "
            f"the gate by and can {ADMIN}.",
            "Keep it on 127.0.0.1 behind the gate"
            + (", as it is." if settings.loopback else ", or set --api-key and --admin-api-key."),
        )
    elif settings.keyed and not settings.admin_keyed:
        yield Finding(
            Severity.NOTE if settings.loopback else Severity.WARNING,
            "no_admin_key",
            "--admin-api-key" if levels else "--api-key",
            f"Whoever has the API key can also {ADMIN}.",
            "Set --admin-api-key to another key, and give the API key to the gate alone."
            if levels
            else "Give the key to the gate alone; an admin key exists from 0.5.12 on.",
        )
    elif settings.admin_keyed and not settings.keyed:
        yield Finding(
            Severity.ERROR,
            "admin_key_readable",
            "/server_info",
            "There is an admin key and no API key: /server_info, open to all, holds the admin key.",
            "Set --api-key as well.",
        )


def keys(settings: Settings, _traffic: Traffic) -> Iterator[Finding]:
    """Where keys can be read."""
    if settings.keys_on_line:
        yield Finding(
            Severity.WARNING,
            "key_on_the_line",
            ", ".join("--" + name.replace("_", "-") for name in sorted(settings.keys_on_line)),
            "A key on the command line is read by every user of the machine (ps), and stays in the "
            "shell's history.",
            "Put it into a YAML file of mode 600 and start with --config FILE.",
        )
    if settings.keyed:
        yield Finding(
            Severity.NOTE,
            "keys_in_server_info",
            "/server_info",
            "/server_info answers with the keys in clear to whoever has the API key.",
            "Never relay that route; the gate does not.",
        )


def code(settings: Settings, _traffic: Traffic) -> Iterator[Finding]:
    """Foreign code."""
    if settings.on("enable_custom_logit_processor"):
        yield Finding(
            Severity.WARNING,
            "clients_send_code",
            "--enable-custom-logit-processor",
            "Requests may bring Python code that the server runs.",
            "Leave it out; the gate refuses the field anyway.",
        )
    if settings.on("trust_remote_code"):
        yield Finding(
            Severity.NOTE,
            "model_brings_code",
            "--trust-remote-code",
            "The model's repository may run code at the start.",
            "Pin --revision, or leave it out where the model needs none.",
        )


def _shown(host: str) -> str:
    """An address as it is; anything stranger is not repeated."""
    plain = all(letter.isalnum() or letter in ".:[]-" for letter in host)
    return host if plain else "an address of its own"
