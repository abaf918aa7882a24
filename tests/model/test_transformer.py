"""The Transformer against torch's own with the same weights, and the properties that training relies on.

Letters: B batch, S source length, T target length, V vocabulary.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.model.attention import MultiHeadAttention
from nmt.model.dropout import Dropout, dropout
from nmt.model.layers import Embedding, Residual
from nmt.model.positions import SinusoidalPositions, sinusoids
from nmt.model.transformer import Transformer

PAD, BOS, EOS = 1, 2, 3
SRC_WORDS, TGT_WORDS = 23, 19


def build(*, src_size: int = SRC_WORDS, tgt_size: int = TGT_WORDS, **settings: Any) -> Transformer:
    """A small network; its biases and norms are random too, so that none can be left out unnoticed."""
    shape = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 24, "heads": 4, "feed_forward": 40}
    config = ModelConfig(**{**shape, "dropout": 0.0, "share_embeddings": "none", **settings})
    torch.manual_seed(0)
    network = Transformer(config, src_size, tgt_size)
    for name, parameter in network.named_parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=1.0 if "norm.weight" in name else 0.0, std=0.2)
    return network


def random_batch(seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """src (3,7), src_keep (3,7), tgt_in (3,6) and tgt_keep (3,6), padded behind 7, 4 and 2 sources."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(4, SRC_WORDS, (3, 7), generator=generator)
    tgt_in = torch.randint(4, TGT_WORDS, (3, 6), generator=generator)
    src_keep = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    tgt_keep = torch.arange(6) < torch.tensor([3, 6, 1])[:, None]
    tgt_in[:, 0] = BOS
    return src.where(src_keep, PAD), src_keep, tgt_in.where(tgt_keep, PAD), tgt_keep


# --- against torch.nn.Transformer -------------------------------------------------------------------------


Pairs = list[tuple[Tensor, list[Tensor]]]
"""Each of torch's parameters with those of ours that it is put together from, row upon row."""


def attention_pairs(ours: Any, theirs: Any) -> Pairs:
    return [
        (theirs.in_proj_weight, [ours.query.weight, ours.key_value.weight]),
        (theirs.in_proj_bias, [ours.query.bias, ours.key_value.bias]),
        *linear_pairs(ours.output, theirs.out_proj),
    ]


def linear_pairs(ours: Any, theirs: Any) -> Pairs:
    return [(theirs.weight, [ours.weight]), (theirs.bias, [ours.bias])]


def layer_pairs(ours: Any, theirs: Any) -> Pairs:
    pairs = attention_pairs(ours.self_attention, theirs.self_attn)
    if hasattr(ours, "cross_attention"):
        pairs += attention_pairs(ours.cross_attention, theirs.multihead_attn)
    pairs += linear_pairs(ours.feed_forward.expand, theirs.linear1)
    pairs += linear_pairs(ours.feed_forward.contract, theirs.linear2)
    residuals = [module for module in ours.children() if isinstance(module, Residual)]
    for number, residual in enumerate(residuals, start=1):
        pairs += linear_pairs(residual.norm, getattr(theirs, f"norm{number}"))
    return pairs


def torch_stacks(network: Transformer) -> tuple[nn.Transformer, Pairs]:
    """torch's encoder and decoder with the network's weights, and which belong together."""
    config = network.config
    theirs = nn.Transformer(
        config.d_model, config.heads, config.encoder_layers, config.decoder_layers, config.feed_forward,
        dropout=0.0, activation=config.activation, batch_first=True, norm_first=config.norm == "pre",
    )  # fmt: skip
    stacks: Any = ((theirs.encoder, network.encoder), (theirs.decoder, network.decoder))
    pairs = [
        pair
        for their_stack, our_stack in stacks
        for theirs_layer, ours_layer in zip(their_stack.layers, our_stack, strict=True)
        for pair in layer_pairs(ours_layer, theirs_layer)
    ]
    if config.has_final_norm:
        pairs += linear_pairs(network.encoder_norm, theirs.encoder.norm)
        pairs += linear_pairs(network.decoder_norm, theirs.decoder.norm)
    else:  # torch always adds a norm at the end of a stack; section 3.1 has none there
        theirs.encoder.norm = theirs.decoder.norm = None
    with torch.no_grad():
        for their_parameter, ours in pairs:
            their_parameter.copy_(torch.cat(ours))
    return theirs, pairs


