"""The wheel: one file, built once from the sdist, and used in environments that have nothing else of this project.

DG_TEST_PYTHONS names further interpreters, with or without torch, that it is tried on.
"""

from __future__ import annotations

import ast
import email
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(os.environ["DG_SOURCE_DIR"])
PYTHONS = [sys.executable, *filter(None, os.environ.get("DG_TEST_PYTHONS", "").split(":"))]
RELEASE = re.search(r"^version (\S+)", (SOURCE / "schema/ops.schema").read_text(), re.MULTILINE)[1]  # type: ignore[index]
MAJOR = RELEASE.partition(".")[0]

# Below deep_gemm/, besides the Python files.
LIBRARIES = [f"libdeep_gemm.so.{MAJOR}", "libdeep_gemm_torch.so", "_C_extension.abi3.so", "dlpack.abi3.so"]
FOR_C = [
    "include/deep_gemm/deep_gemm.h",
    "include/deep_gemm/deep_gemm.hpp",
    "include/deep_gemm/ops.h",
    "lib/cmake/deep_gemm/deep_gemmConfig.cmake",
    "lib/cmake/deep_gemm/deep_gemmConfigVersion.cmake",
    "lib/cmake/deep_gemm/deep_gemmTargets-release.cmake",
    "lib/cmake/deep_gemm/deep_gemmTargets.cmake",
    "lib/libdeep_gemm.a",
    "lib/pkgconfig/deep_gemm-static.pc",
    "lib/pkgconfig/deep_gemm.pc",
]

GEMM = """
a, d = torch.ones(4, 8).bfloat16(), torch.empty(4, 4)
package.bf16_gemm_nt(a, a, d)
print(float(d.sum()))
"""


def run(*command: str | Path, cwd: Path | None = None, fails: bool = False, **variables: str) -> str:
    """What it prints. Nothing of this project is in its environment."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("DG_")}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=cwd, env=environment | variables)
    assert (done.returncode != 0) == fails, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@functools.cache
def torch_folder(python: str) -> str:
    """The site-packages that has this interpreter's torch, "" without one."""
    code = "import importlib.util, os; spec = importlib.util.find_spec('torch'); print(os.path.dirname(os.path.dirname(spec.origin)) if spec else '')"
    return run(python, "-c", code).strip()


WITH_TORCH = [python for python in PYTHONS if torch_folder(python)]


# ---- building ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("package")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def sdist(work: Path) -> Path:
    run(sys.executable, "-c", "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])", work / "sdist", cwd=SOURCE)
    (file,) = (work / "sdist").iterdir()
    return file


@pytest.fixture(scope="module")
def tree(work: Path, sdist: Path) -> Path:
    """The sdist, unpacked."""
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "source", filter="data")
    (folder,) = (work / "source").iterdir()
    return folder


def pip(*arguments: str | Path) -> str:
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


def build_options(work: Path) -> list[str]:
    """Without a network. The CPU's kernels only: nvcc takes minutes, and what is tested here does not depend on it."""
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    return [*offline, "-C", "cmake.define.DG_CUDA=OFF", "-C", f"build-dir={work / 'build'}"]


@pytest.fixture(scope="module")
def plain_wheel(work: Path, tree: Path) -> Path:
    pip("wheel", *build_options(work), "--wheel-dir", work / "plain", tree)
    (file,) = (work / "plain").iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(work: Path, plain_wheel: Path) -> Path:
    """The one to publish: auditwheel gives it its tag if it deserves it."""
    tools = Path(sys.executable).parent
    audit = [sys.executable, "-m", "auditwheel", "repair", "--plat", "manylinux_2_28_x86_64", "--only-plat", "--exclude", "libtorch.so"]
    run(*audit, "--wheel-dir", work / "repaired", plain_wheel, PATH=f"{tools}:{os.environ['PATH']}")
    (file,) = (work / "repaired").iterdir()
    return file


