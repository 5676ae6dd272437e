#!/usr/bin/env python3
"""Checks src/text/unicode_tables.inc against `tokenizers` and writes the digests that ./test uses.

    python tools/check_unicode_tables.py [--write]

Not the generator run twice: every code point is asked one at a time and through the negated class,
and the NFC flags are tested by what they promise (text without a kComposes code point is unchanged
beside every character that composes with anything). --write stores in
tests/data/text/unicode_digest.json 64-bit FNV-1a digests of the classes and of NFC over all code
points, both computed from the package's answers. Takes about two minutes on one core.
"""
import argparse
import json
import re
import sys
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

ROOT = Path(__file__).resolve().parent.parent
CODE_POINTS = [cp for cp in range(0x110000) if not 0xD800 <= cp < 0xE000]
LETTER, MARK, NUMBER, SPACE, WORD, COMPOSES, DECOMPOSES = (1 << bit for bit in range(7))
# NFC is digested over each code point alone and in these surroundings.
NFC_FRAMES = ["{}", "a{}", "{}\u0301", "\u0345{}\u0334", "e\u0323{}\u0323", "\u1112{}\u11ab",
              "\uac00{}"]


def read_tables():
    text = (ROOT / "src" / "text" / "unicode_tables.inc").read_text()
    arrays = {name: [int(number) for number in body.split(",") if number.strip()]
              for name, body in re.findall(r"(\w+)\[\d+\] = \{([^}]*)\}", text)}
    index, blocks = arrays["kUnicodeBlock"], arrays["kUnicodeClass"]
    return bytes(blocks[index[cp >> 7] * 128 + (cp & 127)] for cp in range(0x110000))


def regex_bits():
    """The class bits that regular expressions use, from the negated classes, one call each."""
    table = bytearray(0x110000)
    for bit, negated in ((LETTER, r"\P{L}"), (MARK, r"\P{M}"), (NUMBER, r"\P{N}"), (SPACE, r"\S")):
        split = pre_tokenizers.Split(Regex("x" + negated), "removed").pre_tokenize_str
        for cp in CODE_POINTS:
            if split("x" + chr(cp)):  # something is left: the negated class did not match
                table[cp] |= bit
    return table


def word_bit(table):
    reference = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    reference.add_tokens([AddedToken("QQ", single_word=True, normalized=False)])
    for cp in CODE_POINTS:
        if cp == ord("Q") or 1 not in reference.encode("QQ" + chr(cp)).ids:  # 1 is QQ
            table[cp] |= WORD


def check_nfc_promises(table):
    """Problems with the two NFC flags, as text."""
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    problems = []
    for cp in CODE_POINTS:
        if (nfd(chr(cp)) != chr(cp)) != bool(table[cp] & DECOMPOSES):
            problems.append(f"U+{cp:04X}: kDecomposes is wrong")
    plain = [cp for cp in CODE_POINTS if not table[cp] & COMPOSES]
    firsts = {first for cp in CODE_POINTS
              for first, *rest in [unicodedata.decomposition(chr(cp)).split() or [""]]
              if rest and not first.startswith("<")}
    for first in sorted(chr(int(code, 16)) for code in firsts | {"1100", "AC00", "AC01"}):
        text = "".join(first + chr(cp) for cp in plain)
        if not table[ord(first)] & COMPOSES and nfc(text) != text:
            problems.append(f"U+{ord(first):04X} composes with a code point that is not kComposes")
    for cp in CODE_POINTS:
        if not table[cp] & COMPOSES:
            continue
        marks = nfc(chr(cp)) != chr(cp) or any(
            nfc(before + chr(cp)) != before + chr(cp) for before in ("\u0345", "\u1100", "\uac00")
        ) or nfc(chr(cp) + "\u0334") != chr(cp) + "\u0334" or any(
            nfc(chr(int(first, 16)) + chr(cp)) != chr(int(first, 16)) + chr(cp) for first in firsts)
        if not marks:
            problems.append(f"U+{cp:04X}: kComposes without effect")
    return problems


def fnv1a(chunks):
    digest = 0xCBF29CE484222325
    for chunk in chunks:
        for byte in chunk:
            digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{digest:016x}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    table = read_tables()
    asked = regex_bits()
    word_bit(asked)
    regex = LETTER | MARK | NUMBER | SPACE | WORD
    problems = [f"U+{cp:04X}: class {table[cp] & regex:05b}, tokenizers says {asked[cp]:05b}"
                for cp in CODE_POINTS if table[cp] & regex != asked[cp]]
    problems += check_nfc_promises(table)
    for problem in problems[:20]:
        print(problem)
    print(f"{len(CODE_POINTS)} code points, {len(problems)} problems")
    if options.write and not problems:
        nfc = normalizers.NFC().normalize_str
        for cp in CODE_POINTS:
            asked[cp] |= table[cp] & (COMPOSES | DECOMPOSES)
        digests = {
            "tokenizers": tokenizers.__version__,
            "classes": fnv1a([bytes(asked)]),
            "nfc_frames": NFC_FRAMES,
            "nfc": fnv1a(nfc(frame.format(chr(cp))).encode() for frame in NFC_FRAMES
                         for cp in CODE_POINTS),
        }
        path = ROOT / "tests" / "data" / "text" / "unicode_digest.json"
        path.write_text(json.dumps(digests, indent=1) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
