"""The model as text: schemas as torch prints them, expressions as they are written in contracts."""

from __future__ import annotations

from . import model as m

# ---- types and schemas ---------------------------------------------------------------------------------------

_NUMBER_MEMBERS = (m.Base("int"), m.Base("float"), m.Base("complex"))


def format_type(t: m.Type, size: int | None = None) -> str:
    """The type as torch prints it, without alias marks."""
    if isinstance(t, m.Optional):
        return format_type(t.elem) + "?"
    if isinstance(t, m.List):
        return f"{format_type(t.elem)}[{'' if t.size is None else t.size}]"
    if isinstance(t, m.Generic):
        if t.name == "Union":
            return _format_union(t.args)
        inner = ", ".join(format_type(a) for a in t.args)
        return f"({inner})" if t.name == "Tuple" else f"{t.name}({inner})"
    return t.name


def _format_union(members: tuple[m.Type, ...]) -> str:
    """torch prints int, float and complex together as Scalar, with its separator in odd places: this is what it prints."""
    is_number = all(n in members for n in _NUMBER_MEMBERS)
    text, has_separator = "Union(", False
    for i, member in enumerate(members):
        if is_number and member in _NUMBER_MEMBERS:
            continue
        if i > 0:
            text += ", "
            has_separator = True
        text += format_type(member)
    if is_number:
        text += ", Scalar" if has_separator else "Scalar"
    return text + ")"


def format_alias(alias: m.Alias) -> str:
    text = "(" + "|".join(alias.before) + ("!" if alias.write else "")
    if alias.before != alias.after:
        text += " -> " + "|".join(alias.after)
    return text + ")"


def format_double(value: float) -> str:
    if abs(value) < 2.0**63 and value == int(value) or value == -(2.0**63):
        return f"{int(value)}."
    return f"{value:.17g}"


def _format_value(value: object, *, quoted: bool = False) -> str:
    if isinstance(value, str):
        return _quote(value) if quoted else value
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return format_double(value)
    if isinstance(value, complex):
        imaginary = format_double(value.imag)
        return f"{format_double(value.real)}{'' if imaginary.startswith('-') else '+'}{imaginary}j"
    assert isinstance(value, tuple)
    return "[" + ", ".join(_format_value(v) for v in value) + "]"


_ESCAPES = {
    ord(plain): escaped
    for plain, escaped in zip("\\'\"\a\b\f\n\t\v", ("\\\\", "\\'", '\\"', "\\a", "\\b", "\\f", "\\n", "\\t", "\\v"))
}


