#!/usr/bin/env python3
"""Hugging Face's Trainer on text, a GPT from a configuration; with --lora only adapters of it.

    gossipd run --job text.toml -- python huggingface.py [--lora]
    gossipd run --join gossip1... -- python huggingface.py [--lora]

Needs: pip install torch transformers accelerate peft. What gossipd needs is the callback.
"""

import argparse
import json

import torch
from texts import Texts
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gossipd.integrations.huggingface import GossipdCallback  # +


def model_of(lora):
    torch.manual_seed(1)  # all boxes must have the same frozen weights
    config = GPT2Config(
        vocab_size=256,
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    if not lora:
        return model
    import peft

    config = peft.LoraConfig(r=8, target_modules=["c_attn", "c_proj", "lm_head"])
    return peft.get_peft_model(model, config)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lora", action="store_true", help="train and share adapters only")
    parser.add_argument("--seed", type=int, default=1, help="of this box's order of texts")
    given = parser.parse_args()
    arguments = TrainingArguments(
        output_dir="huggingface-out",
        per_device_train_batch_size=16,
        num_train_epochs=1000,  # the cluster's budget ends it
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=given.seed,
    )
    trainer = Trainer(
        model=model_of(given.lora),
        args=arguments,
        train_dataset=Texts(),
        eval_dataset=Texts(held_out=True),
        callbacks=[GossipdCallback()],  # +
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    shared = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    print(
        json.dumps(
            {
                "loss": round(loss, 4),
                "loss_before": round(before, 4),
                "steps": trainer.state.global_step,
                "shared": shared,
            }
        )
    )


if __name__ == "__main__":
    main()
