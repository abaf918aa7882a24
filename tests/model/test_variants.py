"""Every variant of the Transformer against a plain second one in float64, and what must hold for each.

Letters: B batch, S source length, T target length, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nmt.model.transformer as transformer_module
from nmt.config import ModelConfig, load_config
from nmt.model.transformer import Transformer
from tests.model import reference

PAD, BOS = 1, 2
WORDS = 23
SMALL = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 24, "heads": 4, "feed_forward": 40}
SEEDS = ("postnorm-shared", "bert-encoder", "prenorm-annotated", "tutorial")

VARIANTS: dict[str, dict[str, Any]] = {
    "pre": {},
    "pre without a final norm": {"final_norm": False},
    "post": {"norm": "post"},
    "post with a final norm": {"norm": "post", "final_norm": True},
    "embedding norm": {"embedding_norm": True},
    "large eps": {"norm_eps": 0.1},
    "gelu": {"activation": "gelu"},
    "gelu by tanh": {"activation": "gelu_tanh"},
    "no biases": {"projection_bias": False},
    "head widths": {"head_width": 5, "value_width": 7},
    "heads that do not divide": {"heads": 5, "head_width": 4, "value_width": 3},
    "odd width": {"d_model": 5, "heads": 1},
    "learned": {"positions": "learned", "max_positions": 16},
    "rotary": {"positions": "rotary"},
    "rotary with narrow heads": {"positions": "rotary", "head_width": 2, "value_width": 9, "norm": "post"},
    "share target": {"share_embeddings": "target"},
    "share all": {"share_embeddings": "all"},
    "scaled logits": {"share_embeddings": "all", "scale": "prj"},
    "no scaling": {"scale": "none"},
    "output bias": {"output_bias": True},
    "deep and shallow": {"encoder_layers": 4, "decoder_layers": 1, "initialisation": "depth_scaled"},
}
for seed in SEEDS:
    settings = load_config(f"seeds/{seed}.yaml").model.model_dump()
    widths = {"head_width": 6, "value_width": 6} if settings["head_width"] else {}
    VARIANTS[seed] = {**settings, **SMALL, **widths}


def build(variant: str, *, dropout: bool = False, dtype: torch.dtype = torch.float32) -> Transformer:
    """A small network of the variant; biases and norms are random too, so that none can be forgotten."""
    rate = 0.2 if dropout else 0.0
    rates = {key: rate for key in ("dropout", "attention_dropout", "activation_dropout", "embedding_dropout")}
    config = ModelConfig(**{**SMALL, "share_embeddings": "none", **VARIANTS[variant], **rates})
    torch.manual_seed(0)
    network = Transformer(config, WORDS, WORDS)
    for name, parameter in network.named_parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=1.0 if "norm.weight" in name else 0.0, std=0.2)
    return network.to(dtype)


def random_batch(seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """src (3,7), src_keep (3,7), tgt_in (3,6) and tgt_keep (3,6), padded behind 7, 4 and 2 sources."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(4, WORDS, (3, 7), generator=generator)
    tgt_in = torch.randint(4, WORDS, (3, 6), generator=generator)
    src_keep = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    tgt_keep = torch.arange(6) < torch.tensor([3, 6, 1])[:, None]
    tgt_in[:, 0] = BOS
    return src.where(src_keep, PAD), src_keep, tgt_in.where(tgt_keep, PAD), tgt_keep


def in_steps(network: Transformer, src: Tensor, src_keep: Tensor, tgt_in: Tensor) -> Tensor:
    """Logits (B,T,V) as cached decoding computes them, one position at a time."""
    memory, past, pieces = network.memory_keys_values(network.encode(src, src_keep)), None, []
    for column in tgt_in.split(1, dim=1):
        states, past = network.advance(column, memory, src_keep, past, len(pieces))
        pieces.append(network.logits(states))
    return torch.cat(pieces, dim=1)


