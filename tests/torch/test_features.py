"""Reading the inputs of a last layer, and writing weights into it."""

import copy
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler, TensorDataset  # noqa: E402

from groupdro import GroupDROClassifier, find_groups  # noqa: E402
from groupdro.torch import extract_features, write_last_layer  # noqa: E402
from tests.torch.models import ConvNet, changed, import_models, make_loader, make_rows, state_of  # noqa: E402


def fitted(n_outputs, n_features, seed=0):
    rng = np.random.default_rng(seed)
    return SimpleNamespace(coef_=rng.normal(size=(n_outputs, n_features)), intercept_=rng.normal(size=n_outputs))


def read_by_hand(model, images):
    """Return the inputs of a ConvNet's head in evaluation mode."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        return model.body(images).float().numpy()


@pytest.mark.parametrize("n_outputs", [1, 2, 3])
def test_the_inputs_of_the_last_layer_are_read(n_outputs):
    torch.manual_seed(0)
    model, rows = ConvNet(n_outputs), make_rows()
    features = extract_features(model, make_loader(rows))
    assert features.layer == "head"
    assert features.X.dtype == np.float32
    np.testing.assert_allclose(features.X, read_by_hand(model, rows[0]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(features.y, rows[1])
    np.testing.assert_array_equal(np.array(features.names)[features.group_codes], rows[2])


def test_the_network_is_left_as_it_was():
    model, rows = ConvNet(), make_rows()
    model.body[1].eval()  # one module in another mode than the rest
    modes, before = [module.training for module in model.modules()], state_of(model)
    extract_features(model, make_loader(rows))
    assert [module.training for module in model.modules()] == modes
    assert not changed(model, before)
    with pytest.raises(ValueError, match="groups has 3 rows"):
        extract_features(model, make_loader(rows), groups=[0, 1, 1])
    broken = [(rows[0][:4], rows[1][:4], rows[2][:4]), (torch.zeros(2, 9, 9, 9), rows[1][:2], rows[2][:2])]
    with pytest.raises(RuntimeError):
        extract_features(model, broken)
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_and_written(dtype, tmp_path):
    torch.manual_seed(0)
    model, rows = ConvNet().to(dtype), make_rows()
    rows = rows[0].to(dtype), *rows[1:]
    features = extract_features(model, make_loader(rows))
    assert features.X.dtype == np.float32
    np.testing.assert_array_equal(features.X, read_by_hand(model, rows[0]))
    stored = extract_features(model, make_loader(rows), path=tmp_path / "features")
    assert stored.X.dtype == (np.float16 if dtype == torch.float16 else np.float32)
    np.testing.assert_array_equal(stored.X, features.X)
    new = fitted(1, 6)
    write_last_layer(model, new, layer=features.layer)
    assert model.head.weight.dtype == dtype
    difference = (model.head.weight[1] - model.head.weight[0]).detach().double().numpy()
    np.testing.assert_allclose(difference, new.coef_[0], rtol=2e-2)


def test_an_autocast_context_is_respected():
    torch.manual_seed(0)
    model, rows = ConvNet(), make_rows()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = extract_features(model, make_loader(rows)).X
    exact = extract_features(model, make_loader(rows)).X
    assert not np.array_equal(rounded, exact)
    np.testing.assert_array_equal(rounded, torch.tensor(rounded).bfloat16().float())
    np.testing.assert_allclose(rounded, exact, atol=0.05)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("n_fitted", "n_outputs"), [(1, 1), (1, 2), (3, 3)])
def test_what_is_written_gives_the_scores_of_the_fit_and_changes_nothing_else(n_fitted, n_outputs, bias):
    model, rows, new = ConvNet(n_outputs, bias=bias), make_rows(), fitted(n_fitted, 6)
    if not bias:
        with pytest.raises(ValueError, match="has no bias: fit with fit_intercept=False"):
            write_last_layer(model, new, layer="head")
        new.intercept_ = np.zeros(n_fitted)
    X, before = extract_features(model, make_loader(rows)).X, state_of(model)
    parameter = model.head.weight
    write_last_layer(model, new, layer="head")
    assert changed(model, before) == ({"head.weight", "head.bias"} if bias else {"head.weight"})
    assert model.head.weight is parameter
    assert parameter.requires_grad
    with torch.no_grad():
        scores = model.eval()(rows[0]).double().numpy()
    expected = X @ new.coef_.T + new.intercept_
    found = scores[:, 1:] - scores[:, :1] if n_outputs == 2 else scores
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_coefficients_that_do_not_fit_are_not_written():
    model = ConvNet(3).half()
    before = state_of(model)
    with pytest.raises(ValueError, match="fitted has 1 outputs of 6 features, but the layer 'head' has 3 of 6"):
        write_last_layer(model, fitted(1, 6), layer="head")
    with pytest.raises(ValueError, match="too large for"):
        write_last_layer(model, SimpleNamespace(coef_=np.full((3, 6), 1e6), intercept_=np.zeros(3)), layer="head")
    assert not changed(model, before)


# ---------------------------------------------------------------------- the layer


class Twice(nn.Module):
    """Two linear layers that are defined in another order than they run in, and one that never runs."""

    def __init__(self):
        super().__init__()
        self.last, self.first, self.unused = nn.Linear(5, 2), nn.Linear(64, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(1))))


class Ending(nn.Module):
    def __init__(self, end):
        super().__init__()
        self.inner, self.end = Twice(), end

    def forward(self, x):
        return self.end(self.inner(x))


def test_the_layer_that_runs_last_is_found():
    loader = make_loader(make_rows(20))
    assert extract_features(Twice(), loader).layer == "last"
    sequential = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 2)))
    assert extract_features(sequential, loader).layer == "1.2"
    assert extract_features(sequential, loader, layer="1").layer == "1.2"
    assert extract_features(sequential, loader, layer=sequential[1][2]).layer == "1.2"
    pair = namedtuple("Pair", "loss logits")
    for end in (
        lambda x: x.squeeze(),
        lambda x: (x, 1),
        lambda x: {"logits": x},
        lambda x: pair(None, x),
        lambda x: SimpleNamespace(logits=x.double()),
    ):
        assert extract_features(Ending(end), loader).layer == "inner.last"
    assert extract_features(nn.DataParallel(Twice()), loader, layer="module.last").layer == "last"


def test_a_softmax_after_the_layer_needs_its_name():
    model, loader = Ending(nn.Softmax(dim=1)), make_loader(make_rows(20))
    with pytest.raises(ValueError, match=r"last linear layer, 'inner\.last'.*pass layer='inner\.last'"):
        extract_features(model, loader)
    assert extract_features(model, loader, layer="inner.last").X.shape == (20, 5)


class Tokens(nn.Module):
    """Scores for every token, of which the last is picked, as generative models have them."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 2)

    def forward(self, x):
        return self.score(x[:, 0])[:, -1]


