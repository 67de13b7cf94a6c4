"""The second witness: runs the user's script in a child process and keeps the books.

What runs in the child imports torch and lives in ``child/`` (and ``inject/``, which the child's interpreter finds
first). Everything else here reads what the child wrote and imports neither torch nor the user's code.
"""
