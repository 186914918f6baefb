"""``generate`` and ``check``: the same bytes everywhere, whole files or none, and nothing to do when nothing changed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

jinja2 = pytest.importorskip("jinja2")

from codegen import emit  # noqa: E402
from codegen.cli import main  # noqa: E402
from codegen.schema_file import parse_file  # noqa: E402
from codegen.stamp import BANNER, HOST_NAMES, ROOT  # noqa: E402

REPOSITORY = Path(ROOT).parent

SCHEMA = """\
namespace lib
prefix l
version 1.2.0

section Scaling

## y = scale * x.
x: f32 | bf16 [n]
y: like x, out
scale: 1 .. 7                      # a factor
@backends ref
scaled(Tensor x, Tensor(y!) y, int scale=1) -> ()

## The sum of x along its rows. Caf\u00e9.
x: f32 [m, n]
-> y: f32 [m]
@backends none: it is not written yet
row_sum(Tensor x) -> Tensor
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "ops.schema").write_text(SCHEMA, "utf-8")
    return tmp_path


def run(project: Path, verb: str, *options: str) -> int:
    return main([verb, "--schema", str(project / "ops.schema"), "--out", str(project / "out"), *options])


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def files(project: Path) -> dict[str, bytes]:
    out = project / "out"
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file() and p.name != ".stamp"}


# ---- generate ------------------------------------------------------------------------------------------------