def test_layers_that_cannot_be_retrained_are_refused():
    loader = make_loader(make_rows(20))
    tied, computed = Twice(), Twice()
    tied.first = nn.Linear(64, 5)
    tied.unused.weight = tied.last.weight
    nn.utils.parametrizations.weight_norm(computed.last)
    flat = nn.Flatten()
    for model, layer, message in (
        (Tokens(), None, "runs on every token"),
        (Tokens(), "score", "runs on every token"),
        (tied, None, "shares its weights with 'unused'"),
        (computed, None, "computed from others"),
        (Twice(), "unused", "ran not at all"),
        (Twice(), "frist", r"does not have. Its linear layers are \['last', 'first', 'unused'\]"),
        (Ending(nn.Identity()), "end", "is a Identity, not a"),
        (Twice(), flat, "not a module of the model"),
        (flat, None, "ran no torch.nn.Linear"),
        (Ending(lambda x: None), None, "not a tensor and has no logits"),
    ):
        with pytest.raises(ValueError, match=message):
            extract_features(model, loader, layer=layer)
    with pytest.raises(TypeError, match="model must be"):
        extract_features("model", loader)


@pytest.mark.parametrize("argument", ["X", "y"])
def test_tensors_of_types_that_numpy_lacks_are_refused_with_a_remedy(argument):
    rows = {"X": torch.randn(20, 2), "y": torch.arange(20) % 2}
    rows[argument] = rows[argument].bfloat16()
    with pytest.raises(TypeError, match=rf"pass {argument}\.float\(\)"):
        GroupDROClassifier().fit(**rows, groups=np.arange(20) % 3)


def test_values_that_are_not_finite_are_refused():
    images, *rest = make_rows(20)
    images[13] = torch.inf
    with pytest.raises(ValueError, match="NaN or infinite values, first in row 3"):
        extract_features(Twice(), make_loader((images, *rest), batch_size=10))


