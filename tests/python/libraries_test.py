"""The callbacks with the real libraries, tiny models from a configuration, and nothing downloaded.

Runs where they are installed: tests/run.sh --only python.
"""

import math
import os
import types

import numpy as np
import pytest

from fake_daemon import ADD, COPY, FINISHED, REPLACE, SETTLED, FakeDaemon

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    made = FakeDaemon(tmp_path / "trainer.sock")
    monkeypatch.setenv("GOSSIPD_SOCKET", made.path)
    yield made
    made.stop()


def tiny_gpt():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def texts(count=64):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 32, (count, 8), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


def huggingface_trainer(tmp_path, model, **options):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from gossipd.integrations.huggingface import GossipdCallback

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    callback = GossipdCallback()
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=texts(),
        eval_dataset=texts(8),
        callbacks=[callback],
    )
    return trainer, callback


def test_huggingface_counts_optimiser_steps_and_reports(daemon, tmp_path):
    trainer, callback = huggingface_trainer(
        tmp_path, tiny_gpt(), max_steps=3, eval_strategy="steps"
    )
    daemon.answers = [{"flags": COPY}]
    trainer.train()
    daemon.wait(lambda: daemon.of_type(6))
    assert daemon.steps[-1][:2] == (3, 24) and callback.attachment is None
    assert 0 < daemon.steps[-1][2] < 10
    assert len(daemon.of_type(5)) == 3  # an evaluation with each line of its log


def test_huggingface_ends_with_the_clusters_budget_and_its_model(daemon, tmp_path):
    model = tiny_gpt()
    trainer, _ = huggingface_trainer(tmp_path, model, max_steps=1000)
    floats = sum(p.numel() for p in model.parameters())
    final = np.full(floats, 0.5, np.float32)
    last = {"flags": REPLACE | FINISHED | SETTLED, "ranges": [(0, floats)], "update": final}
    daemon.answers = [{}, {}, {"flags": FINISHED}, last]
    trainer.train()
    assert 2 <= trainer.state.global_step < 1000
    assert all((p == 0.5).all() for p in model.parameters())


def final_model(floats):
    """What a daemon whose job has ended says first."""
    final = np.full(floats, 0.5, np.float32)
    flags = REPLACE | FINISHED | SETTLED
    first = {"flags": flags, "ranges": [(0, floats)], "update": final}
    return [first, {"flags": FINISHED | SETTLED}]


def test_huggingface_leaves_the_final_model_of_an_ended_job_as_it_is(daemon, tmp_path):
    model = tiny_gpt()
    trainer, _ = huggingface_trainer(tmp_path, model, max_steps=1000)
    daemon.answers = final_model(sum(p.numel() for p in model.parameters()))
    trainer.train()
    assert trainer.state.global_step == 1 and daemon.steps[-1][0] == 0
    assert all((p == 0.5).all() for p in model.parameters())


def test_huggingface_trains_again_after_a_failure_with_the_same_callback(daemon, tmp_path):
    trainer, callback = huggingface_trainer(tmp_path, tiny_gpt(), max_steps=3)
    collate = trainer.data_collator
    trainer.data_collator = lambda rows: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    trainer.data_collator = collate
    trainer.train()
    daemon.wait(lambda: len(daemon.of_type(6)) == 2)
    assert len(set(daemon.runs)) == 2 and daemon.steps[-1][:2] == (3, 24)


def test_huggingface_is_told_of_a_step_without_samples(daemon):
    pytest.importorskip("transformers")
    from gossipd.integrations.huggingface import GossipdCallback

    model = tiny_gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    arguments = types.SimpleNamespace(deepspeed=None, fsdp=None)
    with pytest.raises(ValueError, match="samples_per_step is 0"):
        GossipdCallback(0).on_train_begin(arguments, None, None, model, optimizer)


def test_huggingface_is_told_to_load_no_older_model_at_the_end(daemon, tmp_path):
    trainer, callback = huggingface_trainer(tmp_path, tiny_gpt(), max_steps=1)
    trainer.args.load_best_model_at_end = True
    with pytest.raises(ValueError, match="load_best_model_at_end.*leave it off"):
        trainer.train()
    assert callback.attachment is None and not daemon.heard


def test_huggingface_goes_on_training_with_an_evaluation_that_is_none(daemon, tmp_path, caplog):
    trainer, _ = huggingface_trainer(tmp_path, tiny_gpt(), max_steps=2, eval_strategy="steps")
    figures = [{"accuracy": 87.5}, {"accuracy": {"accuracy": 0.5}}]
    trainer.compute_metrics = lambda _: figures.pop(0)
    trainer.train()
    assert trainer.state.global_step == 2 and len(daemon.of_type(5)) == 2
    assert len([r for r in caplog.records if "is not published" in r.message]) == 2


