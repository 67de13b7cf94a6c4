"""Runs made smaller or harder: ragged labels, short epochs, tiny configurations, devices; and sharded parameters."""

import pytest
from probe_helpers import FIXTURES, line_of, needs, needs_torch


def test_ragged_labels_keep_the_batch_and_mask_a_suffix():
    torch = needs_torch()
    from accumlint.probe.child.stress import ragged

    labels = torch.arange(10).reshape(2, 5)
    batch = {"input_ids": labels, "labels": labels}
    out = ragged(batch, 0.4, -1)
    assert out["labels"].tolist() == [[0, 1, -1, -1, -1], [5, 6, -1, -1, -1]]
    assert out["input_ids"] is labels and batch["labels"] is labels  # the user's own batch is not touched
    assert ragged([torch.ones(3), torch.tensor([1, 2, 3])], 0.5, -100)[1].tolist() == [1, -100, -100]
    same = (torch.ones(3), torch.ones(3))
    assert ragged(same, 0.5, -100) is same


def test_short_sampler():
    needs_torch()
    from accumlint.probe.child.stress import ShortSampler

    short = ShortSampler([[1], [2], [3]], 2)
    assert list(short) == [[1], [2]] and len(short) == 2 and len(ShortSampler([[1]], 5)) == 1


def test_sizes_shrink_and_nothing_else():
    from accumlint.probe.child.tiny import NoTinyModel, shrunk, type_of

    out = shrunk({"hidden_size": 4096, "num_hidden_layers": 32, "layer_types": ["full", "sliding"] * 16, "rope_theta": 1e6, "n_head": 2, "eos_token_id": [128001, 128009], "bos_token_id": 128000})
    assert out["hidden_size"] == 32 and out["layer_types"] == ["full", "sliding"] and out["num_hidden_layers"] == 2
    assert "rope_theta" not in out and "n_head" not in out and out["eos_token_id"] == 2 and out["bos_token_id"] == 1
    assert type_of("meta-llama/Llama-3.2-1B", ["llama", "gpt2", "qwen2"]) == "llama"
    assert type_of("org/Qwen2-MoE-base", ["qwen2", "qwen2_moe"]) == "qwen2_moe"
    with pytest.raises(NoTinyModel, match="config.json"):
        type_of("somebody/thing-1b", ["llama"])


def test_made_up_rows_are_ragged():
    from accumlint.probe.child.tiny_data import columns_of, rows

    made = rows(columns_of("glue", "mrpc"), 20)
    assert set(made) == {"sentence1", "sentence2", "label", "idx"} and set(made["label"]) == {0, 1}
    assert len({len(text.split()) for text in made["sentence1"]}) > 5
    assert columns_of("org/unknown", None) == {"text": "text"}


def test_devices_in_any_spelling():
    torch = needs_torch()
    from accumlint.probe.child.as_cpu import on_cpu

    assert on_cpu("cuda:1") == "cpu" and on_cpu(torch.device("cuda", 0)) == torch.device("cpu")
    assert on_cpu("cudart") == "cudart" and on_cpu(3) == 3 and on_cpu(torch.device("meta")) == torch.device("meta")


@pytest.mark.parametrize(("variant", "rule", "text"), [("good", "", ""), ("never", "ACC303", "loss.backward()"), ("not-undone", "ACC107", "loss.backward()")])
def test_sharded_parameters_get_weights_and_clocks(variant, rule, text):
    needs_torch()
    needs("torch.distributed.fsdp")
    from accumlint.probe import verdicts
    from accumlint.probe.assemble import assemble
    from accumlint.probe.judgements import judge
    from accumlint.probe.launch import Plan, run

    done = run(Plan(str(FIXTURES / "fsdp2.py"), ("--variant", variant), ranks=2, timeout=90, isolate=False))
    report = judge(assemble(done.recordings, 3), done)
    found = verdicts.findings(report, str(FIXTURES))
    assert {f.rule: f.span.line for f in found} == ({rule: line_of("fsdp2.py", text)} if rule else {})
    assert report.judgements["weights"].verdict == ("FAIL" if variant == "not-undone" else "PASS")
    assert report.judgements["integrity"].verdict == "NOT-RUN" and "sharded" in report.judgements["integrity"].reason
    assert report.windows[0].synchronised == (None, None, None)
    marks = [b["backward_sync"] for b in report.assembled.backwards[0]][:3]
    assert marks == ([False, False, False] if variant == "never" else [False, False, True])
