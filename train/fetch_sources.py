"""Downloads the archives the corpus is made of, with the registries' own clients.

Invariant: every archive listed in sources.toml is fetched at that version and its SHA-256 must
match; only packages that the list does not name (a new corpus) are taken at their newest version.
Python wheels come through pip, JavaScript through npm, C and C++ through apt source packages.
Elsewhere: what is kept of an archive (pack.py).
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

from tqdm import tqdm

HERE = Path(__file__).parent


def pip_command(name, version, folder):
    wanted = f"{name}=={version}" if version else name
    return [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
            "--disable-pip-version-check", "-d", str(folder), wanted]


def npm_command(name, version, _):
    return ["npm", "pack", "--silent", f"{name}@{version}" if version else name]


def apt_command(name, version, _):
    return ["apt-get", "source", "--download-only", "-qq", name]


CLIENTS = {"pypi": pip_command, "npm": npm_command, "debian": apt_command}


def wanted_archives(packages, manifest):
    """Yields (kind, folder name, name to ask for, version or None, sha256 or None)."""
    pinned = {(e["kind"], e["name"]): e for e in manifest}
    asked = [("pypi", n) for n in packages["pypi"]] + [("npm", n) for n in packages["npm"]]
    asked += [("debian", n) for n in packages["debian_licences"]]
    for kind, name in asked:
        folder = name.lstrip("@").replace("/", "-")
        entry = pinned.get((kind, folder))
        if entry:
            yield kind, folder, name, entry["version"], entry["sha256"]
        elif not manifest:
            yield kind, folder, name, None, None


def fetch(root, kind, folder, name, version, sha256):
    """Fetches one archive unless it is there. Returns None, or what went wrong."""
    target = root / kind / folder
    target.mkdir(parents=True, exist_ok=True)
    pattern = {"pypi": "*.whl", "npm": "*.tgz", "debian": "*.orig.tar.*"}[kind]
    if not list(target.glob(pattern)):
        done = subprocess.run(CLIENTS[kind](name, version, target), cwd=target,
                              capture_output=True, text=True, timeout=600)
        if done.returncode and not list(target.glob(pattern)):
            return f"{kind} {name}: {done.stderr.strip().splitlines()[-1:]}"
    found = [p for p in target.glob(pattern) if p.suffix != ".asc"]
    digests = {hashlib.sha256(p.read_bytes()).hexdigest() for p in found}
    if sha256 and sha256 not in digests:
        return f"{kind} {name} {version}: expected SHA-256 {sha256}, found {sorted(digests)}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", type=Path, default=HERE / "packages.json")
    parser.add_argument("--sources", type=Path, default=HERE / "sources.toml")
    args = parser.parse_args()
    packages = json.loads(args.packages.read_text())
    manifest = tomllib.loads(args.sources.read_text())["source"] if args.sources.exists() else []
    problems = []
    for wanted in tqdm(list(wanted_archives(packages, manifest)), unit="archive"):
        problem = fetch(args.out, *wanted)
        if problem:
            problems.append(problem)
    print("\n".join(problems) or "all archives are there and match")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
