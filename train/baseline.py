"""Compresses each held-out file with xz -9: the figure beside the model's bits per byte."""

import argparse
import concurrent.futures
import json
import lzma
from pathlib import Path

from tqdm import tqdm

import pack


def compressed_bytes(text):
    return len(lzma.compress(text.encode(), preset=9))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("heldout", type=Path)
    parser.add_argument("out", type=Path, help="folder for eval-xz.json")
    args = parser.parse_args()
    documents = list(pack.read_stream(args.heldout))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        sizes = list(tqdm(pool.map(compressed_bytes, [d.text for d in documents]),
                          total=len(documents), unit="file"))
    result = {}
    for kind in ("language", "package"):
        for name in sorted({getattr(d, kind) for d in documents}):
            at = [i for i, d in enumerate(documents) if getattr(d, kind) == name]
            raw = sum(len(documents[i].text.encode()) for i in at)
            result[name] = round(8 * sum(sizes[i] for i in at) / raw, 4)
    raw = sum(len(d.text.encode()) for d in documents)
    result["all"] = round(8 * sum(sizes) / raw, 4)
    (args.out / "eval-xz.json").write_text(json.dumps({"xz9": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