def test_values_whose_squares_overflow_in_single_precision_are_refused():
    images, *rest = make_rows(20)
    images[13] *= 1e30
    with pytest.raises(ValueError, match=r"received -?\d.*e\+(29|30|31) in row 3 of a batch: beyond 1e\+18"):
        extract_features(Twice(), make_loader((images, *rest), batch_size=10))


# ---------------------------------------------------------------------- batches


def test_groups_come_from_the_batch_a_function_or_a_table():
    images, y, groups = make_rows(50)
    expected = extract_features(Twice(), make_loader((images, y, groups)))
    names = np.array(["w", "x", "y", "z"])[groups]
    table = pd.DataFrame({"label": y.numpy(), "agrees": groups.numpy() % 2})
    batches = [
        {"x": images[k : k + 9], "label": y[k : k + 9], "where": list(names[k : k + 9])} for k in range(0, 50, 9)
    ]
    model, in_order = Twice(), make_loader((images, y), batch_size=9)
    found = [
        extract_features(model, in_order, groups=groups),
        extract_features(model, in_order, groups=names),
        extract_features(model, in_order, groups=table),
        extract_features(model, make_loader((images, y, groups)), groups=lambda batch: batch[2] + 10),
        extract_features(model, make_loader((images, y, torch.stack([y, groups % 2], dim=1)))),
        extract_features(model, batches, groups="where"),
    ]
    for features in found:
        np.testing.assert_array_equal(features.group_codes, expected.group_codes)
        np.testing.assert_array_equal(features.y, y)
    assert found[1].names == ("w", "x", "y", "z")
    assert found[2].names == found[4].names == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert found[3].names == (10, 11, 12, 13)


def test_rules_find_the_groups_in_the_metadata_of_the_batch():
    images, y, _ = make_rows(60)
    metadata = torch.rand((60, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    losses = torch.where(metadata[:, 1] > 0.6, 9.0, 1.0).numpy() + metadata[:, 0].numpy()
    repeated = np.tile(metadata.numpy(), (20, 1))
    found = find_groups(losses=np.tile(losses, 20), columns=repeated, max_conditions=1, n_groups=1)
    expected = found.partition(metadata.numpy())
    assert len(set(expected)) == 2
    batches = [{"pixels": images, "mask": torch.ones(60, 1, 1, 1), "labels": y, "metadata": metadata}]
    for features in (
        extract_features(Twice(), make_loader((images, y, metadata), batch_size=7), groups=found),
        extract_features(Keywords(), batches, groups=found),
    ):
        assert [features.names[code] for code in features.group_codes] == expected.tolist()
    with pytest.raises(ValueError, match="metadata are not in the batch, which has 2 items"):
        extract_features(Twice(), make_loader((images, y)), groups=found)


class Keywords(Twice):
    def forward(self, pixels, mask):
        return super().forward(pixels * mask)


def test_mappings_and_other_batches_are_given_to_the_model():
    images, y, groups = make_rows(12)
    mask, model = torch.ones(12, 1, 1, 1), Keywords()
    mapping = [{"pixels": images, "mask": mask, "labels": y, "group": groups}]
    expected = extract_features(model, mapping).X
    four = [(images, mask, y.float()[:, None], groups)]
    with pytest.raises(TypeError, match=r"got 4 items: pass forward=, labels= and groups="):
        extract_features(model, four)
    found = extract_features(
        model,
        four,
        forward=lambda model, batch: model(batch[0], mask=batch[1]),
        labels=lambda batch: batch[2],
        groups=lambda batch: batch[3],
    )
    np.testing.assert_array_equal(found.X, expected)
    np.testing.assert_array_equal(found.y, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y, g: {"x": x, "group": g}, r"labels are not in the batch, which has \['x', 'group'\]"),
        (lambda x, y, g: (x, nn.functional.one_hot(y), g), "labels must be class numbers"),
        (lambda x, y, g: (x, y + 0.5, g), "labels must be class numbers"),
        (lambda x, y, g: (x, y, g[:3]), "groups has 3 rows for a batch of 12"),
        (lambda x, y, g: (x, y[:5], g[:5]), "got 12 rows for a batch of 5 labels"),
    ],
)
def test_batches_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        extract_features(Twice(), [change(*make_rows(12))])


