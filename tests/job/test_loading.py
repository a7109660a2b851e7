"""Job files: what they mean, and that whatever is wrong is said with the field's path."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import thinwire as tw
from job.small import JOB, ROWS, TESTS, write_job
from thinwire.base.errors import BadInput
from thinwire.engine.channel.link import Link
from thinwire.engine.compress import Diminishing, DiminishingError, Milestones, Then, TopK, Uniform
from thinwire.engine.models import Cosine
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.own_code import find_modules
from thinwire.job.registry import build_compressor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_job(tmp_path)


def test_a_job_file_is_the_job_one_would_write_in_python(path: Path) -> None:
    job = load_job(path)
    assert [party.name for party in job.parties] == ["bank", "shop"]
    assert [tuple(party.features.shape) for party in job.parties] == [(ROWS, 3), (ROWS, 2)]
    assert [len(party.test_features) for party in job.parties] == [TESTS, TESTS]
    assert job.label_party.labels.dtype == torch.int64
    assert job.recipe == tw.methods.efvfl(TopK(0.25), labels="private")
    assert job.optimizer == tw.Adam(lr=0.02)
    assert (job.epochs, job.batch_size, job.seed, job.link, job.target) == (2, 32, 0, None, None)
    assert job.check() == {"bank": 4, "shop": 4}


def test_every_setting_arrives(path: Path) -> None:
    job = load_job(
        path,
        [
            "job.epochs=3.5",
            "job.seed=7",
            "job.eval_every=2",
            'job.metrics=["accuracy","auc"]',
            'job.target={metric="auc",value=0.9}',
            "job.stop=false",
            "job.byte_budget=1000000",
            "job.link_seconds_budget=60",
            "job.diagnostics=false",
            "job.effort=fast",
            "link.bandwidth_mbit=100",
            "link.latency_ms=10",
            "link.parties.shop.bandwidth_mbit=1",
            'optimizer.lr={name="cosine",lr=0.1,minimum=0.01}',
            'party.bank.optimizer={name="sgd",lr=0.5,momentum=0.9}',
            "label_party.loss=binary_cross_entropy",
            "label_party.top.classes=1",
            "label_party.fusion=concat",
            "label_party.class_weights=[1.0,2.0]",
        ],
    )
    assert (job.epochs, job.seed, job.eval_every, job.metrics) == (3.5, 7, 2, ["accuracy", "auc"])
    assert (job.target, job.stop, job.byte_budget, job.link_seconds_budget) == (("auc", 0.9), False, 1_000_000, 60)
    assert (job.diagnostics, job.effort) == (False, "fast")
    assert job.link == Link(bandwidth_mbit=100, latency_ms=10, parties={"shop": Link(bandwidth_mbit=1)})
    assert job.optimizer == tw.Adam(lr=Cosine(0.1, minimum=0.01))
    assert job.parties[0].optimizer == tw.SGD(lr=0.5, momentum=0.9)
    assert job.parties[1].optimizer is None
    assert isinstance(job.label_party.top, tw.models.LinearTop)
    assert job.label_party.top.in_features == 8


def test_a_partys_weights_depend_on_the_seed_and_its_name_only(path: Path) -> None:
    first = [load_job(path), load_job(path, ["party.shop.model.width=4", "party.shop.model.bias=false"])]
    bank = [job.parties[0].bottom.state_dict() for job in first]
    assert all(torch.equal(bank[0][name], bank[1][name]) for name in bank[0])
    other = load_job(path, ["job.seed=1"]).parties[0].bottom.state_dict()
    assert not torch.equal(bank[0]["layers.0.weight"], other["layers.0.weight"])


def test_loading_leaves_torchs_generator_alone(path: Path) -> None:
    before = torch.random.get_rng_state()
    load_job(path)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_resolved_text_is_the_same_job_from_anywhere(path: Path, tmp_path: Path) -> None:
    overrides = [
        "job.seed=3",
        "recipe.compressor={name='Then',first={name='topk',fraction=0.5},second={name='Uniform',bits=4}}",
        "link.parties.shop.latency_ms=3",
    ]
    text = resolve_job(path, overrides)
    elsewhere = tmp_path / "else" / "where.toml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(text)
    assert resolve_job(elsewhere) == text
    one, two = load_job(path, overrides), load_job(elsewhere)
    assert one.recipe.digest() == two.recipe.digest()
    assert one.link == two.link
    assert torch.equal(one.parties[1].features, two.parties[1].features)
    assert torch.equal(next(one.label_party.top.parameters()), next(two.label_party.top.parameters()))
    assert "warm_start = false" in text


def test_compressors_and_their_schedules() -> None:
    assert build_compressor("c", "sign") == tw.compress.Sign()
    both = {"name": "then", "first": {"name": "TOPK", "fraction": 0.1}, "second": {"name": "uniform", "bits": 4}}
    assert build_compressor("c", both) == Then(TopK(0.1), Uniform(4))
    for table, schedule in (
        ({"milestones": [[0, 2], [100, 4]]}, Milestones((0, 2), (100, 4))),
        ({"diminishing": 2}, Diminishing(2)),
        ({"diminishing_error": 5.0}, DiminishingError(5.0)),
    ):
        assert build_compressor("c", {"name": "Uniform", "bits": table}) == Uniform(schedule)
    assert build_compressor("c", {"name": "Uniform", "bits": 4, "bounds": [-1, 1]}) == Uniform(4, bounds=(-1, 1))


def test_none_is_a_word(path: Path) -> None:
    job = load_job(path, ["recipe={method='celu',capacity=3,reuse=2,xi_degrees='none'}"])
    assert job.recipe == tw.methods.celu(3, 2, xi_degrees=None)


def test_a_partys_own_module_is_found_beside_the_job_file(path: Path) -> None:
    (path.parent / "its_own_module.py").write_text(
        "from torch import nn\n"
        "class Bottom(nn.Sequential):\n"
        "    def __init__(self, in_features: int, width: int) -> None:\n"
        "        super().__init__(nn.Linear(in_features, width), nn.Tanh())\n"
        "NUMBER = 3\n"
    )
    job = load_job(path, ['party.bank.model={module="its_own_module:Bottom",width=4}'])
    assert isinstance(job.parties[0].bottom, nn.Sequential)
    for module, message in (
        ("its_own_module:Top", "party.bank.model.module: its_own_module:Top cannot be loaded"),
        ("no_such_module:Top", "party.bank.model.module: no_such_module:Top is code, and it is not in"),
        ("its_own_module:NUMBER", "is int, not a class of torch modules"),
        ("its_own_module", 'must be "package.module:Class"'),
        ("os:getcwd", "os:getcwd is code, and it is not in"),
    ):
        with pytest.raises(BadInput, match=re.escape(message)):
            load_job(path, [f'party.bank.model={{module="{module}"}}'])


def test_models_learn_their_sizes_from_the_data(path: Path) -> None:
    images = np.random.default_rng(0).random((ROWS + TESTS, 1, 8, 8))
    np.savez(path.parent / "bank.npz", x=images[:ROWS], x_test=images[ROWS:])
    for model in ('{name="cnn",width=4}', '{name="resnet18",width=4,base_width=2}', '{name="mvcnn",width=4}'):
        load_job(path, [f"party.bank.model={model}"])
    np.savez(path.parent / "bank.npz", x=images[:ROWS, 0], x_test=images[ROWS:, 0])
    load_job(path, ['party.bank.model={name="lstm",hidden=5,width=4}'])


PRETRAINED = '{name="pretrained",width=4,bits_per_row=9.0,network={NETWORK},pretraining={epochs=2}}'


def test_a_network_inside_an_encoder(path: Path) -> None:
    images = np.random.default_rng(0).random((ROWS + TESTS, 1, 8, 8))
    np.savez(path.parent / "bank.npz", x=images[:ROWS], x_test=images[ROWS:])
    job = load_job(path, ["party.bank.model=" + PRETRAINED.replace("NETWORK", 'name="cnn",channels=[2,3]')])
    encoder = job.parties[0].bottom
    assert isinstance(encoder, tw.learners.Pretrained)
    assert encoder(job.parties[0].features).shape == (ROWS, 4)
    assert encoder.pretraining.epochs == 2
    assert encoder.directions.bits_per_row == 9
    again = load_job(path, ["party.bank.model=" + PRETRAINED.replace("NETWORK", 'name="cnn",channels=[2,3]')])
    assert all(
        torch.equal(one, other)
        for one, other in zip(encoder.parameters(), again.parties[0].bottom.parameters(), strict=True)
    )
    for network, message in (
        ('name="cnn",channel=2', "party.bank.model.network.channel: cnn takes no 'channel'"),
        ('name="mlp",hidden=[3],width=5', "the network outputs 5 values per row, but width is 4"),
        ('name="bins"', "party.bank.model.network: Pretrained: network must be a network with weights"),
        ('module="stranger:Net"', "party.bank.model.network.module: stranger:Net is code, and it is not"),
    ):
        with pytest.raises(BadInput, match=re.escape(message)):
            load_job(path, ["party.bank.model=" + PRETRAINED.replace("NETWORK", network)]).check()


def test_code_inside_an_encoder_is_named_before_it_runs() -> None:
    section = {"model": {"name": "pretrained", "network": {"module": "theirs:Net"}}, "top": {"module": "ours:Top"}}
    found = {"party.bank.model.network.module": "theirs:Net", "party.bank.top.module": "ours:Top"}
    assert find_modules("party.bank", section) == found


def test_the_label_party_may_have_features_but_not_its_label_among_them(path: Path) -> None:
    text = path.read_text() + (
        'features = { file = "clinic.csv" }\ntest_features = { file = "clinic_test.csv" }\n'
        'model = { name = "linear", width = 4 }\n'
    )
    path.write_text(text)
    with pytest.raises(BadInput, match=r"label_party.features holds the label 'ill'; write all_but = \['ill'\]"):
        load_job(path)
    own = ['label_party.features.file="shop.csv"', 'label_party.test_features.file="shop_test.csv"']
    job = load_job(path, own)
    assert list(job.check()) == ["bank", "shop", "clinic"]


WRONG = [
    ("job.epoch=3", "job.epoch: unknown key; did you mean 'epochs'?"),
    ("jobs.epochs=3", "jobs: unknown key; did you mean 'job'?"),
    ("link.latency=3", "link.latency: unknown key; did you mean 'latency_ms'?"),
    ("link.parties.shop.latency=3", "link.parties.shop.latency: unknown key; did you mean 'latency_ms'?"),
    ("party.bank.featurs=3", "party.bank.featurs: unknown key; did you mean 'features'?"),
    ("party.bank.features.colums=['a']", "party.bank.features.colums: unknown key; did you mean 'columns'?"),
    ("job.zzz=3", "job.zzz: unknown key; the keys here are epochs, batch_size"),
    ("job.epochs='ten'", "job.epochs must be a number, got 'ten'"),
    ("job.epochs=true", "job.epochs must be a number, got True"),
    ("job.epochs=0", "job.epochs must be greater than 0, got 0"),
    ("job.epochs=inf", "job.epochs must be a finite number, got inf"),
    ("job.batch_size=2.5", "job.batch_size must be an integer, got 2.5"),
    ("job.batch_size=0", "job.batch_size must be greater than or equal to 1, got 0"),
    ("job.batch_size=97", "job.batch_size must be from 1 to the 96 training rows, got 97"),
    ("job.epochs=1e300", "job.epochs must be below 1431655765, because round numbers have 32 bits; got 1e+300"),
    ("job.seed=-1", "job.seed must be greater than or equal to 0, got -1"),
    ("job.eval_every=0", "job.eval_every must be greater than or equal to 1, got 0"),
    ("job.metrics=['acuracy']", "job.metrics: metric 'acuracy' is not one of"),
    ("job.metrics='accuracy'", "job.metrics must be a list, got 'accuracy'"),
    ("job.target={metric='auc',value=1}", "job.target 'auc' is not among the metrics accuracy, loss"),
    ("job.target={metric='accuracy'}", "job.target.value is missing"),
    ("job.effort='huge'", "job.effort must be 'small' or 'fast', got 'huge'"),
    ("job.device='toaster'", "job.device 'toaster' is not available"),
    ("job.link_seconds_budget=3", "link_seconds_budget needs a link"),
    (
        "recipe.method='evfl'",
        "recipe.method must be one of svfl, fedbcd, cvfl, efvfl, celu, pbm, thin, boosting, once, got 'evfl'",
    ),
    ("recipe={}", "recipe.method is missing; it is one of svfl"),
    ("recipe='svfl'", "recipe must be a table, got 'svfl'"),
    ("recipe={method='efvfl'}", "recipe.compressor is missing; efvfl needs it"),
    ("recipe={method='svfl',fraction=1}", "recipe.fraction: svfl takes no 'fraction'; it takes no arguments"),
    ("recipe.compressor.fraction=0", "recipe.compressor.fraction: TopK: fraction must be above 0 and at most 1"),
    ("recipe.compressor.fraction=-0.1", "recipe.compressor.fraction: TopK: fraction must be above 0"),
    ("recipe.compressor.fraction='some'", "recipe.compressor.fraction: TopK: fraction must be a number"),
    ("recipe.compressor.fractoin=1", "recipe.compressor.fractoin: TopK takes no 'fractoin'; did you mean 'fraction'"),
    ("recipe.compressor.fraction={miles=[[0,1]]}", "recipe.compressor.fraction must be a number, or one of"),
    ("recipe.compressor.fraction={milestones=[[3,1]]}", "recipe.compressor.fraction.milestones: Milestones"),
    ("recipe.compressor.fraction={milestones=3}", "recipe.compressor.fraction.milestones: must be a list of pairs"),
    ("recipe.compressor=3", "recipe.compressor must be a table such as"),
    ("recipe.compressor={name='Uniform',bits=0}", "recipe.compressor.bits: Uniform: bits must be from 1 to 16"),
    ("recipe.compressor={name='QSGD',bits=0}", "recipe.compressor.bits: QSGD: bits must be"),
    ("recipe.compressor={name='Uniform',bits=4,dither=1}", "recipe.compressor.dither must be true or false, got 1"),
    (
        "recipe.compressor={name='Uniform',bits=1}",
        "recipe: ErrorFeedback: Uniform(1) does not shrink the remaining error",
    ),
    ("recipe.compressor={name='Then',first='Sign',second='Sign'}", "recipe.compressor: Then: Sign keeps every value"),
    ("recipe={method='pbm',trials=16,beta=0.3}", "recipe.beta: PoissonBinomial: beta must be"),
    ("recipe={method='pbm',trials=0,beta=0.2}", "recipe.trials: PoissonBinomial: trials must be"),
    ("recipe={method='pbm',trials=16,beta=0.2,delta=2}", "recipe.delta: pbm takes no 'delta'"),
    ("recipe={method='pbm',trials=16,beta=0.2}", "recipe: secure sum needs 3 feature parties, there are 2"),
    ("recipe={method='celu',capacity=0,reuse=3}", "recipe.capacity: CachedSteps: capacity must be from 1"),
    ("recipe={method='fedbcd',local_steps=0}", "recipe.local_steps: CachedSteps: reuse must be from 1"),
    ("recipe.local_steps=3", "recipe: with private labels a feature party cannot compute its own gradient"),
    ("recipe.labels=[1]", "recipe.labels: efvfl: labels must be 'shared' or 'private'"),
    ("optimizer.lr=-1", "optimizer.lr: Adam: lr must be above 0, got -1"),
    ("optimizer.lr=nan", "optimizer.lr: Adam: lr must be above 0, got nan"),
    ("optimizer.lr={name='cosin',lr=1}", "optimizer.lr.name must be one of constant"),
    ("optimizer.name='sdg'", "optimizer.name must be one of sgd, adam, adagrad, got 'sdg'; did you mean 'sgd'?"),
    ("optimizer.module='os:system'", "optimizer.module: adam takes no 'module'"),
    ("recipe.module='os:system'", "recipe.module: efvfl takes no 'module'"),
    ("optimizer.momentum=0.9", "optimizer.momentum: adam takes no 'momentum'"),
    ("link.bandwidth_mbit=-5", "link.bandwidth_mbit must be greater than 0, got -5"),
    ("link.parties.bnk.latency_ms=1", "link.parties.bnk: no feature party has this name; there are bank, shop"),
    ("party.bank.name='../x'", "party '../x': a name has at most 64 letters"),
    ("party.bank.name='shop'", "every party needs a unique name"),
    ("party.bank.model.name='mpl'", "party.bank.model.name must be one of linear, mlp"),
    ("party.bank.model.width=0", "party.bank.model.width: MLP: width must be an integer from 1 up, got 0"),
    ("party.bank.model.in_features=9", "party.bank.model: does not accept features of shape [3]"),
    ("party.bank.model={name='cnn',width=4}", "party.bank.model"),
    ("party.bank.model.width=5", "label_party.fusion: fusion 'sum' adds embeddings, but their widths differ: 5, 4"),
    ("party.bank.features.key='xx'", "there is no 'xx'; the file holds 'x', 'x_test'"),
    ("party.bank.features.file='gone.npz'", "party.bank.features: "),
    ("party.bank.features.columns=['a']", "'columns' does not fit .npz"),
    ("party.shop.features.columns=['agee']", "there is no column 'agee'"),
    ("party.shop.features.columns=['age']", "party.shop.test_features has 'visits' too; name the same columns"),
    ("party.shop.test_features.columns=['age']", "party.shop.test_features lacks 'visits'"),
    (
        "party.bank.test_features={file='bank.npz',key='x'}",
        "party 'bank' has 96 test rows, but there are 32 test labels",
    ),
    ("party.bank.features.key='x_test'", "party 'bank' has 32 rows, 'clinic' has 96 labels"),
    ("label_party.labels.column='sick'", "label_party.labels: "),
    ("label_party.fusion='max'", "label_party.fusion must be 'sum', 'mean' or 'concat', got 'max'"),
    ("label_party.loss='crossentropy'", "label_party.loss must be one of cross_entropy"),
    ("label_party.top.classes=1", "label_party.labels: cross_entropy: labels must be integers from 0 to 0"),
    ("label_party.top.name='linear_to'", "label_party.top.name must be one of"),
    ("label_party.class_weights=[1.0,-1.0]", "label_party: weighted: class_weights[1] must be at least 0"),
    ("party.nobody.model=1", "--set party.nobody.model=1: no party is called 'nobody'; there are bank, shop"),
    ("party.bank=1", "--set party.bank=1: say which key of the party"),
    ("job.epochs.more=1", "--set job.epochs.more=1: job.epochs is 2, not a table"),
    ("job.epochs", "--set job.epochs: write key=value"),
    ("job..epochs=1", "write key=value"),
    ("job.epochs=[", "the value is not TOML"),
    ("job.epochs=1\nx=2", "give one value, on one line"),
]


@pytest.mark.parametrize(("setting", "message"), WRONG, ids=[setting for setting, _ in WRONG])
def test_what_is_wrong_is_said_with_its_path(path: Path, setting: str, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        load_job(path, [setting])
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "recipe is missing; party is missing; label_party is missing"),
        (b"[job\n", "not TOML"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"recipe = 3\nparty = []\n", "recipe must be a table, got 3; party must have at least 1 item"),
    ],
)
def test_files_that_are_no_job(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(BadInput, match=re.escape(message)):
        load_job(path)


def test_a_missing_job_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the job file does not exist"):
        load_job(tmp_path / "no.toml")
    with pytest.raises(BadInput, match="a folder, not a job file"):
        load_job(tmp_path)


def test_a_job_file_may_have_a_byte_order_mark_and_crlf(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + JOB.replace("\n", "\r\n").encode())
    load_job(path)


@pytest.mark.parametrize(
    ("labels", "tests", "message"),
    [
        (
            "0\n" * ROWS,
            "0\n" * TESTS,
            "label_party.labels: all 96 rows have class 0; training needs at least two classes",
        ),
        ("0\n1\n" * (ROWS // 2), "0\n" * (TESTS - 1) + "2\n", "label_party.test_labels: cross_entropy: "),
        ("0\n2\n" * (ROWS // 2), "0\n" * TESTS, "label_party: cross_entropy: labels must be"),
        ("0\n0.5\n" * (ROWS // 2), "0\n" * TESTS, "cross_entropy: labels must be integers"),
    ],
)
def test_labels_that_teach_nothing(path: Path, labels: str, tests: str, message: str) -> None:
    (path.parent / "clinic.csv").write_text("ill\n" + labels)
    (path.parent / "clinic_test.csv").write_text("ill\n" + tests)
    with pytest.raises(BadInput, match=re.escape(message)):
        load_job(path)


def test_a_class_that_only_the_test_rows_have(path: Path) -> None:
    (path.parent / "clinic_test.csv").write_text("ill\n" + "0\n" * (TESTS - 1) + "2\n")
    with pytest.raises(BadInput, match=r"label_party\.test_labels: row 32 has class 2, which no training row has"):
        load_job(path, ["label_party.top.classes=3"])


def test_auc_of_one_class_is_refused_before_the_start(path: Path) -> None:
    (path.parent / "clinic_test.csv").write_text("ill\n" + "0\n" * TESTS)
    with pytest.raises(BadInput, match=r"job\.metrics: AUC needs both classes"):
        load_job(path, ["job.metrics=['auc']"])


def test_noise_on_single_rows_refuses_models_that_mix_rows(path: Path) -> None:
    images = np.random.default_rng(0).random((ROWS + TESTS, 1, 8, 8))
    np.savez(path.parent / "bank.npz", x=images[:ROWS], x_test=images[ROWS:])
    third = JOB[JOB.index('[[party]]\nname = "shop"') : JOB.index("[label_party]")].replace('"shop"', '"kiosk"')
    path.write_text(JOB.replace("[label_party]", f"{third}[label_party]"))
    settings = ["recipe={method='pbm',trials=16,beta=0.2}"]
    with pytest.raises(BadInput, match=r"party.bank.model: normalises over the batch"):
        load_job(path, [*settings, 'party.bank.model={name="resnet18",width=4,base_width=2}'])
    load_job(path, [*settings, 'party.bank.model={name="cnn",width=4}'])
