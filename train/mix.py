"""Turns documents into rows of token ids: plain code, fill-in-the-middle, chat.

Invariant: a fill-in-the-middle or chat sample is never cut by a row's end; plain code fills the
gaps and is the only thing that is. Text is tokenised without added tokens, so a file that spells
out a special token cannot forge one; the special ids come from here.
Elsewhere: what is a document (corpus.py), the turns' wording (chat.py), repeats (stutter.py).
"""

import random
import re
from dataclasses import dataclass

import numpy as np

import chat
import stutter

FIM_SHARE = 0.6        # of documents
CHAT_SHARE = 0.6       # of Python documents that have a function with a docstring
LONG_FUNCTIONS = (30, 0.4)    # lines a `def` of a Python file, and the share of such files kept
FIM_SPAN_CHARS = (500, 1.6)   # shortest, and longest as a multiple of the row length
EXTRA = 4              # tokens a row has beyond its time steps: labels of three drafts


@dataclass
class Hole:
    """A cut of `text`: what stands before, what is to be filled in, what stands after."""
    before: str
    middle: str
    after: str


def line_spans(text):
    """Returns [(start, end)] of the lines of text, line ends excluded."""
    spans, start = [], 0
    for line in text.split("\n"):
        spans.append((start, start + len(line)))
        start += len(line) + 1
    return spans


def choose_hole(text, rng):
    """Cuts a hole into text: part of a line, lines, a function body, or any span of characters.

    Most holes end with their line. When they were fewer than half, a model trained on 0.3 billion
    tokens went on writing past the line, since nothing but the suffix says where to stop.
    """
    spans = [s for s in line_spans(text) if text[s[0]:s[1]].strip()]
    kind = rng.random()
    if kind < 0.72 and spans:
        start, end = rng.choice(spans)
        indent = end - start - len(text[start:end].lstrip())
        how = rng.random()
        if how < 0.6:
            start += indent
        elif how < 0.9:
            start = rng.randint(start + indent, end)
        return Hole(text[:start], text[start:end], text[end:])
    if kind < 0.79 and spans:
        first = rng.randrange(len(spans))
        last = min(len(spans) - 1, first + rng.randint(1, 7))
        start, end = spans[first][0], spans[last][1]
        start += end - start - len(text[start:end].lstrip())
        return Hole(text[:start], text[start:end], text[end:])
    if kind < 0.89:
        found = chat.functions(text)
        if found:
            f = rng.choice(found)
            return Hole(text[:f.body_start], text[f.body_start:f.body_end], text[f.body_end:])
    start, end = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    return Hole(text[:start], text[start:end], text[end:])


def has_long_functions(text):
    """True for a Python file of many lines a function; short ones teach a body to come to its end."""
    functions = len(chat.HEAD.findall(text))
    return functions > 0 and text.count("\n") > LONG_FUNCTIONS[0] * functions


class Mixer:
    """Makes token samples from documents with one tokenizer and one random generator."""

    def __init__(self, tokenizer, plain_tokenizer, template, seed):
        self.full, self.plain, self.template = tokenizer, plain_tokenizer, template
        self.line_ends = stutter.line_end_ids(tokenizer.get_vocab())
        self.rng = random.Random(seed)
        ids = {t: tokenizer.token_to_id(t) for t in
               ("<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")}
        self.end, self.prefix, self.middle, self.suffix = (
            ids[t] for t in ("<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>",
                             "<|fim_suffix|>"))

    def encode(self, texts):
        return [e.ids for e in self.plain.encode_batch(texts, add_special_tokens=False)]

    def fim_samples(self, text, time):
        """Cuts text into spans at line ends and makes one PSM sample of each."""
        samples, at = [], 0
        longest = int(FIM_SPAN_CHARS[1] * min(time, 3072))
        shortest = min(FIM_SPAN_CHARS[0], longest)
        while at < len(text):
            # Short spans are commoner: more answers in as many tokens.
            end = at + shortest + int((longest - shortest) * self.rng.random() ** 2)
            cut = text.find("\n", end)
            end = len(text) if cut < 0 or len(text) - cut < 300 else cut + 1
            hole = choose_hole(text[at:end], self.rng)
            at = end
            before, middle, after = self.encode([hole.before, hole.middle, hole.after])
            samples.append([self.prefix, *before, self.suffix, *after, self.middle, *middle,
                            self.end])
        return samples

    def chat_samples(self, text):
        """One conversation from a random documented function of a Python file, or nothing."""
        documented = [f for f in chat.functions(text) if f.docstring]
        if not documented or self.rng.random() > CHAT_SHARE:
            return []
        turns, thinking = chat.conversation(self.rng.choice(documented), self.rng)
        rendered = self.template.render(messages=turns, enable_thinking=thinking)
        ids = self.full.encode(rendered, add_special_tokens=False).ids
        return [[*ids, self.end]] if len(ids) < 1900 else []

    def stuttered(self, ids):
        if self.rng.random() > stutter.DOCUMENT_SHARE:
            return ids
        return stutter.stutter(ids, self.line_ends, self.rng)

    def samples(self, documents, time):
        """Returns (whole, plain): samples that must not be cut, and documents that may be."""
        whole, plain = [], []
        for language, text in documents:
            if language == "python" and has_long_functions(text) and (
                    self.rng.random() > LONG_FUNCTIONS[1]):
                continue
            if self.rng.random() < FIM_SHARE:
                whole += self.fim_samples(text, time)
            else:
                plain.append(text)
            if language == "python":
                whole += self.chat_samples(text)
        plain = [[self.end, *self.stuttered(ids)] for ids in self.encode(plain)]
        self.rng.shuffle(whole)
        return whole, plain

    def rows(self, documents, time):
        """Returns rows [n, time + EXTRA] uint16 and the token counts {whole, plain} in them."""
        whole, plain = self.samples(documents, time)
        counts = {"whole": sum(map(len, whole)), "plain": sum(map(len, plain))}
        length = time + EXTRA
        rows, row = [], []
        filler = [t for ids in plain for t in ids]
        starts = np.cumsum([0] + [len(ids) for ids in plain])
        at = 0
        # Plain code is spread evenly: a row opens with most of its share of it.
        share = int(0.8 * len(filler) / max(1, (counts["whole"] + len(filler)) // length))
        while whole or length <= len(filler) - at:
            if not row:
                due = share * (len(rows) + 1) - at if whole else length
                take = max(0, min(due, length, len(filler) - at))
                snapped = int(starts[np.searchsorted(starts, at + take)]) - at
                take = snapped if snapped < length and whole else take
                row = filler[at:at + take]
                at += take
            sample = take_fitting(whole, length - len(row))
            if sample:
                row += sample
            else:
                need = length - len(row)
                if need > len(filler) - at:
                    break
                row += filler[at:at + need]
                at += need
            if len(row) == length:
                rows.append(row)
                row = []
        return np.array(rows, dtype=np.uint16).reshape(-1, length), counts


def take_fitting(samples, room, tries=24):
    """Removes and returns the longest of the last few samples within `room` tokens, or None."""
    fits = [(len(samples[-b]), b) for b in range(1, min(tries, len(samples)) + 1)
            if len(samples[-b]) <= room]
    return samples.pop(-max(fits)[1]) if fits else None


def strip_added(tokenizer_json):
    """Returns the tokenizer.json text without its added tokens."""
    return re.sub(r'"added_tokens":\[.*?\]', '"added_tokens":[]', tokenizer_json, count=1)
