"""Measure this machine: target tokens a second in training, sentences a second in decoding, share of padding.

Runs on prepared data (made first where it is missing) and keeps nothing. Figures of two machines, or of two
moments of a busy one, are not comparable; ratios within one run are.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from nmt.config import Config, load_config
from nmt.data.batching import make_batch, plan_batches, token_share
from nmt.data.dataset import PreparedData
from nmt.data.vocabulary import PAD
from nmt.decoding.search import translate_ids
from nmt.model.transformer import Transformer
from nmt.prepare import open_or_prepare
from nmt.runtime import device_line, seed_everything, select_device, select_precision
from nmt.training.loss import projection_loss
from nmt.training.optimizer import make_optimizer


def training_speed(config: Config, data: PreparedData, device: torch.device, steps: int) -> float:
    """Median target tokens a second over `steps` optimizer steps, the first ten of which do not count."""
    split = data.split(data.train)
    network = Transformer(config.model, len(data.src_vocabulary), len(data.tgt_vocabulary)).to(device)
    optimizer = make_optimizer(network, config.train)
    precision = select_precision(config.precision, device, training=True)
    speeds = []
    for rows in plan_batches(split, config.train.batch_tokens, seed=1, epoch=0)[: steps + 10]:
        begun = time.perf_counter()
        batch = make_batch(split, rows).to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=precision, enabled=precision != torch.float32):
            states = network.decode(batch.tgt_in, network.encode(batch.src, batch.src_keep), batch.src_keep)
            real = batch.tgt_out != PAD
            loss, _ = projection_loss(states[real], network.projection.weight, batch.tgt_out[real], 0.1)
        (loss / batch.num_tokens).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0).item()
        optimizer.step()
        speeds.append(batch.num_tokens / (time.perf_counter() - begun))
    return statistics.median(speeds[10:])


def decoding_speed(config: Config, data: PreparedData, device: torch.device) -> float:
    """Sentences a second of greedy search over the validation split, with an untrained network."""
    split = data.split(data.val)
    network = Transformer(config.model, len(data.src_vocabulary), len(data.tgt_vocabulary)).to(device)
    sentences = [split.src[row].tolist() for row in range(len(split))]
    begun = time.perf_counter()
    translate_ids(network, sentences, config.decode.model_copy(update={"beam": 1}), device=device)
    return len(sentences) / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="captions.yaml")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--set", "-s", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    config, data = open_or_prepare(load_config(arguments.config, overrides=arguments.set))
    seed_everything(config.seed)
    device = select_device(config.device)
    print(f"device: {device_line(device, select_precision(config.precision, device, training=True))}")
    split = data.split(data.train)
    plan = plan_batches(split, config.train.batch_tokens, seed=config.seed, epoch=0)
    print(f"batches: {len(plan)} an epoch, {token_share(split, plan):.1%} of their positions are tokens")
    print(f"training: {training_speed(config, data, device, arguments.steps):,.0f} target tokens/s")
    speed = decoding_speed(config, data, device)
    print(f"greedy decoding: {speed:,.0f} sentences/s, each to its length limit (the network is untrained)")


if __name__ == "__main__":
    main()
