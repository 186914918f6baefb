"""Prints, as a CMake list, those of the modules named on the command line that this Python has, with version and folder:
``numpy==2.4.6@/some/site-packages/numpy;torch==2.13.0@/some/site-packages/torch``.

Nothing is imported: finding torch this way takes milliseconds.
"""

import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path


def describe(module: str) -> str | None:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    try:
        version = metadata.version(module)
    except metadata.PackageNotFoundError:
        version = ""
    return f"{module}=={version}@{Path(spec.origin).parent}"


print(";".join(found for found in map(describe, sys.argv[1:]) if found is not None))
