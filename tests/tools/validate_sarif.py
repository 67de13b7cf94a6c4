"""Validate the SARIF of the fixtures, and of every snapshot, with Microsoft's multitool.

    python tests/tools/validate_sarif.py

It needs Node.js with npm, and a registry to install ``@microsoft/sarif-multitool`` from (into a temporary
folder, or the one that ``--npm FOLDER`` names and keeps). The multitool checks the SARIF 2.1.0 schema, the
standard's rules and those of GitHub code scanning; the schema that it comes with is also asked through
``jsonschema``. Exit code 1 where there is any error; warnings and notes are counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MULTITOOL = "@microsoft/sarif-multitool@5.7.0"


def installed(folder: Path) -> Path:
    """The folder of the multitool's program; installs it where it isn't there yet."""
    find = ["node", "-p", "require('@microsoft/sarif-multitool')"]
    if not (folder / "node_modules").exists():
        (folder / "package.json").write_text('{"private": true}')
        subprocess.run(["npm", "install", "--silent", "--prefix", str(folder), MULTITOOL], check=True)
    found = subprocess.run(find, cwd=folder, check=True, capture_output=True, text=True)
    return Path(found.stdout.strip())


def of_the_fixtures(folder: Path) -> Path:
    """The log of a check over all fixtures."""
    path = folder / "fixtures.sarif"
    command = [sys.executable, "-m", "accumlint", "check", "--isolated", "--format", "sarif", "fixtures"]
    with path.open("wb") as stream:
        code = subprocess.run(command, cwd=ROOT, stdout=stream, check=False).returncode
    if code != 1:
        raise SystemExit(f"the check of the fixtures ended with {code}: it should find something")
    return path


def complaints(program: Path, log: Path, folder: Path) -> list[tuple[str, str, str]]:
    """(level, rule, line of output) of everything that the multitool says about one log."""
    out = folder / "validation.sarif"
    out.unlink(missing_ok=True)
    command = [str(program), "validate", str(log), "--rule-kind", "Sarif;Gh", "--level", "Error;Warning;Note"]
    done = subprocess.run([*command, "--output", str(out)], capture_output=True, text=True, check=False)
    if not out.exists():
        raise SystemExit(f"the multitool said nothing about {log}:\n{done.stdout}{done.stderr}")
    (run,) = json.loads(out.read_text(encoding="utf-8-sig"))["runs"]
    return [
        (result.get("level", "warning"), result["ruleId"], json.dumps(result["message"]))
        for result in run.get("results", ())
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Validate accumlint's SARIF with Microsoft's multitool.")
    parser.add_argument("--npm", metavar="FOLDER", help="install the multitool here and keep it")
    arguments = parser.parse_args()
    import jsonschema

    errors = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        npm = Path(arguments.npm) if arguments.npm else folder / "npm"
        npm.mkdir(parents=True, exist_ok=True)
        program = installed(npm)
        schema = json.loads((program.parent / "sarif-2.1.0.json").read_text(encoding="utf-8-sig"))
        validator = jsonschema.validators.validator_for(schema)(schema)
        for log in [of_the_fixtures(folder), *sorted((ROOT / "tests/report/snapshots").glob("*.sarif"))]:
            document = json.loads(log.read_text(encoding="utf-8"))
            wrong = [("error", "schema", error.message) for error in validator.iter_errors(document)]
            wrong += complaints(program, log, folder)
            errors += sum(level == "error" for level, _, _ in wrong)
            counts = Counter((level, rule) for level, rule, _ in wrong)
            results = sum(len(run["results"]) for run in document["runs"])
            told = ", ".join(f"{number} {level} {rule}" for (level, rule), number in sorted(counts.items()))
            print(f"{log.name}: {results} results: {told or 'nothing to complain about'}")
            for level, rule, message in wrong:
                if level == "error":
                    print(f"  {rule}: {message}")
    print(f"{errors} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
