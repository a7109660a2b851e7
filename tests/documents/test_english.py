"""The field's own words: home-made phrases stay out of what people read, and the glossary has every term."""

from __future__ import annotations

from pathlib import Path

from documents.pages import ROOT

# Each stands for a phrase that engineers of this field use instead; the comment names it.
AVOIDED = (
    "by heart",  # overfits
    "chance apart",  # separate signal from noise
    "told from chance",  # statistically significant
    "throws a value",  # trials per value
    "a throw leans",  # bias of each trial
    "to be had",  # available
    "told is the run",  # details are shown for seed 0
    "how much seeds differ",  # seed-to-seed variance
    "held against",  # baseline
    "against which other recipes are held",  # baseline
    "left the floats",  # training diverged
    "no number any more",  # NaN
    "has that of row",  # repeats the id of row
    "numbers a row",  # features
    "a place for others",  # a bucket for rare or unseen values
    "one place for others",
    "of a probe, at most",  # maximum rounds per probe
    "not in this way",  # method not allowed
    "share that was so",  # observed frequency
    "how good the answers are",  # model quality
    "seen exactly as said",  # one line each
    "how the house is built",  # Architecture
    "step size",  # learning rate
    "puts together",  # combines
    "has the last word",  # takes precedence
    "is there already",  # already exists
    "is there twice",  # appears twice
    "from a copy of one moment",  # from a single backup
    "to one version",  # the same version
    "goes on with --resume",  # resume with --resume
    "go on with --resume",
    "one at least",  # at least one
    "for want of",  # for lack of
    "from end to end",  # end to end
    "gaps filled",  # missing values filled
    "means and deviations",  # means and standard deviations
    "optimiser's memory",  # optimizer state
    "optimisers' memory",
    "bring it back from a copy",  # restore it from a backup
    "looked at once",  # evaluated once
    "to a like scale",  # standardise
)
# Terms of messages, reports and job files.
TERMS = (
    "party",
    "label party",
    "feature party",
    "row",
    "id",
    "alignment",
    "overlap",
    "missing value",
    "preparation",
    "rare category",
    "validation set",
    "test set",
    "bottom model",
    "top model",
    "embedding",
    "derivative",
    "gradient",
    "fusion",
    "split learning",
    "boosted trees",
    "learning rate",
    "early stopping",
    "overfitting",
    "baseline",
    "class imbalance",
    "calibration",
    "diverged",
    "statistically significant",
    "seed",
    "exchange",
    "round",
    "local step",
    "cached step",
    "workset",
    "compressor",
    "symbols",
    "surrogate",
    "error feedback",
    "stream",
    "recipe",
    "link clock",
    "frame",
    "checkpoint",
    "secure sum",
    "release",
    "epsilon, delta",
    "budget",
    "ledger",
    "observer",
    "defence",
    "agreement",
)
SEARCHED = ("overfitting", "early stopping", "baseline", "learning rate", "missing value", "gradient", "imbalance")
_READ = {".py", ".md", ".toml", ".html", ".jinja", ".js", ".sh", ".txt"}


def read_texts(*folders: str) -> dict[Path, str]:
    """Files in small letters, with single spaces; strings that continue on the next line are one."""
    found = (file for folder in folders for file in [ROOT / folder, *(ROOT / folder).rglob("*")])
    texts = {file: file.read_text().lower().split() for file in found if file.suffix in _READ and file.is_file()}
    return {file: " ".join(words).replace('" "', "").replace('" f"', "") for file, words in texts.items()}


def test_home_made_phrases_stay_out() -> None:
    texts = read_texts("src", "docs", "examples", "README.md", "CHANGELOG.md")
    del texts[ROOT / "docs" / "reference" / "glossary.md"]  # it names what others say
    assert len(texts) > 400
    left = [
        f"{file.relative_to(ROOT)}: {phrase}" for file, text in texts.items() for phrase in AVOIDED if phrase in text
    ]
    assert not left, "write what an engineer of the field would write"


def test_the_glossary_has_every_term() -> None:
    rows = (ROOT / "docs" / "reference" / "glossary.md").read_text().splitlines()
    terms = {row.split("|")[1].strip() for row in rows if row.startswith("| ")}
    assert not set(TERMS) - terms


def test_words_that_people_search_for_are_in_several_pages() -> None:
    pages = read_texts("docs", "README.md").values()
    for word in (*SEARCHED, "calibration"):
        assert sum(word in page for page in pages) >= 2, word
