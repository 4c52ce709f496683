"""Where the program finds the data files that came with it."""

from __future__ import annotations

from pathlib import Path


def builtin_skills() -> Path:
    """The folder of the built-in skills.

    A wheel carries it inside this package (see `force-include` in pyproject.toml); a checkout has it
    beside the package.
    """
    package = Path(__file__).resolve().parent
    packaged = package / "builtin_skills"
    return packaged if packaged.is_dir() else package.parent / "skills"