def paper_position(position: int, column: int, d_model: int) -> float:
    """PE(position, column), section 3.5."""
    angle = position / 10_000 ** (column // 2 * 2 / d_model)
    return math.cos(angle) if column % 2 else math.sin(angle)


def paper_positions(length: int, d_model: int) -> Tensor:
    return torch.tensor([[paper_position(p, c, d_model) for c in range(d_model)] for p in range(length)])


def paper_embedding(weight: Tensor, ids: Tensor) -> Tensor:
    """Sections 3.4 and 3.5: the scaled rows plus their positions."""
    d_model = weight.size(1)
    return weight[ids] * d_model**0.5 + paper_positions(ids.size(1), d_model)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch's own module speaks of itself
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize(("norm", "final_norm"), [("pre", True), ("post", False), ("post", True)])
def test_outputs_and_gradients_equal_those_of_torch_with_the_same_weights(
    norm: str, final_norm: bool, activation: str
) -> None:
    network = build(norm=norm, final_norm=final_norm, activation=activation)
    theirs, pairs = torch_stacks(network)
    src, src_keep, tgt_in, tgt_keep = random_batch()

    found = network.decode(tgt_in, network.encode(src, src_keep), src_keep)
    expected = theirs(
        paper_embedding(network.src_embedding.tokens.weight, src),
        paper_embedding(network.tgt_embedding.tokens.weight, tgt_in),
        tgt_mask=~torch.ones(6, 6, dtype=torch.bool).tril(),
        src_key_padding_mask=~src_keep,
        tgt_key_padding_mask=~tgt_keep,
        memory_key_padding_mask=~src_keep,
    )
    assert (found - expected)[tgt_keep].abs().max() < 1e-5

    weights = (network.src_embedding.tokens.weight, network.tgt_embedding.tokens.weight)
    inner = [parameter for _, ours in pairs for parameter in ours]
    towards = torch.randn(found.shape)[tgt_keep]  # a direction; without one a last norm hides most of them
    our_gradients = torch.autograd.grad((found[tgt_keep] * towards).sum(), (*weights, *inner))
    their_gradients = torch.autograd.grad(
        (expected[tgt_keep] * towards).sum(), (*weights, *(parameter for parameter, _ in pairs))
    )
    parts = iter(our_gradients[2:])
    joined = [*our_gradients[:2], *(torch.cat([next(parts) for _ in ours]) for _, ours in pairs)]
    for ours, theirs_gradient in zip(joined, their_gradients, strict=True):
        assert (ours - theirs_gradient).abs().max() < 1e-4


def test_the_weights_are_all_used() -> None:
    network = build()
    src, src_keep, tgt_in, _ = random_batch()
    network(src, src_keep, tgt_in).square().mean().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


# --- masks ------------------------------------------------------------------------------------------------


def test_a_target_token_does_not_change_any_logit_before_it() -> None:
    network = build()
    src, src_keep, tgt_in, _ = random_batch()
    before = network(src, src_keep, tgt_in)
    for k in range(1, tgt_in.size(1)):
        changed = tgt_in.clone()
        changed[:, k] = (changed[:, k] + 7) % TGT_WORDS
        difference = (network(src, src_keep, changed) - before).abs()
        assert difference[:, :k].max() == 0.0
        assert (difference[:, k].amax(-1) > 0.0).all()


def test_padding_columns_and_neighbours_do_not_change_the_logits() -> None:
    network = build().eval()
    src, src_keep, tgt_in, tgt_keep = random_batch()
    together = network(src, src_keep, tgt_in)
    for row in range(3):
        sources, targets = int(src_keep[row].sum()), int(tgt_keep[row].sum())
        one = slice(row, row + 1)
        alone = network(src[one, :sources], src_keep[one, :sources], tgt_in[one, :targets])
        scale = alone.abs().max()
        assert (together[row, :targets] - alone[0]).abs().max() < 1e-5 * scale


def test_what_stands_in_padded_positions_does_not_matter() -> None:
    network = build()
    src, src_keep, tgt_in, _ = random_batch()
    other = src.where(src_keep, 9)
    assert torch.equal(network(src, src_keep, tgt_in), network(other, src_keep, tgt_in))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_sentence_of_nothing_but_padding_gives_finite_logits_and_gradients(norm: str) -> None:
    network = build(norm=norm)
    src, src_keep, tgt_in, _ = random_batch()
    src[1], src_keep[1] = PAD, False
    logits = network(src, src_keep, tgt_in)
    assert logits.isfinite().all()
    logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_a_wholly_padded_last_column_changes_nothing_and_warns_of_nothing() -> None:
    network = build(dropout=0.1).eval()
    src, src_keep, tgt_in, _ = random_batch()
    wider = torch.cat((src, torch.full((3, 1), PAD)), dim=1)
    wider_keep = torch.cat((src_keep, torch.zeros(3, 1, dtype=torch.bool)), dim=1)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error")
        assert network.encode(wider, wider_keep).shape == (3, 8, 24)
        torch.testing.assert_close(
            network(wider, wider_keep, tgt_in), network(src, src_keep, tgt_in), atol=1e-5, rtol=1e-5
        )


# --- advance ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("chunks", [(1, 1, 1, 1, 1, 1), (2, 3, 1), (5, 1)])
def test_advancing_in_pieces_equals_one_forward(norm: str, chunks: tuple[int, ...]) -> None:
    network = build(norm=norm).eval()
    src, src_keep, tgt_in, _ = random_batch()
    memory = network.memory_keys_values(network.encode(src, src_keep))
    past, start, pieces = None, 0, []
    for piece in tgt_in.split(chunks, dim=1):
        states, past = network.advance(piece, memory, src_keep, past, start)
        start += piece.size(1)
        pieces.append(network.logits(states))
    whole = network(src, src_keep, tgt_in)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-5, rtol=1e-5)


