"""A light reading of a Python training script: what it fixes about accumulation, and which engine it hands it to.

One pass over the standard library's syntax tree. Values are followed through constants that are assigned once,
argparse defaults and dataclass fields; what a caller or a condition decides stays unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from accumlint.config.readers.python import OPAQUE, compute, literal, mark_of, parse
from accumlint.config.tree import Document, Entry, Mark, Node, Problem, Scalar, Table

# names that mean "microbatches per update"; eval_accumulation_steps and kernel switches do not
_ACCUMULATION = re.compile(
    r"(?i)^(?!eval)(?!.*(fusion|dtype|fused|count(er)?$|loss|norm))"
    r"(.*_)?(grad(ient)?s?_?acc(um|umulation|umulate)?(_?(steps?|iters?|batches|freq|factor|num|every))?"
    r"|accum(ulation|ulate)?_?(steps?|iters?|freq|grad_batches|num|every)|(n_|num_)?accum(ulate|ulation)?|accumulate_grad_batches|ga_steps)$"
)
MANY_CALLS = 20_000


def names_accumulation(name: str) -> bool:
    """Whether a name is one of those under which scripts keep the accumulation count."""
    return _ACCUMULATION.match(name.lstrip("-").replace("-", "_")) is not None


@dataclass(frozen=True)
class Value:
    """A value and where it is written. ``overridable`` when a command line may change it."""

    value: Any
    mark: Mark
    name: str = ""
    overridable: bool = False

    @property
    def number(self) -> int | None:
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None


@dataclass(frozen=True)
class Call:
    """One call. ``name`` is qualified by the imports; ``keywords`` are the expressions."""

    name: str
    node: ast.Call
    keywords: dict[str, ast.expr]
    splat: bool
    lines: list[str]
    assigned: tuple[str, ...] = ()

    @property
    def mark(self) -> Mark:
        """Where it stands; worked out when asked for, since hardly any call is."""
        return mark_of(self.node, self.lines)

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass
class Script:
    """What one Python file says."""

    path: str
    text: str
    tree: ast.Module
    lines: list[str]
    imports: dict[str, str] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    arguments: dict[str, Value] = field(default_factory=dict)
    flags: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by dest: its spellings, without dashes
    fields: dict[str, Value] = field(default_factory=dict)
    assigned: dict[str, list[ast.expr]] = field(default_factory=dict)
    environ: dict[str, Value] = field(default_factory=dict)
    strings: list[ast.Constant] = field(default_factory=list)  # whose value is a text
    reads: dict[str, list[ast.AST]] = field(
        default_factory=dict
    )  # attribute or name loads, by last component
    stores: set[str] = field(default_factory=set)  # attribute and key stores
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    nodes: list[ast.AST] = field(default_factory=list)  # all of them, breadth first

    def mark(self, node: ast.AST) -> Mark:
        return mark_of(node, self.lines)

    def find_calls(self, *names: str) -> list[Call]:
        """Calls whose qualified name is one of ``names``."""
        return [c for c in self.calls if c.name in names]

    # -- values -----------------------------------------------------------------------------------

    def value(self, node: ast.expr | None, depth: int = 0) -> Value | None:
        """What an expression is, if the file alone decides it."""
        if node is None or depth > 8 or not hasattr(node, "lineno"):
            return None
        mark = self.mark(node)
        if isinstance(node, ast.Constant):
            return Value(node.value, mark)
        if isinstance(node, ast.Name):
            known = self.assigned.get(node.id, [])
            if len(known) == 1 and node.id not in self.parameters:
                below = self.value(known[0], depth + 1)
                return (
                    Value(below.value, below.mark, below.name or node.id, below.overridable)
                    if below
                    else None
                )
            return None
        if isinstance(node, ast.Attribute):
            known_value = self.arguments.get(node.attr) or self.fields.get(node.attr)
            if known_value is not None and node.attr not in self.stores:
                return known_value
            return None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            below = self.value(node.operand, depth + 1)
            return Value(-below.value, mark) if below and isinstance(below.value, (int, float)) else None
        if isinstance(node, ast.BinOp):
            left, right = self.value(node.left, depth + 1), self.value(node.right, depth + 1)
            if left and right:
                result = compute(node.op, left.value, right.value)
                if result is not None:
                    return Value(result, mark, left.name or right.name, left.overridable or right.overridable)
            return None
        if isinstance(node, ast.Call):
            name = self.qualified(node.func)
            if name in ("int", "str", "float", "Path", "pathlib.Path") and len(node.args) == 1:
                below = self.value(node.args[0], depth + 1)
                if below is None:
                    return None
                if name == "int" and isinstance(below.value, str) and below.value.strip().isdigit():
                    return Value(int(below.value), below.mark, below.name, below.overridable)
                return below
            if name in ("os.environ.get", "os.getenv") and len(node.args) == 2:
                below = self.value(node.args[1], depth + 1)
                return Value(below.value, below.mark, "", True) if below else None
        return None

    @property
    def parameters(self) -> set[str]:
        return self._parameters

    def __post_init__(self) -> None:
        self._parameters: set[str] = set()

    def qualified(self, node: ast.expr) -> str:
        """The dotted name of an expression with the imports applied; empty for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.imports.get(node.id, node.id), *reversed(parts)])

    def table(self, call: Call) -> tuple[Document, Table]:
        """The keywords of a constructor as a table, for the dialects that read constructor calls."""
        entries = []
        for name, expression in call.keywords.items():
            value = self.value(expression)
            mark = self.mark(expression)
            if value is not None:
                node: Node = Scalar(value.value, str(value.value), mark)
            elif isinstance(expression, ast.Call):
                node = Scalar(self.qualified(expression.func) + "()", "", mark)
            else:
                node = literal(expression, {}, self.lines)
            entries.append(Entry(name, mark, node))
        table = Table(tuple(entries), call.mark)
        return Document(self.path, "python-call", (table,), self.text), table

    def dict_table(self, node: ast.expr | None, depth: int = 0) -> Table | None:
        """A dict display (or the name of one, assigned once) as a table."""
        if isinstance(node, ast.Name) and depth < 4:
            known = self.assigned.get(node.id, [])
            return self.dict_table(known[0], depth + 1) if len(known) == 1 else None
        if not isinstance(node, ast.Dict):
            return None
        entries = []
        for key, item in zip(node.keys, node.values):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                inner = self.dict_table(item, depth + 1) if isinstance(item, ast.Dict) else None
                value = self.value(item)
                below: Node = inner or Scalar(
                    value.value if value else OPAQUE, str(value.value) if value else "", self.mark(item)
                )
                entries.append(Entry(key.value, self.mark(key), below))
            elif key is None:
                entries.append(Entry("**", self.mark(item), Scalar(OPAQUE, "", self.mark(item))))
        return Table(tuple(entries), self.mark(node))


