"""Every experiment that comes with the package can be read, and what is wrong with one is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.papers.digits import EXPERIMENT, write_experiment
from thinwire.base.errors import BadInput
from thinwire.engine.models import LOSSES, MODELS
from thinwire.job.registry import build_optimizer, build_recipe
from thinwire.lab.datasets import DATA_SETS
from thinwire.lab.papers.experiment import (
    BestOf,
    Size,
    find_experiments,
    match_experiments,
    read_experiment,
    resolve_size,
)
from thinwire.lab.papers.jobs import build_split

DOCS = Path(__file__).resolve().parents[3] / "docs"
NAMES = sorted(find_experiments())


def test_there_are_experiments_of_all_four_papers_and_of_ours() -> None:
    assert {name.split("-")[0] for name in NAMES} == {"efvfl", "cvfl", "celu", "pbm", "thin"}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_whole(name: str) -> None:
    _, file = read_experiment(name)
    assert file.experiment.data in DATA_SETS
    build_split(file.experiment.split)
    assert file.model.loss in LOSSES
    for table in (file.model.bottom, file.model.top, file.model.label_bottom or file.model.bottom):
        assert table["name"] in MODELS
    sizes: tuple[Size, ...] = ("full",) if file.experiment.full_size_only else ("quick", "full")
    for size in sizes:
        experiment = resolve_size(name, file, size)
        folders = [curve.folder for curve in experiment.curves]
        assert len(set(folders)) == len(folders), "two curves would write into one folder"
        assert experiment.expectations, f"{size}: nothing to check"
        if isinstance(experiment.target, BestOf):
            assert experiment.target.best_of in {curve.name for curve in experiment.curves}
        for curve in experiment.curves:
            parties = {"movielens": 1, "criteo": 1, "avazu": 1}.get(experiment.about.data, 4)
            build_recipe("recipe", curve.recipe).check(parties, experiment.model.fusion)
            build_optimizer("optimizer", curve.settings.optimizer or {})


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_size_says_what_it_changes(name: str) -> None:
    _, file = read_experiment(name)
    assert file.quick is None or file.quick.says


@pytest.mark.parametrize("name", [name for name in NAMES if read_experiment(name)[1].quick])
def test_what_a_quick_size_says_is_what_it_does(name: str) -> None:
    _, file = read_experiment(name)
    experiment = resolve_size(name, file, "quick")
    settings = experiment.curves[0].settings
    does = {
        r"([\d,]+)(?: of the [\d,]+)? rows": experiment.rows,
        r"(?:^|\W)([\d.]+|one) epochs?\b": settings.epochs,
        r"batches of ([\d,]+)": settings.batch_size,
        r"\blr ([\d.]+)": (settings.optimizer or {}).get("lr"),
        r"(one|two|three) seeds?\b": len(experiment.seeds),
        r"width (\d+)": experiment.model.bottom.get("base_width"),
    }
    words = {"one": 1.0, "two": 2.0, "three": 3.0}
    for pattern, value in does.items():
        for said in re.findall(pattern, experiment.says or ""):
            assert (words.get(said) or float(said.replace(",", "").rstrip("."))) == value, pattern
    assert re.search(r"(one|two|three) seeds?\b", experiment.says or ""), "how many seeds?"


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_has_a_page_that_is_linked(name: str) -> None:
    page = "thin" if name.startswith("thin-") else name
    text = (DOCS / "results" / f"{page}.md").read_text()
    assert read_experiment(name)[1].experiment.figure in text
    for index in (DOCS / "results.md", DOCS.parent / "mkdocs.yml"):
        assert f"results/{page}.md" in index.read_text()


def test_the_beginning_of_a_name_is_all_that_begin_so() -> None:
    assert match_experiments("efvfl-fig2", "quick") == ["efvfl-fig2"]
    assert match_experiments("thin-all", "quick") == [name for name in NAMES if name.startswith("thin-")]
    assert set(match_experiments("celu-fig6", "full")) == {name for name in NAMES if name.startswith("celu-fig6-")}
    with pytest.raises(BadInput, match="did you mean 'efvfl-fig3'"):
        match_experiments("efvfl-fig33", "full")


def test_a_quick_group_leaves_out_what_runs_at_full_size_only() -> None:
    assert match_experiments("efvfl-fig5", "quick") == ["efvfl-fig5-mnist"]
    assert match_experiments("efvfl-fig5", "full") == ["efvfl-fig5-cifar100", "efvfl-fig5-mnist"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("width = 4\nformula", "witdh = 4\nformula", "experiment.width"),
        ('of = "svfl"\n', "", "needs `of`"),
        ("at_most = 0.9", "at_most = 0.9\nat_least = 0.1", "not both"),
        ('curve = "efvfl top-k 10 %"', 'curve = "efvfl"', "there is no curve 'efvfl'"),
        ('best_of = "svfl"', 'best_of = "sgd"', "common.target.best_of"),
        ('name = "efvfl top-k 10 %"', 'name = "svfl"', "two curves have the same name"),
        ("[experiment]", "[experiment", "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in EXPERIMENT
    path = write_experiment(tmp_path, EXPERIMENT.replace(old, new))
    with pytest.raises(BadInput, match=r"tiny\.toml") as refused:
        read_experiment(path)
    assert message in str(refused.value)


def test_a_size_changes_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    _, file = read_experiment(write_experiment(tmp_path))
    quick, full = resolve_size("tiny", file, "quick"), resolve_size("tiny", file, "full")
    assert (quick.seeds, full.seeds) == ((0,), (0, 1))
    assert [curve.settings.epochs for curve in (quick.curves[0], full.curves[0])] == [2, 4]
    assert quick.curves[0].settings.batch_size == full.curves[0].settings.batch_size == 40
    assert len(quick.expectations) == 1
    assert len(full.expectations) == 2
    assert resolve_size("tiny", file, "full", (7,)).seeds == (7,)


def test_some_of_the_curves_keep_the_claims_about_them(tmp_path: Path) -> None:
    _, file = read_experiment(write_experiment(tmp_path))
    some = resolve_size("tiny", file, "full", None, ("svfl",))
    assert [curve.name for curve in some.curves] == ["svfl"]
    assert [one.claim for one in some.expectations] == ["At full size only"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("svfl", "celu"), r"no curve 'celu' at this size; it has svfl; efvfl top-k 10 %"),
        (("efvfl top-k 10 %",), "takes its target from the curve 'svfl'; add --curve 'svfl'"),
    ],
)
def test_curves_that_cannot_run_alone_are_refused(tmp_path: Path, asked: tuple[str, ...], message: str) -> None:
    _, file = read_experiment(write_experiment(tmp_path))
    with pytest.raises(BadInput, match=message):
        resolve_size("tiny", file, "full", None, asked)


@pytest.mark.parametrize(
    ("changed", "bottom"),
    [
        ("{ width = 8 }", {"name": "linear", "width": 8, "activation": "sigmoid"}),
        ('{ name = "mlp", width = 4 }', {"name": "mlp", "width": 4}),
    ],
)
def test_a_size_changes_arguments_of_a_model_or_names_another(
    tmp_path: Path, changed: str, bottom: dict[str, object]
) -> None:
    text = EXPERIMENT.replace("[quick]\n", f"[quick]\nbottom = {changed}\n")
    _, file = read_experiment(write_experiment(tmp_path, text))
    assert resolve_size("tiny", file, "quick").model.bottom == bottom
    assert resolve_size("tiny", file, "full").model.bottom["name"] == "linear"
