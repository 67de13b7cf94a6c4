"""From text to representation: every statement and expression of the grammar, and the way back to its place."""

from fractions import Fraction

import libcst as cst
import pytest

from accumlint.static import syntax as ir
from accumlint.static.engine import Places, Project
from accumlint.static.lowering import lower_module
from accumlint.static.syntax import dotted, render


def lower(source):
    return lower_module(cst.parse_module(source), "script.py", "script")


def statement(source):
    (only,) = lower(source).body
    return only


def expression(source):
    found = statement(source)
    assert isinstance(found, ir.Evaluate)
    return found.value


# Statements


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("a = 1", ir.Assign),
        ("a: int = 1", ir.Assign),
        ("a += 1", ir.Augment),
        ("f(x)", ir.Evaluate),
        ("if a:\n    b\n", ir.If),
        ("for a in b:\n    c\n", ir.For),
        ("while a:\n    b\n", ir.While),
        ("with a as b:\n    c\n", ir.With),
        ("try:\n    a\nexcept E:\n    b\n", ir.Try),
        ("try:\n    a\nexcept* E:\n    b\n", ir.Try),
        ("raise E from None", ir.Jump),
        ("import a.b as c", ir.Import),
        ("from a import b", ir.Import),
        ("assert a, 'text'", ir.Assertion),
        ("del a, b[0]", ir.Delete),
        ("match a:\n    case 1:\n        b\n", ir.Match),
        ("def f():\n    pass\n", ir.Define),
        ("async def f():\n    pass\n", ir.Define),
        ("class A:\n    pass\n", ir.DefineClass),
    ],
)
def test_every_statement_has_a_representation(source, kind):
    assert isinstance(statement(source), kind)


def test_a_declaration_without_value_and_pass_leave_nothing():
    assert lower("a: int\npass\n").body == []
    assert "a" in lower("a: int\n").mentions


def test_several_statements_on_one_line():
    assert [type(s) for s in lower("a = 1; b += 2; f()").body] == [ir.Assign, ir.Augment, ir.Evaluate]
    found = statement("if x: a = 1; b = 2")
    assert len(found.body) == 2


def test_targets_of_assignments():
    found = statement("a = b.c = d[0], *e = f()")
    assert [render(t) for t in found.targets] == ["a", "b.c", "(d[0], *e)"]
    assert statement("x @= y").op == "@" and statement("x //= y").op == "//" and statement("x >>= y").op == ">>"


def test_branches_nest_to_the_right():
    found = statement("if a:\n    1\nelif b:\n    2\nelif c:\n    3\nelse:\n    4\n")
    tests, last = [], None
    while isinstance(found, ir.If):
        tests.append(render(found.test))
        last = found.orelse
        found = found.orelse[0]
    assert tests == ["a", "b", "c"] and render(last[0].value) == "4"


def test_loops_keep_their_else():
    assert len(statement("for x in y:\n    break\nelse:\n    a\n").orelse) == 1
    assert len(statement("while x:\n    continue\nelse:\n    a\n").orelse) == 1
    assert [s.kind for s in (statement("for x in y:\n    break\n").body + statement("while x:\n    continue\n").body)] == ["break", "continue"]


def test_with_items_and_their_names():
    found = statement("with a() as b, c, d() as (e, f):\n    pass\n")
    assert [(render(value), render(name)) for value, name in found.items] == [("a()", "b"), ("c", ""), ("d()", "(e, f)")]
    found = statement("with (\n    a() as b,\n    c(),\n):\n    pass\n")
    assert len(found.items) == 2


def test_exceptions_with_everything():
    found = statement("try:\n    a\nexcept (E, F) as e:\n    b\nexcept torch.cuda.OutOfMemoryError:\n    c\nexcept:\n    d\nelse:\n    f\nfinally:\n    g\n")
    assert [h.catches for h in found.handlers] == ["", "torch.cuda.OutOfMemoryError", ""]
    assert [h.name for h in found.handlers] == ["e", None, None]
    assert len(found.orelse) == len(found.final) == 1


