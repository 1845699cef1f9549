"""The gate's answer for people, for CI systems that read JUnit's XML, and for the page of a GitHub job."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from bcd_cli.rendering.release import note_lines, timings_table
from bcd_cli.rendering.text import milliseconds
from bcd_tuner.gate import GateReport

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SUITE = "bcd-registry gate"


def render_gate(report: GateReport) -> RenderableType:
    """Each rule with what was measured, then the timings and the verdict."""
    parts: list[RenderableType] = [Text(_title(report), style="bold"), ""]
    for rule in report.rules:
        word, style = ("ok", "green") if rule.passed else ("FAILED", "bold red")
        parts.append(Text.assemble((f"{word:7}", style), f"{rule.name}: {rule.reason}"))
    parts += ["", timings_table(report.timings, report.threads), *note_lines(report.notes), ""]
    parts.append(Text("passed", style="green") if report.passed else Text("NOT PASSED", style="bold red"))
    return Group(*parts)


def as_junit(report: GateReport) -> bytes:
    """JUnit's XML: a test case for each rule."""
    failures = str(sum(not rule.passed for rule in report.rules))
    suites = ET.Element("testsuites", tests=str(len(report.rules)), failures=failures)
    suite = ET.SubElement(suites, "testsuite", name=_SUITE, tests=str(len(report.rules)), failures=failures)
    for rule in report.rules:
        case = ET.SubElement(suite, "testcase", classname=_xml(_title(report)), name=rule.name)
        if rule.passed:
            ET.SubElement(case, "system-out").text = _xml(rule.reason)
        else:
            ET.SubElement(case, "failure", message=_xml(rule.reason)).text = _xml(rule.reason)
    ET.indent(suites)
    document: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def as_markdown(report: GateReport) -> str:
    """What is appended to the summary of a job."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: GateReport) -> Iterator[str]:
    yield from (f"## {_cell(_title(report))}: {'passed' if report.passed else 'not passed'}", "")
    yield from ("| rule | | measured |", "|---|---|---|")
    for rule in report.rules:
        yield f"| {rule.name} | {'ok' if rule.passed else '**failed**'} | {_cell(rule.reason)} |"
    yield from ("", f"| {report.threads} threads | median ms | 10th to 90th percentile | runs |", "|---|---|---|---|")
    for name, timing in report.timings.items():
        between = f"{milliseconds(timing.p10)} to {milliseconds(timing.p90)}"
        yield f"| {name} | {milliseconds(timing.median)} | {between} | {timing.runs} |"
    for note in report.notes:
        yield from ("", f"Note: {_cell(note)}.")
    yield ""


def _title(report: GateReport) -> str:
    return f"{report.network} {report.version}".strip() + f" against {report.against}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _xml(text: str) -> str:
    return _NOT_XML.sub("?", text)
