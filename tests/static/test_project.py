"""Trainers spread over files: imports inside the checked tree are followed, within bounds."""

from pathlib import Path

import pytest
from engine_scripts import MEANS, full, told

from accumlint.static import project as bounds
from accumlint.static.engine import EngineSettings, Project, analyse, examine

LOSS = """
import torch.nn.functional as F


def token_loss(logits, labels, pad_id):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=pad_id)
"""

MAIN = """
import torch
from {module} import {names}


def train(model, loader, accum_steps, epochs, pad_id):
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(epochs):
        for step, (tokens, labels) in enumerate(loader):
            logits = model(tokens)
            loss = {call}
            (loss / accum_steps).backward()
            if (step + 1) % accum_steps == 0 or step + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
"""


def main(module="losses", names="token_loss", call="token_loss(logits, labels, pad_id)"):
    return MAIN.format(module=module, names=names, call=call)


def check(folder, name="train.py"):
    path = folder / name
    return list(analyse(path.read_bytes(), str(path), Project(folder), EngineSettings()).findings)


def test_a_loss_in_another_file(tree):
    folder = tree({"losses.py": LOSS, "train.py": main()})
    assert told(check(folder)) == [("mean-of-means", 12)]


def test_without_that_file_nothing_is_known_of_the_loss(tree):
    assert "mean-of-means" not in {f.name for f in check(tree({"train.py": main()}))}


def test_a_right_loss_in_another_file_is_silent(tree):
    loss = LOSS.replace("ignore_index=pad_id)", "ignore_index=pad_id, reduction='sum')")
    right = main().replace("(loss / accum_steps)", "(loss / window_tokens)").replace("accum_steps, epochs", "accum_steps, window_tokens, epochs")
    assert [f for f in check(tree({"losses.py": loss, "train.py": right})) if f.clause == "C1"] == []


@pytest.mark.parametrize(
    ("files", "module", "names", "call"),
    [
        ({"losses.py": LOSS}, "losses", "token_loss as criterion", "criterion(logits, labels, pad_id)"),
        ({"lib/losses.py": LOSS, "lib/__init__.py": ""}, "lib.losses", "token_loss", "token_loss(logits, labels, pad_id)"),
        ({"lib/losses.py": LOSS, "lib/__init__.py": "from .losses import token_loss\n"}, "lib", "token_loss", "token_loss(logits, labels, pad_id)"),
        ({"lib/losses.py": LOSS, "lib/__init__.py": "from lib.losses import *\n"}, "lib", "token_loss", "token_loss(logits, labels, pad_id)"),
        ({"lib/losses.py": LOSS, "lib/__init__.py": ""}, "lib", "losses", "losses.token_loss(logits, labels, pad_id)"),
        ({"lib/inner.py": LOSS, "lib/losses.py": "from .inner import token_loss\n"}, "lib.losses", "token_loss", "token_loss(logits, labels, pad_id)"),
        ({"losses.py": LOSS}, "losses", "*", "token_loss(logits, labels, pad_id)"),
    ],
)
def test_every_way_to_import_it(files, module, names, call, tree):
    folder = tree({**files, "train.py": main(module, names, call)})
    assert told(check(folder)) == [("mean-of-means", 12)]


def test_relative_imports_from_inside_a_package(tree):
    folder = tree({"pkg/__init__.py": "", "pkg/common/losses.py": LOSS, "pkg/run/train.py": main("..common.losses")})
    assert told(check(folder, "pkg/run/train.py")) == [("mean-of-means", 12)]


def test_the_same_findings_for_a_file_alone_and_in_its_tree(tree):
    folder = tree({"losses.py": LOSS, "train.py": main(), "other.py": main().replace("train(", "again(")})
    project = Project(folder)
    together = {}
    for name in ("losses.py", "other.py", "train.py"):
        path = folder / name
        together[name] = full(list(analyse(path.read_bytes(), str(path), project, EngineSettings()).findings))
    assert all(full(check(folder, name)) == text for name, text in together.items())
    assert together["losses.py"] == ""


BASE = """
import torch


class Loop:
    def __init__(self, model, loader, accum_steps, pad_id):
        self.model, self.loader, self.accum_steps, self.pad_id = model, loader, accum_steps, pad_id
        self.optimizer = torch.optim.AdamW(model.parameters())

    def run(self, epochs):
        for epoch in range(epochs):
            for step, batch in enumerate(self.loader):
                loss = self.loss(batch) / self.accum_steps
                loss.backward()
                if (step + 1) % self.accum_steps == 0:
                    self.update()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
"""

CHILD = """
import torch.nn.functional as F
from torch.utils.data import DataLoader
from base import Loop


class Tagger(Loop):
    def loss(self, batch):
        tokens, labels = batch
        return F.cross_entropy(self.model(tokens).flatten(0, 1), labels.flatten())

    def update(self):
        self.optimizer.step()


if __name__ == "__main__":
    Tagger(model, DataLoader(data), 4, 0).run(2)
"""


@pytest.mark.xfail(strict=True, reason="the structure sieve sees no backward in a script whose loop is inherited from another file")
def test_a_base_class_in_another_file(tree):
    folder = tree({"base.py": BASE, "train.py": CHILD})
    found = check(folder)
    assert "zero-grad-missing" in {f.name for f in found}
    (missing,) = [f for f in found if f.name == "zero-grad-missing"]
    assert (missing.span.line, missing.span.path.rsplit("/", 1)[-1]) == (13, "train.py")


