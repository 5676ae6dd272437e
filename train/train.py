"""Trains moray-nano for a fixed wall-clock time and exports it.

Invariant: whatever happens after the deadline, an exported FP8 folder is already on disk; the
learning rate, the noise and the row length depend only on the share of the time budget used, so
a faster machine sees more tokens and ends at the same point of the schedule.
One process a GPU under torchrun, or a single process. Elsewhere: the forward (fast.py), the
optimisers (optimise.py), rows (rows.py), the files (export.py), the figures (evaluate.py).
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import rows

BALANCE_WEIGHT = 0.02
DRAFT_WEIGHTS = (0.2, 0.1, 0.1)
NOISE_END_SHARE = 0.5  # Gumbel noise on router logits falls to zero at this share of the budget
CHAIN_EVERY = 4        # chained drafts are trained on one step in four
SYNC_STEPS = 10
ANSWER_WEIGHT = 6.0    # of a token that fills a hole, against any other's 1


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--streams", type=Path, default=None, help="folder of train*.xz")
    parser.add_argument("--store", type=Path, default=Path("/dev/shm/moray-corpus"))
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--batch", type=int, default=64, help="rows of --time tokens a GPU")
    parser.add_argument("--time", type=int, default=2048)
    parser.add_argument("--long-time", type=int, default=8192)
    parser.add_argument("--long-from", type=float, default=0.86)
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=2e-3)
    parser.add_argument("--warm-steps", type=int, default=100)
    parser.add_argument("--decay-from", type=float, default=0.45)
    parser.add_argument("--noise", type=float, default=0.5)
    parser.add_argument("--chain-from", type=float, default=0.5)
    parser.add_argument("--init", type=Path, help="exported folder whose weights to start from")
    parser.add_argument("--until", type=float, help="epoch second at which --seconds must end")
    parser.add_argument("--measure", type=Path, help="fixed text; also measures held-out files")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--snapshot-seconds", type=float, default=240)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps")
    parser.add_argument("--variant", type=Path, help="file that check.py --choose writes")
    parser.add_argument("--toy", action="store_true")
    return parser.parse_args()


def reduce_gradients(parameters, world):
    """Averages gradients over the ranks as one flat buffer."""
    if world == 1:
        return
    grads = [p.grad for p in parameters]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    flat /= world
    torch._foreach_copy_(grads, [part.view_as(g) for part, g in
                                 zip(flat.split([g.numel() for g in grads]), grads)])


def agree(share, world, group):
    """Returns rank 0's share of the budget on every rank."""
    if world == 1:
        return share
    value = torch.tensor([share], dtype=torch.float64)
    dist.broadcast(value, 0, group=group)
    return float(value)


class Log:
    """Running means, printed and appended to log.jsonl every SYNC_STEPS steps by rank 0."""

    def __init__(self, path, seconds):
        self.path, self.seconds = path, seconds
        self.start = self.last = time.time()
        self.sums, self.tokens, self.step = {}, 0, 0
        self.last_tokens = 0
        self.use = None

    def add(self, values, tokens, use):
        for key, value in values.items():
            total, count = self.sums.get(key, (0, 0))
            self.sums[key] = (total + value.detach(), count + 1)
        counts = torch.stack(use).detach()
        self.use = counts if self.use is None else self.use + counts
        self.step += 1
        self.tokens += tokens

    def flush(self, extra):
        now = time.time()
        entry = {"step": self.step, "seconds": round(now - self.start, 1), "tokens": self.tokens,
                 "rate": round((self.tokens - self.last_tokens) / (now - self.last))}
        entry |= {k: round(float(v) / n, 4) for k, (v, n) in self.sums.items()}
        share = self.use / self.use.mean(1, keepdim=True)
        entry["cv"] = [round(float(c), 3) for c in share.std(1)]
        entry |= extra
        with open(self.path, "a") as out:
            out.write(json.dumps(entry) + "\n")
        done = int(30 * min(1, (now - self.start) / self.seconds))
        print(f"[{'#' * done:30}] {entry['seconds']:6.0f}s step {self.step} "
              f"{entry['rate'] / 1000:.0f}k tok/s loss {entry['next']:.3f} "
              f"drafts {[entry[k] for k in sorted(entry) if k.startswith('draft')]} "
              f"held-out {extra.get('held_out', '')} cv {max(entry['cv']):.2f}", flush=True)
        self.sums, self.use = {}, None
        self.last, self.last_tokens = now, self.tokens


