"""A training service around the Trainer of Hugging Face, and the model that it trains."""

from __future__ import annotations

import os
from pathlib import Path

import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def tiny(width: int = 16) -> GPT2LMHeadModel:
    """Tied embeddings and dropout."""
    config = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=width, n_layer=1, n_head=2,
        resid_pdrop=0.3, embd_pdrop=0.2, attn_pdrop=0.2, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def finetune(model: GPT2LMHeadModel, data: Path, *, steps: int, seed: int = 3) -> None:
    """Reads lines of letters; shuffles, accumulates gradients, warms up."""
    rows = [torch.tensor([ord(c) - 97 for c in line]) for line in data.read_text().split()]
    args = TrainingArguments(
        "out", max_steps=steps, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        learning_rate=0.01, lr_scheduler_type="cosine", warmup_steps=1, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True, seed=seed,
    )  # fmt: skip
    train = [{"input_ids": row, "labels": row} for row in rows]
    Trainer(model, args, train_dataset=train).train()