def test_match_keeps_every_case():
    found = statement(
        "match command:\n    case {'k': int(x), **rest}:\n        a\n    case [1, *others] | (2 | 3):\n        b\n"
        "    case Point(x=0) if flag:\n        c\n    case 'text' as name:\n        d\n    case _:\n        e\n"
    )
    assert [render(case[0].value) for case in found.cases] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import a.b.c", [("a", "a")]),
        ("import a.b as c, d", [("c", "a.b"), ("d", "d")]),
        ("from a.b import c as d, e", [("d", "a.b.c"), ("e", "a.b.e")]),
        ("from . import a", [("a", ".a")]),
        ("from ..a import b", [("b", "..a.b")]),
        ("from a import *", [("*", "a")]),
        ("from a import (b,\n    c,)", [("b", "a.b"), ("c", "a.c")]),
    ],
)
def test_imports(source, names):
    assert statement(source).names == names


def test_functions_know_their_parameters_names_and_owner():
    module = lower(
        "class A(Base, metaclass=M):\n"
        "    @property\n"
        "    def f(self, a, /, b: 'int' = 2, *rest: str, c, d=None, **more) -> Tuple[int, str]:\n"
        "        global g\n"
        "        def inner():\n"
        "            nonlocal b\n"
        "            yield b\n"
        "        return inner.call(a)\n"
    )
    cls = module.classes["A"]
    function = cls.methods["f"]
    assert [(p.name, p.kind, p.annotation) for p in function.parameters] == [
        ("self", "", ""), ("a", "", ""), ("b", "", "int"), ("rest", "*", "str"), ("c", "kwonly", ""), ("d", "kwonly", ""), ("more", "**", ""),
    ]  # fmt: skip
    assert [render(p.default) for p in function.parameters if p.default is not None] == ["2", "None"]
    assert function.owner is cls and function.decorator_names == {"property"} and function.qualname == "A.f"
    assert function.outer_names == {"g"} and not function.generator
    inner = next(f for f in module.functions if f.name == "inner")
    assert inner.generator and inner.outer_names == {"b"} and inner.qualname == "A.f.inner"
    assert "call" in function.calls and {"inner", "call", "a"} <= function.mentions
    assert cls.base_names[0] == "Base"


def test_a_star_alone_separates_keyword_parameters():
    (function,) = lower("def f(a, *, b=1): ...").functions
    assert [(p.name, p.kind) for p in function.parameters] == [("a", ""), ("b", "kwonly")]


def test_later_definitions_of_a_class_win():
    assert list(lower("class A:\n    def f(self): ...\nclass A:\n    def g(self): ...\n").classes["A"].methods) == ["g"]


def test_decorators_with_arguments():
    (function,) = lower("@torch.no_grad()\n@wraps(f)\n@plain\ndef g(): ...\n").functions
    assert function.decorator_names == {"no_grad", "wraps", "plain"}