def environment(folder: Path, python: str, wheel: Path, torch: str) -> Path:
    """The interpreter of a new environment with the wheel in it, and this torch."""
    run(python, "-m", "venv", "--without-pip", folder)
    interpreter = folder / "bin" / "python"
    pip("--python", interpreter, "install", "--no-index", "--no-deps", wheel)
    if torch:
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "torch_of_another.pth").write_text(torch)
    return interpreter


@pytest.fixture(scope="module", params=range(len(WITH_TORCH)), ids=lambda index: Path(WITH_TORCH[index]).parts[-3])
def installed(request: pytest.FixtureRequest, work: Path, wheel: Path) -> Path:
    python = WITH_TORCH[request.param]
    return environment(work / f"with_torch_{request.param}", python, wheel, torch_folder(python))


# ---- the files ---------------------------------------------------------------------------------------------------


def test_the_sdist_has_the_sources_and_nothing_that_is_made_of_them(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if not (SOURCE / ".git").exists():
        pytest.skip("not in a git repository, which knows what is a source")
    sources = set(run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=SOURCE).split())
    assert {name for name in sources if not name.startswith(".ci/")} <= names
    assert names - sources <= {"PKG-INFO"}
    assert {"generated/c/checks.c", "generated/python/_C.py", "LICENSE", "schema/ops.schema"} <= names


def test_the_wheel_has_everything_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    modules = {str(p.relative_to(SOURCE / "bindings/python")) for p in (SOURCE / "bindings/python/deep_gemm").rglob("*.py*")
               if p.suffix in (".py", ".pyi")}  # fmt: skip
    folders = (SOURCE / "generated/python", SOURCE / "generated/dlpack")
    generated = {f"deep_gemm/{p.name}" for folder in folders for p in folder.iterdir() if p.suffix in (".py", ".pyi")}
    others = {f"deep_gemm/{name}" for name in ["py.typed", *LIBRARIES, *FOR_C]}
    info = next(name for name in names if name.endswith("/RECORD")).partition("/")[0]
    metadata = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "licenses/LICENSE", "sboms/deep_gemm.cdx.json")}
    optional = {name for name in names if name.startswith(f"{info}/sboms/auditwheel")}
    assert names - optional == modules | generated | others | metadata


def test_the_tag_is_for_every_python_and_glibc_2_28(wheel: Path) -> None:
    assert wheel.name == f"deep_gemm-2.6.1+c{RELEASE}-py3-none-manylinux_2_28_x86_64.whl"
    text = next(zipfile.ZipFile(wheel).read(n).decode() for n in zipfile.ZipFile(wheel).namelist() if n.endswith("/WHEEL"))
    assert re.findall(r"^Tag: (.*)$", text, re.MULTILINE) == ["py3-none-manylinux_2_28_x86_64"]


def test_the_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = email.message_from_bytes(next(archive.read(n) for n in archive.namelist() if n.endswith("/METADATA")))
    assert metadata["Name"] == "deep_gemm" and metadata["Requires-Python"] == ">=3.10" and metadata["License-Expression"] == "MIT"
    package = ast.parse(archive.read("deep_gemm/__init__.py"))
    assert "__version__" in ast.unparse(package) and metadata["Version"] == f"2.6.1+c{RELEASE}"
    # Whoever has torch already keeps it, and whoever has none is not made to download gigabytes.
    assert metadata.get_all("Requires-Dist") == ['torch>=2.10; extra == "torch"']
    sbom = json.loads(archive.read(next(n for n in archive.namelist() if n.endswith("deep_gemm.cdx.json"))))
    assert sbom["metadata"]["component"]["version"] == RELEASE and sbom["components"] == []


@pytest.mark.parametrize("module", ["_C_extension", "dlpack"])
def test_an_extension_keeps_to_the_limited_api(module: str, wheel: Path, tmp_path: Path) -> None:
    extension = zipfile.ZipFile(wheel).extract(f"deep_gemm/{module}.abi3.so", tmp_path)
    run(sys.executable, "-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.10", extension)


