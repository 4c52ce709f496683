"""Tidiness that no other tool checks: what may stand in the files that git tracks.

Run by `make lint`; prints one line a fault and exits 1 if there is any.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: A lock file or a script that names a registry's host does not work for people who reach it by a mirror.
#: Written in two halves, so that this file is not its own first finding.
REGISTRY_HOSTS = (
    "pypi" + ".org",
    "python" + "hosted",
    "registry.npm" + "js",
    "registry.yarn" + "pkg",
    "deb.debian" + ".org",
)

#: Larger files make every clone slow for ever.
MAX_BYTES = 1_000_000

_HOSTS = re.compile("|".join(re.escape(host) for host in REGISTRY_HOSTS), re.IGNORECASE)
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|(?:src|href|srcset)=\"([^\"]+)\"")
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")


def tracked(root: Path = ROOT) -> list[Path]:
    """Files that git tracks or would add, sorted. Raises CalledProcessError outside a git checkout."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    paths = (root / name for name in listing.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file())


def registry_hosts(files: Iterable[Path]) -> Iterator[str]:
    """Lines that name the host of a package registry."""
    for path in files:
        text = path.read_bytes().decode("utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if found := _HOSTS.search(line):
                yield f"{path}:{number}: names a package registry's host ({found.group()}); take it out"


def large_files(files: Iterable[Path]) -> Iterator[str]:
    for path in files:
        if (size := path.stat().st_size) > MAX_BYTES:
            yield f"{path}: {size:,} bytes, more than {MAX_BYTES:,}; keep it out of the repository"


def broken_links(files: Iterable[Path]) -> Iterator[str]:
    """Relative links of Markdown files that lead to no file or to no heading of one."""
    for path in files:
        if path.suffix != ".md":
            continue
        for target in links(path.read_text(encoding="utf-8")):
            place, _, anchor = target.partition("#")
            linked = (path.parent / place).resolve() if place else path
            if not linked.exists():
                yield f"{path}: the link {target!r} leads to no file"
            elif anchor and linked.suffix == ".md" and anchor not in anchors(linked.read_text("utf-8")):
                yield f"{path}: the link {target!r} leads to no heading"


def links(markdown: str) -> Iterator[str]:
    """Targets of the relative links and pictures in a Markdown text, code left out."""
    prose = _CODE.sub("", _FENCE.sub("", markdown))
    for match in _LINK.finditer(prose):
        target = match.group(1) or match.group(2)
        if not re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.IGNORECASE):
            yield target


def anchors(markdown: str) -> set[str]:
    """The anchors that a forge makes of a Markdown text's headings."""
    headings = re.findall(r"^#{1,6}\s+(.*?)\s*#*$", _FENCE.sub("", markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def faults(root: Path = ROOT) -> list[str]:
    files = tracked(root)
    found = [*registry_hosts(files), *large_files(files), *broken_links(files)]
    return [fault.removeprefix(f"{root}/") for fault in found]


def main() -> int:
    found = faults()
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
