"""An operator's statements, together with its schema, to ``model.Operator``.

``schema_file`` has split the file into statements; here their names get their meaning, and whatever does not fit is reported.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator

from . import model as m
from .contract import RawAlternative, RawTensor, RawValue
from .diagnostics import Note, Report, closest
from .directives import DirectiveResolver
from .expression import DTYPE_WORDS, WORDS, Failed, Name, Node
from .printing import format_expr, format_literal, format_type
from .scope import Facts, Size, without_optional
from .statements import Entry, Header, Statement
from .strict import C_KEYWORDS

_INTEGERS = (m.Base("int"), m.Base("SymInt"))

MAX_RANK = 8  # of a tensor: the checks of the C host keep shapes and strides in arrays of this length


def resolve_operator(report: Report, header: Header, entry: Entry) -> m.Operator | None:
    """The operator, or None with what is wrong in the report."""
    return _Resolver(report, header, entry).operator()


class _Resolver(DirectiveResolver):
    # -- the operator ------------------------------------------------------------------------------------------

    def operator(self) -> m.Operator | None:
        self.read_statements()
        self.check_presence()
        self.check_arguments()
        self.define_names()
        lets = self.resolve_lets()
        contracts = [self.contract(a) for a in self.schema.args]
        results = [self.result(*pair) for pair in zip(self.results, self.schema.returns)]
        requires = [self.require(*r) for r in self.requires]
        directives = self.resolve_directives()
        if self.failed or None in contracts or None in results or None in requires or None in lets:
            return None
        return m.Operator(
            schema=self.schema,
            doc=self.entry.doc,
            section=self.entry.section,
            contracts=tuple(c for c in contracts if c is not None),
            results=tuple(r for r in results if r is not None),
            dimensions=tuple(self.scope.dims.values()),
            lets=tuple(l for l in lets if l is not None),
            requires=tuple(r for r in requires if r is not None),
            checks=tuple(self.checks),
            span=self.schema.span,
            **directives,
        )

    # -- names -------------------------------------------------------------------------------------------------

    def check_presence(self) -> None:
        for a in self.schema.args:
            if a.name not in self.statements:
                example = f"{a.name}: f32 [n]{', out' if a.is_written else ''}" if a.is_tensor else f"{a.name}: any"
                fix = f"write a line such as `{example}` above the operator"
                self.error("DG0401", a.span, f"`{a.name}` has no contract", fix)
                self.lacks_tensor = self.lacks_tensor or a.is_tensor
        returns = self.schema.returns
        for s, _ in self.results[len(returns) :]:
            count = f"{len(returns)} result{'s' * (len(returns) != 1)}" if returns else "no result"
            self.error("DG0414", s, f"`{self.symbol()}` has {count}, this is one too many")
        for r in returns[len(self.results) :]:
            is_tensor = without_optional(r.type) == m.TENSOR
            example = f"-> {r.name or 'out'}: {'f32 [n]' if is_tensor else 'any'}"
            fix = f"write a line such as `{example}` above the operator"
            self.error("DG0414", r.span, "this result has no contract", fix)

    def check_arguments(self) -> None:
        """What the signature may not have although torch's parser takes it."""
        for a in self.schema.args:
            if a.name == "self":
                self.error("DG0310", a.span, "an argument named `self` cannot be given by keyword through torch.ops", "write `x`, or what it is")
            t = without_optional(a.type)
            is_nested = isinstance(t, m.List) and (isinstance(a.type, m.Optional) or t.elem != m.TENSOR)
            if a.is_written and is_nested:
                message = f"`{a.name}` is written, and a `{format_type(a.type)}`, which torch.compile cannot functionalise"
                self.error("DG0312", a.span, message, "write `Tensor(a!)[]`, empty when there is nothing to write")

    def define_names(self) -> None:
        self.define_dimensions()
        taken: dict[str, tuple[str, m.Span]] = {a.name: ("an argument", a.span) for a in self.schema.args}
        for name, s in self.let_statements.items():
            self.check_name(s.name, "a `let`", taken)
        for (s, _), r in zip(self.results, self.schema.returns):
            self.check_name(s.name, "a result", taken)
            if r.name and r.name != s.name.text:
                self.error("DG0414", s, f"the schema calls this result `{r.name}`", f"write `-> {r.name}:`")
        for name, dimension in self.scope.dims.items():
            at = self.first_mention(name, dimension.arg)
            self.check_name(Name(name, at.start, at.end), "a dimension", taken)

    def check_name(self, name: Name, what: str, taken: dict[str, tuple[str, m.Span]]) -> None:
        span = self.source.span(name.start, name.end)
        if name.text in taken:
            other, where = taken[name.text]
            note = Note(f"{other} here", where)
            self.error("DG0407", name, f"`{name.text}` is {what}, and {other} too", "take another name", note)
        elif name.text in C_KEYWORDS or keyword.iskeyword(name.text):
            language = "Python" if keyword.iskeyword(name.text) else "C or C++"
            self.error("DG0203", name, f"`{name.text}` is a keyword of {language}", f"write `{name.text}_`")
        elif name.text in WORDS or name.text in DTYPE_WORDS:
            message = f"`{name.text}` is a word of contracts, so it cannot be the name of {what}"
            self.error("DG0407", name, message, "take another name")
        taken.setdefault(name.text, (what, span))

    def first_mention(self, name: str, arg: str) -> Node:
        for alternative in self.tensors[arg].alternatives:
            for node in alternative.shape or ():
                if node.kind == "name" and node.value == name:
                    return node
        raise AssertionError(name)

    def define_dimensions(self) -> None:
        bare: set[str] = set()
        for raw in self.all_tensors():
            for alternative in raw.alternatives:
                bare |= {str(n.value) for n in alternative.shape or () if n.kind == "name"}
        self.scope.shape_names = frozenset(bare)
        if self.lacks_tensor:
            self.scope.unsure |= bare
        for a in self.schema.args:
            raw_tensor = self.tensors.get(a.name)
            if raw_tensor is None:
                continue
            for name in _bare_in_all(raw_tensor):
                clash = name in self.args or name in self.scope.lets or name in self.scope.dims
                if not clash and not a.is_optional:
                    axes = tuple(_first_axis(alternative, name) for alternative in raw_tensor.alternatives)
                    self.scope.dims[name] = m.Dimension(name, a.name, axes)

    def all_tensors(self) -> Iterator[RawTensor]:
        yield from self.tensors.values()
        yield from (raw for _, raw in self.results if isinstance(raw, RawTensor))

    # -- lets and requires -------------------------------------------------------------------------------------

    def resolve_lets(self) -> list[m.Let | None]:
        self.scope.facts = self.known_sizes()
        for name in self.tensors:
            known = self.known_dtypes(name, set())
            if known:
                self.scope.dtypes[name] = known
        for name, value in self.values.items():
            listed = frozenset(v for v, _, _ in value.one_of if isinstance(v, m.DType))
            if listed:
                self.scope.dtypes[name] = listed
        found: list[m.Let | None] = []
        for name in self.ordered_lets():
            s = self.let_statements[name]
            try:
                expr = self.scope.of_kind(self.scope.lets[name], self.scope.facts, m.Kind.int, f"`let {name}`")
                found.append(m.Let(name, expr, self.source.span(s.name.start, s.name.end)))
            except Failed:
                self.failed = True
        return found

    def ordered_lets(self) -> list[str]:
        """The lets, each behind those that it reads."""
        lets = self.scope.lets
        mentions = {name: node.names() for name, node in lets.items()}
        reads = {name: [n for n in lets if n in mentions[name]] for name in lets}
        done: dict[str, None] = {}
        for first in lets:
            path = [first]
            while path:
                name = path[-1]
                missing = next((n for n in reads[name] if n not in done), None)
                if missing is None:
                    done[path.pop()] = None
                elif missing in path:
                    cycle = " -> ".join([*path[path.index(missing) :], missing])
                    self.error("DG0507", self.let_statements[missing], f"`let {missing}` depends on itself: {cycle}")
                    reads[name].remove(missing)
                else:
                    path.append(missing)
        return list(done)

    def known_sizes(self) -> Facts:
        """Lengths that contracts of lists promise, and ranks that contracts of tensors promise."""
        facts = Facts()
        for name, value in self.values.items():
            if value.lengths:
                facts = facts.with_size("len", name, Size(allowed=frozenset(n for n, _, _ in value.lengths)))
        for name in self.tensors:
            ranks = self.known_ranks(name, set())
            if ranks:
                facts = facts.with_size("rank", name, Size(allowed=ranks))
        return facts

    def known_ranks(self, name: str, seen: set[str]) -> frozenset[int] | None:
        raw = self.tensors.get(name)
        if raw is None or name in seen:
            return None
        if raw.like:
            return self.known_ranks(raw.like.text, seen | {name})
        if any(a.shape is None for a in raw.alternatives):
            return None
        return frozenset(len(a.shape or ()) for a in raw.alternatives)

    def known_dtypes(self, name: str, seen: set[str]) -> frozenset[m.DType] | None:
        raw = self.tensors.get(name)
        if raw is None or name in seen:
            return None
        if raw.like:
            return self.known_dtypes(raw.like.text, seen | {name})
        if any(a.dtype_of for a in raw.alternatives):
            return None
        return frozenset(m.DType(d.text) for a in raw.alternatives for d in a.dtypes)

    def require(self, s: Statement, node: Node, message: str | None) -> m.Require | None:
        try:
            expr = self.scope.of_kind(node, self.scope.facts, m.Kind.bool, "what `require` requires")
        except Failed:
            self.failed = True
            return None
        return m.Require(expr, message, format_expr(expr), self.source.span(node.start, node.end))

    # -- tensors -----------------------------------------------------------------------------------------------

    def contract(self, a: m.Argument) -> m.TensorContract | m.ValueContract | None:
        try:
            if a.name in self.tensors:
                return self.tensor(a, self.tensors[a.name])
            if a.name in self.values:
                return self.value(a, self.values[a.name])
        except Failed:
            self.failed = True
        return None

    def tensor(self, a: m.Argument, raw: RawTensor) -> m.TensorContract | None:
        s = self.statements[a.name]
        facts = self.scope.facts.with_given(a.name) if a.is_optional else self.scope.facts
        access = self.access(a, s, raw)
        for name in raw.may_alias:
            self.check_may_alias(a, name)
        if raw.at:
            self.error("DG0415", raw.at, f"`at`, but `{a.name}` is an argument: only results are views")
        if raw.like:
            self.check_other(a, raw.like, "like")
        alternatives = [self.alternative(a.name, alternative, facts) for alternative in raw.alternatives]
        self.check_reachable(a.name, raw)
        for alternative in raw.alternatives:
            self.check_when(a, alternative)
        if None in alternatives:
            return None
        found = tuple(x for x in alternatives if x is not None)
        attributes = [access] if access != "in" else []
        attributes += [f"may alias {name.text}" for name in raw.may_alias] + ["cpu"] * bool(raw.cpu)
        text = ", ".join([f"like {raw.like.text}" if raw.like else " | ".join(x.text for x in found), *attributes])
        return m.TensorContract(
            name=a.name,
            like=raw.like.text if raw.like else None,
            alternatives=found,
            access=access,
            may_alias=tuple(name.text for name in raw.may_alias),
            on_cpu=raw.cpu is not None,
            at=None,
            text=text,
            comment=s.comment,
            span=self.source.span(s.name.start, s.name.end),
        )

    def access(self, a: m.Argument, s: Statement, raw: RawTensor) -> str:
        if raw.access and not a.is_written:
            fix = f"write `Tensor({a.name}!)` in the schema, or remove `{raw.access.text}`"
            self.error("DG0408", raw.access, f"`{raw.access.text}`, but the schema does not mark `{a.name}` as written", fix)
        elif a.is_written and not raw.access:
            note = Note("the schema marks it as written", a.span)
            self.error(
                "DG0408",
                s,
                f"`{a.name}` is written: its contract needs `out` or `inout`",
                "add `, out` if it is never read, else `, inout`",
                note,
            )
        return raw.access.text if raw.access else "in"

    def check_may_alias(self, a: m.Argument, name: Name) -> None:
        other = self.args.get(name.text)
        if other is None or not other.is_tensor or other is a:
            self.error("DG0409", name, f"`{name.text}` is no other tensor argument")
        elif not other.is_written:
            fix = "two tensors that are only read may always share memory"
            self.error("DG0409", name, f"`{name.text}` is not written, so `may alias` says nothing", fix)

    def check_other(self, a: m.Argument, name: Name, what: str) -> None:
        """NAME of `like NAME` or `dtype(NAME)`: another argument, there whenever this one is, and no circle."""
        other = self.args.get(name.text)
        is_dtype = what == "dtype"
        fits = other is not None and (other.is_tensor or is_dtype and without_optional(other.type) == m.Base("ScalarType"))
        if other is None or not fits or other is a:
            meant = closest(name.text, [n for n, x in self.args.items() if x.is_tensor and x is not a])
            kinds = "tensor or ScalarType argument" if is_dtype else "tensor argument"
            self.error("DG0409", name, f"`{name.text}` is no other {kinds}", f"did you mean `{meant}`?" if meant else "")
            raise Failed
        if other.is_optional:
            self.error("DG0409", name, f"`{name.text}` may be absent, so `{a.name}` cannot depend on it")
            raise Failed
        seen, current = [a.name], other.name
        while current in self.tensors:
            if current in seen:
                self.error("DG0409", name, f"`{a.name}` depends on itself: {' -> '.join([*seen, current])}")
                raise Failed
            seen.append(current)
            raw = self.tensors[current]
            following = raw.like or next((x.dtype_of for x in raw.alternatives if x.dtype_of), None)
            if following is None:
                return
            current = following.text

    def alternative(self, name: str, raw: RawAlternative, facts: Facts) -> m.Alternative | None:
        try:
            when = None
            if raw.dtype_of and name in self.args:
                self.check_other(self.args[name], raw.dtype_of, "dtype")
            if raw.shape is not None:
                facts = facts.with_size("rank", name, Size(allowed=frozenset((len(raw.shape),))))
            if raw.when:
                when = self.scope.of_kind(raw.when, facts, m.Kind.bool, "`when`")
                facts = self.scope.assume(raw.when, True, facts)
            shape = None if raw.shape is None else tuple(self.size(n, facts) for n in raw.shape)
            strides = None if raw.strides is None else tuple(self.size(n, facts, "a stride") for n in raw.strides)
        except Failed:
            self.failed = True
            return None
        if shape is not None and len(shape) > MAX_RANK:
            self.error("DG0418", raw, f"a tensor of {len(shape)} dimensions", f"tensors have {MAX_RANK} at most")
            return None
        if strides is not None and (shape is None or len(strides) != len(shape)):
            rank = "any rank" if shape is None else f"rank {len(shape)}"
            self.error("DG0417", raw, f"{len(strides)} strides for a shape of {rank}")
            return None
        dtypes = tuple(dict.fromkeys(m.DType(d.text) for d in raw.dtypes))
        if len(dtypes) < len(raw.dtypes):
            words = [d.text for d in raw.dtypes]
            again = next(d for i, d in enumerate(raw.dtypes) if words.index(d.text) < i)
            self.error("DG0410", again, f"`{again.text}` stands twice")
        text = f"dtype({raw.dtype_of.text})" if raw.dtype_of else " | ".join(d.text for d in raw.dtypes)
        text += " [...]" if shape is None else f" [{', '.join(format_expr(e) for e in shape)}]"
        if strides is not None:
            text += f" strides [{', '.join(format_expr(e) for e in strides)}]"
        elif raw.layout != "any":
            text += f" {raw.layout}"
        text += f" when {format_expr(when)}" if when is not None else ""
        return m.Alternative(dtypes, raw.dtype_of.text if raw.dtype_of else None, shape, raw.layout, strides, when, text)

    def size(self, node: Node, facts: Facts, what: str = "a size") -> m.Expr:
        name = str(node.value)
        if node.kind == "name" and name in self.args and self.args[name].is_tensor:
            note = Note(f"`{name}` is an argument", self.args[name].span)
            self.error(
                "DG0407",
                node,
                f"`{name}` is a tensor, so it cannot be a dimension too",
                "take another name for the dimension",
                note,
            )
            raise Failed
        return self.scope.of_kind(node, facts, m.Kind.int, what)

    def check_reachable(self, name: str, raw: RawTensor) -> None:
        for i, alternative in enumerate(raw.alternatives):
            if alternative.when and alternative.when.kind == "literal" and alternative.when.value is False:
                self.error("DG0410", alternative, "`when false`: this alternative is never chosen")
            wanted = _dtype_words(alternative)
            for dtype in wanted:
                if not any(dtype in _dtype_words(b) and _covers(b, alternative) for b in raw.alternatives[:i]):
                    break
            else:
                before = next(b for b in raw.alternatives[:i] if wanted[0] in _dtype_words(b) and _covers(b, alternative))
                note = Note("this one is chosen first", self.source.span(before.start, before.end))
                self.error(
                    "DG0410",
                    alternative,
                    f"this alternative of `{name}` is never chosen: one before it takes the same dtypes and rank",
                    "",
                    note,
                )

    def check_when(self, a: m.Argument, raw: RawAlternative) -> None:
        """The alternative is chosen before the dimensions that this tensor, or one behind it, defines."""
        if raw.when is None:
            return
        order = list(self.args)
        for name in sorted(self.behind(raw.when.names())):
            dimension = self.scope.dims.get(name)
            if dimension and order.index(dimension.arg) >= order.index(a.name):
                message = f"`when` depends on the dimension `{name}`, which `{dimension.arg}` defines after the alternative of `{a.name}` is chosen"
                self.error("DG0416", raw.when, message, "read `dim(...)` of a tensor instead")

    def behind(self, names: set[str]) -> set[str]:
        """The names, and those that the `let`s among them read."""
        found: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                if name in self.scope.lets:
                    todo += self.scope.lets[name].names()
        return found

    # -- results -----------------------------------------------------------------------------------------------

    def result(self, found: tuple[Statement, RawTensor | RawValue], r: m.Return) -> m.TensorContract | m.ValueContract | None:
        s, raw = found
        span = self.source.span(s.name.start, s.name.end)
        if r.alias is not None and self.directives.backends != () and (isinstance(raw, RawValue) or raw.at is None):
            fix = "write `, at EXPR`: how many bytes of the argument lie before the view"
            self.error("DG0415", s, f"`{s.name.text}` is a view of an argument, and its contract does not say of which part", fix)
        if isinstance(raw, RawValue):
            if raw.one_of or raw.compares or raw.lengths:
                self.error("DG0415", s, "a result that is no tensor has the contract `any`")
            return m.ValueContract(s.name.text, (), (), False, (), "any", s.comment, span)
        if raw.like or raw.access or raw.may_alias or raw.cpu:
            at = raw.like or raw.access or raw.cpu or raw.may_alias[0]
            self.error(
                "DG0415",
                at,
                f"the contract of a result has no `{'like' if raw.like else at.text}`: it says dtype, shape and strides",
            )
            return None
        facts, alternatives = self.scope.facts, []
        for i, alternative in enumerate(raw.alternatives):
            self.check_result_form(alternative)
            if i > 0 and raw.alternatives[i - 1].when is None:
                note = Note(
                    "this one is always chosen", self.source.span(raw.alternatives[i - 1].start, raw.alternatives[i - 1].end)
                )
                self.error(
                    "DG0410",
                    alternative,
                    "this alternative of the result is never chosen: the one before it has no `when`",
                    "",
                    note,
                )
            alternatives.append(self.alternative(s.name.text, alternative, facts))
            if alternative.when:
                facts = self.scope.assume(alternative.when, False, facts)
        place = self.place(s, raw, r)
        if None in alternatives:
            return None
        chosen = tuple(x for x in alternatives if x is not None)
        text = " | ".join(x.text for x in chosen) + (f", at {format_expr(place)}" if place is not None else "")
        return m.TensorContract(s.name.text, None, chosen, "out", (), False, place, text, s.comment, span)

    def place(self, s: Statement, raw: RawTensor, r: m.Return) -> m.Expr | None:
        """Where in its argument a view begins."""
        if raw.at is None:
            return None
        if r.alias is None:
            self.error("DG0415", raw.at, f"`at`, but the schema does not mark `{s.name.text}` as a view of an argument")
            return None
        try:
            return self.scope.of_kind(raw.at, self.scope.facts, m.Kind.int, "`at`")
        except Failed:
            self.failed = True
            return None

    def check_result_form(self, raw: RawAlternative) -> None:
        if len(raw.dtypes) > 1:
            self.error("DG0415", raw.dtypes[1], "a result has one dtype", "give each dtype an alternative with `when`")
        if raw.shape is None:
            self.error("DG0415", raw, "a result has a shape of known rank")
        if raw.layout in ("rows", "contiguous"):
            self.error("DG0415", raw, f"a result has no `{raw.layout}`: it is compact, or has `strides [...]`")
        if raw.dtype_of:
            name = raw.dtype_of
            other = self.args.get(name.text)
            if other is None or not (other.is_tensor or without_optional(other.type) == m.Base("ScalarType")):
                self.error("DG0409", name, f"`{name.text}` is no tensor or ScalarType argument")
            elif other.is_optional:
                self.error("DG0409", name, f"`{name.text}` may be absent, so the result cannot depend on it")

    # -- values ------------------------------------------------------------------------------------------------

    def value(self, a: m.Argument, raw: RawValue) -> m.ValueContract | None:
        s = self.statements[a.name]
        type_ = without_optional(a.type)
        elem = type_.elem if isinstance(type_, m.List) else type_
        facts = self.scope.facts.with_given(a.name) if a.is_optional else self.scope.facts
        self.check_one_of(a, type_, raw)
        is_list, shown = isinstance(type_, m.List), format_type(a.type)
        if raw.each and not is_list:
            self.error("DG0412", raw.each, f"`each` is for lists, `{a.name}` is of type `{shown}`")
        if raw.compares and (elem not in (*_INTEGERS, m.Base("float")) or is_list and not raw.each):
            node = raw.compares[0][1]
            fix = "write `each` before the comparison" if is_list and elem in (*_INTEGERS, m.Base("float")) else ""
            self.error("DG0412", node, f"`{a.name}` is of type `{shown}`, which cannot be compared with a number", fix)
        for length, start, end in raw.lengths:
            at = Name("", start, end)
            if not isinstance(type_, m.List):
                self.error("DG0412", at, f"`length` is for lists, `{a.name}` is of type `{shown}`")
            elif type_.size is not None and type_.size != length:
                self.error("DG0412", at, f"`{a.name}` always has {type_.size} members")
        compares = []
        for op, node in raw.compares:
            compares.append((op, self.scope.of_kind(node, facts, m.Kind.int, "a bound")))
        contract = m.ValueContract(
            name=a.name,
            one_of=tuple(v for v, _, _ in raw.one_of),
            compares=tuple(compares),
            each=raw.each is not None,
            lengths=tuple(n for n, _, _ in raw.lengths),
            text=_value_text(raw, compares),
            comment=s.comment,
            span=self.source.span(s.name.start, s.name.end),
        )
        self.check_default(a, contract)
        return contract

    def check_one_of(self, a: m.Argument, type_: m.Type, raw: RawValue) -> None:
        python = (
            {"str": str, "int": int, "SymInt": int, "ScalarType": m.DType}.get(type_.name) if isinstance(type_, m.Base) else None
        )
        for i, (value, start, end) in enumerate(raw.one_of):
            at = Name("", start, end)
            if python is None or not isinstance(value, python):
                fix = "write `each` before a comparison, or `any`" if isinstance(type_, m.List) else ""
                self.error("DG0412", at, f"`{format_literal(value)}` is no value of type `{format_type(a.type)}`", fix)
            elif value in [v for v, _, _ in raw.one_of[:i]]:
                self.error("DG0412", at, f"`{format_literal(value)}` stands twice")

    def check_default(self, a: m.Argument, contract: m.ValueContract) -> None:
        if a.default is None or a.default.value is None:
            return
        value = a.default.value
        members = value if isinstance(value, tuple) else (value,)
        is_dtype = without_optional(a.type) == m.Base("ScalarType")  # torch keeps a dtype as its own number
        wrong = bool(contract.one_of) and not is_dtype and value not in contract.one_of
        wrong = wrong or bool(contract.lengths) and len(members) not in contract.lengths
        for op, bound in contract.compares:
            if isinstance(bound, m.Literal) and isinstance(bound.value, int):
                wrong = wrong or any(not _holds(op, x, bound.value) for x in members if isinstance(x, (int, float)))
        if wrong:
            s = self.statements[a.name]
            self.error(
                "DG0413",
                a.span,
                f"the default `{a.default.text}` of `{a.name}` breaks its contract",
                "",
                self.stands_here(s, f"the contract: {contract.text}"),
            )


