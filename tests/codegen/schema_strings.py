"""Schema strings that reach every production of torch's grammar, with what torch 2.13 makes of them."""

# fmt: off
# string -> torch's reprint, alias sets sorted
ACCEPTED = {
    'scale() -> ()':
        'scale() -> ()',
    'lib::scale(Tensor x) -> Tensor':
        'lib::scale(Tensor x) -> Tensor',
    'lib::scale.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)':
        'lib::scale.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)',
    'scale . out ( Tensor x ) -> Tensor':
        'scale.out(Tensor x) -> Tensor',
    'lib: :scale(Tensor x) -> ()':
        'lib::scale(Tensor x) -> ()',
    "scale(Tensor? x=None, *, int k=3, bool b=True, str s='nk', float eps=1e-5) -> (Tensor y, int n)":
        'scale(Tensor? x=None, *, int k=3, bool b=True, str s="nk", float eps=1.0000000000000001e-05) -> (Tensor y, int n)',
    'scale(Tensor x, Tensor(a!)? y, Tensor(b!)[] z) -> ()':
        'scale(Tensor x, Tensor(a!)? y, Tensor(b!)[] z) -> ()',
    'scale(Tensor![] x, Tensor! y) -> ()':
        'scale(Tensor($0! -> )[] x, Tensor($1! -> ) y) -> ()',
    'scale(Tensor(a)[](b!) x) -> ()':
        'scale(Tensor(a)[](b!) x) -> ()',
    'scale(Tensor?[] x, Tensor[]? y, Tensor[2] z) -> Tensor[]':
        'scale(Tensor?[] x, Tensor[]? y, Tensor[2] z) -> Tensor[]',
    'scale(Tensor(c|a|b! -> d) x) -> ()':
        'scale(Tensor(a|b|c! -> d) x) -> ()',
    'scale(Tensor(*) x, Tensor(a -> *) y) -> Tensor(*)':
        'scale(Tensor(*) x, Tensor(a -> *) y) -> Tensor(*)',
    'scale(Tensor(*||) x) -> ()':
        'scale(Tensor(*) x) -> ()',
    'scale(int[3] x=1, int[2] y=[1, 2], int[] z=[7, 7], SymInt[2] w=1) -> ()':
        'scale(int[3] x=1, int[2] y=[1, 2], int[] z=7, SymInt[2] w=[1, 1]) -> ()',
    'scale(int[2]? x=None, int[]? y=None, float[] z=[1.0, 0.5], bool[2] b=True) -> ()':
        'scale(int[2]? x=None, int[]? y=None, float[] z=[1., 0.5], bool[2] b=[True, True]) -> ()',
    'scale(float x=1, float y=-0., float z=123456789012345678., float w=1.5E3) -> ()':
        'scale(float x=1., float y=0., float z=123456789012345680., float w=1500.) -> ()',
    'scale(float x=2e22, float? y=1.5, float z=0.1) -> ()':
        'scale(float x=2e+22, float? y=1.5, float z=0.10000000000000001) -> ()',
    'scale(int x=- 5, int y=00, int z=-9223372036854775808) -> ()':
        'scale(int x=-5, int y=0, int z=-9223372036854775808) -> ()',
    'scale(ScalarType d=bfloat16, ScalarType? e=float8_e4m3fn, ScalarType f=float, Layout l=strided) -> ()':
        'scale(ScalarType d=15, ScalarType? e=24, ScalarType f=6, Layout l=0) -> ()',
    'scale(MemoryFormat m=contiguous_format, int r=Mean, ScalarType[] d=[half, int8]) -> ()':
        'scale(MemoryFormat m=0, int r=1, ScalarType[] d=[5, 1]) -> ()',
    'scale(Device d=\'cuda:0\', Device e="cpu", Device? f=None) -> Device':
        'scale(Device d=cuda:0, Device e=cpu, Device? f=None) -> Device',
    'scale(Scalar s=1.5, Scalar t=2, Scalar u=1j) -> ()':
        'scale(Scalar s=1.5, Scalar t=2, Scalar u=0.+1.j) -> ()',
    'scale(complex c=2.5j, complex d=12) -> ()':
        'scale(complex c=0.+2.5j, complex d=0.+1.j) -> ()',
    'scale(str s="a\\"b\\\'c\\\\d\\n\\101", str t="""tri"ple""", str u=\'\') -> ()':
        'scale(str s="a\\"b\\\'c\\\\d\\nA", str t="tri\\"ple", str u="") -> ()',
    "scale(str s='é') -> ()":
        'scale(str s="\\0)+\\/.)") -> ()',
    'scale(int x=0x10, float y=0x1p4, int z=1E5) -> ()':
        'scale(int x=0, float y=16., int z=1) -> ()',
    "scale(int x=1e3, bool b=1, str s=3, int y='a', int? z=True, float? w=1) -> ()":
        'scale(int x=1000., bool b=1, str s=3, int y=a, int? z=True, float? w=1) -> ()',
    'scale(int[2] x=[1, 2, 3], int[2.5] y, int[0x2] z) -> ()':
        'scale(int[2] x=[1, 2, 3], int[2] y, int[0] z) -> ()',
    'scale(DeviceIndex i, ConstQuantizerPtr q) -> ()':
        'scale(int i, int q) -> ()',
    'scale(int?? x) -> ()':
        'scale(int? x) -> ()',
    'scale((int, str) p, (Tensor(a!), int)[] q, () r) -> ((int), (str, int)[])':
        'scale((int, str) p, (Tensor, int)[] q, () r) -> ((int), (str, int)[])',
    'scale(Dict(str, Tensor) d, Dict(int, float[])(a!) e) -> Dict(str, int)':
        'scale(Dict(str, Tensor) d, Dict(int, float[])(a!) e) -> Dict(str, int)',
    'scale(Union(int, str) u, Union(float, int, complex) w, Union(int, None) v=1) -> ()':
        'scale(Union(int, str) u, Union(Scalar) w, int? v=1) -> ()',
    'scale(Union(Tensor, Scalar) u, Union(str, Tensor, int?)[] v, Union((int, str), (str, int)) w) -> ()':
        'scale(Union(TensorScalar) u, Union(Tensor, int, NoneType, str)[] v, Union((int, str), (str, int)) w) -> ()',
    'scale(Union(SymInt, str)? u, Future(ScalarType) f, RRef(Tensor!) r, Await(t)[] a) -> ()':
        'scale(Union(int, str)? u, Future(int) f, RRef(Tensor) r, Await(t)[] a) -> ()',
    'scale(__torch__.torch.classes.quantized.LinearPackedParamsBase p) -> ()':
        'scale(__torch__.torch.classes.quantized.LinearPackedParamsBase p) -> ()',
    'scale(Any a, Stream s, Storage t, QScheme q, Capsule c, None n, SymBool b) -> None':
        'scale(Any a, Stream s, Storage t, QScheme q, Capsule c, NoneType n, SymBool b) -> NoneType',
    'scale(t x, torch.Tensor y, double z) -> void':
        'scale(t x, torch.Tensor y, double z) -> void',
    'scale(*, *, int x) -> ()':
        'scale(*, int x) -> ()',
    'scale(int x, *) -> ()':
        'scale(int x) -> ()',
    'scale(...) -> ...':
        'scale(...) -> ...',
    'scale(Tensor x, ...) -> (Tensor, ...)':
        'scale(Tensor x, ...) -> (Tensor, ...)',
    'scale(int x=1, int[] y) -> ()':
        'scale(int x=1, int[] y) -> ()',
    'scale(Tensor x, Tensor x) -> (int n, int n)':
        'scale(Tensor x, Tensor x) -> (int n, int n)',
    'scale(Tensor from, Tensor lambda, int int) -> ()':
        'scale(Tensor from, Tensor lambda, int int) -> ()',
    'scale(Tensor x) -> Tensor(a)':
        'scale(Tensor x) -> Tensor(a)',
    'scale(Tensor x) -> Tensor!':
        'scale(Tensor x) -> Tensor($0! -> )',
    'scale(int!? x, str(a) y) -> ()':
        'scale(int($0! -> )? x, str(a) y) -> ()',
    'scale(Tensor x) -> () # a comment':
        'scale(Tensor x) -> ()',
    'scale(Tensor x, # one\n int y # two\n) -> ()\n':
        'scale(Tensor x, int y) -> ()',
    '\n  \n   scale(\n\tTensor x) -> ()\n  \n':
        'scale(Tensor x) -> ()',
    'scale \\\n (Tensor x) -> ()':
        'scale(Tensor x) -> ()',
    'scale(Tensor x) -> () #type: f':
        'scale(Tensor x) -> ()',
    'scale(Tensor x)->Tensor[](a)':
        'scale(Tensor x) -> Tensor[](a)',
    'scale(Tensor\r\n x) -> ()\r\n':
        'scale(Tensor x) -> ()',
}

