"""What the checker says of generated loops: silent on correct ones, and the right rule at the right line on broken ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from accumlint.findings import Finding
from accumlint.static.engine import EngineSettings, Project, analyse

from . import gaps, generate, mutations, recipes
from .recipes import AHEAD, Recipe
from .script import Script

SAID = ("error", "warning")


@dataclass(frozen=True)
class Case:
    """One loop: a recipe, and the mutation that breaks it (empty: none)."""

    recipe: Recipe
    mutation: str = ""

    def script(self) -> Script | None:
        return generate.script(self.recipe, mutations.ALL[self.mutation].apply if self.mutation else None)

    def __str__(self) -> str:
        return f"{self.mutation or 'correct'}: {self.recipe}"


@dataclass(frozen=True)
class Complaint:
    """The checker was wrong about a case."""

    case: Case
    script: Script
    text: str

    def __str__(self) -> str:
        return f"{self.text}\n{self.case}\n{self.case!r}\n\n{self.script.numbered}"


def findings(script: Script) -> list[Finding]:
    """All findings of a script, as the engine gives them."""
    return list(analyse(script.source.encode(), "script.py", Project("."), EngineSettings()).findings)


def complaint(case: Case) -> Complaint | None:
    """What is wrong with the checker's answer, if anything. None too where the mutation does not apply."""
    script = case.script()
    if script is None:
        return None
    found = findings(script)
    if not case.mutation:
        said = [f"{f.rule} at line {f.span.line}: {f.message}" for f in found if f.severity.label in SAID]
        unread = [f"{f.rule}: {f.message}" for f in found if f.rule == "ACC003"]
        return Complaint(case, script, "false alarm: " + "; ".join(said) if said else "not followed: " + "; ".join(unread)) if said or unread else None
    wanted = mutations.ALL[case.mutation]
    # windows of lists have no condition: the step itself is the line
    lines = script.lines(*wanted.marks, *(("step", "call") if "gate" in wanted.marks and case.recipe.window in AHEAD else ()))
    if any(f.rule in wanted.rules and f.span.line in lines for f in found):
        return None
    told = ", ".join(f"{f.rule}@{f.span.line}" for f in found) or "nothing"
    kind = "misplaced" if any(f.rule in wanted.rules for f in found) else "missed"
    return Complaint(case, script, f"{kind}: wants {' or '.join(sorted(wanted.rules))} at {sorted(lines)}, was told {told}")


def cases(seed: int, framework: str = "") -> Iterator[Case]:
    """The correct loop of a seed, and every mutation of it (some do not apply)."""
    recipe = recipes.seeded(seed, **({"framework": framework} if framework else {}))
    yield Case(recipe)
    for name in mutations.ALL:
        yield Case(recipe, name)


def unexplained(case: Case) -> str:
    """What a run has to report of a case: a complaint that no known gap explains, or a gap that is none any more."""
    found = complaint(case)
    gap = gaps.of(case.recipe, case.mutation)
    if found is not None and gap is None:
        return str(found)
    if found is None and gap is not None and case.script() is not None:
        return f"no gap any more: {gap.reason}\n{case}\n{case!r}"
    return ""


def minimised(case: Case) -> Case:
    """The plainest recipe about which the checker is wrong in the same way."""
    first = complaint(case)
    if first is None:
        return case
    kind = first.text.partition(":")[0]

    def fails(recipe: Recipe) -> bool:
        made = complaint(Case(recipe, case.mutation))
        return made is not None and made.text.partition(":")[0] == kind and gaps.of(recipe, case.mutation) is None

    return Case(recipes.shrunk(case.recipe, fails), case.mutation)
