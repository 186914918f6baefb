"""Default values, read as torch reads them: a number by C's strtoll and strtod, a word as the number that it stands for.

torch checks little here, so a default can be of another type than its argument; that is noted as an oddity.
"""

from __future__ import annotations

import re

from . import model as m
from .diagnostics import closest
from .lex import Token, number_of
from .printing import format_type
from .reader import TokenReader
from .torch_types import kind, underlying

# Words that torch takes as a default of any type, and their numbers.
_WORDS = {"float": 6, "complex": 9, "long": 4, "strided": 0, "Mean": 1, "contiguous_format": 0}

# Words that it takes for ScalarType.
_DTYPES = {
    name: number
    for number, names in enumerate(
        "uint8;int8;int16 short;int32 int;int64 long;float16 half;float32 float;float64 double;complex32 chalf;complex64 cfloat;"
        "complex128 cdouble;bool;qint8;quint8;qint32;bfloat16;quint4x2;quint2x4;bits1x8;bits2x4;bits4x2;bits8;bits16;float8_e5m2;"
        "float8_e4m3fn;float8_e5m2fnuz;float8_e4m3fnuz;uint16;uint32;uint64;uint1 bit;uint2;uint3;uint4;uint5;uint6;uint7;int1;int2;"
        "int3;int4;int5;int6;int7;float8_e8m0fnu;float4_e2m1fn_x2".split(";")
    )
    for name in names.split()
}

_DEVICES = frozenset(
    "cpu cuda ipu xpu mkldnn opengl opencl ideep hip ve fpga maia xla lazy vulkan mps meta hpu mtia privateuseone".split()
)
_DEVICE = re.compile(r"([A-Za-z_]+)(?::(0|[1-9][0-9]*))?")

_SINGLE_CONSTANT = ("str", "Optional", "Scalar", "int", "bool", "float", "complex")
_LIST_ELEMENTS: dict[str, type] = {"int": int, "float": float, "bool": bool, "complex": complex}
_NONE_ONLY = ("Tensor", "Generator", "Quantizer")

_SIMPLE_ESCAPES = {
    "\\": b"\\", "'": b"'", '"': b'"', "\n": b"\n", "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "t": b"\t", "v": b"\v",
}  # fmt: skip


class DefaultReader(TokenReader):
    def default(self, type_: m.Type) -> m.Default:
        first = self.token
        value = self.default_value(type_)
        last = self.tokens[self.index - 1]
        text = self.source.text[first.start : last.end]
        default = m.Default(value, text, is_device=underlying(type_) == m.Base("Device"))
        self.check_default(type_, value, first.start, last.end)
        return default

    def default_value(self, type_: m.Type) -> object:
        stored, token = underlying(type_), self.token
        what = kind(stored)
        if what in _NONE_ONLY:
            self.expect("None", f"`None`, the only default of a `{what}`")
            return None
        if what in _SINGLE_CONSTANT:
            return self.constant(what, type_)
        if what == "Device":
            return self.device()
        if isinstance(stored, m.List):
            assert isinstance(type_, m.List)
            return self.list_default(type_, kind(stored.elem))
        raise self.fail(
            "DG0106", token, f"`{format_type(type_)}` cannot have a default", f"make it `{format_type(type_)}? ...=None`"
        )

    def list_default(self, type_: m.List, elem: str) -> tuple[object, ...]:
        token = self.token
        if token.kind == "ident":
            raise self.fail("DG0106", token, f"a list cannot have the default `{token.text}`", "write a list: `[...]`")
        if elem not in _LIST_ELEMENTS:
            raise self.fail("DG0106", token, f"torch knows no default for `{format_type(type_)}`")
        values: list[object] = []
        if type_.size is not None and token.kind != "[":
            value = self.constant(elem, type_.elem)
            if not 0 <= type_.size <= 2**20:
                raise self.fail("DG0106", token, f"a list of {type_.size} equal members")
            values = [value] * type_.size
        else:
            self.expect("[", "`[` and the members of the list")
            if self.token.kind != "]":
                values.append(self.constant(elem, type_.elem))
                while self.accept(","):
                    values.append(self.constant(elem, type_.elem))
            self.expect("]", "`,` or `]`")
        return tuple(self.member(token, elem, v) for v in values)

    def member(self, token: Token, elem: str, value: object) -> object:
        if not isinstance(value, _LIST_ELEMENTS[elem]) or isinstance(value, bool) != (elem == "bool"):
            raise self.fail("DG0106", token, f"the members of this list must be of type `{elem}`")
        return value

    def device(self) -> str:
        token = self.expect("string", "a string that names a device")
        text = self.string(token)
        match = _DEVICE.fullmatch(text)
        if not match or match[1] not in _DEVICES or match[2] is not None and int(match[2]) >= 2**31:
            raise self.fail("DG0106", token, f"{token.text} is not a device", 'write a device such as `"cuda"` or `"cuda:0"`')
        if match[2] is None:
            return match[1]
        index = (int(match[2]) + 128) % 256 - 128  # torch keeps eight bits, and -1 means none
        return match[1] if index == -1 else f"{match[1]}:{index}"

    def constant(self, what: str, type_: m.Type) -> object:
        token = self.token
        for word, value in (("True", True), ("False", False), ("None", None)):
            if self.accept(word):
                return value
        if token.kind == "string":
            self.next()
            return self.string(token)
        if token.kind == "ident":
            self.next()
            if token.text in _WORDS:
                return _WORDS[token.text]
            if _is_scalar_type(type_) and token.text in _DTYPES:
                return _DTYPES[token.text]
            raise self.fail(
                "DG0106", token, f"`{token.text}` is not a default for `{format_type(type_)}`", _meant_constant(token.text, type_)
            )
        minus = self.accept("-")
        number = self.expect("number", "a value")
        self.check_number(number)
        text = ("-" if minus else "") + number.text
        whole = Token("number", text, token.start, number.end)
        if what == "complex" or "j" in text:
            return complex(0.0, self.double(whole, text[:-1]))
        if what == "float" or "." in text or "e" in text:
            return self.double(whole, text)
        return self.integer(whole, text)

    def check_number(self, number: Token) -> None:
        if number.text[:2] in ("0x", "0X"):
            self.odd(
                "DG0206",
                number.start,
                number.end,
                f"torch misreads the hexadecimal number `{number.text}`",
                "write it in decimal",
            )
        elif re.match(r"[0-9]+E", number.text):
            self.odd(
                "DG0207",
                number.start,
                number.end,
                f"torch may drop the exponent of `{number.text}`",
                f"write `{number.text.replace('E', 'e')}`",
            )

    def integer(self, token: Token, text: str) -> int:
        """As C's strtoll reads it: up to the first character that is no digit."""
        digits = re.match(r"-?[0-9]+", text)
        value = int(digits[0]) if digits and len(digits[0]) <= 20 else 2**63
        if not -(2**63) <= value < 2**63:
            raise self.fail("DG0107", token, f"`{token.text}` is not a 64-bit integer")
        return value

    def double(self, token: Token, text: str) -> float:
        """As C's strtod reads it, which reports overflow, and underflow where digits are lost."""
        sign, text = (-1.0, text[1:]) if text.startswith("-") else (1.0, text)
        text = number_of(text)
        value = _double(text) if text else None
        if value is None:
            raise self.fail("DG0107", token, f"`{token.text}` is not a number that a double holds")
        return sign * value

    def string(self, token: Token) -> str:
        quote = token.text[0]
        width = 3 if token.text.startswith(quote * 3) and len(token.text) >= 6 else 1
        body = token.text[width:-width]
        out, at = b"", 0
        while at < len(body):
            c = body[at]
            if c != "\\":
                out += c.encode()
                at += 1
                continue
            escape = body[at + 1 : at + 2]
            octal = re.match(r"[0-3][0-7][0-7]", body[at + 1 : at + 4])
            if escape in _SIMPLE_ESCAPES:
                out += _SIMPLE_ESCAPES[escape]
                at += 2
            elif octal:
                out += bytes([int(octal[0], 8)])
                at += 4
            else:
                raise self.fail("DG0109", token, f"torch does not know the escape `\\{escape}`")
        return out.decode("utf-8", "surrogateescape")

    def check_default(self, type_: m.Type, value: object, start: int, end: int) -> None:
        written = self.source.text[start:end]
        if isinstance(value, str) and (not written.isascii() or "\0" in written):
            self.odd("DG0217", start, end, "torch changes bytes above 127, and NUL, in a string default")
        if isinstance(type_, m.List) and isinstance(value, tuple):
            if type_.size is not None and len(value) != type_.size:
                self.odd("DG0205", start, end, f"{len(value)} member{'s' * (len(value) != 1)} for `{format_type(type_)}`")
        elif not _fits(type_, value):
            fix = ""
            if value is None:
                fix = f"write `{format_type(type_)}?`"
            elif kind(_without_optional(type_)) == "float" and isinstance(value, int) and not isinstance(value, bool):
                fix = f"write `{written}.0`"
            self.odd("DG0204", start, end, f"the default `{written}` is not of the type `{format_type(type_)}`", fix)