# string -> codes of the errors when the parser is stricter than torch
STRICT = {
    'scale(Tensor(c|a|b! -> d) x) -> ()':
        'DG0213',
    'scale(Tensor(*) x, Tensor(a -> *) y) -> Tensor(*)':
        'DG0213',
    'scale(Tensor(*||) x) -> ()':
        'DG0213',
    'scale(complex c=2.5j, complex d=12) -> ()':
        'DG0215',
    "scale(str s='é') -> ()":
        'DG0217',
    'scale(int x=0x10, float y=0x1p4, int z=1E5) -> ()':
        'DG0206 DG0207',
    "scale(int x=1e3, bool b=1, str s=3, int y='a', int? z=True, float? w=1) -> ()":
        'DG0204',
    'scale(int[2] x=[1, 2, 3], int[2.5] y, int[0x2] z) -> ()':
        'DG0205 DG0208 DG0209',
    'scale(DeviceIndex i, ConstQuantizerPtr q) -> ()':
        'DG0219',
    'scale(int?? x) -> ()':
        'DG0219',
    'scale((int, str) p, (Tensor(a!), int)[] q, () r) -> ((int), (str, int)[])':
        'DG0215',
    'scale(Dict(str, Tensor) d, Dict(int, float[])(a!) e) -> Dict(str, int)':
        'DG0212 DG0215',
    'scale(Union(int, str) u, Union(float, int, complex) w, Union(int, None) v=1) -> ()':
        'DG0215',
    'scale(Union(Tensor, Scalar) u, Union(str, Tensor, int?)[] v, Union((int, str), (str, int)) w) -> ()':
        'DG0215',
    'scale(Union(SymInt, str)? u, Future(ScalarType) f, RRef(Tensor!) r, Await(t)[] a) -> ()':
        'DG0215 DG0216',
    'scale(__torch__.torch.classes.quantized.LinearPackedParamsBase p) -> ()':
        'DG0215',
    'scale(Any a, Stream s, Storage t, QScheme q, Capsule c, None n, SymBool b) -> None':
        'DG0215',
    'scale(t x, torch.Tensor y, double z) -> void':
        'DG0216',
    'scale(*, *, int x) -> ()':
        'DG0210',
    'scale(int x, *) -> ()':
        'DG0210',
    'scale(...) -> ...':
        'DG0211',
    'scale(Tensor x, ...) -> (Tensor, ...)':
        'DG0211',
    'scale(int x=1, int[] y) -> ()':
        'DG0209',
    'scale(Tensor x, Tensor x) -> (int n, int n)':
        'DG0201 DG0202',
    'scale(Tensor from, Tensor lambda, int int) -> ()':
        'DG0203',
    'scale(Tensor x) -> Tensor(a)':
        'DG0214',
    'scale(Tensor x) -> Tensor!':
        'DG0214',
    'scale(int!? x, str(a) y) -> ()':
        'DG0212',
    'scale(Tensor x)->Tensor[](a)':
        'DG0214',
}