def _bare_in_all(raw: RawTensor) -> list[str]:
    """The names that stand alone in the shape of every alternative, in the order of the first."""
    shapes = [a.shape for a in raw.alternatives]
    if not shapes or any(shape is None for shape in shapes):
        return []
    bare = [[str(n.value) for n in shape or () if n.kind == "name"] for shape in shapes]
    return [name for name in dict.fromkeys(bare[0]) if all(name in names for names in bare)]


def _first_axis(raw: RawAlternative, name: str) -> int:
    return next(i for i, n in enumerate(raw.shape or ()) if n.kind == "name" and n.value == name)


def _dtype_words(raw: RawAlternative) -> list[str]:
    return [f"dtype({raw.dtype_of.text})"] if raw.dtype_of else [d.text for d in raw.dtypes]


def _covers(before: RawAlternative, after: RawAlternative) -> bool:
    """Whether a tensor of rank and condition of after would be taken by before."""
    is_certain = before.when is None or before.when.kind == "literal" and before.when.value is True
    is_same = before.when is not None and after.when is not None and _shape_of(before.when) == _shape_of(after.when)
    has_rank = before.shape is None or after.shape is not None and len(before.shape) == len(after.shape)
    return (is_certain or is_same) and has_rank


def _shape_of(node: Node) -> object:
    """A node without its places, to compare."""
    return node.kind, node.value, tuple(_shape_of(c) for c in node.children)


def _holds(op: str, left: float, right: int) -> bool:
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]


def _value_text(raw: RawValue, compares: Iterable[tuple[str, m.Expr]]) -> str:
    parts = [" | ".join(format_literal(v) for v, _, _ in raw.one_of)] if raw.one_of else []
    each, bounds, i = "each " if raw.each else "", list(compares), 0
    while i < len(bounds):
        op, bound = bounds[i]
        is_range = op == ">=" and isinstance(bound, m.Literal) and i + 1 < len(bounds) and bounds[i + 1][0] == "<="
        if is_range:
            parts.append(f"{each}{format_expr(bound)} .. {format_expr(bounds[i + 1][1])}")
            i += 1
        else:
            parts.append(f"{each}{op} {format_expr(bound)}")
        i += 1
    if raw.lengths:
        parts.append("length " + " | ".join(str(n) for n, _, _ in raw.lengths))
    return ", ".join(parts) or "any"
