"""Puts the distribution `opschema` together: the modules and templates of this folder, and in `opschema/runtime` those sources of the
repository that generated files call. It is built from the repository; its working files stay outside of this folder, which is the
generator's own."""

import re
import shutil
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
RUNTIME = ("kernels/core/*.[ch]", "kernels/cuda/device.*", "kernels/include/**/*.h", "bindings/*/*.[ch]", "bindings/*/*.cpp",
           "bindings/python/*/_*.py*", "schema/ops.schema")  # fmt: skip


class BuildWithRuntime(build_py):
    def run(self) -> None:
        super().run()
        package = Path(self.build_lib) / "opschema"
        (package / "setup.py").unlink(missing_ok=True)  # this file is no module of the generator
        for pattern in RUNTIME:
            for path in sorted(REPOSITORY.glob(pattern)):
                target = package / "runtime" / path.relative_to(REPOSITORY)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


version = re.search(r"^version (\S+)", (REPOSITORY / "schema" / "ops.schema").read_text("utf-8"), re.MULTILINE)
if version is None:
    raise SystemExit("schema/ops.schema has no line `version X.Y.Z`")

work = tempfile.mkdtemp(prefix="opschema-")
try:
    setup(
        version=version[1],
        packages=["opschema", "opschema.hosts", "opschema.samples"],
        package_dir={"opschema": "."},
        package_data={"opschema": ["model.schema.json", "templates/*/*.j2"]},
        cmdclass={"build_py": BuildWithRuntime},
        options={"build": {"build_base": work}, "egg_info": {"egg_base": work}},
    )
finally:
    shutil.rmtree(work)
