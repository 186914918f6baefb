"""Makes the virtual environment of a build, or brings it up to date. CMake runs it at configure time when DG_VENV is ON.

The environment sees the packages of the Python that makes it when that Python has a torch that will do, so that nobody downloads
a second one. A file inside the environment records what was installed: when nothing changed, this script does nothing.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

OLDEST_TORCH = (2, 10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requirements", type=Path, action="append", default=[])
    parser.add_argument("--requirements-without-dependencies", type=Path, action="append", default=[])
    parser.add_argument("--torch", help="what to install when this Python has no torch of its own, such as torch==2.13.0")
    args = parser.parse_args()

    own_torch = torch_of_this_python() if args.torch else None
    installs: list[list[str]] = []
    if args.torch and own_torch is None:
        installs.append([args.torch])
    installs += [["--requirement", str(path)] for path in args.requirements]
    installs += [["--no-deps", "--requirement", str(path)] for path in args.requirements_without_dependencies]

    record = args.folder / "deep_gemm_installed.json"
    wanted = {
        "python": sys.version,
        "torch": own_torch or args.torch,
        "requirements": {
            path.name if path in args.requirements else f"{path.name}, no dependencies": path.read_text(encoding="utf-8")
            for path in args.requirements + args.requirements_without_dependencies
        },
    }
    installed = json.loads(record.read_text(encoding="utf-8")) if record.exists() else None
    if installed is not None and installed["python"] == wanted["python"] and installed["torch"] == wanted["torch"]:
        if wanted["requirements"].items() <= installed["requirements"].items():
            return 0

    python = args.folder / "bin" / "python"
    if installed is None or installed["python"] != wanted["python"]:
        say(f"making the virtual environment {args.folder}")
        try:
            venv.create(args.folder, with_pip=True, symlinks=True, clear=True)
        except subprocess.CalledProcessError:
            say(f"{sys.executable} cannot make one with pip in it; on Debian and Ubuntu: apt-get install python3-venv")
            return 1
    if own_torch is not None:
        say(f"using torch {own_torch} of {sys.executable}")
        share_packages_with(python)

    for number, arguments in enumerate(installs, 1):
        say(f"installing {number}/{len(installs)}: {' '.join(arguments)}")
        command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
        if subprocess.run(command).returncode != 0:
            say(f"this failed: {' '.join(command)}")
            return 1
    if installed is not None and installed["python"] == wanted["python"]:
        wanted["requirements"] = installed["requirements"] | wanted["requirements"]
    record.write_text(json.dumps(wanted, indent=1), encoding="utf-8")
    return 0


def torch_of_this_python() -> str | None:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    return version if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_TORCH else None


def share_packages_with(python: Path) -> None:
    """Lets the environment import what this Python can, after its own packages. A .pth file does it where
    ``--system-site-packages`` would not: when this Python itself is that of a virtual environment."""
    site_packages = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, text=True, stdout=subprocess.PIPE
    ).stdout.strip()
    folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))] or [sysconfig.get_path("purelib")]
    Path(site_packages, "packages_of_the_parent.pth").write_text("".join(f"{folder}\n" for folder in folders), encoding="utf-8")


def say(text: str) -> None:
    print(f"-- {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
