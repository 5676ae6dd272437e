"""Cuts small held-out and training streams out of real ones, for the dry run."""

import itertools
import sys
from pathlib import Path

import pack


def main():
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    held = [d for d in itertools.islice(pack.read_stream(source / "heldout.xz"), 400)
            if d.language == "python" and len(d.text) < 12000]
    pack.write_stream(out / "heldout.xz", held[:80], preset=0)
    stream = "train1.xz" if (source / "train1.xz").exists() else "heldout.xz"
    pack.write_stream(out / "train1.xz", itertools.islice(pack.read_stream(source / stream), 300),
                      preset=0)
    (out / "fixed.txt").write_text(held[0].text[:3000])


if __name__ == "__main__":
    main()
