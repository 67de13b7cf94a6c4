"""libcst tree -> intermediate representation, by hand over the fields that mean something.

No visitors, matchers or metadata providers: walking all whitespace nodes costs as much as parsing.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import libcst as cst

from accumlint.static import syntax as ir

_OPERATORS = {
    "Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "FloorDivide": "//", "Modulo": "%",
    "Power": "**", "MatrixMultiply": "@", "BitAnd": "&", "BitOr": "|", "BitXor": "^", "LeftShift": "<<",
    "RightShift": ">>", "Equal": "==", "NotEqual": "!=", "LessThan": "<", "LessThanEqual": "<=",
    "GreaterThan": ">", "GreaterThanEqual": ">=", "Is": "is", "IsNot": "is not", "In": "in", "NotIn": "not in",
    "And": "and", "Or": "or", "Not": "not", "Minus": "-", "Plus": "+", "BitInvert": "~",
}  # fmt: skip


def _operator(node: Any) -> str:
    return _OPERATORS[type(node).__name__.removesuffix("Assign")]


def lower_module(tree: cst.Module, path: str, name: str, base: int = 0) -> ir.Module:
    """The whole file; its sites count from ``base``, so that sites of several files can be told apart.

    Raises RecursionError on nesting deeper than the interpreter's stack.
    """
    return _Lowering(tree, path, name, base).module


class _Scope:
    """What is collected while one function body is lowered."""

    def __init__(self) -> None:
        self.outer: set[str] = set()
        self.generator = False
        self.mentions: set[str] = set()
        self.calls: set[str] = set()


class _Lowering:
    def __init__(self, tree: cst.Module, path: str, name: str, base: int) -> None:
        self.base = base
        self.sites: list[Any] = []
        self.functions: list[ir.Function] = []
        self.classes: dict[str, ir.Class] = {}
        self.strings: set[str] = set()
        self.numbers: dict[int, int] = {}
        self.scopes: list[_Scope] = [_Scope()]
        self.qualname: list[str] = []
        self.module = ir.Module(path, name, [], self.functions, self.classes, self.sites, tree, base=base)
        starts = []
        for statement in tree.body:
            starts.append(len(self.sites))
            self.statement(statement, self.module.body)
        self.module.starts = tuple(starts)
        self.module.mentions = frozenset(self.scopes[0].mentions)
        self.module.strings = frozenset(self.strings)
        self.module.numbers = self.numbers

    def site(self, node: Any) -> int:
        self.sites.append(node)
        return self.base + len(self.sites) - 1

    # statements

    def block(self, body: Any) -> list[ir.Stmt]:
        out: list[ir.Stmt] = []
        for statement in body:
            self.statement(statement, out)
        return out

    def statement(self, node: Any, out: list[ir.Stmt]) -> None:
        kind = type(node).__name__
        if kind == "SimpleStatementLine":
            for small in node.body:
                self.simple(small, out)
        else:
            self.compound(node, kind, out)

    def suite(self, node: Any) -> list[ir.Stmt]:
        body = node.body
        if isinstance(body, cst.IndentedBlock):
            return self.block(body.body)
        out: list[ir.Stmt] = []
        if isinstance(body, cst.SimpleStatementSuite):
            for small in body.body:
                self.simple(small, out)
        return out

    def simple(self, node: Any, out: list[ir.Stmt]) -> None:
        kind = type(node).__name__
        if kind == "Expr":
            out.append(ir.Evaluate(self.site(node), self.expr(node.value)))
        elif kind == "Assign":
            targets = [self.expr(target.target) for target in node.targets]
            out.append(ir.Assign(self.site(node), targets, self.expr(node.value)))
        elif kind == "AnnAssign":
            if node.value is not None:
                out.append(ir.Assign(self.site(node), [self.expr(node.target)], self.expr(node.value)))
            elif isinstance(node.target, cst.Name):
                self.scopes[-1].mentions.add(node.target.value)
        elif kind == "AugAssign":
            value = self.expr(node.value)
            out.append(ir.Augment(self.site(node), self.expr(node.target), _operator(node.operator), value))
        elif kind == "Return":
            out.append(ir.Jump(self.site(node), "return", self.expr(node.value) if node.value else None))
        elif kind == "Raise":
            out.append(ir.Jump(self.site(node), "raise"))
        elif kind in ("Break", "Continue"):
            out.append(ir.Jump(self.site(node), kind.lower()))
        elif kind == "Assert":
            out.append(ir.Assertion(self.site(node), self.expr(node.test)))
        elif kind == "Import":
            names = []
            for alias in node.names:
                origin = _dotted_cst(alias.name)
                if alias.asname:
                    names.append((_alias(alias), origin))
                else:
                    names.append((origin.split(".")[0], origin.split(".")[0]))
            out.append(ir.Import(self.site(node), names))
        elif kind == "ImportFrom":
            origin = "." * len(node.relative) + (_dotted_cst(node.module) if node.module else "")
            if not isinstance(node.names, cst.ImportStar):
                joint = "" if origin.endswith(".") or not origin else "."
                names = [(_alias(a), f"{origin}{joint}{_dotted_cst(a.name)}") for a in node.names]
                out.append(ir.Import(self.site(node), names))
            else:
                out.append(ir.Import(self.site(node), [("*", origin)]))
        elif kind in ("Global", "Nonlocal"):
            self.scopes[-1].outer.update(item.name.value for item in node.names)
        elif kind == "Del":
            target = node.target
            items = [e.value for e in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else [target]
            out.append(ir.Delete(self.site(node), [self.expr(item) for item in items]))

    def compound(self, node: Any, kind: str, out: list[ir.Stmt]) -> None:
        if kind == "If":
            orelse: list[ir.Stmt] = []
            site = self.site(node)
            test = self.expr(node.test)
            body = self.suite(node)
            if node.orelse is not None:
                if isinstance(node.orelse, cst.If):
                    self.compound(node.orelse, "If", orelse)
                else:
                    orelse = self.suite(node.orelse)
            out.append(ir.If(site, test, body, orelse))
        elif kind == "For":
            site = self.site(node)
            target, iterable = self.expr(node.target), self.expr(node.iter)
            body = self.suite(node)
            out.append(ir.For(site, target, iterable, body, self.suite(node.orelse) if node.orelse else []))
        elif kind == "While":
            site = self.site(node)
            test, body = self.expr(node.test), self.suite(node)
            out.append(ir.While(site, test, body, self.suite(node.orelse) if node.orelse else []))
        elif kind == "With":
            site = self.site(node)
            items = [(self.expr(i.item), self.expr(i.asname.name) if i.asname else None) for i in node.items]
            out.append(ir.With(site, items, self.suite(node)))
        elif kind in ("Try", "TryStar"):
            site = self.site(node)
            body = self.suite(node)
            handlers = [
                ir.Handler(
                    _dotted_cst(h.type) if h.type is not None else "",
                    h.name.name.value if h.name is not None and isinstance(h.name.name, cst.Name) else None,
                    self.suite(h),
                )
                for h in node.handlers
            ]
            orelse = self.suite(node.orelse) if node.orelse else []
            final = self.suite(node.finalbody) if node.finalbody else []
            out.append(ir.Try(site, body, handlers, orelse, final))
        elif kind == "FunctionDef":
            out.append(ir.Define(self.site(node), self.function(node)))
        elif kind == "ClassDef":
            out.append(ir.DefineClass(self.site(node), self.cls(node)))
        elif kind == "Match":
            site = self.site(node)
            out.append(ir.Match(site, self.expr(node.subject), [self.suite(case) for case in node.cases]))

    def cls(self, node: cst.ClassDef) -> ir.Class:
        site = self.site(node)
        bases = [self.expr(base.value) for base in node.bases]
        decorators = [self.expr(d.decorator) for d in node.decorators]
        made = ir.Class(node.name.value, site, bases, [], {}, decorators, self.module)
        # later definitions of a name win, as at run time
        self.classes[node.name.value] = made
        self.qualname.append(node.name.value)
        made.body = self.suite(node)
        self.qualname.pop()
        for statement in made.body:
            if isinstance(statement, ir.Define):
                statement.function.owner = made
                made.methods[statement.function.name] = statement.function
        return made

    def function(self, node: cst.FunctionDef) -> ir.Function:
        site = self.site(node)
        decorators = [self.expr(d.decorator) for d in node.decorators]
        parameters = self.parameters(node.params)
        name = node.name.value
        self.qualname.append(name)
        scope = _Scope()
        self.scopes.append(scope)
        body = self.suite(node)
        self.scopes.pop()
        made = ir.Function(
            name, site, parameters, body, decorators, scope.outer, scope.generator, ".".join(self.qualname),
            module=self.module, mentions=frozenset(scope.mentions), calls=frozenset(scope.calls),
        )  # fmt: skip
        self.qualname.pop()
        self.scopes[-1].mentions |= scope.mentions
        self.scopes[-1].calls |= scope.calls
        self.functions.append(made)
        return made

    def parameters(self, node: cst.Parameters) -> list[ir.Parameter]:
        out = []

        def add(param: cst.Param, kind: str) -> None:
            note = self.annotation(param.annotation)
            default = self.expr(param.default) if param.default is not None else None
            out.append(ir.Parameter(param.name.value, default, note, kind))

        for param in (*node.posonly_params, *node.params):
            add(param, "")
        if isinstance(node.star_arg, cst.Param):
            add(node.star_arg, "*")
        for param in node.kwonly_params:
            add(param, "kwonly")
        if node.star_kwarg is not None:
            add(node.star_kwarg, "**")
        return out

    def annotation(self, node: Any) -> str:
        if node is None:
            return ""
        inner = node.annotation
        if isinstance(inner, cst.SimpleString):
            return inner.value.strip("\"'")
        return ir.render(self.expr(inner))

    # expressions

    def expr(self, node: Any) -> ir.Expr:
        handler = getattr(self, "x_" + type(node).__name__, None)
        if handler is None:
            return ir.Const(self.site(node), ...)
        return handler(node)

    def x_Name(self, node: cst.Name) -> ir.Expr:
        value = node.value
        if value == "True":
            return ir.Const(self.site(node), True)
        if value == "False":
            return ir.Const(self.site(node), False)
        if value == "None":
            return ir.Const(self.site(node), None)
        self.scopes[-1].mentions.add(value)
        return ir.Name(self.site(node), value)

    def x_Attribute(self, node: cst.Attribute) -> ir.Expr:
        self.scopes[-1].mentions.add(node.attr.value)
        return ir.Attr(self.site(node), self.expr(node.value), node.attr.value)

    def x_Integer(self, node: cst.Integer) -> ir.Expr:
        try:
            value = int(node.value.replace("_", ""), 0)
            self.numbers[value] = self.numbers.get(value, 0) + 1
            return ir.Const(self.site(node), value)
        except ValueError:
            return ir.Const(self.site(node), ...)

    def x_Float(self, node: cst.Float) -> ir.Expr:
        text = node.value.replace("_", "")
        # 1e99999 would be an integer of a hundred thousand digits: nothing that a training script divides by
        mantissa, _, exponent = text.lower().partition("e")
        if exponent and abs(int(exponent)) > 400 or len(mantissa) > 400:
            return ir.Const(self.site(node), ...)
        return ir.Const(self.site(node), Fraction(text if not text.endswith(".") else text + "0"))

    def x_SimpleString(self, node: cst.SimpleString) -> ir.Expr:
        try:
            value = node.evaluated_value
        except (ValueError, SyntaxError):
            value = node.value
        if isinstance(value, str):
            if len(value) < 200:
                self.strings.add(value)
            return ir.Const(self.site(node), value)
        return ir.Const(self.site(node), ...)

    def x_ConcatenatedString(self, node: cst.ConcatenatedString) -> ir.Expr:
        return ir.Text(self.site(node), [self.expr(node.left), self.expr(node.right)])

    def x_FormattedString(self, node: cst.FormattedString) -> ir.Expr:
        parts = [self.expr(p.expression) for p in node.parts if isinstance(p, cst.FormattedStringExpression)]
        return ir.Text(self.site(node), parts)

    def x_Call(self, node: cst.Call) -> ir.Expr:
        args = [
            ir.Argument(self.expr(a.value), a.keyword.value if a.keyword is not None else None, a.star)
            for a in node.args
        ]
        func = self.expr(node.func)
        if isinstance(func, ir.Attr):
            self.scopes[-1].calls.add(func.name)
        elif isinstance(func, ir.Name):
            self.scopes[-1].calls.add(func.id)
        return ir.Call(self.site(node), func, args)

    def x_BinaryOperation(self, node: cst.BinaryOperation) -> ir.Expr:
        # a chain of two thousand terms nests to the left: unroll it, the stack is no place for it
        chain = []
        while isinstance(node, cst.BinaryOperation):
            chain.append(node)
            node = node.left
        left = self.expr(node)
        for item in reversed(chain):
            left = ir.Binary(self.site(item), _operator(item.operator), left, self.expr(item.right))
        return left

    def x_BooleanOperation(self, node: cst.BooleanOperation) -> ir.Expr:
        op = _operator(node.operator)
        values: list[Any] = []
        rest: Any = node
        while isinstance(rest, cst.BooleanOperation) and _operator(rest.operator) == op:
            values.append(rest.right)
            rest = rest.left
        values.append(rest)
        return ir.Logic(self.site(node), op, [self.expr(v) for v in reversed(values)])

    def x_Comparison(self, node: cst.Comparison) -> ir.Expr:
        ops = [_operator(c.operator) for c in node.comparisons]
        return ir.Compare(self.site(node), self.expr(node.left), ops, [self.expr(c.comparator) for c in node.comparisons])

    def x_UnaryOperation(self, node: cst.UnaryOperation) -> ir.Expr:
        op, value = _operator(node.operator), self.expr(node.expression)
        if op == "-" and isinstance(value, ir.Const) and isinstance(value.value, (int, Fraction)):
            return ir.Const(value.site, -value.value)
        return ir.Unary(self.site(node), op, value)

    def x_IfExp(self, node: cst.IfExp) -> ir.Expr:
        return ir.Choice(self.site(node), self.expr(node.test), self.expr(node.body), self.expr(node.orelse))

    def x_Subscript(self, node: cst.Subscript) -> ir.Expr:
        items = [self.index(element.slice) for element in node.slice]
        index = items[0] if len(items) == 1 else ir.Sequence(self.site(node), "tuple", items)
        return ir.Subscript(self.site(node), self.expr(node.value), index)

    def index(self, node: Any) -> ir.Expr:
        if isinstance(node, cst.Index):
            return self.expr(node.value)
        return ir.Slice(
            self.site(node),
            *(self.expr(part) if part is not None else None for part in (node.lower, node.upper, node.step)),
        )

    def elements(self, node: Any) -> list[ir.Expr]:
        return [
            ir.Starred(self.site(e), self.expr(e.value)) if isinstance(e, cst.StarredElement) else self.expr(e.value)
            for e in node.elements
        ]

    def x_Tuple(self, node: cst.Tuple) -> ir.Expr:
        return ir.Sequence(self.site(node), "tuple", self.elements(node))

    def x_List(self, node: cst.List) -> ir.Expr:
        return ir.Sequence(self.site(node), "list", self.elements(node))

    def x_Set(self, node: cst.Set) -> ir.Expr:
        return ir.Sequence(self.site(node), "set", self.elements(node))

    def x_StarredElement(self, node: cst.StarredElement) -> ir.Expr:
        return ir.Starred(self.site(node), self.expr(node.value))

    def x_Dict(self, node: cst.Dict) -> ir.Expr:
        items = [
            (self.expr(e.key), self.expr(e.value)) if isinstance(e, cst.DictElement) else (None, self.expr(e.value))
            for e in node.elements
        ]
        return ir.Mapping(self.site(node), items)

    def x_Lambda(self, node: cst.Lambda) -> ir.Expr:
        site = self.site(node)
        parameters = self.parameters(node.params)
        scope = _Scope()
        self.scopes.append(scope)
        value = self.expr(node.body)
        self.scopes.pop()
        self.scopes[-1].mentions |= scope.mentions
        self.scopes[-1].calls |= scope.calls
        function = ir.Function(
            "<lambda>", site, parameters, [ir.Jump(site, "return", value)], [], qualname="<lambda>",
            module=self.module, mentions=frozenset(scope.mentions), calls=frozenset(scope.calls),
        )  # fmt: skip
        return ir.Lambda(site, function)

    def comprehension(self, node: Any, kind: str, element: Any, key: Any = None) -> ir.Expr:
        clauses = []
        clause = node.for_in
        while clause is not None:
            conditions = [self.expr(c.test) for c in clause.ifs]
            clauses.append((self.expr(clause.target), self.expr(clause.iter), conditions))
            clause = clause.inner_for_in
        return ir.Comprehension(
            self.site(node), kind, self.expr(element), self.expr(key) if key is not None else None, clauses
        )

    def x_ListComp(self, node: cst.ListComp) -> ir.Expr:
        return self.comprehension(node, "list", node.elt)

    def x_SetComp(self, node: cst.SetComp) -> ir.Expr:
        return self.comprehension(node, "set", node.elt)

    def x_GeneratorExp(self, node: cst.GeneratorExp) -> ir.Expr:
        return self.comprehension(node, "generator", node.elt)

    def x_DictComp(self, node: cst.DictComp) -> ir.Expr:
        return self.comprehension(node, "dict", node.value, node.key)

    def x_NamedExpr(self, node: cst.NamedExpr) -> ir.Expr:
        return ir.Walrus(self.site(node), self.expr(node.target), self.expr(node.value))

    def x_Await(self, node: cst.Await) -> ir.Expr:
        return ir.Await(self.site(node), self.expr(node.expression))

    def x_Yield(self, node: cst.Yield) -> ir.Expr:
        self.scopes[-1].generator = True
        if isinstance(node.value, cst.From):
            return ir.Yield(self.site(node), self.expr(node.value.item), True)
        return ir.Yield(self.site(node), self.expr(node.value) if node.value is not None else None)


def _dotted_cst(node: Any) -> str:
    parts = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    parts.append(node.value if isinstance(node, cst.Name) else "")
    return ".".join(reversed(parts))


def _alias(alias: cst.ImportAlias) -> str:
    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
        return alias.asname.name.value
    return _dotted_cst(alias.name).split(".")[-1]