@pytest.mark.parametrize("clears", [True, False])
def test_an_inherited_update_in_another_file(clears, tree):
    head, update = BASE.split("    def run(", 1)
    run, update = update.split("    def update(", 1)
    base = head + "    def update(" + (update if clears else update.replace("        self.optimizer.zero_grad()\n", ""))
    child = CHILD.replace("    def update(self):\n        self.optimizer.step()\n", "    def run(" + run)
    found = {f.name for f in check(tree({"base.py": base, "train.py": child}))}
    assert ("zero-grad-missing" in found) == (not clears)


def test_a_base_class_that_is_right_is_silent(tree):
    folder = tree({"base.py": BASE, "train.py": CHILD.replace("        self.optimizer.step()\n", "        super().update()\n")})
    assert {f.name for f in check(folder)} <= {"tail-leaks-into-next-epoch"}


# Bounds


def test_files_that_import_one_another(tree):
    folder = tree({
        "losses.py": "from train import train\nfrom again import helper\n" + LOSS, "again.py": "import losses\nfrom losses import token_loss\n\n\ndef helper(loss):\n    return loss\n",
        "train.py": main(),
    })  # fmt: skip
    assert told(check(folder)) == [("mean-of-means", 12)]


def test_a_file_that_imports_itself(tree):
    folder = tree({"train.py": "import train\nfrom train import *\n" + MEANS})
    assert told(check(folder)) == [("mean-of-means", 14)]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"def token_loss(:\n    loss\n", id="broken"),
        pytest.param("loss = 'ü'\n".encode("latin-1"), id="encoding"),  # no text
        pytest.param(b"\x00loss", id="null"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_helper_that_cannot_be_read_is_as_good_as_missing(content, tree):
    folder = tree({"losses.py": content, "train.py": main()})
    alone = tree({"alone/train.py": main()}) / "alone"
    assert told(check(folder)) == told(check(alone))


def test_a_helper_above_the_size_limit_is_not_followed(tree):
    long = LOSS + "#" * bounds.MAX_BYTES
    folder = tree({"losses.py": long, "train.py": main()})
    assert "mean-of-means" not in {f.name for f in check(folder)}


def test_only_so_many_files_are_followed(tree, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_FOLLOWED", 3)
    chain = {f"m{i}.py": f"from m{i + 1} import token_loss  # loss\n" for i in range(6)}
    folder = tree({**chain, "m6.py": LOSS, "train.py": main("m0")})
    assert "mean-of-means" not in {f.name for f in check(folder)}
    monkeypatch.setattr(bounds, "MAX_FOLLOWED", 40)
    assert told(check(folder)) == [("mean-of-means", 12)]


def test_folders_named_like_modules_and_links_in_circles(tree):
    folder = tree({"losses.py/readme.txt": "", "train.py": main()})
    (folder / "again").symlink_to(".")
    assert "mean-of-means" not in {f.name for f in check(folder)}


def test_a_module_of_the_tree_does_not_replace_torch(tree):
    folder = tree({"torch.py": "def cross_entropy(*a): return 0  # loss\n", "train.py": MEANS})
    assert "mean-of-means" in {f.name for f in check(folder)} or check(folder) == []  # shadowed or not: no crash, no guess


ENGINE = """
import deepspeed


def prepare(model, configs):
    # the engine divides the loss by itself
    return deepspeed.initialize(model=model, config=configs.ds_config)[0]
"""
EPOCH = """
import torch


def window(configs):
    return configs.accum_grad


def run_epoch(engine, loader):
    for step, (tokens, labels) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(engine(tokens), labels)
        engine.backward(loss)
        engine.step()
        if step % 100 == 0:
            engine.save_checkpoint("out")
"""
DRIVER = """
import torch
from speech.engines import prepare
from speech.epochs import run_epoch, window


def main(configs, net, loader):
    print(window(configs))
    engine = prepare(net, configs)
    for epoch in range(10):
        run_epoch(engine, loader)


main(parse_configs(), build(), torch.utils.data.DataLoader(read(), batch_size=8))
"""


def test_the_same_findings_from_any_folder_and_under_any_numbering(tree, monkeypatch):
    folder = tree({"repo/speech/__init__.py": "", "repo/speech/engines.py": ENGINE, "repo/speech/epochs.py": EPOCH, "repo/train.py": DRIVER})

    def found(start, path):
        monkeypatch.chdir(start)
        report = examine(Path(path).read_bytes(), path, Project("."), EngineSettings())
        return {(f.rule, f.span.line, f.span.path.rpartition("/")[2], f.message) for f in report.findings}

    inside = found(folder / "repo", "train.py")
    assert ("ACC705", "epochs.py") in {(rule, name) for rule, _, name, _ in inside}
    assert found(folder, "repo/train.py") == inside
    usual = bounds.digest
    monkeypatch.setattr(bounds, "digest", lambda data: f"{0xFFFFFFFF - int(usual(data)[:8], 16):08x}")
    assert found(folder / "repo", "train.py") == inside