# ---- without torch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", PYTHONS)
def test_without_torch(python: str, wheel: Path, tmp_path: Path) -> None:
    interpreter = environment(tmp_path / "venv", python, wheel, torch="")
    run(interpreter, "-c", "import deep_gemm; assert deep_gemm.__version__")
    text = run(interpreter, "-m", "deep_gemm")
    assert "passed  C bf16_gemm_nt, ref" in text and "left out: all that needs torch" in text
    for code in ("import deep_gemm; deep_gemm.fp8_gemm_nt", "import deep_gemm._C", "from deep_gemm import mega", "import deep_gemm.legacy",
                 "from deep_gemm.utils.math import align", "from deep_gemm.testing import calc_diff"):  # fmt: skip
        code = f"try:\n    {code}\nexcept ImportError as error:\n    print(error)"
        assert run(interpreter, "-c", code).startswith("deep_gemm needs torch >= 2.10, found none; deep_gemm.dlpack and the C library in ")
    assert run(interpreter, "-c", "from deep_gemm import dlpack; print(dlpack.get_tma_aligned_size(5, 4))").strip() == "8"


def test_numpy_without_torch(wheel: Path, tmp_path: Path) -> None:
    interpreter = environment(tmp_path / "venv", sys.executable, wheel, torch="")
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    numpy = Path(run(sys.executable, "-c", "import numpy; print(numpy.__file__)").strip()).parent
    for folder in (numpy, numpy.with_name("numpy.libs")):  # torch lies beside it
        (site / folder.name).symlink_to(folder)
    code = """
import sys
import numpy as np
from deep_gemm import dlpack
sf = np.arange(8, dtype=np.float32).reshape(4, 2)
got = dlpack.get_mn_major_tma_aligned_tensor(sf)
assert np.array_equal(got, sf) and got.strides == (4, 16) and "torch" not in sys.modules
print(type(got).__name__)
"""
    assert run(interpreter, "-c", code).strip() == "ndarray"


@pytest.mark.parametrize("python", PYTHONS)
def test_the_extension_loads_in_every_python(python: str, wheel: Path, tmp_path: Path) -> None:
    """On the C++ libraries of the torch that is here: those know no Python, so that a torch for each one is not needed."""
    interpreter = environment(tmp_path / "venv", python, wheel, torch="")
    (package,) = (tmp_path / "venv").glob("lib/python*/site-packages/deep_gemm")
    libtorch = Path(torch_folder(sys.executable), "torch/lib/libtorch.so")
    code = f"""
import ctypes, sys
ctypes.CDLL({str(libtorch)!r})
sys.path.insert(0, {str(package)!r})
import _C_extension
assert len(_C_extension.schemas()) > 50
print(_C_extension.version())
"""
    assert run(interpreter, "-c", code).strip() == RELEASE


