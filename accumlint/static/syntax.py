"""The intermediate representation: what simulation needs of a script, free of layout.

Expressions and statements carry a ``site``: an index into :attr:`Module.sites`, which leads back to the
concrete syntax node and so, when something is reported, to a position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Expr:
    site: int


@dataclass(slots=True)
class Const(Expr):
    value: Any  # int, float (kept as Fraction), str, bool, None, Ellipsis


@dataclass(slots=True)
class Name(Expr):
    id: str


@dataclass(slots=True)
class Attr(Expr):
    value: Expr
    name: str


@dataclass(slots=True)
class Argument:
    value: Expr
    keyword: str | None = None
    star: str = ""  # "", "*" or "**"


@dataclass(slots=True)
class Call(Expr):
    func: Expr
    args: list[Argument]


@dataclass(slots=True)
class Binary(Expr):
    op: str
    left: Expr
    right: Expr


@dataclass(slots=True)
class Logic(Expr):
    op: str  # and, or
    values: list[Expr]


@dataclass(slots=True)
class Compare(Expr):
    left: Expr
    ops: list[str]
    rights: list[Expr]


@dataclass(slots=True)
class Unary(Expr):
    op: str
    value: Expr


@dataclass(slots=True)
class Choice(Expr):
    test: Expr
    body: Expr
    orelse: Expr


@dataclass(slots=True)
class Subscript(Expr):
    value: Expr
    index: Expr


@dataclass(slots=True)
class Slice(Expr):
    lower: Expr | None
    upper: Expr | None
    step: Expr | None


@dataclass(slots=True)
class Sequence(Expr):
    kind: str  # tuple, list, set
    items: list[Expr]


@dataclass(slots=True)
class Starred(Expr):
    value: Expr


@dataclass(slots=True)
class Mapping(Expr):
    items: list[tuple[Expr | None, Expr]]  # key None: ** unpacking


@dataclass(slots=True)
class Lambda(Expr):
    function: Function


@dataclass(slots=True)
class Comprehension(Expr):
    kind: str  # list, set, generator, dict
    element: Expr
    key: Expr | None
    clauses: list[tuple[Expr, Expr, list[Expr]]]  # target, iterable, conditions


@dataclass(slots=True)
class Walrus(Expr):
    target: Expr
    value: Expr


@dataclass(slots=True)
class Text(Expr):
    """An f-string or joined string: its value is never needed, its parts may call something."""

    parts: list[Expr]


@dataclass(slots=True)
class Yield(Expr):
    value: Expr | None
    delegate: bool = False


@dataclass(slots=True)
class Await(Expr):
    value: Expr


@dataclass(slots=True)
class Stmt:
    site: int


@dataclass(slots=True)
class Assign(Stmt):
    targets: list[Expr]
    value: Expr


@dataclass(slots=True)
class Augment(Stmt):
    target: Expr
    op: str
    value: Expr


@dataclass(slots=True)
class Evaluate(Stmt):
    value: Expr


@dataclass(slots=True)
class If(Stmt):
    test: Expr
    body: list[Stmt]
    orelse: list[Stmt]


@dataclass(slots=True)
class For(Stmt):
    target: Expr
    iterable: Expr
    body: list[Stmt]
    orelse: list[Stmt]


@dataclass(slots=True)
class While(Stmt):
    test: Expr
    body: list[Stmt]
    orelse: list[Stmt]


@dataclass(slots=True)
class With(Stmt):
    items: list[tuple[Expr, Expr | None]]
    body: list[Stmt]


@dataclass(slots=True)
class Handler:
    catches: str
    name: str | None
    body: list[Stmt]


@dataclass(slots=True)
class Try(Stmt):
    body: list[Stmt]
    handlers: list[Handler]
    orelse: list[Stmt]
    final: list[Stmt]


@dataclass(slots=True)
class Jump(Stmt):
    kind: str  # break, continue, return, raise
    value: Expr | None = None


@dataclass(slots=True)
class Import(Stmt):
    names: list[tuple[str, str]]  # local name, dotted origin


@dataclass(slots=True)
class Assertion(Stmt):
    test: Expr


@dataclass(slots=True)
class Delete(Stmt):
    targets: list[Expr]


@dataclass(slots=True)
class Match(Stmt):
    subject: Expr
    cases: list[list[Stmt]]


@dataclass(slots=True)
class Define(Stmt):
    function: Function


@dataclass(slots=True)
class DefineClass(Stmt):
    cls: Class


@dataclass(slots=True)
class Parameter:
    name: str
    default: Expr | None
    annotation: str
    kind: str = ""  # "", "*", "**", "kwonly"


@dataclass(slots=True, eq=False)
class Function:
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


@dataclass(slots=True, eq=False)
class Class:
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


@dataclass(slots=True, eq=False)
class Module:
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
    resolve: Any = None  # (dotted module name, level) -> Module | None, for imports inside the checked tree


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
