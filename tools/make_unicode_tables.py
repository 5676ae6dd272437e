#!/usr/bin/env python3
"""Writes src/text/unicode_tables.inc: one class byte for each Unicode code point.

The reference is not the Unicode database of this Python but what the `tokenizers` package does,
code point by code point, because ids must agree with it: its regular expressions know a newer
Unicode than its NFC does. Each bit is found by asking the package (probe functions below).
Layout: kUnicodeBlock[cp >> 7] names a block of 128 bytes in kUnicodeClass; equal blocks are shared.

    python tools/make_unicode_tables.py > src/text/unicode_tables.inc

tools/check_unicode_tables.py checks the result in another way and writes the digest for ./test.
"""
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

LETTER, MARK, NUMBER, SPACE, WORD, COMPOSES, DECOMPOSES = (1 << bit for bit in range(7))
CODE_POINTS = [cp for cp in range(0x110000) if not 0xD800 <= cp < 0xE000]
BLOCK = 128
BATCH = 4096


def batches():
    for start in range(0, len(CODE_POINTS), BATCH):
        yield CODE_POINTS[start : start + BATCH]


def matching(pattern):
    """Code points that the regular expression `pattern` matches in the reference."""
    removes = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for batch in batches():
        text = "".join(map(chr, batch))
        kept = {ch for piece, _ in removes.pre_tokenize_str(text) for ch in piece}
        found |= {cp for cp in batch if chr(cp) not in kept}
    return found


def word_characters():
    r"""Code points that count as \w beside a single_word added token."""
    reference = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    reference.add_tokens([AddedToken("QQ", single_word=True, normalized=False)])
    found = {ord("Q")}
    for batch in batches():
        batch = [cp for cp in batch if cp != ord("Q")]
        text = "".join(chr(cp) + "QQ " for cp in batch)
        alone = {start for start, _ in reference.encode(text).offsets
                 if text[start : start + 2] == "QQ"}
        found |= {cp for i, cp in enumerate(batch) if 4 * i + 1 not in alone}
    return found


def canonical_classes():
    """(composes, decomposes): how the reference's NFC and NFD see each code point.

    composes: it may change or move when it follows another character (combining class above 0,
    second half of a composition) or NFC replaces it even alone. decomposes: NFD replaces it.
    """
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    composes, decomposes = set(), set()
    for cp in CODE_POINTS:
        ch = chr(cp)
        if nfd(ch) != ch:
            decomposes.add(cp)
        # U+0334 has combining class 1, the lowest in use, and U+0345 has 240, the highest.
        elif nfd(ch + "\u0334") != ch + "\u0334" or nfd("\u0345" + ch) != "\u0345" + ch:
            composes.add(cp)
        if nfc(ch) != ch:
            composes.add(cp)
    for cp in CODE_POINTS:
        parts = unicodedata.decomposition(chr(cp)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            first, second = (chr(int(part, 16)) for part in parts)
            if nfc(first + second) != first + second:
                composes.add(ord(second))
    for jamo in [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]:
        assert nfc("\uac00" + chr(jamo)) != "\uac00" + chr(jamo) or nfc("\u1100" + chr(jamo)) != (
            "\u1100" + chr(jamo))
        composes.add(jamo)
    # A precomposed character whose decomposition starts with a mark sorts and joins like a mark.
    for cp in list(decomposes):
        if ord(nfd(chr(cp))[0]) in composes:
            composes.add(cp)
    return composes, decomposes


def classes():
    table = bytearray(0x110000)
    composes, decomposes = canonical_classes()
    for bit, members in (
        (LETTER, matching(r"\p{L}")),
        (MARK, matching(r"\p{M}")),
        (NUMBER, matching(r"\p{N}")),
        (SPACE, matching(r"\s")),
        (WORD, word_characters()),
        (COMPOSES, composes),
        (DECOMPOSES, decomposes),
    ):
        print(f"bit {bit:3}: {len(members)} code points", file=sys.stderr)
        for cp in members:
            table[cp] |= bit
    return table


def rows(name, kind, numbers):
    print(f"inline constexpr {kind} {name}[{len(numbers)}] = {{")
    line = ""
    for number in numbers:
        item = f"{number},"
        if len(line) + len(item) > 98:
            print(line)
            line = ""
        line += item
    print(line)
    print("};")


def main():
    table = classes()
    blocks, index = {}, []
    for start in range(0, len(table), BLOCK):
        block = bytes(table[start : start + BLOCK])
        index.append(blocks.setdefault(block, len(blocks)))
    assert len(blocks) <= 65536
    print(f"// Written by tools/make_unicode_tables.py from tokenizers {tokenizers.__version__}; "
          "do not edit.")
    print("// clang-format off")
    rows("kUnicodeBlock", "uint8_t" if len(blocks) <= 256 else "uint16_t", index)
    rows("kUnicodeClass", "uint8_t", b"".join(blocks))
    print("// clang-format on")


if __name__ == "__main__":
    main()