# --- against the equations --------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_equations_in_float64(variant: str) -> None:
    network = build(variant, dtype=torch.float64).eval()
    src, src_keep, tgt_in, tgt_keep = random_batch()
    with torch.no_grad():
        found = network(src, src_keep, tgt_in)
        for row in range(len(src)):
            sources, targets = src[row, src_keep[row]], tgt_in[row, tgt_keep[row]]
            expected = reference.logits(network, sources, targets)
            assert expected.abs().max() > 0.1
            assert (found[row, : len(targets)] - expected).abs().max() < 1e-9


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_those_of_the_equations_in_float64(variant: str) -> None:
    network = build(variant, dtype=torch.float64)
    src, src_keep, tgt_in, tgt_keep = random_batch()
    weights = list(network.parameters())
    found = torch.autograd.grad(network(src, src_keep, tgt_in)[tgt_keep].square().sum(), weights)
    total = sum(
        reference.logits(network, src[row, src_keep[row]], tgt_in[row, tgt_keep[row]]).square().sum()
        for row in range(len(src))
    )
    expected = torch.autograd.grad(total, weights)
    for (name, _), ours, theirs in zip(network.named_parameters(), found, expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-9 * max(1.0, theirs.abs().max().item()), name
        assert ours.abs().max() > 0, f"{name} is not used"


@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_decoding_equals_one_forward(variant: str) -> None:
    network = build(variant, dtype=torch.float64).eval()
    src, src_keep, tgt_in, _ = random_batch()
    with torch.no_grad():
        difference = in_steps(network, src, src_keep, tgt_in) - network(src, src_keep, tgt_in)
    assert difference.abs().max() < 1e-10


# --- causality --------------------------------------------------------------------------------------------


def outputs_with_changes(network: Transformer, run: Any) -> list[Tensor]:
    """For each k the difference (T) that other target inputs from k on make to the outputs of `run`."""
    src, src_keep, tgt_in, _ = random_batch()
    torch.manual_seed(7)
    before = run(network, src, src_keep, tgt_in)
    differences = []
    for k in range(1, tgt_in.size(1)):
        changed = tgt_in.clone()
        changed[:, k:] = (changed[:, k:] + 7) % WORDS
        torch.manual_seed(7)  # dropout falls alike
        differences.append((run(network, src, src_keep, changed) - before).abs().amax((0, 2)))
    return differences


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_output_depends_on_a_later_input_at_all(variant: str) -> None:
    network = build(variant, dropout=True)
    for run in (Transformer.__call__, in_steps):
        for network_in_mode in (network.train(), network.eval()):
            for k, difference in enumerate(outputs_with_changes(network_in_mode, run), start=1):
                assert (difference[:k] == 0.0).all()
                assert (difference[k:] > 0.0).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_the_causal_mask_it_would(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        transformer_module,
        "causal_keep",
        lambda start, end, keys, device: torch.ones(end - start, keys, dtype=torch.bool),
    )
    for difference in outputs_with_changes(build(variant), Transformer.__call__):
        assert (difference > 0.0).all()


# --- padding ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_neither_padding_nor_neighbours_change_a_sentences_logits(
    variant: str, dtype: torch.dtype, tolerance: float
) -> None:
    network = build(variant, dtype=dtype).eval()
    src, src_keep, tgt_in, tgt_keep = random_batch()
    with torch.no_grad():
        together = network(src, src_keep, tgt_in)
        for row in range(len(src)):
            one, sources, targets = slice(row, row + 1), int(src_keep[row].sum()), int(tgt_keep[row].sum())
            alone = network(src[one, :sources], src_keep[one, :sources], tgt_in[one, :targets])
            assert (together[row, :targets] - alone[0]).abs().max() < tolerance * alone.abs().max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_of_padding_alone_gives_finite_logits_and_gradients(variant: str) -> None:
    network = build(variant)
    src, src_keep, tgt_in, _ = random_batch()
    src[1], src_keep[1], tgt_in[1] = PAD, False, PAD
    logits = network(src, src_keep, tgt_in)
    assert logits.isfinite().all()
    logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