def _double(text: str) -> float | None:
    """The double that C's strtod reads, or None where it reports that the value is out of range."""
    if text[:2] in ("0x", "0X"):
        try:
            return float.fromhex(text)
        except OverflowError:
            return None
    value = float(text)
    if value == float("inf"):
        return None
    if value < 2.2250738585072014e-308:  # the smallest normal double
        from decimal import Decimal

        is_zero = not re.search(r"[1-9]", re.split(r"[eE]", text)[0])
        if not is_zero and (value == 0.0 or Decimal(text) != Decimal(value)):
            return None
    return value


def _is_scalar_type(t: m.Type) -> bool:
    return t == m.Base("ScalarType") or isinstance(t, m.Optional) and _is_scalar_type(t.elem)


def _without_optional(t: m.Type) -> m.Type:
    return t.elem if isinstance(t, m.Optional) else t


def _fits(type_: m.Type, value: object) -> bool:
    """Whether torch can pass the default of an argument that is no list."""
    if isinstance(type_, m.Optional):
        return value is None or type_.elem != m.Base("Device") and _fits(type_.elem, value)
    stored = underlying(type_)
    what = kind(stored)
    is_bool = isinstance(value, bool)
    return {
        "int": isinstance(value, int) and not is_bool,
        "float": isinstance(value, float),
        "bool": is_bool,
        "str": isinstance(value, str),
        "complex": isinstance(value, complex),
        "Scalar": isinstance(value, (int, float, complex)),
        "Device": isinstance(value, str),
    }.get(what, False)


def _meant_constant(word: str, type_: m.Type) -> str:
    spelled = {"true": "True", "false": "False", "none": "None", "null": "None", "nullptr": "None", "nil": "None", "NULL": "None"}
    if word in spelled:
        return f"write `{spelled[word]}`"
    if _is_scalar_type(type_):
        meant = closest(word, sorted(_DTYPES))
        return (
            "write the dtype alone, `float32` for `torch.float32`"
            if word == "torch"
            else f"did you mean `{meant}`?"
            if meant
            else ""
        )
    if word in ("inf", "nan", "Infinity"):
        return "torch has no infinity and no NaN as a default: make the argument optional"
    return f'write it as a string: `"{word}"`' if _without_optional(type_) == m.Base("str") else ""
