#!/usr/bin/env python3
"""Holds Moray's ids against Hugging Face `tokenizers`: every mismatch is printed, and the speeds.

    python tools/compare_tokenizers.py FOLDER ENCODE_DUMP [--files DIR] [--megabytes N] [--random N]

FOLDER holds tokenizer.json; ENCODE_DUMP is the program built from tests/text/encode_dump.cpp. The
texts: source files below DIR until N megabytes, and for each Unicode block of 256 code points N
strings that mix it with code points from elsewhere. Both sides run single-threaded over the same
texts, and processor time is what counts. The exit status is 1 if any text differs. A file that is
not UTF-8 is read as Latin-1.
"""
import argparse
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from tokenizers import Tokenizer  # noqa: E402  (reads the two variables above)

SUFFIXES = {".py", ".pyi", ".h", ".hpp", ".c", ".cpp", ".cu", ".js", ".ts", ".md", ".rst", ".json",
            ".txt", ".html", ".css", ".yaml", ".toml", ".sh"}
SPICE = ["'s", "'LL", "'ſ", " ", "  ", "\t", "\r\n", "\n\n", "a", "Z", "0", "(", "_", "é",
         "e\u0301", "\u1112\u1161\u11ab", "<|im_end|>", "<think>", "\u00a0", "\u2028", "👩‍👩‍👧", "ſ", "\ufeff"]


def source_texts(folder, megabytes, seed):
    paths = sorted(p for p in Path(folder).rglob("*") if p.suffix in SUFFIXES and p.is_file())
    random.Random(seed).shuffle(paths)
    total = 0
    for path in paths:
        data = path.read_bytes()
        if len(data) > 4_000_000:
            continue
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        total += len(data)
        yield text
        if total >= megabytes * 1e6:
            return


def random_texts(per_block, seed, added_tokens):
    rng = random.Random(seed)
    spice = SPICE + added_tokens
    for block in range(0, 0x110000, 256):
        if 0xD800 <= block < 0xE000:
            continue
        if 0x30000 <= block < 0xE0000 and block % 0x4000:  # nothing but unassigned code points
            continue
        for _ in range(per_block):
            parts = []
            for _ in range(rng.randint(1, 12)):
                kind = rng.random()
                if kind < 0.6:
                    parts.append(chr(block + rng.randrange(256)))
                elif kind < 0.9:
                    parts.append(rng.choice(spice))
                else:
                    cp = rng.randrange(0x110000 - 0x800)
                    parts.append(chr(cp if cp < 0xD800 else cp + 0x800))
            yield "".join(parts)


def batches(texts, characters=5_000_000):
    """Lists of texts that each fit in memory well."""
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size > characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def moray_ids(program, folder, texts):
    """Ids of all texts by Moray, and the (seconds, megabytes) its encode calls took."""
    records = b"".join(struct.pack("<I", len(raw)) + raw for raw in (t.encode() for t in texts))
    done = subprocess.run([program, folder, "allow"], input=records, capture_output=True,
                          check=True)
    out, at, ids = done.stdout, 0, []
    for _ in texts:
        (count,) = struct.unpack_from("<I", out, at)
        ids.append(list(struct.unpack_from(f"<{count}i", out, at + 4)))
        at += 4 + 4 * count
    assert at == len(out)
    return ids, tuple(float(word) for word in done.stderr.split())


def compare(name, reference, program, folder, texts):
    ours, (our_seconds, megabytes) = moray_ids(program, folder, texts)
    mismatches, seconds = 0, 0.0
    for text, got in zip(texts, ours):
        start = time.process_time()
        encoding = reference.encode(text, add_special_tokens=False)
        seconds += time.process_time() - start
        want = encoding.ids
        if got != want:
            mismatches += 1
            if mismatches <= 5:
                at = next((i for i, pair in enumerate(zip(want, got)) if pair[0] != pair[1]),
                          min(len(want), len(got)))
                print(f"  MISMATCH at token {at}: want {want[at:at + 8]}, got {got[at:at + 8]}, "
                      f"text {ascii(text[:120])}")
    print(f"{name}: {len(texts)} texts, {megabytes:.1f} MB, {mismatches} mismatches; "
          f"moray {megabytes / max(our_seconds, 1e-9):.1f} MB/s, "
          f"tokenizers {megabytes / max(seconds, 1e-9):.1f} MB/s, "
          f"ratio {seconds / max(our_seconds, 1e-9):.1f}", flush=True)
    return mismatches


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("program")
    parser.add_argument("--files", help="folder of source files")
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--random", type=int, default=20, help="strings a Unicode block")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    reference = Tokenizer.from_file(f"{options.folder}/tokenizer.json")
    mismatches = 0
    added = [token.content for token in reference.get_added_tokens_decoder().values()]
    sets = []
    if options.random:
        sets.append(("random", random_texts(options.random, options.seed, added)))
    if options.files:
        sets.append(("source", source_texts(options.files, options.megabytes, options.seed)))
    for name, texts in sets:
        for part, batch in enumerate(batches(texts)):
            mismatches += compare(f"{name} {part}", reference, options.program, options.folder,
                                  batch)
    print(f"{mismatches} mismatches in all")
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