# --- attention weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_attention_weights_of_every_layer_and_head_are_distributions_over_what_may_be_seen(
    variant: str,
) -> None:
    network = build(variant, dropout=True).eval()
    src, src_keep, tgt_in, _ = random_batch()
    with torch.no_grad():
        weights = network.attention(src, src_keep, tgt_in)
    heads = network.config.heads
    assert [w.shape for w in weights.encoder_self] == [(3, heads, 7, 7)] * network.config.encoder_layers
    assert [w.shape for w in weights.decoder_self] == [(3, heads, 6, 6)] * network.config.decoder_layers
    assert [w.shape for w in weights.decoder_cross] == [(3, heads, 6, 7)] * network.config.decoder_layers
    for layer in (*weights.encoder_self, *weights.decoder_self, *weights.decoder_cross):
        torch.testing.assert_close(layer.sum(-1), torch.ones(layer.shape[:-1]))
    hidden = ~src_keep[:, None, None, :]
    assert all((w.masked_select(hidden) == 0).all() for w in (*weights.encoder_self, *weights.decoder_cross))
    assert all((w.triu(1) == 0).all() for w in weights.decoder_self)


@pytest.mark.parametrize("variant", VARIANTS)
def test_asking_for_attention_weights_changes_no_output(variant: str) -> None:
    network = build(variant).eval()
    src, src_keep, tgt_in, _ = random_batch()
    with torch.no_grad():
        memory = network.encode(src, src_keep, [])
        torch.testing.assert_close(memory, network.encode(src, src_keep), atol=1e-5, rtol=1e-5)
        keys_values = network.memory_keys_values(memory)
        asked, _ = network.advance(tgt_in, keys_values, src_keep, record=[])
        plain, _ = network.advance(tgt_in, keys_values, src_keep)
    torch.testing.assert_close(asked, plain, atol=1e-5, rtol=1e-5)


# --- positions --------------------------------------------------------------------------------------------


def test_a_learned_table_ends_with_a_clear_error() -> None:
    network = build("learned")
    src = torch.full((1, 17), 5)
    with pytest.raises(ValueError, match="position 17 is asked for, and the learned table ends at 16"):
        network.encode(src, src != PAD)
    assert network.max_positions == 16
    assert build("rotary").max_positions is None


@pytest.mark.parametrize("variant", ["pre", "rotary"])
def test_other_positions_have_no_end(variant: str) -> None:
    network = build(variant).eval()
    src = torch.randint(4, WORDS, (1, 700))
    assert network.encode(src, src != PAD).isfinite().all()


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    attention = build("rotary", dtype=torch.float64).encoder[0].self_attention
    query, key = torch.randn(2, 1, 4, 1, 6, dtype=torch.float64)
    turn = attention.rotary
    scores = [(turn(query, start) * turn(key, start + 3)).sum().item() for start in (0, 1, 50, 400)]
    assert scores == pytest.approx([scores[0]] * 4, abs=1e-5)  # the table is kept in float32
    assert (turn(query, 1) * turn(key, 1)).sum().item() != pytest.approx(scores[0], abs=1e-3)


# --- initial weights --------------------------------------------------------------------------------------


def test_matrices_start_xavier_uniform_and_biases_at_zero() -> None:
    torch.manual_seed(0)
    network = Transformer(ModelConfig(d_model=64, heads=4, value_width=32, feed_forward=96), 500, 500)
    attention, part = network.encoder[0].self_attention, network.encoder[0].feed_forward
    in_attention = attention.query.weight, attention.key_value.weight, attention.output.weight
    for matrix in (
        *in_attention,
        part.expand.weight,
        part.contract.weight,
        network.encoder[1].feed_forward.expand.weight,
    ):
        bound = (6 / sum(matrix.shape)) ** 0.5
        assert 0.97 * bound < matrix.abs().max() <= bound
    assert all((p == 0).all() for name, p in network.named_parameters() if name.endswith("bias"))
    assert network.tgt_embedding.tokens.weight.std().item() == pytest.approx(64**-0.5, rel=0.02)