@pytest.mark.parametrize("finder", ["cmake", "pkg-config"])
def test_a_c_program_uses_what_is_installed(finder: str, wheel: Path, tmp_path: Path) -> None:
    interpreter = environment(tmp_path / "venv", sys.executable, wheel, torch="")
    prefix = Path(run(interpreter, "-m", "deep_gemm", "--prefix").strip())
    example, program = SOURCE / "bindings/c/examples/fp8_gemm.c", tmp_path / "build" / "fp8_gemm"
    if finder == "cmake":
        options = ["-D", f"CMAKE_PREFIX_PATH={prefix}", "-D", f"EXAMPLE={example}"]
        run("cmake", "-S", SOURCE / "tests/embed/consumer", "-B", tmp_path / "build", *options)
        run("cmake", "--build", tmp_path / "build")
    else:
        if shutil.which("pkg-config") is None:
            pytest.skip("pkg-config is not installed")
        program.parent.mkdir()
        flags = run("pkg-config", "--cflags", "--libs", "deep_gemm", PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig")).split()
        run("cc", "-std=c99", example, *flags, f"-Wl,-rpath,{prefix}", "-o", program)
    run(program)


# ---- with torch --------------------------------------------------------------------------------------------------


def test_the_self_check_passes(installed: Path) -> None:
    text = run(installed, "-m", "deep_gemm")
    assert re.search(r"^(\d+) of \1 checks passed in ", text, re.MULTILINE), text
    assert re.search(r"^  torch     2\.", text, re.MULTILINE), text


def test_the_distribution_has_the_version_of_the_package(installed: Path) -> None:
    code = "import importlib.metadata as m, deep_gemm; assert m.version('deep_gemm') == deep_gemm.__version__; print(deep_gemm.__version__)"
    assert run(installed, "-c", code).strip() == f"2.6.1+c{RELEASE}"


@pytest.mark.parametrize("area", ["python", "torch"])
def test_the_python_suite_passes(area: str, installed: Path) -> None:
    """All of it but what type checkers say and what needs a GPU."""
    files = sorted(file for file in (SOURCE / "tests" / area).glob("test_*.py") if file.name not in ("test_typing.py", "test_cuda.py"))
    command = [installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={SOURCE / 'tests'}", *files]
    (site,) = installed.parents[1].glob("lib/python*/site-packages")
    # `codegen` is the source tree's, `deep_gemm` is not there.
    run(*command, PYTHONPATH=f"{site}:{SOURCE}", DG_SOURCE_DIR=str(SOURCE))


@pytest.mark.parametrize("folder", ["elsewhere/deep_gemm", "vendor/third_party/gemm"])
def test_a_copy_works_where_it_is_put(folder: str, installed: Path, tmp_path: Path) -> None:
    """Under another name, too, and where nothing can be written."""
    (package,) = installed.parents[1].glob("lib/python*/site-packages/deep_gemm")
    copy = tmp_path / folder
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    files = sorted(copy.rglob("*"))
    torch = torch_folder(str(installed))
    module = ".".join(copy.relative_to(tmp_path).parts) if "vendor" in folder else copy.name
    code = f"import importlib, torch; package = importlib.import_module({module!r})\nassert package.__file__.startswith({str(copy)!r})\n" + GEMM
    root = tmp_path if "vendor" in folder else copy.parent
    assert run(installed, "-B", "-c", code, PYTHONPATH=f"{root}:{torch}").strip() == "128.0"
    assert "checks passed" in run(installed, "-B", "-m", module, PYTHONPATH=f"{root}:{torch}")
    assert sorted(copy.rglob("*")) == files
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)


def test_two_releases_in_one_process_are_an_error(installed: Path, tmp_path: Path) -> None:
    (package,) = installed.parents[1].glob("lib/python*/site-packages/deep_gemm")
    copy = tmp_path / "vendored"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    release = copy / "_release.py"
    release.write_text(release.read_text().replace(RELEASE, "9.8.7"))
    code = "import torch\nfrom deep_gemm import _C\ntry:\n    from vendored import _C\nexcept ImportError as error:\n    print(error)"
    text = run(installed, "-c", code, PYTHONPATH=str(tmp_path)).strip()
    assert text == (f"the Python files of deep_gemm are of release 9.8.7, the library that this process has loaded is {RELEASE}; "
                    "one process can use one release")  # fmt: skip


# ---- editable ----------------------------------------------------------------------------------------------------


def test_an_editable_install_follows_the_sources(work: Path, tree: Path, plain_wheel: Path, tmp_path: Path) -> None:
    """plain_wheel: its build folder is used again."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    interpreter = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "build_requirements.pth").write_text("\n".join(p for p in sys.path if p.endswith("site-packages")))
    run(interpreter, "-m", "pip", "install", *build_options(work), "--editable", tree)
    assert "checks passed" in run(interpreter, "-m", "deep_gemm")
    prefix = Path(run(interpreter, "-m", "deep_gemm", "--prefix").strip())
    assert all((prefix / name).exists() for name in FOR_C)
    version = "import deep_gemm; print(deep_gemm.settings.__doc__.splitlines()[0], deep_gemm.settings.__file__)"
    settings = tree / "bindings/python/deep_gemm/settings.py"
    settings.write_text(settings.read_text().replace('"""', '"""Edited.\n\n', 1))
    assert run(interpreter, "-c", version).strip() == f"Edited. {settings}"