def read_script(path: str, text: str) -> Script | Problem:
    """The facts of a script, or why it has no syntax tree. Never raises."""
    tree = parse(text)
    if isinstance(tree, Problem):
        return tree
    script = Script(path, text, tree, text.splitlines())
    try:
        _collect(script)
    except RecursionError:
        return Problem("nested too deeply", 1, 1, "too-large")
    return script


def _collect(script: Script) -> None:
    nodes, parents = script.nodes, script.parents
    nodes.append(script.tree)
    for node in nodes:  # grows while it is walked
        for name in _BELOW[type(node)]:
            value = getattr(node, name)
            if type(value) is list:
                for child in value:
                    if isinstance(child, ast.AST):
                        parents[child] = node
                        nodes.append(child)
            elif isinstance(value, ast.AST):
                parents[value] = node
                nodes.append(value)
        if type(node) in _NAMING:
            _name(script, node)
    calls = []
    for node in nodes:
        kind = type(node)
        if kind is ast.Name or kind is ast.Attribute:
            if type(node.ctx) is ast.Load:  # type: ignore[attr-defined]
                name = node.id if kind is ast.Name else node.attr  # type: ignore[attr-defined]
                script.reads.setdefault(name, []).append(node)
        elif kind is ast.Constant:
            if type(node.value) is str:  # type: ignore[attr-defined]
                script.strings.append(node)  # type: ignore[arg-type]
        elif kind is ast.Call:
            calls.append(node)
        elif kind in _BINDING:
            _bind(script, node)
    for call in calls:  # at last: names are resolved by what the whole file binds
        _call(script, call)  # type: ignore[arg-type]


# names of fields that never hold a node worth a look: texts, and what Python shares between all trees
_PLAIN = frozenset("ctx op ops name asname id attr arg n s kind type_comment module level conversion simple is_async rest kwd_attrs lineno tag".split())


class _Below(dict[type, tuple[str, ...]]):
    """By kind of node, the fields that hold the nodes below it."""

    def __missing__(self, kind: type) -> tuple[str, ...]:
        texts = {"value"} if kind in (ast.Constant, ast.MatchSingleton) else {"names"} if kind in (ast.Global, ast.Nonlocal) else set()
        self[kind] = tuple(name for name in kind._fields if name not in _PLAIN and name not in texts)  # type: ignore[attr-defined]
        return self[kind]


_BELOW = _Below()
_NAMING = frozenset({ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda})


