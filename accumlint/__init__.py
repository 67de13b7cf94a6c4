"""accumlint: does gradient accumulation still train what the large batch would have trained?"""

__version__ = "0.1.0"

HOME = "https://github.com/accumlint/accumlint"


def rule_page(code: str) -> str:
    """Where the page of a rule can be read."""
    return f"{HOME}/blob/main/docs/rules/{code}.md"