def test_generate_writes_and_says_so(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(project, "generate") == 0
    lines = capsys.readouterr().out.splitlines()
    written = files(project)
    assert lines[-1] == f"{len(written)} files written"
    assert [line.split("/out/")[1] for line in lines[:-1]] == list(written)
    assert all(BANNER in data.decode() and data.endswith(b"\n") for data in written.values())
    assert run(project, "generate") == 0
    assert capsys.readouterr().out == "0 files written\n"


def test_only_what_changes_is_touched(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(project, "generate")
    before = {path: os.stat(project / "out" / path).st_mtime_ns for path in files(project)}
    edit(project / "ops.schema", "# a factor", "# the factor")
    capsys.readouterr()
    assert run(project, "generate") == 0
    wrote = re.findall(r"wrote \S*/out/(\S+)", capsys.readouterr().out)
    assert 0 < len(wrote) < len(before)
    for path, time in before.items():
        assert (os.stat(project / "out" / path).st_mtime_ns != time) == (path in wrote)


def test_an_edited_output_is_restored(project: Path) -> None:
    run(project, "generate")
    good = files(project)
    first, *_, last = good
    (project / "out" / first).write_bytes(good[first] + b"edited\n")
    (project / "out" / last).unlink()
    assert run(project, "generate") == 0
    assert files(project) == good


def test_orphans_go_and_foreign_files_stay(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(project, "generate")
    good = files(project)
    orphan = project / "out" / "old" / "gone.h"
    orphan.parent.mkdir()
    orphan.write_text(f"/* {BANNER} from schema/ops.schema. */\n")
    (project / "out" / "notes.txt").write_text("mine\n")
    capsys.readouterr()
    assert run(project, "generate") == 0
    said = capsys.readouterr().out
    assert "removed " in said and said.endswith("0 files written, 1 file removed\n")
    assert not orphan.parent.exists()
    assert files(project) == {**good, "notes.txt": b"mine\n"}


def test_a_host_left_out_makes_orphans(project: Path) -> None:
    run(project, "generate")
    everything = files(project)
    assert run(project, "generate", "--hosts", "docs") == 0
    assert set(files(project)) == {path for path in everything if path.startswith("docs/")}


def test_nothing_is_written_when_there_is_an_error(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(project, "generate")
    good = files(project)
    edit(project / "ops.schema", "x: f32 [m, n]", "x: f33 [m, n]")
    edit(project / "ops.schema", "1 .. 7", "1 .. 8")
    capsys.readouterr()
    assert run(project, "generate") == 1
    error = capsys.readouterr().err
    assert "ops.schema:15:4: error: `f33` is no element type [DG0405]\nx: f33 [m, n]\n   ^~~\n" in error
    assert files(project) == good


def test_a_run_that_breaks_off_leaves_whole_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(project, "generate")
    old = files(project)
    edit(project / "ops.schema", "Caf\u00e9", "Tea")
    edit(project / "ops.schema", "1 .. 7", "1 .. 8")
    replace, count = os.replace, 0

    def break_off(source: str, target: str) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", break_off)
    assert run(project, "generate") == 2
    broken = files(project)
    monkeypatch.undo()
    assert run(project, "generate") == 0
    new = files(project)
    assert set(broken) == set(old)
    assert all(broken[path] in (old[path], new[path]) for path in broken)
    assert sum(broken[path] != old[path] for path in broken) == 1


def test_concurrent_runs_do_not_mix(project: Path) -> None:
    run(project, "generate")
    good = files(project)
    shutil.rmtree(project / "out")
    with ThreadPoolExecutor(3) as pool:
        codes = list(pool.map(lambda _: subprocess.run(command(project), cwd=REPOSITORY, capture_output=True).returncode, range(3)))
    assert codes == [0, 0, 0]
    assert files(project) == good


def command(project: Path, schema: str = "ops.schema") -> list[str]:
    options = ["--schema", str(project / schema), "--out", str(project / "out")]
    return [sys.executable, "-m", "codegen", "generate", *options]


def test_concurrent_runs_of_two_schemas_leave_one(project: Path) -> None:
    """The folder holds what one run wrote, whichever was last: never files of both."""
    (project / "two.schema").write_text(SCHEMA.replace("1 .. 7", "1 .. 8").replace("row_sum", "line_sum"), "utf-8")
    wanted = []
    for schema in ("ops.schema", "two.schema"):
        assert subprocess.run(command(project, schema), cwd=REPOSITORY, capture_output=True).returncode == 0
        wanted.append(files(project))
    assert all(wanted[0][path] != wanted[1][path] for path in ("c/checks.c", "docs/operators.md", "python/_C.py"))
    for _ in range(3):
        runs = [
            subprocess.Popen(command(project, schema), cwd=REPOSITORY, stdout=subprocess.DEVNULL)
            for schema in ("ops.schema", "two.schema") * 2
        ]
        assert [process.wait(60) for process in runs] == [0] * 4
        assert files(project) in wanted


def test_a_killed_run_leaves_whole_files(project: Path) -> None:
    """Killed at any moment: every file is the old or the new one, and the next run clears away what is left."""
    assert run(project, "generate") == 0
    old = files(project)
    edit(project / "ops.schema", "1 .. 7", "1 .. 8")
    edit(project / "ops.schema", "Caf\u00e9", "Tea")
    slow = (
        "import os, sys, time; from codegen.cli import main; replace = os.replace\n"
        "def slowly(source, target):\n    replace(source, target); print('replaced', flush=True); time.sleep(60)\n"
        "os.replace = slowly; main(sys.argv[1:])"
    )
    process = subprocess.Popen([sys.executable, "-c", slow, *command(project)[3:]], cwd=REPOSITORY, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"replaced\n"
    process.kill()
    process.communicate()
    left = files(project)
    temporaries = {path for path in left if path.endswith(".tmp")}
    assert temporaries and set(left) - temporaries == set(old)
    (project / "out" / "mine.1234567.tmp").write_text("not ours\n")
    assert run(project, "generate") == 0
    new = files(project)
    assert {path for path in new if path.endswith(".tmp")} == {"mine.1234567.tmp"}
    assert all(left[path] in (old[path], new[path]) for path in old)


def test_stale_temporaries_go_though_nothing_changed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(project, "generate") == 0
    good = files(project)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in ("docs/operators.md", ".stamp"):
        (project / "out" / f"{name}.{dead.pid}.tmp").write_text("a part")
    alive = project / "out" / f"docs/operators.md.{os.getpid()}.tmp"
    alive.write_text("of a run that goes on")
    capsys.readouterr()
    assert run(project, "generate") == 0
    assert capsys.readouterr().out == "0 files written\n"
    alive.unlink()
    assert files(project) == good


def test_a_full_disk_changes_nothing(project: Path) -> None:
    """No file can grow beyond 2 KiB: the first output that is longer fails the run, and every old file is still there."""
    resource = pytest.importorskip("resource")
    assert run(project, "generate") == 0
    old = {path: data for path, data in files(project).items()}
    edit(project / "ops.schema", "1 .. 7", "1 .. 8")
    edit(project / "ops.schema", "Caf\u00e9", "Tea")
    assert max(map(len, old.values())) > 2048 > min(map(len, old.values()))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command(project), cwd=REPOSITORY, env=environment, preexec_fn=limit, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r"codegen: cannot write \S+: File too large\n", done.stderr)
    assert files(project) == old
    assert run(project, "generate") == 0
    assert files(project) != old


def test_an_unchanged_run_imports_neither_the_parser_nor_jinja2(project: Path) -> None:
    run(project, "generate")
    code = (
        "import sys; from codegen.cli import main; status = main(sys.argv[1:]);"
        "print(status, sorted({'jinja2', 'codegen.model', 'codegen.parse', 'dataclasses', 'json'} & set(sys.modules)))"
    )
    options = ["--schema", str(project / "ops.schema"), "--out", str(project / "out")]
    for verb in ("generate", "check"):
        done = subprocess.run([sys.executable, "-c", code, verb, *options], cwd=REPOSITORY, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == "0 []", done.stderr


def test_a_wrong_stamp_costs_time_only(project: Path) -> None:
    run(project, "generate", "--hosts", "docs")
    good, stamp = files(project), project / "out" / ".stamp"
    text = stamp.read_bytes()
    page = project / "out" / "docs" / "operators.md"
    for wrong in (b"", b"\xff\n", text[:50], text.replace(b" ", b"x"), text.split(b"\n")[0] + b"\n", b"\n" + text):
        stamp.write_bytes(wrong)
        assert run(project, "check", "--hosts", "docs") == 0
        edit(page, "scale", "skale")
        assert run(project, "check", "--hosts", "docs") == 1
        assert run(project, "generate", "--hosts", "docs") == 0
        assert files(project) == good


def test_outputs_never_leave_the_folder(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "elsewhere").mkdir()
    (project / "out").mkdir()
    (project / "out" / "docs").symlink_to(project / "elsewhere")
    assert run(project, "generate", "--hosts", "docs") == 2
    assert "leads outside the output folder" in capsys.readouterr().err
    assert list((project / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a//b", ""])
def test_a_host_cannot_write_elsewhere(path: str) -> None:
    library, _ = parse_file("s", SCHEMA.encode())
    assert library is not None
    host = emit.Host("h", "", (), lambda library, render: {path: BANNER}, lambda part: None)
    with pytest.raises(emit.GeneratorError, match="would write outside"):
        emit.render_outputs(library, [host])


def test_depfile(project: Path) -> None:
    spaced = project / "a b#c$d"
    spaced.mkdir()
    depfile = spaced / "out.d"
    assert run(project, "generate", "--depfile", str(depfile), "--depfile-target", "x y.stamp") == 0
    first = depfile.read_text()
    assert first.startswith("x\\ y.stamp: \\\n")
    named = [line.strip(" \\") for line in first.splitlines()[1:]]
    assert str(project / "ops.schema") in named
    assert os.path.join(ROOT, "parse.py") in named
    assert sum(name.endswith(".j2") for name in named) >= len(HOST_NAMES)
    assert all(Path(name).is_file() for name in named)
    depfile.unlink()
    assert run(project, "generate", "--depfile", str(depfile), "--depfile-target", "x y.stamp") == 0
    assert depfile.read_text() == first  # also when there is nothing to do


# ---- check ---------------------------------------------------------------------------------------------------


def test_check(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(project, "generate")
    assert run(project, "check") == 0
    page = project / "out" / "docs" / "operators.md"
    good = page.read_bytes()
    capsys.readouterr()

    def fails(*parts: str) -> None:
        assert run(project, "check") == 1
        said = capsys.readouterr().out
        for part in parts:
            assert part in said
        options = f"--schema {project}/ops.schema --out {project}/out"
        assert said.splitlines()[-1] == f"python -m codegen generate {options}"

    page.write_bytes(good.replace(b"Scaling", b"Sealing"))  # edited by hand
    fails(f"--- {project}/out/docs/operators.md\n+++ {project}/out/docs/operators.md\n@@", "-## Sealing", "+## Scaling")
    page.write_bytes(good.rstrip(b"\n"))
    fails("\\ No newline at end of file")
    page.unlink()
    fails("--- /dev/null\n")
    page.write_bytes(good)
    orphan = project / "out" / "gone.h"
    orphan.write_text(f"/* {BANNER} */\n")
    fails("+++ /dev/null\n", f"-/* {BANNER} */")
    orphan.unlink()
    assert run(project, "check") == 0
    edit(project / "ops.schema", "int scale=1", "int scale=2")  # stale: a default
    fails("scale")
    edit(project / "ops.schema", "int scale=2", "int factor=1")  # stale: an argument renamed
    edit(project / "ops.schema", "scale: 1 .. 7", "factor: 1 .. 7")
    fails("factor")


def test_check_writes_nothing(project: Path) -> None:
    run(project, "generate")
    edit(project / "ops.schema", "1 .. 7", "1 .. 8")
    before = files(project), (project / "out" / ".stamp").read_bytes()
    assert run(project, "check") == 1
    assert (files(project), (project / "out" / ".stamp").read_bytes()) == before


def test_a_generator_that_fails_is_no_verdict(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["check", "--schema", str(project / "missing"), "--out", str(project / "out")]) == 2
    assert capsys.readouterr().err == f"codegen: cannot read {project}/missing: No such file or directory\n"
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert run(project, "check") == 2
    assert capsys.readouterr().err == "codegen: Jinja2 is missing: python -m pip install jinja2\n"


def test_an_unexpected_failure_is_no_traceback(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emit, "render_outputs", lambda library, hosts: 1 // 0)
    assert run(project, "generate") == 2
    assert "internal error: ZeroDivisionError" in capsys.readouterr().err


# ---- the same bytes everywhere -------------------------------------------------------------------------------


def other_pythons() -> list[str]:
    """Every other Python from 3.10 on that can be found, one of each release."""
    found: dict[int, str] = {}
    for minor in range(10, 20):
        candidates = [shutil.which(f"python3.{minor}"), *map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3"))]
        for path in filter(None, candidates):
            if minor != sys.version_info.minor and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
                found[minor] = path
    return list(found.values())


def test_the_same_bytes_everywhere(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Other hash seeds, locales, time zones, folders and Pythons."""
    run(project, "generate")
    expected = files(project)
    packages = tmp_path_factory.mktemp("packages")
    for name in ("jinja2", "markupsafe"):
        (packages / name).symlink_to(Path(str(__import__(name).__file__)).parent)
    runs = [(sys.executable, "0", "C", "UTC"), (sys.executable, "1", "C.UTF-8", "Asia/Tokyo")]
    runs += [(python, "4242", "POSIX", "America/New_York") for python in other_pythons()]
    for i, (python, seed, locale, zone) in enumerate(runs):
        out = tmp_path_factory.mktemp(f"out{i}")
        environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": zone}
        environment |= {"PYTHONPATH": f"{REPOSITORY}:{packages}", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
        command = [python, "-m", "codegen", "generate", "--schema", str(project / "ops.schema"), "--out", str(out / "out")]
        done = subprocess.run(command, cwd=out, env=environment, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        assert files(out) == expected, python


def test_messages_are_utf8_in_any_locale(project: Path) -> None:
    edit(project / "ops.schema", "row_sum(Tensor x)", "row_sum(Tensor x\u00e9)")
    command = [
        sys.executable,
        "-m",
        "codegen",
        "generate",
        "--schema",
        str(project / "ops.schema"),
        "--out",
        str(project / "out"),
    ]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True)
    assert done.returncode == 1
    assert "row_sum(Tensor x\u00e9) -> Tensor" in done.stderr.decode("utf-8")


def test_defaults_do_not_depend_on_the_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    texts = [
        subprocess.run(
            [sys.executable, "-m", "codegen", "json"], cwd=cwd, env=environment, capture_output=True, check=True
        ).stdout
        for cwd in (REPOSITORY, tmp_path)
    ]
    assert texts[0] == texts[1]
    model = json.loads(texts[0])
    assert model["format"] == 1 and model["operators"][0]["schema"]["canonical"]


# ---- the generator knows no library --------------------------------------------------------------------------


def test_the_generator_knows_no_operator() -> None:
    library, report = parse_file("ops.schema", (REPOSITORY / "schema" / "ops.schema").read_bytes())
    assert library is not None, report.render()
    names = {library.namespace, *(op.schema.name for op in library.operators if len(op.schema.name) > 5)}
    for path in sorted(Path(ROOT).rglob("*")):
        if path.suffix in (".py", ".j2"):
            words = set(re.findall(r"\w+", path.read_text("utf-8")))
            assert not words & names, path


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for word in ("generate", "check", "json", "parse", "explain", "breaking", "exit status", "DG0201", "NO_COLOR"):
        assert word in text
