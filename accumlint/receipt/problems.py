"""Why a document is refused: stable reason codes, the place inside the document, one sentence.

Sentences never quote the document: a manifest may hold what must not leave it, so a problem names the place
(keys of the format, list indices) and what was expected there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from accumlint.receipt.limits import MAX_PATHS_PER_REASON

# code -> sentence. Codes are what people search for and what archives keep: they never change their meaning.
REASONS: dict[str, str] = {
    # the text, before anything is parsed
    "too-large": "the document is larger than the reader accepts",
    "too-deep": "the document nests deeper than the reader accepts",
    "encoding": "the document is not UTF-8 without a byte order mark",
    "syntax": "the document is neither well-formed JSON nor the plain YAML that is read here",
    "yaml-alias": "YAML anchors and aliases are not read: a few lines of them can stand for gigabytes",
    "yaml-tag": "YAML tags are not read: a value is what its text says",
    "yaml-documents": "one file holds one YAML document",
    # the shape
    "duplicate-key": "a key appears twice in one object, so the readers of this document would disagree",
    "unknown-key": "a key is not part of the format",
    "missing-key": "a required key is missing",
    "type": "a value has the wrong type",
    "boolean-as-number": "a boolean stands where a number belongs",
    "choice": "a value is not one of the words that the format knows",
    "pattern": "a text is not of the form that the format fixes",
    "schema-unknown": "the schema named by the document is not one that is read here",
    "list-length": "a list is shorter or longer than the format allows",
    # the numbers
    "number-nonfinite": "a number is not finite",
    "number-unsafe": "a number has more digits or a larger exponent than is read here",
    "count-unsafe": "a count is negative, too large, or not an integer within 2^53 - 1",
    "value-range": "a number is outside of its range",
    # the contract
    "rank-missing": "a rank of the world has no rows",
    "rank-duplicate": "a rank appears twice",
    "rank-unknown": "a rank is not below the world size",
    "inconsistent-k": "a rank states another number of accumulation steps than the manifest",
    "tail-disagreement": "a rank decides about the tail differently from the manifest",
    "column-length": "a column has another length than the rows it belongs to",
    "gradient-dimension": "gradient vectors differ in their number of components or rows",
    "gradient-missing": "a gradient numerator is missing in a window that is not marked nonfinite",
    "id-duplicate": "a microbatch id appears twice",
    "window-order": "the windows of a rank do not follow each other",
    "window-missing": "a window is missing",
    "window-size": "a window does not hold the stated number of microbatches, and it is no tail",
    "window-count": "more windows times gradient components than one receipt holds: split the run and chain receipts",
    "rank-window-mismatch": "two ranks disagree about the microbatches of a window",
    "window-without-targets": "a window has no valid target, so nothing can be divided",
    "numerator-without-targets": "a microbatch without valid targets has a numerator that is not zero",
    "epoch-ends": "the epoch ends are not an ascending list of windows that ends with the last one",
    "carry-without-state": "a tail is carried without the digest of the random state at its boundary",
    "plan-mismatch": "the plan hash fixed before the run is not the hash of this plan",
    # the chain
    "chain-missing": "the manifest continues a receipt that was not given",
    "chain-broken": "the manifest continues another receipt than the one that was given, or other pending rows",
    "chain-nothing-pending": "the receipt to continue from carries no pending window",
    "chain-incompatible": "the manifest and the receipt to continue from differ in a setting that binds both",
    "chain-unproven": "the receipt to continue from does not verify",
}


@dataclass(frozen=True, order=True)
class Problem:
    """One reason for a refusal: ``path`` leads to the place, as in ``ranks[0].windows[3]`` (``$``: the whole)."""

    code: str
    path: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}: {self.sentence} [{self.code}]"


@dataclass
class ProblemLog:
    """Collects all problems of a document; of each code it keeps the first places and counts the rest."""

    kept: list[Problem] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, code: str, path: str, detail: str = "") -> None:
        """Note a problem; ``detail`` must be made of the format's own words and of numbers of ours."""
        seen = self.counts.get(code, 0)
        self.counts[code] = seen + 1
        if seen < MAX_PATHS_PER_REASON:
            sentence = REASONS[code] + (f" ({detail})" if detail else "")
            self.kept.append(Problem(code, path or "$", sentence))

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def __bool__(self) -> bool:
        return bool(self.counts)

    def problems(self) -> tuple[Problem, ...]:
        """The kept problems in the order of the places where they were met, without repetitions."""
        return tuple(dict.fromkeys(self.kept))


class Rejected(ValueError):
    """A document is refused; carries every problem that was found, never a piece of the document."""

    def __init__(self, log: ProblemLog):
        self.problems = log.problems()
        self.counts = dict(sorted(log.counts.items()))
        super().__init__("; ".join(self.lines()))

    def lines(self) -> Iterator[str]:
        """One line per kept problem, then one per code that had more."""
        return _lines(self.problems, self.counts)


def _lines(problems: Iterable[Problem], counts: dict[str, int]) -> Iterator[str]:
    shown: dict[str, int] = {}
    for problem in problems:
        shown[problem.code] = shown.get(problem.code, 0) + 1
        yield str(problem)
    for code, count in counts.items():
        if count > shown.get(code, 0):
            yield f"and {count - shown.get(code, 0)} more of [{code}]"


def reject(code: str, path: str = "$", detail: str = "") -> Rejected:
    """A refusal for one single reason."""
    log = ProblemLog()
    log.add(code, path, detail)
    return Rejected(log)
