"""Training loops whose truth is known by construction, ways of breaking them, and what both witnesses say of them.

``python -m tests.fuzzing --help`` runs it for as long as you like.
"""
