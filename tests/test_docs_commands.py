"""Every command in the documentation is run as it stands there, in a scratch copy of the checkout.

Blocks fenced as ``bash`` are scripts; in ``console`` blocks the lines behind ``$`` are, and what follows them
is what must be printed (``…`` stands for anything). All blocks of a page run in one folder, in their order.
An HTML comment above a block says what the test needs to know: ``<!-- exit: 1 -->``, ``<!-- skip: why -->``,
``<!-- output varies -->`` (it is run and not compared), ``<!-- file: name -->`` (the block is the content of
a file); ``<!-- setup: command -->`` runs before what follows.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from accumlint.cli.main import COMMANDS
from accumlint.knowledge import rules
from accumlint.report.rule_pages import reference
from accumlint.rule_index import all_rules
from accumlint.settings import all_selectors, check_selectors, load

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
NEEDED = ("accumlint", "rules", "fixtures", "docs", "tests/hook_scripts", "pyproject.toml")

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\s*$")
_DIRECTIVE = re.compile(r"^<!-- (?P<what>exit|skip|output varies|file|setup)(?:: (?P<value>.*?))? -->$")


class Block(NamedTuple):
    """One step of a page: what to run or write, and what is known about it."""

    line: int
    language: str  # bash, console, setup or file
    text: str
    said: dict[str, str]


def blocks(text: str) -> list[Block]:
    """The steps of a page, in order."""
    found: list[Block] = []
    said: dict[str, str] = {}
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        directive = _DIRECTIVE.match(line)
        if directive and directive["what"] == "setup":
            found.append(Block(number, "setup", directive["value"], {}))
        elif directive:
            said[directive["what"]] = directive["value"] or ""
        elif fence := _FENCE.match(line):
            body = []
            for _, inner in lines:
                if inner.strip() == "```":
                    break
                body.append(inner.removeprefix(fence["indent"]))
            if "file" in said or fence["language"] in ("bash", "console"):
                language = "file" if "file" in said else fence["language"]
                found.append(Block(number, language, "\n".join(body) + "\n", said))
            elif said:
                raise AssertionError(f"line {number}: {said} speaks of no commands")
            said = {}
        elif line.strip() and said:
            raise AssertionError(f"line {number}: {said} must stand right above a block")
    return found


def commands(console: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    found: list[list[str]] = []
    for line in console.split("\n"):
        if line.startswith("$ "):
            found.append([line[2:], ""])
        elif found and not found[-1][1] and found[-1][0].endswith("\\"):
            found[-1][0] += "\n" + line
        elif found:
            found[-1][1] += line + "\n"
    return [(command, output.rstrip("\n")) for command, output in found]


def matches(expected: str, printed: str) -> bool:
    """Whether a text is the expected one, ``…`` standing for anything."""
    pattern = ".*".join(map(re.escape, expected.split("…")))
    return re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL) is not None


class Shell:
    """A folder with a copy of what commands use, and an ``accumlint`` that is this checkout's."""

    def __init__(self, folder: Path, home: Path):
        self.folder = folder
        for name in NEEDED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        program = home / "accumlint"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m accumlint "$@"\n')
        program.chmod(0o755)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "GITHUB_"))}
        path = os.pathsep.join([str(home), str(Path(sys.executable).parent), kept.get("PATH", "")])
        self.environment = {
            **kept,
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "HOME": str(home),
            "PWD": str(folder),
        }

    def run(self, script: str) -> tuple[int, str]:
        """(exit code, standard output) of a script; the folder that it ends in stays for the next."""
        keep = f"trap 'pwd > {shlex.quote(str(self.folder / '.pwd'))}' EXIT\n"
        done = subprocess.run(
            ["bash", "-e", "-c", keep + script],
            cwd=self.where, env=self.environment, capture_output=True, text=True, check=False,
            timeout=300,  # a page that shows an endless command must not hang the tests
        )  # fmt: skip
        self.problem = done.stderr
        return done.returncode, done.stdout

    @property
    def where(self) -> Path:
        note = self.folder / ".pwd"
        return Path(note.read_text().strip()) if note.exists() else self.folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks((ROOT / page).read_text(encoding="utf-8"))]
)
def test_commands_do_what_the_page_says(page, tmp_path_factory):
    shell = Shell(tmp_path_factory.mktemp("page"), tmp_path_factory.mktemp("home"))
    for block in blocks((ROOT / page).read_text(encoding="utf-8")):
        where = f"{page}:{block.line}"
        if "skip" in block.said:
            assert block.said["skip"], f"{where}: say why"
            continue
        if block.language == "file":
            (shell.where / block.said["file"]).write_text(block.text, encoding="utf-8")
            continue
        if block.language in ("bash", "setup"):
            code, printed = shell.run(block.text)
            assert code == int(block.said.get("exit", 0)), f"{where}: {printed}{shell.problem}"
            continue
        codes = []
        for command, expected in commands(block.text):
            code, printed = shell.run(f"exec 2>&1\n{command}")
            codes.append(code)
            if expected and "output varies" not in block.said:
                assert matches(expected, printed), f"{where}: {command} printed\n{printed}{shell.problem}"
        assert max(codes) == int(block.said.get("exit", 0)), f"{where}: {codes} {shell.problem}"


