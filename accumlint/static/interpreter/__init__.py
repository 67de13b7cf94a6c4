"""Interprets the intermediate representation with small numbers and writes a trace.

Bounded and deterministic: every loop has a cap by its role, every call a depth, every run a budget of steps.
What ``x.step()`` means is decided here, from the abstract value of ``x``, never from its spelling alone.
A *scouting* run walks both arms of every undecided condition once, to learn which loops carry microbatches,
which conditions gate a step and which unknown number is K; the runs after it use what was learned.
"""

from accumlint.static.interpreter.core import Interpreter
from accumlint.static.interpreter.state import Abort, Call, Frame, Learned, OutOfBudget, Relearn

__all__ = ["Abort", "Call", "Frame", "Interpreter", "Learned", "OutOfBudget", "Relearn"]