# Expressions


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a.b.c", "a.b.c"),
        ("f(a, *b, c=1, **d)", "f(a, *b, c=1, **d)"),
        ("a + b * c - d", "((a + (b * c)) - d)"),
        ("a ** -b", "(a ** -b)"),
        ("not a", "not a"),
        ("~a", "~a"),
        ("a and b and c or d", "((a and b and c) or d)"),
        ("a < b <= c", "a < b <= c"),
        ("a is not None", "a is not None"),
        ("a not in b", "a not in b"),
        ("a if b else c", "(a if b else c)"),
        ("a[1:2, ..., ::3]", "a[(1:2, <...>, ::3)]"),
        ("a[b]", "a[b]"),
        ("(a, *b)", "(a, *b)"),
        ("[a, b]", "[a, b]"),
        ("{a, b}", "{a, b}"),
        ("(a := b)", "(a := b)"),
        ("a @ b", "(a @ b)"),
        ("a << b | c & d ^ e", "((a << b) | ((c & d) ^ e))"),
    ],
)
def test_expressions_in_their_canonical_form(source, text):
    assert render(expression(source)).replace("Ellipsis", "<...>") == text


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1_000", 1000), ("0x1F", 31), ("0b11", 3), ("0o17", 15), ("-3", -3), ("1.5", Fraction(3, 2)), ("1e-3", Fraction(1, 1000)), ("2.", Fraction(2)),
        (".5", Fraction(1, 2)), ("True", True), ("None", None), ("'a' ", "a"), ("'\\n'", "\n"), ("r'\\n'", "\\n"), ("-2.5", Fraction(-5, 2)),
        ("1e99999", ...), ("3j", ...), ("b'x'", ...), ("...", ...),
    ],
)  # fmt: skip
def test_constants_are_exact_or_unknown(source, value):
    found = expression(source)
    assert isinstance(found, ir.Const) and found.value == value and type(found.value) is type(value)


def test_strings_are_remembered_and_parts_of_joined_ones_may_call():
    module = lower("f'{a():>{width}} {b!r} {c=}' 'rest'\nx = 'short'\ny = f'{nested[\"k\"]}'\n")
    (text, *_) = module.body
    assert isinstance(text.value, ir.Text)
    assert "a" in module.mentions or "a" in {f.id for f in _names(text.value)}
    assert "short" in module.strings


def _names(node):
    if isinstance(node, ir.Name):
        yield node
    for name in getattr(node, "__slots__", ()):
        value = getattr(node, name)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ir.Expr):
                yield from _names(item)


def test_comprehensions_of_every_kind():
    found = expression("[f(x) for x in a if x if y for z in x]")
    assert found.kind == "list" and [(render(t), render(i), len(c)) for t, i, c in found.clauses] == [("x", "a", 2), ("z", "x", 0)]
    assert expression("{x for x in a}").kind == "set"
    assert expression("(x for x in a)").kind == "generator"
    found = expression("{k: v for k, v in a}")
    assert found.kind == "dict" and render(found.key) == "k" and render(found.element) == "v"
    assert expression("sum(x async for x in a)").args[0].value.kind == "generator"


def test_dictionaries_with_unpacking():
    found = expression("{'a': 1, **b}")
    assert [(render(key) if key else None, render(value)) for key, value in found.items] == [("'a'", "1"), (None, "b")]


def test_lambdas_are_functions():
    found = expression("lambda a, *b, c=1: a + c")
    assert [p.name for p in found.function.parameters] == ["a", "b", "c"]
    assert render(found.function.body[0].value) == "(a + c)"


def test_generators_and_coroutines():
    module = lower("async def f():\n    x = yield a\n    yield\n    await g()\n    async with b as c:\n        async for d in e: pass\ndef h():\n    yield from f()\n")
    f, h = module.functions
    assert f.generator and h.generator
    assert isinstance(f.body[0].value, ir.Yield) and f.body[1].value.value is None
    assert isinstance(f.body[2].value, ir.Await) and isinstance(f.body[3], ir.With)
    assert h.body[0].value.delegate


@pytest.mark.parametrize(
    "source", ["type X = int", "def f[T](x: T) -> T: return x", "class A[T]: pass", "x = (yield)", "print(*a, sep='', **b)", "a[*b]", "@(lambda f: f)\ndef f(): ..."]
)
def test_syntax_that_is_newer_or_rarer_is_lowered_without_complaint(source):
    lower(source)


def test_dotted_names():
    assert dotted(expression("a.b.c")) == "a.b.c" and dotted(expression("a().b")) == ""


# Size


def test_two_thousand_terms():
    found = expression(" + ".join(f"x{i}" for i in range(2000)))
    depth = 0
    while isinstance(found, ir.Binary):
        found, depth = found.left, depth + 1
    assert depth == 1999 and render(found) == "x0"
    assert len(expression(" and ".join(f"x{i}" for i in range(2000))).values) == 2000


