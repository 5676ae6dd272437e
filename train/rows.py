"""Feeds the trainer: unpacks streams once, mixes rows in worker processes, hands out batches.

Invariant: within an epoch every document of a rank's share is used once; a stream that arrives
while training runs joins the epoch in progress. Workers are spawned: forking a
process that has threads can hang.
Elsewhere: what a row holds (mix.py).
"""

import multiprocessing
import queue
import random
import threading
from pathlib import Path

import jinja2
import numpy as np
import tokenizers
import torch

import mix
import pack

JOB_DOCUMENTS = 256
LANGUAGES = ["python", "c", "javascript"]


def refuse(message):
    raise ValueError(message)


def load_template(folder):
    """Compiles the shipped chat template with the functions transformers gives to it."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    return environment.from_string((folder / "chat_template.jinja").read_text())


def unpack(stream, store):
    """Writes a stream's texts to store/NAME.bin and its index to NAME.npy, the index last."""
    store.mkdir(parents=True, exist_ok=True)
    index, at = [], 0
    with open(store / f"{stream.stem}.bin", "wb") as out:
        for d in pack.read_stream(stream):
            raw = d.text.encode()
            out.write(raw)
            index.append((at, len(raw), LANGUAGES.index(d.language)))
            at += len(raw)
    partial = store / f"{stream.stem}.partial.npy"
    np.save(partial, np.array(index, dtype=np.int64))
    partial.rename(store / f"{stream.stem}.npy")


_worker = {}


def start_worker(folder):
    """Loads the tokenizers and the template once a worker process."""
    raw = (folder / "tokenizer.json").read_text()
    _worker["full"] = tokenizers.Tokenizer.from_str(raw)
    _worker["plain"] = tokenizers.Tokenizer.from_str(mix.strip_added(raw))
    _worker["template"] = load_template(folder)


def run_job(job):
    """Mixes the job's documents: (seed, time, [(bin path, offset, length, language)])."""
    seed, time, wanted = job
    documents = []
    for path, offset, length, language in wanted:
        with open(path, "rb") as source:
            source.seek(offset)
            documents.append((LANGUAGES[language], source.read(length).decode()))
    mixer = mix.Mixer(_worker["full"], _worker["plain"], _worker["template"], seed)
    return mixer.rows(documents, time)


class Loader:
    """Batches of rows [batch, time + EXTRA] int64 on the CPU, made ahead by worker processes."""

    def __init__(self, store, folder, batch, time, workers, rank=0, world=1, seed=1, ahead=24):
        self.store, self.batch, self.time = Path(store), batch, time
        self.rank, self.world = rank, world
        self.random = random.Random(seed * 1000 + rank * 7 + time)
        self.known, self.epoch, self.left = {}, 0, []
        self.counts = {"whole": 0, "plain": 0}
        context = multiprocessing.get_context("spawn")
        self.pool = context.Pool(workers, start_worker, (Path(folder),))
        self.batches = queue.Queue(ahead)
        self.pending = workers * 2
        threading.Thread(target=self.produce, daemon=True).start()

    def find_documents(self):
        """Adds newly unpacked streams to this epoch; refills the list when it runs out."""
        fresh = []
        for path in sorted(self.store.glob("*.npy")):
            if path.name not in self.known and ".partial" not in path.name:
                index = np.load(path)
                binary = str(path.with_suffix(".bin"))
                self.known[path.name] = [(binary, int(o), int(n), int(lang))
                                         for o, n, lang in index[self.rank::self.world]]
                fresh += self.known[path.name]
        if not self.left and not fresh:
            fresh = [d for part in self.known.values() for d in part]
            self.epoch += 1
        if fresh:
            self.left += fresh
            self.random.shuffle(self.left)

    def next_job(self):
        self.find_documents()
        documents = [self.left.pop() for _ in range(min(JOB_DOCUMENTS, len(self.left)))]
        return self.random.randrange(1 << 30), self.time, documents

    def produce(self):
        """Runs in a thread; an error becomes the next batch, so that it is not lost."""
        try:
            self.mix_forever()
        except Exception as error:  # noqa: BLE001  (raised again by next)
            self.batches.put(error)

    def mix_forever(self):
        waiting, buffer = [], np.zeros((0, self.time + mix.EXTRA), np.uint16)
        shuffle = np.random.default_rng(self.random.randrange(1 << 30))
        while True:
            while len(waiting) < self.pending:
                waiting.append(self.pool.apply_async(run_job, (self.next_job(),)))
            rows, counts = waiting.pop(0).get()
            for kind, count in counts.items():
                self.counts[kind] += count
            buffer = np.concatenate([buffer, rows])
            shuffle.shuffle(buffer)
            while len(buffer) >= 4 * self.batch:
                part, buffer = buffer[:self.batch], buffer[self.batch:]
                self.batches.put(torch.from_numpy(part.astype(np.int64)))

    def next(self):
        batch = self.batches.get(timeout=300)
        if isinstance(batch, Exception):
            raise batch
        return batch

    def close(self):
        self.pool.terminate()
