"""A Trainer of Hugging Face with a loss of its own: the window, its count and its step belong to the Trainer.

Facts: transformers 5.24, ``trainer.py``; tests/frameworks measures them. The simulation plays whole windows of one epoch,
so these loops are read and not run.
"""

from __future__ import annotations

from ..plan import Plan
from ..script import Lines, indented, mark
from . import tasks

CONFIG = "LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)"


def write(plan: Plan) -> Lines:
    """The class with its loss, and what builds it and trains."""
    r, n = plan.recipe, plan.n
    plan.imports |= {"import torch", "import torch.nn.functional as F", "from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments"}
    returned = mark(f"return ({n.loss}, outputs) if return_outputs else {n.loss}", "backward")
    method = [
        "def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):",
        *indented([*plan.forward, *plan.after, returned]),
    ]
    body = [
        f"{n.bare('model')} = AutoModelForCausalLM.from_config({CONFIG})",
        f'arguments = TrainingArguments("out", gradient_accumulation_steps={plan.k}, num_train_epochs={n.epochs})',
        f"trainer = OwnTrainer(model={n.bare('model')}, args=arguments, train_dataset=Sentences())",
        "trainer.train()",
    ]
    head = ["class OwnTrainer(Trainer):", *indented(method), "", ""]
    if r.scaffold == "main":
        return [*head, "def main():", *indented(body), "", "", 'if __name__ == "__main__":', "    main()"]
    return [*head, *body]


def loss(plan: Plan) -> Lines:
    """The loss of one microbatch by the count of its window, in the way of the recipe."""
    r, n = plan.recipe, plan.n
    if r.norm == "framework":
        return [mark(f"{n.loss}, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)", "loss")]
    summed = "" if r.norm == "share" else ', reduction="sum"'
    out = ['labels = inputs["labels"]', "outputs = model(**inputs)", *cross_entropy(plan, summed)]
    if r.norm == "share":
        return [*out, mark(f"{n.loss} = {n.loss} * {tasks.valid(plan, 'labels')} / num_items_in_batch", "divide")]
    if r.norm == "augmented":
        return [*out, mark(f"{n.loss} /= num_items_in_batch", "divide")]
    return [*out, mark(f"{n.loss} = {n.loss} / num_items_in_batch", "divide")]


def cross_entropy(plan: Plan, summed: str) -> Lines:
    shift = plan.recipe.task == "causal"
    logits, labels = ("outputs.logits[:, :-1]", "labels[:, 1:]") if shift else ("outputs.logits", "labels")
    return [mark(f"{plan.n.loss} = F.cross_entropy({logits}.flatten(0, 1), {labels}.flatten(), ignore_index=-100{summed})", "loss")]