REJECTED = [
    'scale',
    'scale(',
    'scale()',
    'scale) -> ()',
    'scale() -> () ()',
    'scale() -> (), ()',
    'scale() -> ();',
    'scale() ->',
    'scale(Tensor) -> ()',
    'scale(Tensor x,) -> ()',
    'scale(,) -> ()',
    'scale(Tensor x Tensor y) -> ()',
    'scale(Tensor x) - > ()',
    'scale\n() -> ()',
    'scale()\n -> ()',
    'scale() ->\n()',
    'scale() -> () # type: f',
    'scale.default() -> ()',
    'scale.__x() -> ()',
    'a::b::scale() -> ()',
    '1scale() -> ()',
    'scale(String x) -> ()',
    'scale(Optional x) -> ()',
    'scale(Dimname d) -> ()',
    'scale(NoneType? x) -> ()',
    'scale(Union(int) x) -> ()',
    'scale(Union(Any, int) x) -> ()',
    'scale(Dict(int[], int) d) -> ()',
    'scale(__torch__.torch.classes.my.Class c) -> ()',
    'scale(int[2][] x) -> ()',
    'scale(int[] x[]) -> ()',
    'scale(Tensor?(a!) x) -> ()',
    'scale((int, int)(a) x) -> ()',
    'scale(Tensor(a x) -> ()',
    'scale(Tensor(!) x) -> ()',
    'scale(Tensor(*|a) x) -> ()',
    'scale(Tensor!=None x) -> ()',
    'scale(..., int x) -> ()',
    'scale(int x=1, ...) -> ()',
    'scale(int x=1, int y) -> ()',
    'scale(int x=1, int[]? y) -> ()',
    'scale(Tensor x=0) -> ()',
    'scale(Tensor[] x=None) -> ()',
    'scale(int[] x=1) -> ()',
    'scale(int[] x=[1.5]) -> ()',
    'scale(str[] x=[]) -> ()',
    'scale(Any x=None) -> ()',
    'scale(Device d=cuda) -> ()',
    "scale(Device d='gpu') -> ()",
    "scale(Device d='cuda:01') -> ()",
    'scale(int x=inf) -> ()',
    'scale(int x=true) -> ()',
    'scale(int x=half) -> ()',
    'scale(int x=+1) -> ()',
    'scale(int x=--1) -> ()',
    'scale(int x=1_0) -> ()',
    'scale(int x=1L) -> ()',
    'scale(int x=9223372036854775808) -> ()',
    'scale(float x=1e309) -> ()',
    'scale(float x=1e-310) -> ()',
    'scale(float x=) -> ()',
    "scale(str s='\\x41') -> ()",
    "scale(str s='\\0') -> ()",
    "scale(str s='a) -> ()",
    "scale(str s='a' 'b') -> ()",
    'scale(Tensor é) -> ()',
    'scale(Tensor in) -> ()',
    'scale(Tensor x) -> Tensor class',
    'scale(Tensor is notx) -> ()',
    'scale(Tensor x) -> [Tensor]',
    'scale(Tensor x==None) -> ()',
    'scale(Tensor x /* c */) -> ()',
]
