"""The language server: findings while a script is written, their windows on hover, their fixes as actions.

``checking`` asks the same questions as ``accumlint check``, ``worker`` asks them in a process of its own,
``documents`` turns answers into what editors show, ``server`` listens. Only ``documents`` and ``server`` know
the protocol.
"""