# --- train and eval mode ----------------------------------------------------------------------------------


def test_without_dropout_train_and_eval_mode_give_the_same_logits() -> None:
    network = build()
    src, src_keep, tgt_in, _ = random_batch()
    assert torch.equal(network.train()(src, src_keep, tgt_in), network.eval()(src, src_keep, tgt_in))


@pytest.mark.parametrize("setting", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_is_active_while_training_and_only_then(setting: str) -> None:
    network, without = build(**{setting: 0.3}), build()
    src, src_keep, tgt_in, _ = random_batch()
    network.eval()
    assert torch.equal(network(src, src_keep, tgt_in), without(src, src_keep, tgt_in))
    network.train()
    first, second = network(src, src_keep, tgt_in), network(src, src_keep, tgt_in)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    first = network(src, src_keep, tgt_in)
    torch.manual_seed(5)
    assert torch.equal(network(src, src_keep, tgt_in), first)


def test_every_part_gets_its_own_of_the_four_rates() -> None:
    rates_by_part = {"dropout": 0.125, "attention_dropout": 0.25, "activation_dropout": 0.375}
    network = build(**rates_by_part, embedding_dropout=0.5)
    assert [network.src_embedding.dropout.probability, network.tgt_embedding.dropout.probability] == [0.5] * 2
    network = build(**rates_by_part)  # embeddings then get the first
    layers = [*network.encoder, *network.decoder]
    assert {m.drop for m in network.modules() if isinstance(m, MultiHeadAttention)} == {0.25}
    assert {layer.feed_forward.drop for layer in layers} == {0.375}
    rates = [m.probability for m in network.modules() if isinstance(m, Dropout)]
    assert set(rates) == {0.125}
    assert len(rates) == 2 + sum(isinstance(m, Residual) for m in network.modules())


# --- dropout ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0.1, 0.25, 0.5, 0.9])
def test_dropout_zeroes_at_its_rate_and_keeps_the_expected_value(probability: float) -> None:
    torch.manual_seed(0)
    count = 400_000
    result = dropout(torch.ones(count), probability)
    zeros = (result == 0.0).float().mean().item()
    # half a step of rounding, and five standard deviations of the mean
    assert zeros == pytest.approx(probability, abs=0.5 / 256 + 5 * math.sqrt(probability / count))
    deviation = math.sqrt(probability / (1 - probability) / count)
    assert result.mean().item() == pytest.approx(1.0, abs=5 * deviation)


def test_dropout_gives_exactly_zero_or_exactly_the_scaled_value() -> None:
    torch.manual_seed(0)
    states = torch.randn(31, 17)
    result = dropout(states, 0.25)
    assert torch.equal(result[result != 0], (states * (256 / 192))[result != 0])
    assert 0 < (result == 0).sum() < states.numel()


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 8), (0, 4)])
def test_dropout_takes_every_shape(shape: tuple[int, ...]) -> None:
    assert dropout(torch.ones(shape), 0.5).shape == shape


def test_dropout_works_on_views_that_are_not_contiguous() -> None:
    torch.manual_seed(0)
    states = torch.randn(40, 30)
    result = dropout(states.T, 0.5)
    assert torch.equal(result[result != 0], 2 * states.T[result != 0])


def test_dropout_is_repeatable_under_a_seed_and_fresh_without() -> None:
    states = torch.ones(1000)
    torch.manual_seed(3)
    first, second = dropout(states, 0.3), dropout(states, 0.3)
    torch.manual_seed(3)
    assert torch.equal(dropout(states, 0.3), first)
    assert not torch.equal(first, second)


