"""Results of earlier runs, kept in the project for as long as nothing that they rest on has changed.

``stamp`` is the tool itself, ``plain`` turns outcomes into JSON and back, ``store`` keeps entries in a folder,
``results`` knows what an outcome rests on. A damaged, foreign or outdated entry is no entry: it is made anew. Entries
are JSON and not pickles, since a folder that comes with a project may come from anybody.
"""
