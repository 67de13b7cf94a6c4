"""Exports of a receipt that other tools read. The receipt stays the only source: exports repeat it."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from xml.sax.saxutils import quoteattr

from accumlint.receipt.building import Receipt
from accumlint.receipt.verdicts import CLAUSES, FAIL, INCONCLUSIVE, NOT_DISCRIMINATING, NOT_RUN, REASONS

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:accumlint:predicate:accumulation-receipt:v1"


def in_toto(receipt: Receipt) -> bytes:
    """An unsigned in-toto Statement v1 about the receipt and the files that it binds, as JSON text.

    Subjects are named by role and number, since receipts hold no paths. The predicate repeats hashes and
    verdicts; policy should admit PASS and deny everything else.
    """
    document = receipt.manifest.document
    subjects = [
        {"name": "accumulation-receipt", "digest": {"sha256": hashlib.sha256(receipt.data).hexdigest()}}
    ]
    for number, file in enumerate(document.get("bound_files", []), 1):
        subjects.append({"name": f"{file['role']}-{number}", "digest": {"sha256": file["sha256"]}})
    predicate: dict[str, Any] = {
        "tool": receipt.tool,
        "formula": receipt.plan["formula"],
        "hashes": receipt.hashes,
        "verdict": receipt.verdict,
        "verdicts": receipt.result["verdicts"],
        "notRun": receipt.result["not_run"],
        "limitations": receipt.result["limitations"],
        "accumulationSteps": document["accumulation_steps"],
        "worldSize": document["world_size"],
        "lossPolicy": document["loss_policy"],
        "tailPolicy": document["tail_policy"],
        "microbatches": receipt.result["totals"]["microbatches"],
        "validTargets": receipt.result["totals"]["valid_targets"],
        "loss": receipt.result["totals"]["loss"],
    }
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": subjects,
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    return (json.dumps(statement, indent=2, sort_keys=True) + "\n").encode("ascii")


def junit(receipt: Receipt) -> str:
    """JUnit XML: one test case per tier of the plan, the hashes as properties.

    A tier that was not run, or that can't tell the formulas apart, is skipped with its reason. One that is
    inconclusive fails: nothing was shown.
    """
    verdicts = receipt.result["verdicts"]
    failed = sum(v["verdict"] in (FAIL, INCONCLUSIVE) for v in verdicts)
    skipped = sum(v["verdict"] in (NOT_RUN, NOT_DISCRIMINATING) for v in verdicts)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites tests="{len(verdicts)}" failures="{failed}" skipped="{skipped}">',
        f'  <testsuite name="accumlint.receipt" tests="{len(verdicts)}" failures="{failed}" errors="0"'
        f' skipped="{skipped}">',
        "    <properties>",
    ]
    for name, value in (*sorted(receipt.hashes.items()), ("verdict", receipt.verdict)):
        lines.append(f"      <property name={quoteattr(name)} value={quoteattr(value)}/>")
    lines.append("    </properties>")
    for v in verdicts:
        head = f'    <testcase classname="accumlint.receipt.{CLAUSES[v["tier"]]}" name={quoteattr(v["tier"])}'
        message = quoteattr(f"{v['verdict']}: {REASONS[v['reason']]}")
        if v["verdict"] in (FAIL, INCONCLUSIVE):
            windows = ", ".join(map(str, v["windows"]))
            more = v["windows_affected"] - len(v["windows"])
            body = f"windows: {windows}" + (f" and {more} more" if more else "") if windows else ""
            lines += [f"{head}>", f"      <failure message={message}>{body}</failure>", "    </testcase>"]
        elif v["verdict"] in (NOT_RUN, NOT_DISCRIMINATING):
            lines += [f"{head}>", f"      <skipped message={message}/>", "    </testcase>"]
        else:
            lines.append(f"{head}/>")
    lines += ["  </testsuite>", "</testsuites>"]
    return "\n".join(lines) + "\n"