def test_dropout_of_nothing_is_the_same_tensor() -> None:
    states = torch.randn(5)
    assert dropout(states, 0.0) is states


def test_neighbouring_elements_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = dropout(torch.ones(64_000, 16), 0.5) != 0  # (rows, 16), two words of random bytes a row
    correlation = torch.corrcoef(kept.float().T) - torch.eye(16)
    assert correlation.abs().max() < 0.025


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dropout_keeps_the_type_and_its_gradient_is_what_was_multiplied(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    states = torch.full((500,), 2.0, dtype=dtype, requires_grad=True)
    result = dropout(states, 0.5)
    assert result.dtype == dtype
    result.sum().backward()
    assert states.grad is not None
    assert torch.equal(states.grad * 2.0, result.detach())


# --- parameters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("share", ["none", "target", "all"])
def test_the_number_of_parameters_follows_the_formula(norm: str, share: str) -> None:
    width, inner, encoders, decoders, size = 24, 40, 2, 3, 19
    network = build(norm=norm, share_embeddings=share, src_size=size, tgt_size=size)
    attention = 4 * (width * width + width)
    feed_forward = 2 * width * inner + inner + width
    layer_norm = 2 * width
    expected = (
        encoders * (attention + feed_forward + 2 * layer_norm)
        + decoders * (2 * attention + feed_forward + 3 * layer_norm)
        + {"none": 3, "target": 2, "all": 1}[share] * size * width
        + (2 * layer_norm if norm == "pre" else 0)
    )
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


def test_embeddings_are_one_tensor_where_they_are_shared() -> None:
    for share, target, source in (("none", False, False), ("target", True, False), ("all", True, True)):
        network = build(share_embeddings=share, src_size=TGT_WORDS)
        shared = network.tgt_embedding.tokens.weight
        assert (network.projection.weight is shared) == target, share
        assert (network.src_embedding.tokens.weight is shared) == source, share


def test_one_embedding_for_two_vocabularies_of_different_size_is_refused() -> None:
    with pytest.raises(ValueError, match="23 and 19"):
        build(share_embeddings="all")


def test_the_state_of_a_network_is_its_parameters_alone() -> None:
    network = build(share_embeddings="all", src_size=TGT_WORDS)
    names = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    assert set(network.state_dict()) == names
    assert next(iter(dict(network.named_parameters()))) == "tgt_embedding.tokens.weight"


def test_initial_states_and_logits_are_of_moderate_size() -> None:
    torch.manual_seed(0)
    network = Transformer(ModelConfig(d_model=128, heads=4, feed_forward=256), 500, 500)
    ids = torch.randint(4, 500, (8, 12))
    tokens = network.src_embedding.tokens(ids) * math.sqrt(128)
    assert tokens.std().item() == pytest.approx(1.0, abs=0.05)
    logits = network(ids, torch.ones_like(ids, dtype=torch.bool), ids)
    assert 0.3 < logits.std().item() < 3.0


# --- positions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", [2, 6, 24])
def test_positions_are_those_of_the_paper(d_model: int) -> None:
    table = sinusoids(300, d_model)
    torch.testing.assert_close(table, paper_positions(300, d_model), atol=1e-6, rtol=0)


def test_the_table_of_positions_grows_with_the_input() -> None:
    positions = SinusoidalPositions(6, length=4)
    states = torch.zeros(2, 50, 6)
    assert torch.equal(positions(states), sinusoids(50, 6).expand(2, 50, 6))
    assert torch.equal(positions(states[:, :3], start=700), sinusoids(703, 6)[700:].expand(2, 3, 6))
    assert torch.equal(positions(states), sinusoids(50, 6).expand(2, 50, 6))


def test_a_table_that_grew_while_decoding_serves_training_again() -> None:
    embedding = Embedding(9, ModelConfig(d_model=6, heads=1, dropout=0.0))
    ids = torch.zeros(1, 400, dtype=torch.int64)
    with torch.inference_mode():
        embedding(ids)
    embedding(ids).sum().backward()
    embedding.positions.table.mul_(1.0)  # as a broadcast between devices would write into it


def test_the_table_keeps_the_type_of_the_network() -> None:
    positions = SinusoidalPositions(6, length=4).to(torch.float64)
    assert positions(torch.zeros(1, 9, 6, dtype=torch.float64)).dtype == torch.float64
    assert positions.table.dtype == torch.float64