def test_a_lora_is_all_that_is_shared(daemon, tmp_path):
    peft = pytest.importorskip("peft")
    base = tiny_gpt().to(torch.bfloat16)
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["c_attn"]))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    trainer, _ = huggingface_trainer(tmp_path, model, max_steps=2)
    floats = 2 * (2 * 16 + 2 * 48)  # of A and B in two layers
    daemon.answers = [{}, {"flags": ADD, "ranges": [(0, 1)], "update": np.ones(floats)}]
    trainer.train()
    assert {"lora_A" in name or "lora_B" in name for name, _, _ in daemon.segments} == {True}
    assert sum(int(np.prod(shape)) for _, shape, _ in daemon.segments) == floats
    assert daemon.steps[-1][0] == 2


def lightning_module(L):
    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch, _):
            return self.layer(batch[0]).pow(2).mean()

        def validation_step(self, batch, _):
            self.log("val_loss", self.layer(batch[0]).pow(2).mean())
            self.log("val_acc", 0.5)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 0.01)

    return Module()


def lightning_fit(tmp_path, module, **options):
    L = pytest.importorskip("lightning")
    from gossipd.integrations.lightning import GossipdCallback

    callback = GossipdCallback(samples_per_step=8)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
        callbacks=[callback],
        **options,
    )
    trainer.fit(module, loader, loader)
    assert callback.attachment is None
    return trainer


def test_lightning_counts_optimiser_steps_and_reports(daemon, tmp_path):
    L = pytest.importorskip("lightning")
    lightning_fit(tmp_path, lightning_module(L), max_epochs=1, accumulate_grad_batches=2)
    daemon.wait(lambda: daemon.of_type(6))
    assert daemon.steps[-1][:2] == (8, 64) and np.isfinite(daemon.steps[-1][2])
    assert len(daemon.of_type(5)) == 1


@pytest.mark.parametrize("automatic", [True, False])
def test_lightnings_loss_is_that_of_a_micro_batch_however_many_make_a_step(
    daemon, tmp_path, automatic
):
    L = pytest.importorskip("lightning")
    module = lightning_module(L)
    plain, optimizer = module.training_step, module.configure_optimizers()
    module.configure_optimizers = lambda: optimizer
    module.automatic_optimization = automatic

    def training_step(batch, batch_idx):
        loss = plain(batch, batch_idx) * 0 + 6.0
        if not automatic:
            optimizer.zero_grad()
            loss.backward()
            module.optimizers().step()
        return loss

    module.training_step = training_step
    options = {"accumulate_grad_batches": 4} if automatic else {}
    lightning_fit(tmp_path, module, max_epochs=1, **options)
    daemon.wait(lambda: daemon.of_type(6))
    assert daemon.steps[-1][2] == pytest.approx(6.0)


def test_lightning_goes_on_training_with_an_evaluation_that_is_none(daemon, tmp_path, caplog):
    L = pytest.importorskip("lightning")
    module = lightning_module(L)
    loss = 0.5

    def validation_step(batch, batch_idx):
        module.log("val_loss", loss)
        module.log("val_accuracy", 87.5)

    module.validation_step = validation_step
    lightning_fit(tmp_path, module, max_epochs=1)
    daemon.wait(lambda: daemon.of_type(6))
    assert daemon.steps[-1][0] == 16 and len(daemon.of_type(5)) == 1
    loss = math.nan
    lightning_fit(tmp_path, module, max_epochs=1)
    assert len(daemon.of_type(5)) == 1
    told = [r.message for r in caplog.records if r.name == "gossipd"]
    assert "accuracy" in told[0] and "87.5" in told[0] and "nan" in told[-1]


def test_lightning_ends_with_the_clusters_budget(daemon, tmp_path):
    L = pytest.importorskip("lightning")
    daemon.answers = [{}, {}, {"flags": FINISHED}, {"flags": FINISHED | SETTLED}]
    trainer = lightning_fit(tmp_path, lightning_module(L), max_epochs=1000)
    assert 1 <= trainer.global_step < 1000  # of 16,000


def test_lightning_leaves_the_final_model_of_an_ended_job_as_it_is(daemon, tmp_path):
    L = pytest.importorskip("lightning")
    module = lightning_module(L)
    daemon.answers = final_model(sum(p.numel() for p in module.parameters()))
    trainer = lightning_fit(tmp_path, module, max_epochs=1000)
    assert trainer.global_step == 0
    assert all((p == 0.5).all() for p in module.parameters())


def test_lightning_refuses_two_optimisers_in_words(daemon, tmp_path):
    L = pytest.importorskip("lightning")
    module = lightning_module(L)
    module.automatic_optimization = False
    one = torch.optim.SGD(module.parameters(), 0.1)
    module.configure_optimizers = lambda: [one, one]
    with pytest.raises(ValueError, match="2 optimisers"):
        lightning_fit(tmp_path, module, max_epochs=1)