def test_xavier_all_includes_embeddings_and_learned_positions_and_draws_keys_and_values_apart() -> None:
    torch.manual_seed(0)
    settings = {"initialisation": "xavier_all", "positions": "learned", "max_positions": 100}
    network = Transformer(ModelConfig(d_model=64, heads=4, value_width=32, **settings), 500, 500)
    attention = network.encoder[0].self_attention
    key, value = attention.key_value.weight.split(attention.widths)
    for table in (network.src_embedding.tokens.weight, network.src_embedding.positions.table, key, value):
        bound = (6 / sum(table.shape)) ** 0.5
        assert 0.97 * bound < table.abs().max() <= bound


def test_depth_scaled_matrices_shrink_with_the_root_of_their_depth() -> None:
    def network(initialisation: str) -> Transformer:
        torch.manual_seed(0)
        return Transformer(ModelConfig(d_model=32, heads=4, initialisation=initialisation), 50, 50)

    plain, scaled = network("xavier"), network("depth_scaled")
    for name, weight in scaled.named_parameters():
        stack, _, rest = name.partition(".")
        in_stack = stack in ("encoder", "decoder") and weight.dim() == 2
        depth = int(rest.split(".")[0]) + 1 if in_stack else 1
        torch.testing.assert_close(weight * depth**0.5, plain.get_parameter(name))


# --- norms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "final_norm", "there"),
    [
        ("pre", None, True),
        ("pre", True, True),
        ("pre", False, False),
        ("post", None, False),
        ("post", True, True),
        ("post", False, False),
    ],
)
def test_a_final_norm_is_there_with_norm_first_unless_it_is_said_otherwise(
    norm: Any, final_norm: bool | None, there: bool
) -> None:
    network = Transformer(ModelConfig(d_model=8, heads=2, norm=norm, final_norm=final_norm), 9, 9)
    for module in (network.encoder_norm, network.decoder_norm):
        assert isinstance(module, nn.LayerNorm) == there


# --- parameters -------------------------------------------------------------------------------------------


def numbers(seed: str, src_words: int, tgt_words: int) -> dict[str, int]:
    """How many parameters the parts of a seed's network have, each shared one counted once."""
    with torch.device("meta"):
        network = Transformer(load_config(f"seeds/{seed}.yaml").model, src_words, tgt_words)

    def count(*modules: nn.Module) -> int:
        return sum(p.numel() for p in {p for module in modules for p in module.parameters()})

    return {
        "encoder": count(network.encoder, network.encoder_norm),
        "decoder": count(network.decoder, network.decoder_norm),
        "total": count(network),
    }


def test_the_annotated_decoder_has_25_225_216_parameters() -> None:
    assert numbers("prenorm-annotated", 50, 40)["decoder"] == 25_225_216


def test_the_encoder_in_the_style_of_bert_has_85_054_464_parameters() -> None:
    assert numbers("bert-encoder", 50, 50)["encoder"] == 85_054_464


def test_the_shared_post_norm_transformer_has_49_263_104_parameters() -> None:
    # d_model 512, 8 heads with d_k = d_v = 64, feed-forward 2048, 6 + 6 layers, 10,077 words.
    # attention:     4 * 512 * (8 * 64)                         = 1,048,576, no biases
    # feed-forward:  512 * 2048 + 2048 + 2048 * 512 + 512       = 2,099,712
    # layer norm:    2 * 512                                    =     1,024
    # encoder layer: 1,048,576 + 2,099,712 + 2 * 1,024          = 3,150,336, six of them 18,902,016
    # decoder layer: 2 * 1,048,576 + 2,099,712 + 3 * 1,024      = 4,199,936, six of them 25,199,616
    # one embedding for source, target and output: 10,077 * 512 = 5,159,424
    # a layer norm behind each side's embedding: 2 * 1,024      =     2,048
    found = numbers("postnorm-shared", 10_077, 10_077)
    assert found == {"encoder": 18_902_016, "decoder": 25_199_616, "total": 49_263_104}