def train_step(trainer, batch, noise, drafts, parameters, world):
    """Forward, backward and reduce of one batch. Returns the parts of the loss."""
    main, extra, balance = trainer.losses(batch, noise, drafts)
    loss = main + BALANCE_WEIGHT * balance
    for weight, part in zip(DRAFT_WEIGHTS, extra):
        loss = loss + weight * part
    loss.backward()
    reduce_gradients(parameters, world)
    values = {"next": main, "balance": balance}
    return values | {f"draft{i}": part for i, part in enumerate(extra, 1)}


def snapshot(model, out, config, tokenizer):
    """Copies the weights to the CPU and exports them in a thread. Returns the thread."""
    import export
    state = {k: v.detach().to("cpu", copy=True) for k, v in model.state_dict().items()}
    thread = threading.Thread(target=export.export, args=(state, config, tokenizer, out))
    thread.start()
    return thread


def held_out_rows(args):
    """Returns a fixed batch of held-out plain-and-FIM rows, or None without a held-out stream."""
    store = args.store.parent / (args.store.name + "-heldout")
    if not (args.streams and (args.streams / "heldout.xz").exists()):
        return None
    rows.unpack(args.streams / "heldout.xz", store)
    loader = rows.Loader(store, args.tokenizer, args.batch, args.time, 2, seed=99, ahead=1)
    batch = loader.next()
    loader.close()
    return batch