def test_rows_may_lack_a_group(tmp_path):
    x, y, g = make_rows(12)
    model = Twice()
    partly = [None if k % 3 else int(group) for k, group in enumerate(g)]
    as_numbers = torch.tensor([torch.nan if group is None else group for group in partly])
    known = np.arange(12) % 3 == 0
    for groups, batch in (
        (None, (x, y, partly)),
        (None, {"x": x, "label": y, "group": as_numbers}),
        (np.array(partly, dtype=object), (x, y)),
        (as_numbers.numpy(), (x, y)),
    ):
        found = extract_features(model, [batch], groups=groups)
        np.testing.assert_array_equal(found.labelled, known)
        np.testing.assert_array_equal(np.array(found.names)[found.group_codes[known]], g[known])
        with pytest.raises(ValueError, match="8 of 12 rows have no group label"):
            found.groups  # noqa: B018
    for _ in range(2):  # the second reads what the first stored
        stored = extract_features(model, [(x, y, partly)], path=tmp_path / "features")
        np.testing.assert_array_equal(stored.labelled, known)
    for batch in ((x, y), {"x": x, "label": y}, (x, y, [None] * 12)):
        assert not extract_features(model, [batch]).labelled.any()


def test_a_loader_that_shuffles_needs_groups_in_its_batches(tmp_path):
    rows, model = make_rows(40), Twice()
    shuffled = make_loader(rows, shuffle=True)
    with pytest.raises(ValueError, match="the loader shuffles"):
        extract_features(model, shuffled, groups=rows[2])
    with pytest.raises(ValueError, match="shuffle=False"):
        extract_features(model, shuffled, path=tmp_path / "features")
    own_batches = DataLoader(TensorDataset(*rows), batch_sampler=[[5, 3], [0, 1]])
    with pytest.raises(ValueError, match="the loader shuffles"):
        extract_features(model, own_batches, groups=rows[2])
    assert len(extract_features(model, own_batches)) == 4
    assert len(extract_features(model, shuffled)) == 40
    for options in ({"batch_size": None}, {"batch_sampler": BatchSampler(SequentialSampler(range(40)), 8, False)}):
        loader = DataLoader(TensorDataset(*rows[:2]), **options)
        one = options.get("batch_sampler") is None
        found = extract_features(
            model,
            loader,
            groups=rows[2],
            labels=(lambda batch: batch[1][None]) if one else None,
            forward=(lambda model, batch: model(batch[0][None])) if one else None,
        )
        np.testing.assert_array_equal(found.group_codes, rows[2])
    with pytest.raises(ValueError, match="loader returned no rows"):
        extract_features(model, [])
    with pytest.raises(ValueError, match="groups has 30 rows, but the loader returns more"):
        extract_features(model, make_loader(rows[:2]), groups=rows[2][:30])


def test_a_loader_of_some_rows_is_refused():
    data = TensorDataset(*make_rows(45)[:2])
    loader = DataLoader(data, sampler=DistributedSampler(data, 2, 0))
    with pytest.raises(ValueError, match="loader has a DistributedSampler"):
        extract_features(Twice(), loader)


# ---------------------------------------------------------------------- on disk


class Stopping:
    """A loader that is interrupted after some batches."""

    def __init__(self, loader, after):
        self.loader, self.after = loader, after

    def __iter__(self):
        for k, batch in enumerate(self.loader):
            if k == self.after:
                raise KeyboardInterrupt
            yield batch


class Counted(ConvNet):
    n_runs = 0

    def forward(self, x):
        self.n_runs += 1
        return super().forward(x)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_interrupted_extraction_continues_to_the_same_files(tmp_path):
    torch.manual_seed(0)
    model, rows = Counted(), make_rows(200)
    loader = make_loader(rows, batch_size=16)
    whole = extract_features(model, loader, path=tmp_path / "whole")
    model.n_runs = 0
    for after in (5, 9):
        with pytest.raises(KeyboardInterrupt):
            extract_features(model, Stopping(loader, after), path=tmp_path / "parts")
    with (tmp_path / "parts" / "X.bin").open("ab") as file:
        file.write(b"written after the last save")
    parts = extract_features(model, loader, path=tmp_path / "parts")
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")
    assert model.n_runs == 13 + 3 * 2  # every batch once, and the first two times more in each call
    np.testing.assert_array_equal(parts.X, whole.X)
    np.testing.assert_array_equal(parts.X, extract_features(model, loader).X)
    np.testing.assert_array_equal(parts.group_codes, rows[2])
    model.n_runs = 0
    again = extract_features(model, loader, path=tmp_path / "parts")
    assert model.n_runs == 2
    np.testing.assert_array_equal(again.X, whole.X)