def test_deep_nesting_lowers_or_says_that_it_is_too_deep():
    deep = 40
    lower("if a:\n" + "".join("    " * i + "if a:\n" for i in range(1, deep)) + "    " * deep + "f()\n")
    lower("(" * 60 + "a" + ")" * 60)
    with pytest.raises(RecursionError):
        lower("(a\n" + ".b\n" * 1200 + ")")


# Places


def places(source, tmp_path, name="script.py"):
    data = source if isinstance(source, bytes) else source.encode()
    project = Project(tmp_path)
    module = project.parse(data, name, "script")
    return module, Places(module, project)


def call_site(module, name):
    """The site of the only call of ``name``."""
    (index,) = [
        i for i, node in enumerate(module.sites)
        if isinstance(node, cst.Call) and (getattr(node.func, "value", None) == name or getattr(getattr(node.func, "attr", None), "value", None) == name)
    ]  # fmt: skip
    return module.base + index


def test_a_call_over_several_lines_begins_where_it_begins(tmp_path):
    module, found = places("a = 1\nresult = (\n    loss\n    .backward(\n        x,\n    )\n)\n", tmp_path)
    span = found.span(call_site(module, "backward"))
    assert (span.line, span.column, span.end_line, span.end_column) == (3, 5, 6, 6)


def test_a_decorated_function_is_named_by_its_def(tmp_path):
    module, found = places("# text\n@first(\n    1\n)\n@second\ndef train(\n    model,\n):\n    pass\n", tmp_path)
    (function,) = module.functions
    assert found.definition(function) == 6
    assert found.span(function.site).end_line == 6


def test_a_compound_statement_is_its_header(tmp_path):
    module, found = places("if (a and\n        b):\n    c()\n    d()\nfor x in y:\n    pass\nwith a, b:\n    pass\nwhile z:\n    pass\n", tmp_path)
    assert [(found.span(s.site).line, found.span(s.site).end_line) for s in module.body] == [(1, 2), (5, 5), (7, 7), (9, 9)]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks_do_not_shift_places(newline, mark, tmp_path):
    text = newline.join(["import a", "", "def f():", "    loss.backward()", ""])
    module, found = places((mark + text).encode(), tmp_path)
    span = found.span(call_site(module, "backward"))
    assert (span.line, span.column, span.end_line, span.end_column) == (4, 5, 4, 20)


def test_columns_count_code_points(tmp_path):
    module, found = places("größe = 'ß🙂'; loss.backward()\n", tmp_path)
    assert found.span(call_site(module, "backward")).column == 15
    module, found = places("# -*- coding: latin-1 -*-\nx = 'é'; loss.backward()\n".encode("latin-1"), tmp_path)
    assert (found.span(call_site(module, "backward")).line, found.span(call_site(module, "backward")).column) == (2, 10)


def test_tabs_and_form_feeds_are_characters(tmp_path):
    module, found = places("def f():\n\tloss.backward()\n\f\n\tother()\n", tmp_path)
    assert found.span(call_site(module, "backward")).column == 2
    assert found.span(call_site(module, "other")).line == 4


def test_a_site_of_no_module_has_no_place(tmp_path):
    _, found = places("a = 1\n", tmp_path)
    assert found.span(-1) is None and found.span(10**12) is None and found.line(-1) == 1


def test_sites_of_two_files_are_told_apart(tmp_path):
    project = Project(tmp_path)
    first = project.parse(b"f()\n", "a.py", "a")
    second = project.parse(b"\n\nf()\n", "b.py", "b")
    assert first.base != second.base
    assert Places(first, project).span(call_site(first, "f")).path == "a.py"
    assert Places(first, project).span(call_site(second, "f")) is None  # not followed from the first
