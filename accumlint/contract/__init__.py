"""The contract: events, windows, weights and the clauses that judge them.

Nothing here knows which witness made a trace; neither libcst nor torch is imported.
"""
