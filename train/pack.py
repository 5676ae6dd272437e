"""Turns fetched archives into the corpus: one held-out and several training streams.

Invariant: documents of held-out packages are admitted first, so a training document that repeats
them (vendored copies, forks) is the one that is dropped; a package is wholly in one split.
The streams are xz files of `read_stream` records, small enough to be carried to a GPU machine.
Elsewhere: what a good document is (corpus.py), where archives come from (fetch_sources.py).
"""

import argparse
import hashlib
import io
import json
import lzma
import re
import tarfile
import zipfile
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import corpus

LIMIT_BYTES = {"python": 13_000_000, "c": 9_000_000, "javascript": 4_000_000}
CROSS_SPLIT_LIMIT = 0.4  # share of a training document's lines that held-out text may contain


def archive_members(path):
    """Yields (name, bytes) of the regular files of a wheel, npm tarball or source tarball."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.file_size <= 200_000 or info.filename.endswith("METADATA"):
                    yield info.filename, archive.read(info)
        return
    with tarfile.open(path) as archive:
        for info in archive:
            if info.isfile() and info.size <= 200_000:
                name = info.name.split("/", 1)[-1]
                yield name, archive.extractfile(info).read()


def read_archive(path, kind, licence):
    """Returns (licence, [Document]) of one archive, the licence read from its own metadata."""
    documents = []
    name = path.parent.name
    for member, raw in archive_members(path):
        if member.endswith(".dist-info/METADATA"):
            licence = corpus.licence_of(raw.decode("utf-8", "replace"))
        elif kind == "npm" and member == "package.json":
            declared = json.loads(raw).get("license", "")
            declared = declared if isinstance(declared, str) else ""
            allowed = corpus.ALLOWED.search(declared) and not corpus.REFUSED.search(declared)
            licence = declared if allowed else None
        language = corpus.wanted_path(member)
        if language and (kind == "pypi" or language != "python"):
            text = corpus.clean_text(raw, member)
            if text:
                documents.append(corpus.Document(name, member, language, text))
    return licence, documents


def capped(documents):
    """Keeps documents, in an order fixed by their path, until a language's share is used up."""
    left = dict(LIMIT_BYTES)
    kept = []
    for document in sorted(documents, key=lambda d: zlib.crc32(d.path.encode())):
        if left[document.language] > 0:
            left[document.language] -= len(document.text)
            kept.append(document)
    return sorted(kept, key=lambda d: d.path)


def write_stream(path, documents, preset=6):
    """Writes documents as one xz stream: a JSON line of header, then the text, for each."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": 256 << 20}]
    with lzma.open(path, "wb", filters=filters) as out:
        for d in documents:
            raw = d.text.encode()
            head = {"package": d.package, "path": d.path, "language": d.language,
                    "bytes": len(raw)}
            out.write(json.dumps(head).encode() + b"\n" + raw + b"\n")


def read_stream(path):
    """Yields the Documents of a stream written by write_stream."""
    with lzma.open(path, "rb") as source:
        buffered = io.BufferedReader(source, 1 << 20)
        while line := buffered.readline():
            head = json.loads(line)
            text = buffered.read(head["bytes"]).decode()
            buffered.read(1)
            yield corpus.Document(head["package"], head["path"], head["language"], text)


def version_of(path, kind):
    """Returns the version an archive's file name carries."""
    patterns = {"pypi": r"-(\d[^-]*)-", "npm": r"-(\d[\w.+-]*)\.tgz$", "debian": r"_([^_]+?)\.orig"}
    found = re.search(patterns[kind], path.name)
    return found.group(1) if found else ""


def load_all(archives):
    """Reads archives in parallel: yields (entry, [Document]) in the given order."""
    with ProcessPoolExecutor(2) as pool:
        results = pool.map(read_archive, *zip(*[
            (a["path"], a["kind"], a.get("licence")) for a in archives]), chunksize=2)
        for number, (entry, (licence, documents)) in enumerate(zip(archives, results), 1):
            print(f"\r[{number}/{len(archives)}] {entry['name'][:40]:40}", end="", flush=True)
            yield entry | {"licence": licence}, documents


def list_archives(root, held_out, debian_licences):
    """Lists fetched archives, held-out packages first, then in an order fixed by a hash."""
    found = []
    for kind, pattern in (("pypi", "pypi/*/*.whl"), ("npm", "npm/*/*.tgz"),
                          ("debian", "debian/*/*.orig*.tar.*")):
        for path in root.glob(pattern):
            if path.suffix == ".asc":
                continue
            name = path.parent.name
            if kind == "debian" and name not in debian_licences:
                continue
            found.append({"kind": kind, "name": name, "version": version_of(path, kind),
                          "file": path.name, "path": path,
                          "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                          "split": "held-out" if name in held_out else "train",
                          "licence": debian_licences.get(name)})
    return sorted(found, key=lambda e: (e["split"] == "train", zlib.crc32(e["name"].encode())))


def build(archives, held_out):
    """Returns (manifest entries, {split: [Document]}) after licence, path and duplicate checks."""
    dedup = corpus.Deduplicator()
    held_lines = set()
    splits = {"held-out": [], "train": []}
    entries = []
    modules = {name.replace("-", "_").lower() for name in held_out}
    for entry, documents in load_all(archives):
        if not entry["licence"]:
            continue
        held = entry["split"] == "held-out"
        kept = []
        for d in capped(documents):
            if not held:
                if modules & set(d.path.lower().split("/")[:-1]):
                    continue
                prints = dedup.fingerprints(d.text)
                if len(prints & held_lines) > CROSS_SPLIT_LIMIT * len(prints):
                    continue
            if dedup.admit(d.text):
                kept.append(d)
        if held:
            for d in kept:
                held_lines |= dedup.fingerprints(d.text)
        if kept:
            splits[entry["split"]] += kept
            total = sum(len(d.text.encode()) for d in kept)
            del entry["path"]
            entries.append(entry | {"documents": len(kept), "bytes": total})
    print()
    return entries, splits


def toml_of(entries):
    """Renders the manifest as TOML, one table an archive, in the order given."""
    head = ("# What moray-nano has read: every package with version, licence, hash and split.\n"
            "# Written by train/pack.py; do not edit.\n")
    tables = []
    for entry in entries:
        lines = [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
        tables.append("[[source]]\n" + "\n".join(lines) + "\n")
    return head + "\n" + "\n".join(tables)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archives", type=Path, help="folder that fetch_sources.py filled")
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", type=Path, default=Path(__file__).parent / "packages.json")
    parser.add_argument("--part-mb", type=float, default=340, help="raw text in one stream")
    args = parser.parse_args()
    spec = json.loads(args.packages.read_text())
    held_out = set(spec["held_out"])
    archives = list_archives(args.archives, held_out, spec["debian_licences"])
    entries, splits = build(archives, held_out)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "sources.toml").write_text(toml_of(entries))
    jobs = [("heldout.xz", splits["held-out"])]
    part, size = [], 0
    for d in splits["train"]:
        part.append(d)
        size += len(d.text)
        if size > args.part_mb * 1e6:
            jobs.append((f"train{len(jobs)}.xz", part))
            part, size = [], 0
    jobs.append((f"train{len(jobs)}.xz", part))
    for name, documents in jobs:
        total = sum(len(d.text) for d in documents) / 1e6
        print(f"{name}: {len(documents)} documents, {total:.1f} MB", flush=True)
        write_stream(args.out / name, documents)
        print(f"  {(args.out / name).stat().st_size / 1e6:.1f} MB compressed", flush=True)


if __name__ == "__main__":
    main()
