"""Fixes: what would have to be changed for a finding to go, tried out before it is offered.

Each file of this room knows one kind of change; :mod:`~accumlint.static.fixes.registry` says which rule asks
which. A fixer proposes; only what survives a new simulation of the changed script (the finding is gone, nothing
new is found, the windows are still followed) becomes a :class:`~accumlint.findings.Fix`.
"""
