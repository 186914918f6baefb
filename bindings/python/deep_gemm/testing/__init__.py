"""What tests and benchmarks of kernels need."""

from .. import _torch as _torch  # first: it says what is missing when there is no torch
from . import numeric as numeric
from . import utils as utils
from .bench import bench as bench
from .bench import bench_kineto as bench_kineto
from .numeric import *
from .utils import *

__all__ = [
    "assert_bitwise_equal",
    "bench",
    "bench_kineto",
    "calc_diff",
    "count_bytes",
    "get_arch_major",
    "ignore_env",
    "numeric",
    "test_filter",
    "utils",
]
