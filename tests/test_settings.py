import pytest

from accumlint import settings
from accumlint.settings import Settings, SettingsError


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return str(path)


def test_every_key_reaches_its_field(tmp_path):
    path = write(
        tmp_path,
        "accumlint.toml",
        """
select = ["C2", "acc101"]
ignore = ["Scheduler-Per-Microbatch"]
min-confidence = "certain"
fail-on = "never"
exclude = ["old/"]
force-exclude = true
include-tests = true
format = "json"
output = ["sarif:out.sarif"]
jobs = 2
baseline = "known.json"
[per-file-ignores]
"legacy/*.py" = ["ACC2"]
[severity]
ACC301 = "error"
[vocabulary]
scheduler = ["Noam"]
""",
    )
    assert settings.load(path) == Settings(
        root=str(tmp_path),
        source=path,
        select=("C2", "ACC101"),
        ignore=("scheduler-per-microbatch",),
        per_file_ignores=(("legacy/*.py", ("ACC2",)),),
        severity={"ACC301": "error"},
        min_confidence="certain",
        fail_on="never",
        exclude=("old/",),
        force_exclude=True,
        include_tests=True,
        format="json",
        output=(("sarif", "out.sarif"),),
        jobs=2,
        baseline="known.json",
        vocabulary={"scheduler": ["Noam"]},
    )
    assert {field for field, _ in settings.KEYS.values()} == set(Settings._fields) - {"root", "source"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("selct = ['C2']", "unknown key 'selct' in [tool.accumlint]; did you mean 'select'?"),
        ("select = 'C2'", "select: must be a list of strings"),
        ("select = ['C22!']", "select: 'C22!' is neither"),
        ("force-exclude = 1", "force-exclude: must be true or false"),
        ("jobs = true", "jobs: must be a whole number"),
        ("jobs = -1", "jobs: must be a whole number"),
        ("fail-on = 'advice'", "fail-on: must be one of warning, error, never"),
        ("output = ['sarif']", "output: 'sarif' is not FORMAT:FILE"),
        ("output = ['pdf:x']", "output: unknown format 'pdf'"),
        ("severity = {ACC301 = 'fatal'}", "severity: must be one of advice, warning, error"),
        ("vocabulary = 3", "vocabulary: must be a table"),
        ("baseline = 3", "baseline: must be a string"),
        ("exclude = [\njobs = 3", "line 3"),
        ("exclude = [", "nvalid value"),
    ],
)
def test_a_wrong_setting_names_file_and_key(tmp_path, text, complaint):
    path = write(tmp_path, "pyproject.toml", f"[tool.accumlint]\n{text}\n")
    with pytest.raises(SettingsError) as error:
        settings.load(path)
    assert str(error.value).startswith(path + ": ")
    assert complaint in str(error.value)


def test_tool_accumlint_must_be_a_table(tmp_path):
    path = write(tmp_path, "pyproject.toml", "[tool]\naccumlint = 3\n")
    with pytest.raises(SettingsError, match="must be a table"):
        settings.load(path)


def test_the_nearest_file_upwards_is_used_and_the_repository_is_the_limit(tmp_path):
    write(tmp_path, "accumlint.toml", "jobs = 7")
    inner = tmp_path / "repository" / "src"
    inner.mkdir(parents=True)
    assert settings.find(str(inner)).jobs == 7
    (tmp_path / "repository" / ".git").mkdir()
    assert settings.find(str(inner)) == Settings(root=str(inner))
    write(tmp_path / "repository", "pyproject.toml", "[tool.accumlint]\njobs = 3")
    assert settings.find(str(inner)).jobs == 3
    write(inner, "pyproject.toml", "[project]\nname = 'accumlint-user'")  # says nothing: the search goes on
    assert settings.find(str(inner)).jobs == 3
    write(inner, "pyproject.toml", "[tool.accumlint]\njobs = 2")
    write(inner, "accumlint.toml", "jobs = 1")  # goes before pyproject.toml
    assert settings.find(str(inner)).jobs == 1


def test_the_search_starts_at_the_working_folder_unless_paths_lie_outside(tmp_path):
    work, other = tmp_path / "work", tmp_path / "other" / "deep"
    (work / "sub").mkdir(parents=True)
    other.mkdir(parents=True)
    (other / "a.py").touch()
    start = settings.starting_folder
    assert start(["sub/a.py", "."], str(work)) == str(work)
    assert start(["-"], str(work)) == str(work)
    assert start([str(other / "a.py")], str(work)) == str(other)
    assert start([str(other), str(work)], str(work)) == str(tmp_path)


RULE = ("ACC202", "scheduler-per-microbatch", "C2")


@pytest.mark.parametrize("wanted", ["ALL", "acc", "ACC2", "ACC202", "c2", "Scheduler-Per-Microbatch"])
def test_selectors_that_mean_a_rule(wanted):
    assert settings.names_rule(settings.selector(wanted), *RULE)


@pytest.mark.parametrize("wanted", ["ACC3", "ACC201", "C3", "clip-per-microbatch"])
def test_selectors_that_mean_another(wanted):
    assert not settings.names_rule(settings.selector(wanted), *RULE)


def test_ignoring_wins_over_selecting():
    assert settings.is_on(Settings("."), *RULE)
    assert not settings.is_on(Settings(".", select=("ACC202",), ignore=("C2",)), *RULE)
    assert not settings.is_on(Settings(".", select=("C3",)), *RULE)


def test_a_selector_that_no_rule_answers_to_is_an_error():
    settings.check_selectors(["ALL", "C2", "ACC2"], [RULE], "here")
    with pytest.raises(SettingsError, match="here: no rule answers to 'ACC203'; did you mean 'ACC202'"):
        settings.check_selectors(["ACC203"], [RULE], "here")
