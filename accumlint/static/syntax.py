"""The intermediate representation: what simulation needs of a script, free of layout.

Expressions and statements carry a ``site``: an index into :attr:`Module.sites`, which leads back to the
concrete syntax node and so, when something is reported, to a position.

Nodes are compared by identity and print as objects: what nobody asks for need not be made for forty classes at every
start. That each has a text of its own saves the text that would be made up from its signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False, repr=False)
class Expr:
    """Any expression. ``text``: how it reads, once somebody has asked (the same in every run, and asked for often)."""

    site: int
    text: str = field(default="", init=False)


@dataclass(slots=True, eq=False, repr=False)
class Const(Expr):
    """A literal."""

    value: Any  # int, float (kept as Fraction), str, bool, None, Ellipsis


@dataclass(slots=True, eq=False, repr=False)
class Name(Expr):
    """A name."""

    id: str


@dataclass(slots=True, eq=False, repr=False)
class Attr(Expr):
    """``value.name``."""

    value: Expr
    name: str


@dataclass(slots=True, eq=False, repr=False)
class Argument:
    """One argument of a call."""

    value: Expr
    keyword: str | None = None
    star: str = ""  # "", "*" or "**"


@dataclass(slots=True, eq=False, repr=False)
class Call(Expr):
    """A call."""

    func: Expr
    args: list[Argument]


@dataclass(slots=True, eq=False, repr=False)
class Binary(Expr):
    """An arithmetic operation."""

    op: str
    left: Expr
    right: Expr


@dataclass(slots=True, eq=False, repr=False)
class Logic(Expr):
    """``and`` or ``or`` over any number of values."""

    op: str  # and, or
    values: list[Expr]


@dataclass(slots=True, eq=False, repr=False)
class Compare(Expr):
    """A chain of comparisons."""

    left: Expr
    ops: list[str]
    rights: list[Expr]


@dataclass(slots=True, eq=False, repr=False)
class Unary(Expr):
    """``-``, ``+``, ``~`` or ``not``."""

    op: str
    value: Expr


@dataclass(slots=True, eq=False, repr=False)
class Choice(Expr):
    """``body if test else orelse``."""

    test: Expr
    body: Expr
    orelse: Expr


@dataclass(slots=True, eq=False, repr=False)
class Subscript(Expr):
    """``value[index]``."""

    value: Expr
    index: Expr


@dataclass(slots=True, eq=False, repr=False)
class Slice(Expr):
    """``lower:upper:step``."""

    lower: Expr | None
    upper: Expr | None
    step: Expr | None


@dataclass(slots=True, eq=False, repr=False)
class Sequence(Expr):
    """A tuple, list or set display."""

    kind: str  # tuple, list, set
    items: list[Expr]


@dataclass(slots=True, eq=False, repr=False)
class Starred(Expr):
    """``*value``."""

    value: Expr


@dataclass(slots=True, eq=False, repr=False)
class Mapping(Expr):
    """A dict display."""

    items: list[tuple[Expr | None, Expr]]  # key None: ** unpacking


@dataclass(slots=True, eq=False, repr=False)
class Lambda(Expr):
    """A lambda, as the function that it makes."""

    function: Function


@dataclass(slots=True, eq=False, repr=False)
class Comprehension(Expr):
    """A comprehension or generator expression."""

    kind: str  # list, set, generator, dict
    element: Expr
    key: Expr | None
    clauses: list[tuple[Expr, Expr, list[Expr]]]  # target, iterable, conditions


@dataclass(slots=True, eq=False, repr=False)
class Walrus(Expr):
    """``target := value``."""

    target: Expr
    value: Expr


@dataclass(slots=True, eq=False, repr=False)
class Text(Expr):
    """An f-string or joined string: its value is never needed, its parts may call something."""

    parts: list[Expr]


@dataclass(slots=True, eq=False, repr=False)
class Yield(Expr):
    """``yield`` or ``yield from``."""

    value: Expr | None
    delegate: bool = False


@dataclass(slots=True, eq=False, repr=False)
class Await(Expr):
    """``await value``."""

    value: Expr


@dataclass(slots=True, eq=False, repr=False)
class Stmt:
    """Any statement."""

    site: int


@dataclass(slots=True, eq=False, repr=False)
class Assign(Stmt):
    """``targets = value``."""

    targets: list[Expr]
    value: Expr


@dataclass(slots=True, eq=False, repr=False)
class Augment(Stmt):
    """``target op= value``."""

    target: Expr
    op: str
    value: Expr


@dataclass(slots=True, eq=False, repr=False)
class Evaluate(Stmt):
    """An expression as a statement."""

    value: Expr


@dataclass(slots=True, eq=False, repr=False)
class If(Stmt):
    """A branch; ``elif`` is a branch in ``orelse``."""

    test: Expr
    body: list[Stmt]
    orelse: list[Stmt]


@dataclass(slots=True, eq=False, repr=False)
class For(Stmt):
    """A loop over something."""

    target: Expr
    iterable: Expr
    body: list[Stmt]
    orelse: list[Stmt]


@dataclass(slots=True, eq=False, repr=False)
class While(Stmt):
    """A loop under a condition."""

    test: Expr
    body: list[Stmt]
    orelse: list[Stmt]


@dataclass(slots=True, eq=False, repr=False)
class With(Stmt):
    """A block under context managers."""

    items: list[tuple[Expr, Expr | None]]
    body: list[Stmt]


@dataclass(slots=True, eq=False, repr=False)
class Handler:
    """One ``except`` clause."""

    catches: str
    name: str | None
    body: list[Stmt]


@dataclass(slots=True, eq=False, repr=False)
class Try(Stmt):
    """A guarded block."""

    body: list[Stmt]
    handlers: list[Handler]
    orelse: list[Stmt]
    final: list[Stmt]


@dataclass(slots=True, eq=False, repr=False)
class Jump(Stmt):
    """A statement that leaves a block."""

    kind: str  # break, continue, return, raise
    value: Expr | None = None


@dataclass(slots=True, eq=False, repr=False)
class Import(Stmt):
    """An import of any form."""

    names: list[tuple[str, str]]  # local name, dotted origin


@dataclass(slots=True, eq=False, repr=False)
class Assertion(Stmt):
    """``assert test``."""

    test: Expr


@dataclass(slots=True, eq=False, repr=False)
class Delete(Stmt):
    """``del targets``."""

    targets: list[Expr]


@dataclass(slots=True, eq=False, repr=False)
class Match(Stmt):
    """A match statement; its patterns are not kept."""

    subject: Expr
    cases: list[list[Stmt]]


@dataclass(slots=True, eq=False, repr=False)
class Define(Stmt):
    """A function definition as a statement."""

    function: Function


@dataclass(slots=True, eq=False, repr=False)
class DefineClass(Stmt):
    """A class definition as a statement."""

    cls: Class


@dataclass(slots=True, eq=False, repr=False)
class Parameter:
    """One parameter of a function."""

    name: str
    default: Expr | None
    annotation: str
    kind: str = ""  # "", "*", "**", "kwonly"


@dataclass(slots=True, eq=False, repr=False)
class Function:
    """A function, method or lambda."""

    name: str
    site: int
    parameters: list[Parameter]
    body: list[Stmt]
    decorators: list[Expr]
    outer_names: set[str] = field(default_factory=set)  # global and nonlocal declarations
    generator: bool = False
    qualname: str = ""
    owner: Class | None = None
    module: Module | None = None
    mentions: frozenset[str] = frozenset()  # every name and attribute in the body, for cheap questions
    calls: frozenset[str] = frozenset()  # last names of everything called in the body

    @property
    def decorator_names(self) -> set[str]:
        return {dotted(d.func if isinstance(d, Call) else d).rsplit(".", 1)[-1] for d in self.decorators}


@dataclass(slots=True, eq=False, repr=False)
class Class:
    """A class."""

    name: str
    site: int
    bases: list[Expr]
    body: list[Stmt]
    methods: dict[str, Function]
    decorators: list[Expr]
    module: Module | None = None

    @property
    def base_names(self) -> list[str]:
        return [dotted(b.value if isinstance(b, Subscript) else b) for b in self.bases]


@dataclass(slots=True, eq=False, repr=False)
class Module:
    """A file."""

    path: str
    name: str
    body: list[Stmt]
    functions: list[Function]  # all of them, nested ones and methods included
    classes: dict[str, Class]
    sites: list[Any]  # concrete syntax nodes by site
    tree: Any
    base: int = 0  # number of the first site
    mentions: frozenset[str] = frozenset()
    strings: frozenset[str] = frozenset()
    numbers: dict[int, int] = field(default_factory=dict)  # how often each whole number is written
    starts: tuple[int, ...] = ()  # for each top-level statement of the tree: how many sites stand before it
    source: bytes = b""  # what the tree was parsed from
    resolve: Any = None  # (dotted module name, level) -> Module | None, for imports inside the checked tree

    def owns(self, site: int) -> bool:
        """Whether a site lies in this file."""
        return self.base <= site < self.base + len(self.sites)


def dotted(node: Expr) -> str:
    """``a.b.c`` for a chain of names, else "" ."""
    parts = []
    while isinstance(node, Attr):
        parts.append(node.name)
        node = node.value
    if isinstance(node, Name):
        parts.append(node.id)
        return ".".join(reversed(parts))
    return ""


def render(node: Expr | None) -> str:
    """The source of an expression in a canonical form: it is the key under which an unknown is remembered."""
    if node is None:
        return ""
    kind = type(node)
    if kind is Name:
        return node.id
    if kind is Attr:
        return f"{render(node.value)}.{node.name}"
    if kind is Const:
        return repr(node.value) if not hasattr(node.value, "denominator") else str(node.value)
    if kind is Call:
        inner = ", ".join(a.star + (f"{a.keyword}=" if a.keyword else "") + render(a.value) for a in node.args)
        return f"{render(node.func)}({inner})"
    if kind is Binary:
        return f"({render(node.left)} {node.op} {render(node.right)})"
    if kind is Logic:
        return "(" + f" {node.op} ".join(map(render, node.values)) + ")"
    if kind is Compare:
        return render(node.left) + "".join(f" {op} {render(r)}" for op, r in zip(node.ops, node.rights))
    if kind is Unary:
        return f"{node.op} {render(node.value)}" if node.op == "not" else f"{node.op}{render(node.value)}"
    if kind is Choice:
        return f"({render(node.body)} if {render(node.test)} else {render(node.orelse)})"
    if kind is Subscript:
        return f"{render(node.value)}[{render(node.index)}]"
    if kind is Slice:
        return f"{render(node.lower)}:{render(node.upper)}" + (f":{render(node.step)}" if node.step else "")
    if kind is Sequence:
        inner = ", ".join(map(render, node.items))
        return {"tuple": f"({inner})", "list": f"[{inner}]", "set": f"{{{inner}}}"}[node.kind]
    if kind is Starred:
        return f"*{render(node.value)}"
    if kind is Walrus:
        return f"({render(node.target)} := {render(node.value)})"
    if kind is Await:
        return f"await {render(node.value)}"
    return f"<{kind.__name__.lower()}@{node.site}>"


def walk_statements(body: list[Stmt]) -> Iterator[Stmt]:
    """All statements of a body, those inside compound ones included, in no particular order."""
    stack = list(body)
    while stack:
        statement = stack.pop()
        yield statement
        for name in getattr(type(statement), "__dataclass_fields__", ()):
            value = getattr(statement, name)
            if isinstance(value, list) and value and isinstance(value[0], Stmt):
                stack.extend(value)
            elif isinstance(value, list) and value and isinstance(value[0], Handler):
                for handler in value:
                    stack.extend(handler.body)
