"""Writes `expected.json`, the embeddings that PyTorch computes, beside this script.

    python3 host/examples/minilm.py target/minilm
    python3 host/data/minilm/expected.py target/minilm

It needs torch and transformers. The model runs in f32 on the CPU, a sentence at a time, so without padding.
"""

import json
import sys
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import load_file

SENTENCES = [
    "Sunshine",
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping by the sunny window.",
    "Déjà vu at the Café Zürich: isn't a naïve résumé worth 3.50 € – or 漢字?! 🦀",
    "",
    "Before the train to the coast left the station, she bought two newspapers, a bag of roasted almonds and a postcard of the old lighthouse, "
    "wrote a few uncertain lines to her brother, crossed out half of them, and finally decided that the letter could wait until the weather, and "
    "with it her mood, had improved.",
]


def main():
    folder = Path(sys.argv[1])
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=256)
    config = transformers.BertConfig(
        hidden_size=384,
        intermediate_size=1536,
        num_attention_heads=12,
        num_hidden_layers=6,
        hidden_act="gelu",
        layer_norm_eps=1e-12,
        max_position_embeddings=512,
        vocab_size=30522,
    )
    model = transformers.BertModel(config).eval()
    weights = load_file(folder / "model.safetensors")
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not missing and set(unexpected) <= {"embeddings.position_ids"}, (missing, unexpected)

    lines = []
    for sentence in SENTENCES:
        ids = torch.tensor([tokenizer.encode(sentence).ids])
        with torch.no_grad():
            hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        embedding = torch.nn.functional.normalize(hidden.mean(dim=1), dim=1)[0]
        # Nine digits are enough for each f32 to be read back as it was.
        numbers = ", ".join(f"{number:.9g}" for number in embedding.tolist())
        text = json.dumps(sentence, ensure_ascii=False)
        lines.append(f'    {{ "text": {text}, "tokens": {ids.shape[1]}, "embedding": [{numbers}] }}')
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, tokenizers {tokenizers.__version__}"
    file = Path(__file__).with_name("expected.json")
    sentences = ",\n".join(lines)
    file.write_text(f'{{\n  "computed_by": "{versions}",\n  "sentences": [\n{sentences}\n  ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
