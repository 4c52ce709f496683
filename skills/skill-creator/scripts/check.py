#!/usr/bin/env python3
"""Check a skill's folder: `python3 check.py new-skills/NAME`. Exit code 0 when it can be used.

Hands the work to `causeway skills lint`, which checks skills the same way wherever they lie.
"""

import shutil
import subprocess
import sys


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.stdout.write(__doc__)
        return 2
    program = shutil.which("causeway")
    command = [program] if program else [sys.executable, "-m", "bridge.cli"]
    return subprocess.run([*command, "skills", "lint", *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
