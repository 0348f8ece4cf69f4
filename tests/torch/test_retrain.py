"""Retraining a last layer in one call."""

import copy

import numpy as np
import pandas as pd
import pytest

import groupdro as gd

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from groupdro.data.grouping import read_groups  # noqa: E402
from groupdro.torch import Features, choosing, extract_features, retrain_last_layer, write_last_layer  # noqa: E402
from groupdro.torch.choosing import choose  # noqa: E402
from groupdro.torch.result import compare_scores  # noqa: E402
from groupdro.torch.rows import sample_rows  # noqa: E402
from tests.torch.models import ConvNet, changed, import_models, make_loader, make_rows, state_of  # noqa: E402


@pytest.fixture(scope="module")
def network():
    """Train a small network on rows with a shortcut, and return it with rows to retrain and to test it on."""
    torch.manual_seed(0)
    model, (images, y, _) = ConvNet(2), make_rows(2000)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        for rows in torch.randperm(len(y)).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), y[rows]).backward()
            optimizer.step()
    return model, make_rows(3000, seed=1), make_rows(4000, seed=2)


def worst_accuracy(model, rows):
    images, y, groups = rows
    with torch.no_grad():
        scores = copy.deepcopy(model).eval()(images)
    predicted = scores.argmax(dim=1) if scores.shape[1] > 1 else (scores[:, 0] > 0).long()
    right = (predicted == y).double()
    return min(float(right[groups == g].mean()) for g in groups.unique())


def test_the_worst_group_gains_and_only_the_layer_changes(network):
    model, rows, test = copy.deepcopy(network[0]), *network[1:]
    old, before = worst_accuracy(model, test), state_of(model)
    result = retrain_last_layer(model, make_loader(rows))
    assert result.model is model
    assert model.training
    assert changed(model, before) == {"head.weight", "head.bias"}
    new = worst_accuracy(model, test)
    assert new > old + 0.15
    worst = [min(report.columns["accuracy"]) for report in (result.before, result.after)]
    assert worst == pytest.approx([old, new], abs=0.12)  # on few held-out rows of the rare groups
    assert result.fall[1] > 0
    assert result.classifier.status_ == "converged"
    assert f"({result.before.worst_group})" in result.message
    assert "The worst group's risk falls by" in result.message
    assert "was fitted on all 3000 rows" in result.message
    assert result.n_judged == sum(result.by_group["n"]) == result.before.overall["n"] == 3000


def test_groups_found_in_metadata_repair_the_layer(network):
    model, (images, y, groups), test = copy.deepcopy(network[0]), *network[1:]
    rng = np.random.default_rng(0)
    metadata = pd.DataFrame({"agrees": groups.numpy() % 2 == 1, "noise": rng.normal(size=len(y))})
    with torch.no_grad():
        scores = copy.deepcopy(model).eval()(images)
    losses = nn.functional.cross_entropy(scores, y, reduction="none").numpy()
    found = gd.find_groups(losses=losses, columns=metadata)
    assert found.columns["group"][0].startswith("agrees = False")
    old = worst_accuracy(model, test)
    loader = DataLoader(list(zip(images, y, strict=True)), batch_size=100)
    result = retrain_last_layer(model, loader, groups=found.partition(metadata), inplace=False)
    columns = {"agrees": torch.tensor(metadata["agrees"].to_numpy()), "noise": torch.tensor(metadata["noise"])}
    rows = [
        (image, {"image": image, "label": label, "metadata": {name: column[k] for name, column in columns.items()}})
        for k, (image, label) in enumerate(zip(images, y, strict=True))
    ]
    shuffled = DataLoader([row for _, row in rows], batch_size=100, shuffle=True)
    by_batch = retrain_last_layer(model, shuffled, groups=found, forward=lambda net, batch: net(batch["image"]))
    assert by_batch.classifier.groups_.tolist() == result.classifier.groups_.tolist()
    assert by_batch.by_group["n"] == result.by_group["n"]
    assert worst_accuracy(model, test) > old + 0.03