def test_the_reference_of_rules_is_up_to_date():
    """Written by ``accumlint rules --write docs/rules``."""
    pages = reference(list(rules().values()))
    folder = ROOT / "docs" / "rules"
    assert sorted(path.name for path in folder.iterdir()) == sorted(pages)
    for name, text in pages.items():
        assert (folder / name).read_text(encoding="utf-8") == text, (
            f"docs/rules/{name} is not what rules/ says"
        )


@pytest.mark.parametrize("page", [*PAGES, "docs/rules/README.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = ((ROOT / page).parent / name) if name else ROOT / page
        assert path.exists(), f"{page}: {target}"
        if anchor:
            headings = re.findall(r"(?m)^#+ (.+)$", path.read_text(encoding="utf-8"))
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page}: {target}"


def test_a_page_is_read_as_described():
    page = (
        "<!-- setup: mkdir a -->\n<!-- exit: 1 -->\n```bash\nfalse\n```\n\n```console\n$ echo \\\n  a\na\n$ true\n```\n"
        "```yaml\nx: 1\n```\n<!-- file: x.toml -->\n```toml\na = 1\n```\n"
    )
    setup, script, console, file = blocks(page)
    assert (setup.language, script.said, file.language) == ("setup", {"exit": "1"}, "file")
    assert commands(console.text) == [("echo \\\n  a", "a"), ("true", "")]
    assert matches("a…c\nd", "abc\nd\n") and not matches("a…c", "ab")
    with pytest.raises(AssertionError, match="right above"):
        blocks("<!-- exit: 1 -->\nwords\n```bash\n```\n")


# --- blocks that are no commands, but settings and recipes -----------------------------------------------


def fenced(language: str) -> list[tuple[str, str]]:
    """(page:line, text) of all blocks in a language."""
    found = []
    for page in PAGES:
        lines = iter(enumerate((ROOT / page).read_text(encoding="utf-8").split("\n"), 1))
        for number, line in lines:
            fence = _FENCE.match(line)
            if fence:
                body = []
                for _, inner in lines:
                    if inner.strip() == "```":
                        break
                    body.append(inner.removeprefix(fence["indent"]))
                if fence["language"] == language:
                    found.append((f"{page}:{number}", "\n".join(body) + "\n"))
    return found


def strings(value):
    """All strings in parsed YAML."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from strings(each)
    elif isinstance(value, str):
        yield value


def dictionaries(value):
    """All mappings in parsed YAML."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from dictionaries(each)


@pytest.mark.parametrize(("place", "text"), fenced("yaml"), ids=[place for place, _ in fenced("yaml")])
def test_recipes_name_what_there_is(place, text):
    recipe = yaml.safe_load(text)
    for script in strings(recipe):
        for line in script.splitlines():
            if line.startswith("accumlint "):
                _, command, *arguments = shlex.split(line)
                module = importlib.import_module(f"accumlint.cli.{COMMANDS[command][0]}")
                parser = argparse.ArgumentParser()
                module.add_arguments(parser)
                parser.parse_args(arguments)
    hooks = {hook["id"] for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    for each in dictionaries(recipe):
        if isinstance(each.get("hooks"), list):
            assert {hook["id"] for hook in each["hooks"]} <= hooks, place
        if str(each.get("uses", "")).startswith("accumlint/"):
            assert set(each.get("with", ())) <= set(inputs), place


@pytest.mark.parametrize(("place", "text"), fenced("toml"), ids=[place for place, _ in fenced("toml")])
def test_settings_in_the_documentation_are_settings(place, text, tmp_path):
    if "language-server" in text or "schema_version" in text:
        pytest.skip("the settings of an editor")
    path = tmp_path / ("pyproject.toml" if "[tool." in text else "accumlint.toml")
    path.write_text(text, encoding="utf-8")
    settings = load(str(path))
    assert settings is not None, place
    check_selectors(all_selectors(settings), all_rules(), place)
