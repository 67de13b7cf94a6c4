"""The accumulation receipt: a manifest in, a proof out that anybody can derive again.

The interface for other rooms and for users::

    from accumlint import receipt

    receipt.plan_hash(settings)            # before a run: fixes formula, tolerances and expected clocks
    book = receipt.ManifestBuilder(...)    # during a run: one call per microbatch, one per window
    made = receipt.build(book.document())  # after it: a Receipt, or Rejected with every reason
    made.data                              # the bytes of the file; made.verdict, made.result
    receipt.verify(data, root=path)        # Outcome: holds, refuted, unreadable, unverifiable
    receipt.read(data)                     # strict reading of JSON or YAML into a tree for build()

Nothing here imports torch or runs user code, and nothing but ``binding`` reads files.
"""

from accumlint.receipt.binding import bind
from accumlint.receipt.building import Receipt, build, previous_segment
from accumlint.receipt.plan import make_plan, plan_hash
from accumlint.receipt.problems import Problem, Rejected
from accumlint.receipt.reading import read
from accumlint.receipt.recording import ManifestBuilder
from accumlint.receipt.validation import Previous, validate
from accumlint.receipt.verifying import Outcome, verify, verify_bytes

__all__ = [
    "ManifestBuilder",
    "Outcome",
    "Previous",
    "Problem",
    "Receipt",
    "Rejected",
    "bind",
    "build",
    "make_plan",
    "plan_hash",
    "previous_segment",
    "read",
    "validate",
    "verify",
    "verify_bytes",
]
