import os
from pathlib import Path

import pytest

from accumlint.settings import Settings
from accumlint.static.discovery import CONFIGURATION, collect, is_test_code, printable


def by_name(path, head):
    return path.endswith("ds.json") and b"train_batch" in head


def found(folder, *paths, **values):
    collection = collect(paths or (".",), Settings(root=str(folder), **values), str(folder), by_name)
    return [target.name for target in collection.targets]


def skipped(folder, *paths, **values):
    return collect(paths or (".",), Settings(root=str(folder), **values), str(folder), by_name).skipped


def test_a_folder_is_walked_in_the_order_of_names(tree):
    folder = tree({"b.py": "", "a/z.py": "", "a.py": "", "a/with space.py": "", "c.txt": "", "d.pyc": ""})
    assert found(folder) == ["a.py", "a/with space.py", "a/z.py", "b.py"]
    assert found(folder, "b.py", "a", "a.py", "./a.py", ".") == found(folder)


def test_names_are_relative_to_the_working_folder(tree):
    folder = tree({"in/a.py": "", "out/b.py": ""})
    inside = str(folder / "in")
    collection = collect(
        ["../out/b.py", str(folder / "in" / "a.py")], Settings(root=inside), inside, by_name
    )
    assert [target.name for target in collection.targets] == ["../out/b.py", "a.py"]


def test_gitignore_files_are_honoured_at_every_level(tree):
    folder = tree(
        {
            ".git/info/exclude": "private.py\n",
            ".git/hooks/hook.py": "",
            ".gitignore": "build/\n*.gen.py\n/top.py\n",
            "top.py": "",
            "x/top.py": "",
            "x/a.gen.py": "",
            "x/keep.gen.py": "",
            "x/.gitignore": "!keep.gen.py\n",
            "x/build/lib.py": "",
            "x/private.py": "",
            "y.py": "",
        }
    )
    assert found(folder) == ["x/keep.gen.py", "x/top.py", "y.py"]
    assert found(folder, "x") == ["x/keep.gen.py", "x/top.py"]  # the ignore files above it count
    assert found(folder, "x/build") == ["x/build/lib.py"]  # named, so wanted
    assert found(folder, "top.py", "x/a.gen.py") == ["top.py", "x/a.gen.py"]
    assert skipped(folder) == {"git-ignored": 3}


def test_environments_and_caches_are_not_entered(tree):
    folder = tree(
        {
            "env/pyvenv.cfg": "",
            "env/lib/a.py": "",
            "conda/conda-meta/history": "",
            "conda/a.py": "",
            "node_modules/a.py": "",
            "__pycache__/a.py": "",
            "own/a.py": "",
        }
    )
    assert found(folder) == ["own/a.py"]
    assert found(folder, "env") == ["env/lib/a.py"]


def test_test_code_is_found_only_where_it_is_named(tree):
    folder = tree({"a.py": "", "tests/helper.py": "", "test_b.py": "", "c_test.py": "", "conftest.py": ""})
    assert found(folder) == ["a.py"]
    assert skipped(folder) == {"test-code": 4}
    assert found(folder, "tests") == ["tests/helper.py"]
    assert found(folder, "test_b.py") == ["test_b.py"]
    assert len(found(folder, include_tests=True)) == 5
    assert is_test_code(("tests", "a.py")) and not is_test_code(("src", "testing.py"))


def test_the_place_of_a_project_does_not_make_it_test_code(tree):
    folder = tree({"tests/project/a.py": "", "tests/project/train.py": ""}) / "tests" / "project"
    assert found(folder) == ["a.py", "train.py"]


def test_excludes_are_for_what_is_found_unless_they_are_forced(tree):
    folder = tree({"old/a.py": "", "old/deep/b.py": "", "new.py": "", "test_c.py": ""})
    assert found(folder, exclude=("old/",)) == ["new.py"]
    assert found(folder, "old/a.py", "test_c.py", exclude=("old/",)) == ["old/a.py", "test_c.py"]
    forced = {"exclude": ("old/",), "force_exclude": True}
    assert found(folder, "old/a.py", "old/deep/b.py", "test_c.py", "new.py", **forced) == ["new.py"]
    assert skipped(folder, "old/a.py", "test_c.py", **forced) == {"excluded": 1, "test-code": 1}


def test_configurations_are_found_beside_scripts(tree):
    folder = tree({"conf/ds.json": '{"train_batch_size": 8}', "data/ds.json": "{}", "other.json": "{}"})
    (only,) = collect(["."], Settings(root=str(folder)), str(folder), by_name).targets
    assert (only.name, only.kind) == ("conf/ds.json", CONFIGURATION)


def test_named_files_that_are_no_python_are_left_out_with_a_reason(tree):
    folder = tree({"a.md": "", "b.pickle": "{}", "run": "#!/usr/bin/env python3\n", "other": "text"})
    assert found(folder, "a.md", "b.pickle", "run", "other") == ["run"]
    assert skipped(folder, "a.md", "b.pickle", "run", "other") == {"not-python": 3}


def test_links_cannot_lead_in_circles(tree):
    folder = tree({"real/a.py": "", "real/b.py": ""})
    os.symlink("..", folder / "real" / "up")
    os.symlink("a.py", folder / "real" / "same.py")
    os.symlink("self.py", folder / "self.py")
    os.symlink("nowhere.py", folder / "dangling.py")
    os.symlink("real", folder / "linked")
    assert found(folder) == ["real/a.py", "real/b.py"]
    assert found(folder, "linked") == ["linked/a.py", "linked/b.py"]  # named, so walked
    assert found(folder, "linked", "real") == found(folder, "real", "linked") == ["linked/a.py", "linked/b.py"]


def test_a_missing_path_is_a_problem(tree):
    folder = tree({"a.py": ""})
    collection = collect(["gone.py", "a.py"], Settings(root=str(folder)), str(folder), by_name)
    assert collection.problems == (("gone.py", "no such file or folder"),)
    assert [target.name for target in collection.targets] == ["a.py"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_an_unreadable_folder_is_a_problem(tree):
    folder = tree({"shut/a.py": "", "b.py": ""})
    (folder / "shut").chmod(0)
    try:
        collection = collect(["."], Settings(root=str(folder)), str(folder), by_name)
    finally:
        (folder / "shut").chmod(0o755)
    assert collection.problems == (("shut", "Permission denied"),)
    assert [target.name for target in collection.targets] == ["b.py"]


def test_a_folder_that_cannot_be_listed_is_a_problem_and_the_rest_goes_on(tree, monkeypatch):
    folder = tree({"shut/a.py": "", "b.py": ""})
    listing = os.scandir

    def refuse(path):
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied")
        return listing(path)

    monkeypatch.setattr(os, "scandir", refuse)
    collection = collect(["."], Settings(root=str(folder)), str(folder), by_name)
    assert collection.problems == (("shut", "Permission denied"),)
    assert [target.name for target in collection.targets] == ["b.py"]


def test_names_that_are_no_utf8_can_be_printed(tree):
    folder = tree({})
    name = os.fsdecode(b"bad\xff.py")
    (folder / name).write_text("")
    (target,) = collect(["."], Settings(root=str(folder)), str(folder), by_name).targets
    assert target.name == printable(name) == "bad\\xff.py"
    assert Path(target.path).read_text() == ""