@pytest.mark.filterwarnings("ignore:On .* held-out rows:UserWarning")  # labels are noise
def test_rows_are_judged_by_fits_without_them(network):
    """A layer that learned its rows by heart would look perfect on them: labels here are noise."""
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(160, 90)), dtype=torch.float32)
    y, groups = torch.tensor(rng.integers(0, 2, 160)), torch.tensor(rng.integers(0, 2, 160))
    model = nn.Sequential(nn.Linear(90, 2))
    result = retrain_last_layer(model, make_loader((X, y, groups)), alpha=1e-3)
    assert result.n_judged == result.n_rows == 160
    in_sample = np.mean(result.classifier.predict(X.numpy()) == y.numpy())
    assert in_sample > 0.8
    assert result.after.overall["accuracy"] < 0.62
    write_last_layer(model, result.classifier, layer=result.layer)  # the layer that knows these rows
    again = retrain_last_layer(model, make_loader((X, y, groups)), alpha=1e-3)
    assert again.before.overall["accuracy"] > 0.8
    assert again.after.columns == result.after.columns


def test_a_store_holds_out_a_share_of_every_group(network, tmp_path):
    model, rows, _ = network
    result = retrain_last_layer(model, make_loader(rows), alpha=1e-3, inplace=False, store=tmp_path / "store")
    shares = np.array(result.by_group["n"]) / np.bincount(rows[2])[result.by_group["group"]]
    assert shares == pytest.approx([0.2] * 4, abs=0.02)
    train = gd.GroupedStore.open(tmp_path / "store" / "train")
    assert train.n_rows == 3000 - result.n_judged
    assert f"is the one judged, fitted on {train.n_rows} rows" in result.message
    expected = gd.GroupDROClassifier(alpha=1e-3, random_state=0).fit(train)
    np.testing.assert_array_equal(expected.coef_, result.classifier.coef_)