def test_features_of_another_network_or_loader_are_not_mixed(tmp_path):
    model, rows = ConvNet(), make_rows(64)
    loader, path = make_loader(rows, batch_size=16), tmp_path / "features"
    with pytest.raises(KeyboardInterrupt):
        extract_features(model, Stopping(loader, 2), path=path)
    before = files_of(path)
    with pytest.raises(ValueError, match="features of another network"):
        extract_features(ConvNet(), loader, path=path)
    other = rows[1].clone()
    other[20] = 1 - other[20]
    with pytest.raises(ValueError, match="different labels or groups, first in the batch at row 16"):
        extract_features(model, make_loader((rows[0], other, rows[2]), batch_size=16), path=path)
    with pytest.raises(ValueError, match="returned 1 batches, but path has 2"):
        extract_features(model, make_loader([part[:16] for part in rows], batch_size=16), path=path)
    assert files_of(path) == before
    write_last_layer(model, fitted(1, 6), layer="head")  # on which its inputs do not depend
    assert len(extract_features(model, loader, path=path)) == 64
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "letter.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        extract_features(model, loader, path=tmp_path / "own")


def test_progress_is_printed(capsys, monkeypatch):
    monkeypatch.setattr("groupdro.torch.features._EVERY", 0.0)
    extract_features(Twice(), make_loader(make_rows(40), batch_size=20), progress=True)
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 2
    assert printed[1].startswith("features: 40 of 40 rows, ")


# ---------------------------------------------------------------------- networks of other libraries


def test_a_vision_transformer_and_a_residual_network_of_torchvision():
    models = import_models("torchvision").models
    torch.manual_seed(0)
    rows = torch.randn(6, 3, 32, 32), torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0, 0, 0, 1, 1, 1])
    transformer = models.VisionTransformer(
        image_size=32, patch_size=16, num_layers=1, num_heads=2, hidden_dim=12, mlp_dim=24, num_classes=3
    )
    for model, layer in ((transformer, "heads.head"), (models.resnet18(num_classes=3), "fc")):
        features = extract_features(model, make_loader(rows, batch_size=4))
        assert features.layer == layer
        new = fitted(3, features.X.shape[1])
        write_last_layer(model, new, layer=features.layer)
        with torch.no_grad():
            scores = model.eval()(rows[0]).numpy()
        np.testing.assert_allclose(scores, features.X @ new.coef_.T + new.intercept_, rtol=1e-3, atol=1e-3)


def test_sequence_classifiers_of_hugging_face():
    transformers = import_models("transformers")
    torch.manual_seed(0)
    size = {"vocab_size": 50, "num_labels": 3, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = torch.randint(3, 50, (8, 7))
    mask = torch.ones(8, 7, dtype=torch.int64)
    mask[:4, 5:] = 0
    y, groups = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), np.array(list("aabbaabb"))
    batch = transformers.BatchEncoding({"input_ids": tokens, "attention_mask": mask, "labels": y})
    for kind, options, layer in (
        ("Bert", size | {"intermediate_size": 24}, "classifier"),
        ("Roberta", size | {"intermediate_size": 24, "max_position_embeddings": 16, "pad_token_id": 1},
         "classifier.out_proj"),
        ("DistilBert", {"vocab_size": 50, "num_labels": 3, "dim": 12, "n_layers": 1, "n_heads": 2, "hidden_dim": 24},
         "classifier"),
    ):  # fmt: skip
        model = getattr(transformers, f"{kind}ForSequenceClassification")(
            getattr(transformers, f"{kind}Config")(**options)
        )
        features = extract_features(model, [batch], groups=groups)
        assert features.layer == layer
        new = fitted(3, 12)
        write_last_layer(model, new, layer=features.layer)
        with torch.no_grad():
            scores = model.eval()(input_ids=tokens, attention_mask=mask).logits.numpy()
        np.testing.assert_allclose(scores, features.X @ new.coef_.T + new.intercept_, rtol=1e-3, atol=1e-3)
    generative = transformers.GPT2ForSequenceClassification(
        transformers.GPT2Config(vocab_size=50, num_labels=3, n_embd=12, n_layer=1, n_head=2, pad_token_id=0)
    )
    with pytest.raises(ValueError, match="'score' runs on every token"):
        extract_features(generative, [batch], groups=groups)