def _name(script: Script, node: ast.AST) -> None:
    """What imports and parameters make of names."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            script.imports[alias.asname or alias.name.partition(".")[0]] = alias.name if alias.asname else alias.name.partition(".")[0]
    elif isinstance(node, ast.ImportFrom):
        if node.module and not node.level:
            for alias in node.names:
                script.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        arguments = node.args
        script._parameters.update(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


_BINDING = frozenset({ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor, ast.NamedExpr, ast.Global, ast.ClassDef})


def _bind(script: Script, node: ast.AST) -> None:
    """What a statement that binds names says of them."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            _store(script, target, node.value)
    elif isinstance(node, ast.AnnAssign):
        if node.value is not None:
            _store(script, node.target, node.value)
    elif isinstance(node, (ast.AugAssign, ast.For, ast.AsyncFor)):
        _store(script, node.target, None)
    elif isinstance(node, ast.NamedExpr):
        _store(script, node.target, node.value)
    elif isinstance(node, ast.Global):
        for name in node.names:
            script.assigned.setdefault(name, []).append(ast.Constant(None))
    elif isinstance(node, ast.ClassDef):
        _fields(script, node)


def _store(script: Script, target: ast.expr, value: ast.expr | None) -> None:
    if isinstance(target, ast.Name):
        script.assigned.setdefault(target.id, []).append(
            value if value is not None else ast.Call(ast.Name("?", ast.Load()), [], [])
        )
    elif isinstance(target, ast.Attribute):
        script.stores.add(target.attr)
    elif isinstance(target, ast.Subscript):
        if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
            key = target.slice.value
            script.stores.add(key)
            base = script.qualified(target.value)
            if base == "os.environ" and value is not None:
                known = script.value(value)
                if known is not None:
                    script.environ[key] = Value(
                        known.value, script.mark(value), known.name, known.overridable
                    )
    elif isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            _store(script, item, None)


def _fields(script: Script, node: ast.ClassDef) -> None:
    """Defaults of dataclass fields and of plain class attributes."""
    for statement in node.body:
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and statement.value is not None
        ):
            value = statement.value
            if isinstance(value, ast.Call):
                default = next((k.value for k in value.keywords if k.arg == "default"), None)
                if default is None:
                    continue
                value = default
            if isinstance(value, ast.Constant):
                name = statement.target.id
                script.fields[name] = Value(value.value, script.mark(value), name, True)


def _call(script: Script, node: ast.Call) -> None:
    name = script.qualified(node.func)
    if not name and isinstance(node.func, ast.Attribute):
        name = "?." + node.func.attr
    if not name:
        return
    keywords = {k.arg: k.value for k in node.keywords if k.arg is not None}
    splat = any(k.arg is None for k in node.keywords)
    if name.endswith((".add_argument", ".add_arg")):
        _argument(script, node, keywords)
        return
    if name == "os.environ.setdefault" and len(node.args) == 2:
        key, value = script.value(node.args[0]), script.value(node.args[1])
        if key and value and isinstance(key.value, str):
            script.environ[key.value] = value
    parent = script.parents.get(node)
    targets: tuple[str, ...] = ()
    if isinstance(parent, ast.Assign):
        names: list[str] = []
        for target in parent.targets:
            elements = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            names += [
                e.id if isinstance(e, ast.Name) else e.attr if isinstance(e, ast.Attribute) else ""
                for e in elements
            ]
        targets = tuple(names)
    if len(script.calls) < MANY_CALLS:
        script.calls.append(Call(name, node, keywords, splat, script.lines, targets))


def _argument(script: Script, node: ast.Call, keywords: dict[str, ast.expr]) -> None:
    flags = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if not flags:
        return
    longest = next((f for f in flags if f.startswith("--")), flags[0])
    dest = keywords.get("dest")
    name = (
        dest.value
        if isinstance(dest, ast.Constant) and isinstance(dest.value, str)
        else longest.lstrip("-").replace("-", "_")
    )
    default = keywords.get("default")
    value = script.value(default) if default is not None else None
    place = default if default is not None else node
    script.flags[name] = tuple(flag.lstrip("-").replace("-", "_") for flag in flags)
    script.arguments[name] = Value(value.value if value else None, script.mark(place), name, True)


def accumulation_settings(script: Script) -> dict[str, Value]:
    """Where the script itself states an accumulation: arguments, dataclass fields, constants (names as keys)."""
    found: dict[str, Value] = {}
    for name, value in (*script.fields.items(), *script.arguments.items()):
        if names_accumulation(name):
            found[name] = value
    for name, expressions in script.assigned.items():
        if (
            names_accumulation(name)
            and len(expressions) == 1
            and name not in found
            and name not in script.parameters
        ):
            constant = script.value(expressions[0])
            if constant is not None and constant.number is not None:
                found[name] = Value(
                    constant.value, constant.mark, constant.name or name, constant.overridable
                )
    return found


def ancestors(script: Script, node: ast.AST) -> Iterator[ast.AST]:
    while node in script.parents:
        node = script.parents[node]
        yield node
