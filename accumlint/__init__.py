"""accumlint: does gradient accumulation still train what the large batch would have trained?"""

__version__ = "0.1.0"