def _quote(value: str) -> str:
    """A string literal, byte by byte. torch makes the three octal digits of a byte with signed arithmetic, which goes wrong
    above 127; so does this, to agree with it."""
    text = '"'
    for byte in value.encode("utf-8", "surrogateescape"):
        if byte in _ESCAPES:
            text += _ESCAPES[byte]
        elif 32 <= byte < 127:
            text += chr(byte)
        else:
            rest, digits = byte - 256 if byte > 127 else byte, ""
            for _ in range(2):
                quotient = -(-rest // 8) if rest < 0 else rest // 8
                digits = chr(ord("0") + rest - 8 * quotient) + digits
                rest = quotient
            text += "\\" + chr(ord("0") + rest) + digits
    return text + '"'


def _is_string(t: m.Type) -> bool:
    return t == m.Base("str")


def format_argument(a: m.Argument | m.Return) -> str:
    bare = a.type.elem if isinstance(a.type, m.Optional) else a.type
    if isinstance(bare, m.List):
        text = format_type(bare.elem)
        if a.alias is not None and a.alias.contained is not None:
            text += format_alias(a.alias.contained)
        text += f"[{'' if bare.size is None else bare.size}]"
    else:
        text = format_type(bare)
    if a.alias is not None and a.alias.before:
        text += format_alias(a.alias)
    if isinstance(a.type, m.Optional):
        text += "?"
    if a.name:
        text += f" {a.name}"
    if isinstance(a, m.Argument) and a.default is not None:
        text += "=" + _format_default(a.type, bare, a.default.value)
    return text


def _format_default(t: m.Type, bare: m.Type, value: object) -> str:
    if t in (m.List(m.Base("int")), m.List(m.Base("int"), getattr(t, "size", None))):
        assert isinstance(value, tuple)
        if len(value) > 1 and len(set(value)) == 1:
            return str(value[0])
    return _format_value(value, quoted=_is_string(t) or _is_string(bare))


def format_schema(s: m.Schema) -> str:
    """The canonical form. Alias sets are sorted, where torch prints them in hash order."""
    text = (f"{s.namespace}::" if s.namespace else "") + s.name + (f".{s.overload}" if s.overload else "")
    parts, seen_star = [], False
    for a in s.args:
        star = "*, " if a.kw_only and not seen_star else ""
        seen_star = seen_star or a.kw_only
        parts.append(star + format_argument(a))
    if s.vararg:
        parts.append("...")
    returns = [format_argument(r) for r in s.returns]
    if s.varret:
        returns.append("...")
    inner = ", ".join(returns)
    if len(returns) != 1 or inner.startswith("("):
        inner = f"({inner})"
    return f"{text}({', '.join(parts)}) -> {inner}"


# ---- expressions ---------------------------------------------------------------------------------------------

_LEVELS = {
    "or": 1,
    "and": 2,
    "not": 3,
    "==": 4,
    "!=": 4,
    "<": 4,
    "<=": 4,
    ">": 4,
    ">=": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "//": 6,
    "%": 6,
}
_CONDITIONAL, _COMPARE, _SUM, _PRODUCT, _UNARY, _ATOM = 0, 4, 5, 6, 7, 8
_OVER_NAMES = ("dim", "stride", "rank", "len", "given", "dtype", "sum_ceil")


def format_expr(e: m.Expr) -> str:
    """The source of an expression, with the least parentheses."""
    return _expr(e, _CONDITIONAL)


def format_string(value: str) -> str:
    """A string literal of a contract."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def format_literal(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, m.DType):
        return value.value
    return format_string(value) if isinstance(value, str) else str(value)


def _expr(e: m.Expr, level: int) -> str:
    text, own = _expr_and_level(e)
    return f"({text})" if own < level else text


def _expr_and_level(e: m.Expr) -> tuple[str, int]:
    if isinstance(e, m.Literal):
        is_negative = isinstance(e.value, int) and not isinstance(e.value, bool) and e.value < 0
        return format_literal(e.value), _UNARY if is_negative else _ATOM
    if isinstance(e, m.NameRef):
        return e.name, _ATOM
    if isinstance(e, m.Index):
        return f"{e.name}[{e.index}]", _ATOM
    if isinstance(e, m.Call):
        return _call(e), _ATOM
    if isinstance(e, m.Unary):
        if e.op == "not":
            return f"not {_expr(e.operand, _COMPARE)}", _LEVELS["not"]
        return f"-{_expr(e.operand, _ATOM)}", _UNARY
    if isinstance(e, m.Conditional):
        condition = _expr(e.condition, _CONDITIONAL + 1)
        return f"{condition} ? {_expr(e.then, _CONDITIONAL)} : {_expr(e.otherwise, _CONDITIONAL)}", _CONDITIONAL
    own = _LEVELS[e.op]
    left = own + 1 if own == _COMPARE else own
    return f"{_expr(e.left, left)} {e.op} {_expr(e.right, own + 1)}", own


def _call(e: m.Call) -> str:
    args = list(e.args)
    texts = []
    if e.function in _OVER_NAMES:
        name = args.pop(0)
        assert isinstance(name, m.Literal)
        texts.append(str(name.value))
    if e.function == "ceil":
        return f"ceil({_expr(args[0], _PRODUCT)} / {_expr(args[1], _UNARY)})"
    if e.function == "sum_ceil":
        return f"sum_ceil({texts[0]} / {_expr(args[0], _UNARY)})"
    texts += [_expr(a, _CONDITIONAL) for a in args]
    return f"{e.function}({', '.join(texts)})"
