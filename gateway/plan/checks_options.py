"""Options: those that do not exist, those of another version, those on their way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.plan.findings import Finding, Severity
from gateway.plan.options import INSTEAD, said, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.plan.launch import LaunchLine
    from gateway.plan.options import Option, Version
    from gateway.plan.settings import Settings
    from gateway.plan.traffic import Traffic


def options(settings: Settings, _traffic: Traffic) -> Iterator[Finding]:
    """Of a launch line only: a server that runs has accepted its own."""
    line = settings.line
    if line is None:
        return
    judged = None if line.version is None else table().nearest(line.version)
    yield from _version(line)
    for name in line.unknown:
        yield _unknown(name, judged)
    for option in line.elsewhere:
        yield _elsewhere(option, judged)
    for name, option in line.used:
        yield from _used(name, option, judged)
    yield from _words(line)


def _version(line: LaunchLine) -> Iterator[Finding]:
    known = table().versions
    if line.version is None:
        yield Finding(
            Severity.NOTE,
            "version_not_said",
            "version",
            f"The line does not say its version; options of {said(known[0])} to {said(known[-1])} "
            "are taken for known.",
            "Give --engine-version X.Y.Z to be told which of them yours lacks.",
        )
    elif line.version not in known:
        yield Finding(
            Severity.NOTE,
            "version_not_read",
            "version",
            f"The options of {said(line.version)} were not read; it is judged by those of "
            f"{said(table().nearest(line.version))}.",
            "Compare with python -m sglang.launch_server --help.",
        )


def _unknown(name: str, judged: Version | None) -> Finding:
    where = "any SGLang read" if judged is None else f"SGLang {said(judged)}"
    meant = table().like(name, judged)
    remedy = INSTEAD.get(name) or (f"did you mean {meant}?" if meant else "take it out")
    return Finding(
        Severity.ERROR,
        "no_such_option",
        name,
        f"{name} does not exist in {where}: the server exits at once with a usage error.",
        remedy[:1].upper() + remedy[1:] + ("" if remedy.endswith("?") else "."),
    )


def _elsewhere(option: Option, judged: Version | None) -> Finding:
    has = ", ".join(map(said, option.versions))
    yours = "this version" if judged is None else said(judged)
    meant = table().like(option.name, judged)
    return Finding(
        Severity.ERROR,
        "option_of_another_version",
        option.name,
        f"{option.name} exists in {has}, not in {yours}: the server exits with a usage error.",
        f"Take it out, or use {meant}." if meant else "Take it out, or run a version that has it.",
    )


def _used(name: str, option: Option, judged: Version | None) -> Iterator[Finding]:
    if name != option.name:
        yield Finding(
            Severity.NOTE,
            "abbreviated",
            name,
            f"{name} is taken for {option.name}, as long as no other option begins so.",
            f"Write {option.name}.",
        )
    if judged is not None and judged in option.deprecated:
        yield Finding(
            Severity.NOTE,
            "deprecated",
            option.name,
            f"{option.name} is deprecated in {said(judged)}.",
            "See its text in --help for what replaces it.",
        )
    if judged is None and len(option.versions) < len(table().versions):
        yield Finding(
            Severity.NOTE,
            "not_in_every_version",
            option.name,
            f"{option.name} exists in {', '.join(map(said, option.versions))} only, of the versions read.",
            "Give --engine-version X.Y.Z to be sure.",
        )


def _words(line: LaunchLine) -> Iterator[Finding]:
    if line.dashes:
        yield Finding(
            Severity.ERROR,
            "wrong_dash",
            "launch line",
            f"{line.dashes} options begin with a typographer's dash instead of two hyphens.",
            "Type -- again where the line was copied from a page.",
        )
    if line.strays:
        yield Finding(
            Severity.ERROR,
            "stray_words",
            "launch line",
            f"{line.strays} words belong to no option: the server exits with a usage error.",
            "Look for a missing -- or a value with a blank in it that lacks quotes.",
        )
    if line.config_file:
        yield Finding(
            Severity.NOTE,
            "config_file",
            "--config",
            "More arguments come from a file that is not read here.",
            "Audit the server itself once it runs: kvgate audit URL.",
        )