@pytest.mark.parametrize("n_outputs", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_has_the_scores_of_its_classifier(n_outputs, bias):
    torch.manual_seed(0)
    model, rows = ConvNet(n_outputs, bias=bias), make_rows(600, n_classes=max(2, n_outputs))
    result = retrain_last_layer(model, make_loader(rows), alpha=1e-2, inplace=False)
    X = extract_features(model, make_loader(rows)).X
    with torch.no_grad():
        scores = result.model.eval()(rows[0]).double()
    probabilities = result.classifier.predict_proba(X)
    found = torch.sigmoid(scores[:, 0]).numpy() if n_outputs == 1 else torch.softmax(scores, dim=1).numpy()
    np.testing.assert_allclose(found, probabilities[:, 1] if n_outputs == 1 else probabilities, atol=1e-5)
    assert result.classifier.fit_intercept is bias


def test_the_report_before_is_of_the_network_as_it_was(network):
    model, rows, _ = network
    result = retrain_last_layer(model, make_loader(rows), alpha=1e-3, inplace=False)
    with torch.no_grad():
        scores = copy.deepcopy(model).eval()(rows[0])
    losses = nn.functional.cross_entropy(scores, rows[1], reduction="none")
    for group, n, accuracy, risk in zip(
        *(result.by_group[name] for name in ("group", "n", "accuracy before", "risk before")), strict=True
    ):
        own = rows[2] == group
        assert n == int(own.sum())
        assert accuracy == pytest.approx(float((scores.argmax(dim=1) == rows[1])[own].double().mean()), abs=1e-6)
        assert risk == pytest.approx(float(losses[own].mean()), rel=1e-5)


def test_a_copy_leaves_the_network_alone(network):
    model, rows, _ = network
    before = state_of(model)
    result = retrain_last_layer(model, make_loader(rows), alpha=1e-3, inplace=False)
    assert not changed(model, before)
    assert changed(result.model, before) == {"head.weight", "head.bias"}


def test_robustness_and_penalty_are_chosen(network):
    model, rows, test = network
    options = {"inplace": False}
    blend = retrain_last_layer(model, make_loader(rows), robustness=0.5, **options)
    chosen = retrain_last_layer(model, make_loader(rows), robustness="cv", **options)
    assert blend.robustness == 0.5
    assert blend.classifier.robustness == 0.5
    assert 0 < chosen.robustness <= 1
    assert worst_accuracy(chosen.model, test) > worst_accuracy(model, test)
    variance = extract_features(model, make_loader(rows)).X.var(axis=0).mean()
    assert 1e-5 * variance * 0.9 <= blend.alpha <= variance


def test_a_network_without_a_gain_is_told_so():
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(600, 4)), dtype=torch.float32)
    y, groups = torch.tensor(rng.integers(0, 2, 600)), torch.tensor(rng.integers(0, 2, 600))
    model = nn.Sequential(nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
    result = retrain_last_layer(model, make_loader((X, y, groups)), alpha=1e-3)
    assert "not a significant improvement" in result.message
    few = retrain_last_layer(model, make_loader((X[:40], y[:40], groups[:40])), alpha=1e-3)
    assert np.isnan(few.fall).all()
    assert "No group has enough held-out rows" in few.message


def test_a_result_prints_and_is_drawn(network):
    model, rows, _ = network
    result = retrain_last_layer(model, make_loader(rows), alpha=1e-3, inplace=False)
    text = repr(result)
    assert text.startswith("Layer 'head' on ")
    assert all(word in text for word in ("accuracy before", "accuracy after", "risk before", "(all rows)"))
    assert result.message in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 88
    assert "<table" in result._repr_html_()
    drawn = result.plot()
    assert list(drawn.values) == ["before", "retrained"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_networks_of_less_precision_are_retrained(network, dtype, tmp_path):
    model, rows, test = copy.deepcopy(network[0]).to(dtype), *network[1:]
    rows, test = ((part[0].to(dtype), *part[1:]) for part in (rows, test))
    old = worst_accuracy(model, test)
    retrain_last_layer(model, make_loader(rows), alpha=1e-3, store=tmp_path / "store")
    assert model.head.weight.dtype == dtype
    assert worst_accuracy(model, test) > old + 0.15
    expected = np.float16 if dtype == torch.float16 else np.float32
    assert gd.GroupedStore.open(tmp_path / "store" / "train").X.dtype == expected


@pytest.mark.parametrize("which", ["before", "after"])
def test_a_loss_that_a_few_rows_carry_decides_nothing(which):
    rng = np.random.default_rng(0)
    y, groups = rng.integers(0, 2, 600), read_groups(np.arange(600) % 3, 600)
    sign = np.where(y == 1, 1.0, -1.0)
    poor, good = (sign + noise * rng.logistic(size=600) for noise in (2.0, 0.7))
    sure = 4.0 * good
    sure[np.arange(9)] = -200.0 * sign[:9]  # three confident mistakes in each group
    judged = compare_scores([poor[:, None], good[:, None]], y, groups, confidence=0.95, seed=0)
    scores = [sure, good] if which == "before" else [poor, sure]
    silent = compare_scores([some[:, None] for some in scores], y, groups, confidence=0.95, seed=0)
    assert 0 < judged.fall[1] < judged.fall[0] < judged.fall[2]
    assert np.isnan(silent.fall).all()
    assert getattr(silent, which).columns["note"] == ["few errors"] * 3
    assert (silent.after if which == "before" else silent.before).columns["note"] == [""] * 3


def test_features_on_disk_give_the_fit_of_those_in_memory(network, tmp_path):
    model, rows, test = network
    options = {"alpha": 1e-3, "inplace": False, "estimator": gd.GroupDROClassifier(tol=1e-6)}
    stored = retrain_last_layer(model, make_loader(rows), store=tmp_path / "store", **options)
    there = retrain_last_layer(model, make_loader(rows), **options)
    whole = retrain_last_layer(model, make_loader(rows), store=tmp_path / "store", refit=True, **options)
    assert not stored.refitted
    assert whole.refitted
    assert whole.classifier.upper_bound_ == pytest.approx(there.classifier.upper_bound_, rel=1e-5)
    np.testing.assert_allclose(whole.classifier.coef_, there.classifier.coef_, rtol=0.02, atol=0.02)
    assert whole.after.to_frame().equals(stored.after.to_frame())
    assert worst_accuracy(whole.model, test) > worst_accuracy(model, test) + 0.15


def test_a_sample_that_fits_the_memory_chooses_the_penalty(network, tmp_path):
    model, rows, test = network
    result = retrain_last_layer(
        model, make_loader(rows), store=tmp_path / "store", memory=400 * 8 * 6, robustness=0.8, inplace=False
    )
    assert worst_accuracy(result.model, test) > worst_accuracy(model, test) + 0.1


def test_a_sample_has_all_rows_of_small_groups_and_the_shares_of_all():
    codes = np.repeat(np.arange(4), [5, 20, 300, 1000])
    features = Features(np.zeros((1325, 1), np.float32), np.zeros(1325, np.int64), codes, tuple("abcd"), "head")
    rows, weights = sample_rows(features, np.arange(1325), 225, seed=0)
    assert np.bincount(codes[rows]).tolist() == [5, 20, 100, 100]
    assert np.bincount(codes[rows], weights) == pytest.approx([5, 20, 300, 1000])
    assert (np.diff(rows) > 0).all()
    some = np.flatnonzero(codes != 2)
    assert np.bincount(codes[sample_rows(features, some, 225, seed=0)[0]]).tolist() == [5, 20, 0, 200]


def test_the_least_penalty_that_is_not_worse_than_the_best_is_chosen():
    """Noise wants the largest penalty; a clear rule in many rows is learned as well with the smallest."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 30)).astype(np.float32)
    groups = read_groups(np.arange(2000) % 2, 2000)
    options = {"alpha": "cv", "robustness": 1.0, "variance": 1.0, "n_splits": 5, "seed": 0}
    noise, rule = rng.integers(0, 2, 2000), (X[:, 0] + 0.3 * rng.logistic(size=2000) > 0).astype(int)
    first, _ = choose(gd.GroupDROClassifier(), X, noise, None, groups, **options)
    second, _ = choose(gd.GroupDROClassifier(), X, rule, None, groups, **options)
    assert first >= 0.1
    assert second <= 1e-3
    assert choose(gd.GroupDROClassifier(), X, rule, None, groups, **options | {"alpha": 0.7}) == (0.7, 1.0)


def test_a_penalty_chosen_by_accuracy_has_nearly_the_best_worst_group_on_held_out_rows():
    """A few rows far on the wrong side rule the loss, but each counts once for the accuracy."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 10)).astype(np.float32)
    y = (X[:, 0] + 0.3 * rng.logistic(size=1500) > 0).astype(int)
    X[rng.random(1500) < 0.01, 0] *= -30.0
    groups = read_groups(np.arange(1500) % 3, 1500)
    options = {"alpha": "cv", "robustness": 1.0, "variance": 1.0, "n_splits": 5, "seed": 0}
    by_loss, by_accuracy = (
        choose(gd.GroupDROClassifier(), X, y, None, groups, **options, by=by)[0] for by in ("risk", "accuracy")
    )
    worst = {}
    for alpha in choosing._ALPHAS:
        right = np.zeros(1500, bool)
        for train, test in gd.GroupStratifiedKFold(5, random_state=0).split(X, y, np.arange(1500) % 3):
            one = gd.GroupDROClassifier(alpha=alpha).fit(X[train], y[train], groups=train % 3)
            right[test] = one.predict(X[test]) == y[test]
        worst[alpha] = min(right[k::3].mean() for k in range(3))
    error = np.sqrt(0.25 / 500)
    assert by_accuracy != by_loss
    assert worst[by_accuracy] >= max(worst.values()) - 2.0 * error
    assert all(worst[alpha] < max(worst.values()) for alpha in worst if alpha < by_accuracy)


def test_the_search_goes_on_while_an_l1_penalty_leaves_hardly_anything():
    """The second model is worse than the constant one by little, but in all rows; only then does the third learn."""
    rng, rows = np.random.default_rng(0), np.ones(50, bool)
    constant, tiny = np.full(50, 3.0), 4e-4 + 1e-5 * rng.normal(size=50)
    learned = 2.5 + 0.1 * rng.normal(size=50)
    found = [(losses.mean(), losses, rows) for losses in (constant, constant + tiny, learned, learned + 0.2)]
    assert choosing._excess(found[:2])[1] > 10
    assert [choosing._has_risen(found[:n]) for n in (1, 2, 3, 4)] == [False, False, False, True]


def test_robustness_is_chosen_for_a_group_too_rare_to_matter_to_the_average():
    """Where a shortcut misleads 1% of rows, plain training has a tiny average, beside which robustness looks dear."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 3000)
    shortcut = np.where(rng.random(3000) < 0.99, y, 1 - y)
    X = rng.normal(size=(3000, 6)).astype(np.float32)
    X[:, 0] += 3 * y
    X[:, 1] += 12 * shortcut
    codes = 2 * y + shortcut
    rare = np.bincount(codes).min()
    assert 10 <= rare < 30
    options = {"alpha": "cv", "variance": float(X.var(axis=0).mean()), "n_splits": 5, "seed": 0}
    alpha, robustness = choose(
        gd.GroupDROClassifier(), X, y, None, read_groups(codes, 3000), robustness="cv", **options
    )
    assert robustness >= 0.5
    assert (alpha, 1.0) == choose(
        gd.GroupDROClassifier(), X, y, None, read_groups(codes, 3000), robustness=1.0, **options
    )


def test_an_l1_penalty_keeps_few_features_and_follows_their_scale():
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(600, 12)), dtype=torch.float32)
    y, groups = (X[:, 0] > torch.tensor(rng.logistic(size=600))).long(), torch.arange(600) % 3
    results = []
    for scale in (1.0, 64.0):
        model, estimator = nn.Sequential(nn.Linear(12, 2)), gd.GroupDROClassifier(l1_ratio=1.0)
        results.append(retrain_last_layer(model, make_loader((scale * X, y, groups)), estimator=estimator))
        assert torch.equal(model[0].weight[1] == 0, torch.from_numpy(results[-1].classifier.coef_[0] == 0))
    small, large = results
    assert 0 < np.count_nonzero(small.classifier.coef_) < 12
    assert large.alpha == pytest.approx(64 * small.alpha, rel=1e-6)  # that of squares would be 64 times as large again
    np.testing.assert_allclose(64 * large.classifier.coef_, small.classifier.coef_, atol=2e-2)


def test_an_interrupted_call_continues(network, tmp_path):
    model, rows, _ = network
    loader, n_seen = make_loader(rows), 0

    def stopping(model, batch):
        nonlocal n_seen
        n_seen += 1
        if n_seen == 12:
            raise KeyboardInterrupt
        return model(batch[0])

    options = {"alpha": 1e-3, "inplace": False, "store": tmp_path / "store"}
    with pytest.raises(KeyboardInterrupt):
        retrain_last_layer(model, loader, forward=stopping, **options)
    continued = retrain_last_layer(model, loader, **options)
    whole = retrain_last_layer(model, loader, **{**options, "store": tmp_path / "other"})
    np.testing.assert_array_equal(continued.classifier.coef_, whole.classifier.coef_)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"robustness": 2.0}, "robustness must be from 0 to 1"),
        ({"robustness": "best"}, 'robustness must be a number or "cv"'),
        ({"alpha": "auto"}, 'alpha must be a number or "cv"'),
        ({"alpha": -1.0}, "alpha"),
        ({"cv": 1}, "cv"),
        ({"memory": 0}, "memory"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        retrain_last_layer(ConvNet(), make_loader(make_rows(20)), **options)


def test_labels_that_are_not_the_outputs_are_refused(tmp_path):
    images, y, groups = make_rows(60)
    for labels, message in (
        (y + 1, "labels must be from 0 to 2, the outputs of layer 'head'; got 1 to 2|no row of class 0"),
        (y + 2, "labels must be from 0 to 2, the outputs of layer 'head'; got 2 to 3"),
        (y, "labels have no row of class 2"),
    ):
        with pytest.raises(ValueError, match=message):
            retrain_last_layer(ConvNet(3), make_loader((images, labels, groups)))
    with pytest.raises(ValueError, match="no group has 20 rows of a class"):
        retrain_last_layer(ConvNet(), make_loader(make_rows(18)), cv=20, store=tmp_path / "store")
    with pytest.raises(TypeError, match="estimator must be a GroupDROClassifier"):
        retrain_last_layer(ConvNet(), make_loader(make_rows(6)), estimator=gd.GroupDRORegressor())


@pytest.mark.filterwarnings("ignore:On .* held-out rows:UserWarning")  # its features are no better than chance
def test_a_vision_transformer_gains():
    models = import_models("torchvision").models
    torch.manual_seed(0)
    model = models.VisionTransformer(
        image_size=8, patch_size=4, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=16, num_classes=2
    )
    images, y, groups = make_rows(800)
    rows = images.expand(-1, 3, -1, -1).contiguous(), y, groups
    before, old = state_of(model), worst_accuracy(model, rows)
    result = retrain_last_layer(model, make_loader(rows), alpha=1.0)
    assert result.layer == "heads.head"
    assert changed(model, before) == {"heads.head.weight", "heads.head.bias"}
    assert worst_accuracy(model, rows) > old


def test_a_sequence_classifier_of_hugging_face_gains():
    transformers = import_models("transformers")
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    agrees = rng.random(400) < 0.9
    tokens = rng.integers(10, 50, (400, 6))
    tokens[:, 1], tokens[:, 2] = 2 + y, 4 + (y ^ ~agrees & 1)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=50,
            num_labels=2,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            hidden_dropout_prob=0.3,
            initializer_range=0.5,
        )
    )
    rows = [{"input_ids": torch.tensor(row), "attention_mask": torch.ones(6, dtype=torch.int64), "labels": int(label)}
            for row, label in zip(tokens, y, strict=True)]  # fmt: skip
    before = state_of(model)
    result = retrain_last_layer(model, DataLoader(rows, batch_size=32), groups=2 * y + agrees, alpha=1e-3)
    assert result.layer == "classifier"
    assert changed(model, before) == {"classifier.weight", "classifier.bias"}
    risks = [max(report.columns["risk"]) for report in (result.before, result.after)]
    assert risks[1] < risks[0]


def test_a_layer_that_is_worse_for_its_worst_group_is_warned_of():
    """A penalty that allows nothing but the average undoes a layer that was right."""
    rng = np.random.default_rng(0)
    y = torch.tensor(rng.integers(0, 2, 400))
    X = torch.tensor(rng.normal(size=(400, 4)), dtype=torch.float32)
    X[:, 0] += 4.0 * (y - 0.5)
    model = nn.Sequential(nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
        model[0].weight[1, 0], model[0].weight[0, 0] = 2.0, -2.0
    groups = torch.tensor(np.r_[np.zeros(380, int), np.ones(20, int)])
    with pytest.warns(UserWarning, match="risk rises by .*keeps its old layer"):
        result = retrain_last_layer(model, make_loader((X, y, groups)), alpha=1e3)
    assert result.is_worse
    assert "the worst judged group" in result.message
    assert "Not judged, for fewer than 30 rows or too few errors (1 here): 1 from" in result.message


def test_a_layer_that_repairs_a_group_too_small_to_judge_is_kept():
    """A shortcut is right for most of 1,200 rows and wrong for 20; the other column is right for 70% of both."""
    rng = np.random.default_rng(0)
    y, rare = rng.integers(0, 2, 1220), np.arange(1220) < 20
    sign, right = 2.0 * y - 1.0, np.where(rng.random(1220) < 0.7, 1.0, -1.0)
    wrong = rare | (rng.random(1220) < 0.05)
    X = torch.tensor(np.stack([np.where(wrong, -sign, sign) * 2.0, sign * right], axis=1), dtype=torch.float32)
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-0.75, 0.0], [0.75, 0.0]]))
        model[0].bias.zero_()
    groups = torch.tensor(rare.astype(int))
    result = retrain_last_layer(model, make_loader((X, torch.tensor(y), groups)), alpha=1e-3)
    assert not result.before.judged[result.before.columns["group"].index(1)]
    assert result.fall[2] < 0  # the other group pays
    assert result.after.by_group[1]["risk"] < result.before.by_group[1]["risk"] - 0.5
    assert not result.is_worse
    np.testing.assert_allclose(model[0].weight.detach()[1] - model[0].weight.detach()[0], result.classifier.coef_[0],
                               rtol=1e-4)  # fmt: skip


@pytest.mark.parametrize("name", ["alpha", "robustness"])
def test_parameters_of_its_own_are_not_taken_from_the_estimator(network, name):
    model, rows, _ = network
    with pytest.raises(ValueError, match=f"estimator must not set {name}"):
        retrain_last_layer(model, make_loader(rows), estimator=gd.GroupDROClassifier(**{name: 0.25}))


def test_a_domain_which_would_replace_alpha_is_refused(network):
    model, rows, _ = network
    estimator = gd.GroupDROClassifier(domain=gd.domains.L2Domain(penalty=0.1))
    with pytest.raises(ValueError, match=r"^retrain_last_layer varies alpha, but the estimator has domain="):
        retrain_last_layer(model, rows, estimator=estimator)


def test_an_estimator_without_an_intercept_sets_the_bias_to_zero(network):
    model, rows, _ = network
    estimator = gd.GroupDROClassifier(fit_intercept=False)
    result = retrain_last_layer(model, make_loader(rows), estimator=estimator, alpha=1e-2, inplace=False)
    assert not result.is_worse
    assert not result.model.head.bias.any()
    assert not result.classifier.intercept_.any()


class Followed(nn.Module):
    """A network whose output is some function of that of its last layer."""

    def __init__(self, follow):
        super().__init__()
        self.inner, self.follow = ConvNet(2), follow
        self.factor = nn.Parameter(torch.tensor(10.0))

    def forward(self, x):
        return self.follow(self.inner(x))


@pytest.mark.parametrize("layer", [None, "inner.head"])
@pytest.mark.parametrize("follow", [lambda u: 10 * u, lambda u: u + 1, lambda u: (u / 2).softmax(1)])
def test_a_layer_whose_output_the_network_changes_is_refused(network, layer, follow):
    model = Followed(follow)
    before = state_of(model)
    with pytest.raises(ValueError, match=r"'inner\.head', nor its softmax or sigmoid.* multiply the layer's weights"):
        retrain_last_layer(model, make_loader(network[1]), layer=layer, alpha=1e-2)
    assert not changed(model, before)


@pytest.mark.parametrize("follow", [nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid()])
def test_a_softmax_or_a_sigmoid_may_follow_a_named_layer(network, follow):
    model, rows = Followed(follow), make_rows(300)
    with pytest.raises(ValueError, match=r"pass layer='inner\.head'"):
        retrain_last_layer(model, make_loader(rows), alpha=1e-2)
    result = retrain_last_layer(model, make_loader(rows), layer="inner.head", alpha=1e-2)
    assert result.layer == "inner.head"


def test_a_function_that_returns_the_output_of_the_layer_stands_for_the_network():
    model, rows = Followed(lambda u: 10 * u), make_rows(300)
    loader = make_loader(rows)
    result = retrain_last_layer(model, loader, alpha=1e-2, forward=lambda model, batch: model.inner(batch[0]))
    assert result.layer == "inner.head"


class ConvHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 5), nn.Conv2d(5, 2, 1)

    def forward(self, x):
        return self.head(self.body(x.flatten(1))[:, :, None, None]).flatten(1)


def test_a_convolution_at_the_end_is_named():
    with pytest.raises(ValueError, match=r"last layer with weights is 'head', a Conv2d; .* by a torch\.nn\.Linear"):
        retrain_last_layer(ConvHead(), make_loader(make_rows(100)), alpha=1e-2)