def prepare_data(args, rank, world):
    """Starts unpacking and the loaders. Returns (short, long, held-out rows)."""
    if rank == 0 and args.streams:
        for stream in sorted(args.streams.glob("train*.xz")):
            multiprocessing.get_context("spawn").Process(
                target=rows.unpack, args=(stream, args.store), daemon=True).start()
    while not any(".partial" not in p.name for p in args.store.glob("*.npy")):
        time.sleep(0.2)
    ratio = args.long_time // args.time
    common = dict(rank=rank, world=world, seed=args.seed)
    short = rows.Loader(args.store, args.tokenizer, args.batch, args.time, args.workers, **common)
    if args.long_time == args.time:
        return short, short, None
    long = rows.Loader(args.store, args.tokenizer, max(1, args.batch // ratio), args.long_time,
                       args.workers, **common)
    return short, long, held_out_rows(args) if rank == 0 else None


def wait_for_variant(path, patience=100):
    """Installs the delta rule's kernel settings that check.py found sound."""
    import delta_kernel
    began = time.time()
    while not path.exists() and time.time() - began < patience:
        time.sleep(0.5)
    if path.exists():
        time.sleep(0.2)
        chosen = json.loads(path.read_text())
        delta_kernel.install(chosen["variant"])
        print("delta rule settings", chosen, flush=True)
    else:
        print("no verdict on the delta rule's settings: defaults", flush=True)


def setup(args, rank, world):
    """Returns (model, config, trainer, optimiser, gloo group or None) on this rank's device."""
    import tokenizers

    import fast
    import model as models
    import optimise
    if args.variant:
        wait_for_variant(args.variant)
    group = None
    device = torch.device("cuda", rank) if fast.ON_GPU else torch.device("cpu")
    if fast.ON_GPU:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = True
    if world > 1:
        if fast.ON_GPU:
            dist.init_process_group("nccl", device_id=device)
        else:
            dist.init_process_group("gloo")
        group = dist.new_group(backend="gloo")
    tokenizer = tokenizers.Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    vocabulary = -(-tokenizer.get_vocab_size() // 128) * 128
    config = models.make_config(vocabulary, tokenizer.token_to_id("<|endoftext|>"), args.toy)
    model = models.build(config, args.seed)
    if args.init:
        import measure
        measure.load_exported(model, args.init)
    model = model.to(device)
    torch.manual_seed(args.seed * 100 + rank)
    optimiser = optimise.Optimiser(model, args.muon_rate, args.adam_rate,
                                   args.warm_steps, args.decay_from)
    filling = fast.Filling(tokenizer.token_to_id("<|fim_middle|>"),
                           tokenizer.token_to_id("<|endoftext|>"), ANSWER_WEIGHT)
    return model, config, fast.TrainModel(model, filling), optimiser, group


def warm(trainer, args, parameters, device):
    """Compiles the row shapes on random tokens before the clock starts."""
    shapes = {(args.batch, args.time),
              (max(1, args.batch * args.time // args.long_time), args.long_time)}
    for batch, length in sorted(shapes, reverse=True):
        tokens = torch.randint(0, trainer.model.config.vocab_size, (batch, length + 4),
                               device=device)
        train_step(trainer, tokens, 0.0, 3, parameters, 1)
        for p in parameters:
            p.grad = None


def measure_held_out(args, trainer):
    """Whole-file figures of the folder just exported, with the weights still on the GPU."""
    import tokenizers

    import measure
    import pack
    documents = list(pack.read_stream(args.streams / "heldout.xz"))
    tokenizer = tokenizers.Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    measure.measure(trainer, args.out / "model", documents, args.measure, tokenizer,
                    args.out, args.batch * args.time, args.long_time)


def main():
    args = parse()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    args.out.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        data = pool.submit(prepare_data, args, rank, world)
        model, config, trainer, optimiser, group = setup(args, rank, world)
        if rank == 0:
            print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, "
                  f"{world} x {model.device}", flush=True)
        began = time.time()
        warm(trainer, args, optimiser.parameters, model.device)
        print(f"rank {rank}: shapes ready after {time.time() - began:.0f} s", flush=True)
        data = data.result()
    print(f"rank {rank}: data ready after {time.time() - began:.0f} s", flush=True)
    if world > 1:
        dist.barrier()
    if args.until:
        args.seconds = args.until - time.time()
    run(args, rank, world, group, data, model, config, trainer, optimiser)
    if rank == 0 and args.measure:
        measure_held_out(args, trainer)
    if world > 1:
        dist.destroy_process_group()
    os._exit(0)  # daemon threads hold queues of batches; everything is on disk


def run(args, rank, world, group, data, model, config, trainer, optimiser):
    """The loop: until the budget is used, then the final export."""
    short, long, held_out = data
    log = Log(args.out / "log.jsonl", args.seconds)
    share, thread, snapped = 0.0, None, time.time()
    while share < 1.0 and not (args.steps and log.step >= args.steps):
        loader = long if share >= args.long_from else short
        batch = loader.next().to(model.device, non_blocking=True)
        noise = args.noise * max(0.0, 1 - share / NOISE_END_SHARE)
        drafts = 3 if share >= args.chain_from and log.step % CHAIN_EVERY == 0 else 1
        values = train_step(trainer, batch, noise, drafts, optimiser.parameters, world)
        tokens = batch.shape[0] * (batch.shape[1] - 4) * world
        log.add(values, tokens, trainer.use[:len(model.model.layers) + 1])
        scale = optimiser.step(share)
        if log.step % SYNC_STEPS == 0:
            share = agree((time.time() - log.start) / args.seconds, world, group)
            extra = {"scale": round(scale, 4), "share": round(share, 4),
                     "epoch": loader.epoch, "row": batch.shape[1] - 4}
            if rank == 0 and held_out is not None and log.step % 100 == 0:
                extra["held_out"] = held_out_loss(trainer, held_out.to(model.device))
            if rank == 0:
                log.flush(extra)
                if time.time() - snapped > args.snapshot_seconds and share < 0.95:
                    thread = snapshot(model, args.out / "snapshot", config, args.tokenizer)
                    snapped = time.time()
        if world > 1 and log.step % 200 == 0:
            for p in optimiser.parameters:
                dist.broadcast(p.data, 0)
    if rank == 0:
        if thread:
            thread.join()
        snapshot(model, args.out / "model", config, args.tokenizer).join()
        (args.out / "TRAINED").touch()
        torch.save({k: v.to(torch.bfloat16) for k, v in model.state_dict().items()},
                   args.out / "weights_bf16.pt")
        summary = {"tokens": log.tokens, "steps": log.step,
                   "seconds": round(time.time() - log.start, 1), "world": world,
                   "mixed": {"short": short.counts, "long": long.counts},
                   "epochs": short.epoch, "arguments": {k: str(v) for k, v in vars(args).items()}}
        (args.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        print("exported", args.out / "model", flush=True)


def held_out_loss(trainer, batch):
    """Next-token loss on held-out rows, with the training code's own shapes."""
    main, _, _ = trainer.losses(batch, 0.0, 1)
    return round(float(main.detach()), 4)


if __name__ == "__main__":
    main()
