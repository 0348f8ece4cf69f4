"""Every example runs for every reader, and the numbers of its text and what it concludes agree with what it prints.

What an example prints is recorded in examples/printed/. The text is compared with the record here, and the record with
a run in the long tests.
"""

import ast
import importlib.util
import inspect
import os
import re
import sys

import pandas as pd
import pytest

from groupdro import group_report, robustness_frontier
from tests.docs.examples import EXAMPLES, GALLERY, GENERATED, IMAGES, PACKAGES, PRINTED, printed, prose, run
from tests.docs.pages import DOCS, ROOT, same_words

every_example = pytest.mark.parametrize("name", GALLERY)
NUMBER = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?![\w-])%?")
CONFIDENCE = inspect.signature(group_report).parameters["confidence"].default
#: Numbers of the text that are neither printed nor in the code: sizes, years and names.
FACTS = {
    "plot_adult": {"50,000", "48,842"},
    "plot_bike_rentals": {"24"},
    "plot_cifar100": {"2011", "3", "161"},
    "plot_frontier": {"24"},
    "plot_german_credit": {"300", "690", "310", "250"},
    "plot_last_layer": {"2023", "28", "1.8", "1,000", "150"},
    "plot_scorecard": {"300", "0.015"},  # the difference of two printed numbers, see below
}


# ---------------------------------------------------------------------- readers


def test_every_example_has_a_record_of_what_it_prints():
    assert {path.stem for path in PRINTED.iterdir()} == set(GALLERY)
    assert all(map(printed, GALLERY))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_imports_what_can_be_installed_and_only_public_names_of_ours(path):
    known = {
        "groupdro",
        "joblib",
        "lightgbm",
        "matplotlib",
        "numpy",
        "pandas",
        "sklearn",
        "torch",
        *sys.stdlib_module_names,
    }
    public = {"groupdro", *(f"groupdro.{name}" for name in ("datasets", "domains", "losses", "plots", "torch"))}
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        for module in names:
            assert module.partition(".")[0] in known, module
            assert module in public or not module.startswith("groupdro"), module
    assert "GROUPDRO_" not in path.read_text()


def test_the_gallery_has_every_example_in_an_order():
    spec = importlib.util.spec_from_file_location("gallery_order", DOCS / "_extensions" / "gallery_order.py")
    order = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(order)
    assert sorted(order.ORDER) == [path.name for path in GALLERY.values()]
    key = order.ReadingOrder(EXAMPLES)
    assert [key(name) for name in order.ORDER[:3]] == [0, 1, 2]


# ---------------------------------------------------------------------- numbers of the text


def numbers(text):
    """Return the numbers of a text as they are written, without signs and the ends of sentences."""
    return [found.rstrip(",.") for found in NUMBER.findall(text)]


def value(written):
    return float(written.rstrip("%").replace(",", ""))


def is_stated(written, stated):
    """Return whether a number is one of a text's, rounded to as many digits as it is written with."""
    digits = len(written.rstrip("%").partition(".")[2])
    candidates = [value(number) for number in stated]
    if written.endswith("%"):
        candidates += [100 * candidate for candidate in candidates]
    return any(abs(candidate - value(written)) <= 0.500001 * 10.0**-digits for candidate in candidates)


@every_example
def test_every_number_of_the_text_is_printed_or_in_the_code(name):
    source = GALLERY[name].read_text()
    text = re.sub(r"``[^`]*``|:\w+:`[^`]*`", " ", prose(source))
    constants = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    literals = [f"{found:f}" for found in constants if type(found) in (int, float)]
    records = printed(name)
    if name == "plot_last_layer":  # whose text also tells of the benchmark with the same data
        records += (ROOT / "benchmarks" / "results" / "last_layer.md").read_text()
    stated = [*re.findall(r"\d[\d,]*(?:\.\d+)?%?", records), *literals]
    unknown = {found for found in numbers(text) if not is_stated(found, stated)}
    assert unknown - {f"{CONFIDENCE:.0%}"} <= FACTS.get(name, set()), unknown


def test_numbers_are_found_and_rounded():
    assert numbers("Of 6,497 rows, 1,177 fell by 0.002 (3.1%), in 24-hour days, 2 x 3.") == [
        "6,497", "1,177", "0.002", "3.1%", "2", "3",
    ]  # fmt: skip
    assert is_stated("0.017", ["0.0168"])
    assert not is_stated("0.017", ["0.0164"])
    assert is_stated("39%", ["0.393"])
    assert is_stated("1.8%", ["1.8%"])
    assert not is_stated("295", ["29.5", "296"])


# ---------------------------------------------------------------------- what the text concludes


def compared(name, which=0, n_models=6):
    """Return a comparison of a record, by model."""
    lines = printed(name).splitlines()
    start = [k for k, line in enumerate(lines) if line.split()[:2] == ["model", "mean_risk"]][which]
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines[start : start + 1 + n_models]]
    rows = [re.sub(r"(?<=\d) +(?=-?\d)", "\t", "\t".join(row)).split("\t") for row in rows]
    header = lines[start].split()
    found = pd.DataFrame([row[: len(header)] for row in rows[1:]], columns=header).set_index("model")
    return found.apply(lambda column: column if column.name == "worst_group" else column.astype(float))


def found(name, pattern):
    """Return the numbers that a pattern finds in a record."""
    match = re.search(pattern, printed(name))
    assert match, pattern
    return [float(group.replace(",", "")) for group in match.groups()]


def test_adult():
    name = "plot_adult"
    row = r" +[\d.]+ +([-+][\d.]+) ± ([\d.]+) +([-+][\d.]+) ± ([\d.]+)"
    men = found(name, "Male, Asian-Pac-Islander" + row)
    women = found(name, "Female, White" + row)
    assert men[0] == -0.018
    assert men[0] + men[1] > 0
    assert women[0] == 0.027
    assert women[0] > 3 * women[1]
    assert men[2] > men[3]
    assert women[2] > women[3]
    judged = compared(name).drop(index="ERM")
    assert (judged["gain_low"] <= 0).all()
    assert (judged["gain_high"] >= 0).all()
    assert "Keep plain training (ERM)" in printed(name)


def test_bike_rentals():
    name = "plot_bike_rentals"
    without, with_hour = compared(name, 0), compared(name, 1)
    assert without["gain_low"]["GDRO"] > 0
    assert without["mean_risk"]["GDRO"] > without["mean_risk"]["ERM"]
    for risk in ("mean_risk", "worst_risk"):
        assert with_hour[risk]["ERM"] < without[risk]["GDRO"]
    assert with_hour["mean_risk"]["GDRO"] > 1.75 * with_hour["mean_risk"]["ERM"]
    assert with_hour["gain_low"]["GDRO"] < 0 < with_hour["gain_low"]["blend 0.5"]
    assert with_hour["worst_risk"].idxmin() == "blend 0.5"
    weights = ast.literal_eval(re.search(r"weights of the hours: (.*)", printed(name))[1])
    assert sorted(weights) == [2, 3, 8, 17]
    assert abs(sum(weights.values()) - 1) < 0.02
    worst, average = found(name, r"means added: worst risk ([\d.]+), average ([\d.]+)")
    assert worst < with_hour["worst_risk"]["GDRO"]
    assert average < with_hour["mean_risk"]["GDRO"]
    low, high = found(name, r"([\d.]+) <= least possible worst risk <= ([\d.]+)")
    assert 0 < high - low <= 1e-4 * high


def test_boosted_trees():
    name = "plot_boosted_trees"
    trees, bound = found(
        name, r"worst risk of this model is ([\d.]+) \(group 18\), and\s+theirs are at least ([\d.]+\d)"
    )
    assert trees < 0.5 * bound
    intervals = {}
    for row in re.findall(r"^robustness (\S+), (.*): (\S+) to (\S+)$", printed(name), re.MULTILINE):
        intervals[row[0], row[1]] = float(row[2]), float(row[3])
    for robustness in ("0.5", "1"):
        low, high = intervals[robustness, "Male, Asian-Pac-Islander"]
        assert low < 0 < high
        assert intervals[robustness, "Male, White"][0] > 0
    assert max(map(abs, intervals["0", "Male, White"])) < 0.001


def test_cifar100():
    name = "plot_cifar100"
    rows = {part: found(name, rf"{part} +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +(\d+)") for part in (
        "training plain", "training groupdro", "test     plain", "test     groupdro")}  # fmt: skip
    for part in ("training", "test    "):
        plain, robust = rows[f"{part} plain"], rows[f"{part} groupdro"]
        assert plain[4] > 0 == robust[4]
        assert robust[3] < plain[3]
        assert robust[2] > plain[2]
    assert found(name, r"(\d+) of 100 classes have a larger test risk")[0] > 50


def test_corrected_trees():
    name = "plot_corrected_trees"
    rows = re.findall(r"^(.{14}) average ([\d.]+), worst ([\d.]+) \((.*)\)$", printed(name), re.MULTILINE)
    bike, adult = ({row[0].strip(): (float(row[1]), float(row[2])) for row in part} for part in (rows[:4], rows[4:]))
    assert rows[0][3] == "8"
    for corrected in ("robustness 0", "robustness 0.5"):
        assert bike[corrected][0] < bike["the trees"][0] / 2
        assert bike[corrected][1] < bike["the trees"][1] / 4
    assert bike["robustness 1"][0] > bike["robustness 0"][0]
    assert abs(bike["robustness 1"][1] - bike["robustness 0"][1]) < 0.002
    low, high = found(name, r"worst risk of the trees: ([\d.]+) to ([\d.]+)")
    for corrected in ("robustness 0", "robustness 0.5", "robustness 1"):
        assert 0 < adult["the trees"][1] - adult[corrected][1] < 0.01 * adult["the trees"][1]
        assert low < adult[corrected][1] < high


def test_frontier():
    name = "plot_frontier"
    rows = re.findall(r"^(\d+)% +([\d.]+) +([\d.]+) +([\d.]+)$", printed(name), re.MULTILINE)
    assert [row[0] for row in rows] == ["0", "1", "5", "10", "20"]
    assert inspect.signature(robustness_frontier).parameters["tol"].default == 1e-3
    assert found(name, r"enclosed within ([\d.]+)%")[0] <= 0.1
    worst = [float(row[2]) for row in rows]
    slopes = [(a - b) / (float(y[0]) - float(x[0])) for a, b, x, y in zip(
        worst, worst[1:], rows, rows[1:], strict=False)]  # fmt: skip
    assert slopes == sorted(slopes, reverse=True)
    for _, _, attained, bound in rows:
        assert 0 <= float(attained) - float(bound) <= 0.03 * float(attained)
    assert re.search(r"^no - ", printed(name), re.MULTILINE)
    held_out = found(name, r"worst hour on held-out days: plain ([\d.]+), 5% ([\d.]+), worst hour alone ([\d.]+)")
    assert held_out == sorted(held_out, reverse=True)


def test_german_credit():
    name = "plot_german_credit"
    assert found(name, r"intervals below zero: (\d+), above zero: (\d+)") == [0, 0]
    smallest, largest = found(name, r"smallest and largest: (\S+) and (\S+)")
    assert smallest < 0 < largest
    assert max(-smallest, largest) == 0.0134
    assert "'female': 78" in printed(name)
    assert "'male': 172" in printed(name)
    judged = compared(name).drop(index=["ERM", "CV choice"])
    width, spread = judged["gain_high"] - judged["gain_low"], judged["worst_risk"].max() - judged["worst_risk"].min()
    assert (width > 10 * spread).all()


def test_last_layer():
    name = "plot_last_layer"
    row = r" +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)"
    labels = ("T-shirt or pullover", "shirt or coat")
    members = [f"{label}, {corner}" for label in labels for corner in ("left", "right")]
    groups = {group: found(name, group + row) for group in members}
    for against in ("T-shirt or pullover, right", "shirt or coat, left"):
        assert groups[against][0] < 50
    for repair in (1, 2, 3):
        accuracies = [values[repair] for values in groups.values()]
        assert min(accuracies) > 75
        assert max(accuracies) - min(accuracies) < 10
        for along in ("T-shirt or pullover, left", "shirt or coat, right"):
            assert groups[along][repair] < groups[along][0]
    counts = [found(name, rf"^{group} +(\d+)$".replace("^", "(?m)^"))[0] for group in groups]
    assert 0.04 < (counts[1] + counts[2]) / sum(counts) < 0.06


def test_last_layer_torch():
    name = "plot_last_layer_torch"
    before, after = (float(text) for text in re.findall(r"worst group on test images: ([\d.]+)%", printed(name)))
    assert before < 50
    assert after > 75


def test_readmission():
    name = "plot_readmission"
    assert found(name, r"([\d,]+) patients, (\d+) ages, (\d+) specialties, (\d+) of them") == [70_434, 10, 71, 38]
    judged = compared(name, n_models=5)
    assert judged["worst_risk"]["GDRO"] < judged["worst_risk"]["ERM"]
    assert judged["gain_low"]["GDRO"] < 0 < judged["gain_high"]["GDRO"]
    assert judged["mean_risk"]["GDRO"] > judged["mean_risk"]["ERM"]
    below, above = found(name, r"specialties below the band: (\d+), above: (\d+)")
    assert below > 0 == above
    largest = re.findall(r"^\S+ +(\d+) +[\d.]+ +NaN +NaN +small$", printed(name), re.MULTILINE)
    assert all(int(n) <= 2 for n in largest[:3])
    row = r" +([\d.]+) +([\d.]+) +([\d.]+)"
    every, merged = (found(name, way + row) for way in ("every specialty", "merged below 100"))
    adjusted, both = (found(name, f"{way}, C = 0.2" + row) for way in ("every specialty", "merged below 100"))
    assert round(every[2], 2) == 0.39
    assert merged[2] == 0
    assert merged[1] <= every[1]
    constant = found(name, r"constant prediction: ([\d.]+)")[0]
    assert adjusted[0] > constant > both[0]
    assert adjusted[2] > 0.9
    assert found(name, r"groups below 30 rows: ([\d.]+)%")[0] < 1
    assert "Keep plain training (ERM)" in printed(name)


def test_regret_or_risk():
    name = "plot_regret_or_risk"
    risks = {site: found(name, rf"risks\n(?:.*\n)+?{site} +(\S+) +(\S+) +(\S+) +(\S+)") for site in ("north", "noisy")}
    excess = {
        site: found(name, rf"excess risks\n(?:.*\n)+?{site} +(\S+) +(\S+) +(\S+)")
        for site in ("north", "south", "noisy")
    }
    assert risks["noisy"][:2] == [12.28, 8.46]
    worst = [max(excess[site][k] for site in excess) for k in range(3)]
    assert worst.index(max(worst)) == 1
    assert excess["north"][2] == excess["noisy"][2]
    assert "weights {'noisy': 1.0, 'north': 0.0, 'south': 0.0}" in printed(name)


def test_robust_ensemble():
    name = "plot_robust_ensemble"
    for kind in ("logistic", "forest"):
        assert found(name, rf"switzerland, {kind} +\S+ +(\S+)") == [0.0]
    assert found(name, r"switzerland +\d+ +(\S+)")[0] > 0.9
    row = r" +(\S+) +(\S+) +(\S+) +(\S+) +(\S+) +(\S+)"
    scores = {way: found(name, way + row) for way in ("robust weights", "one forest on all data", "stacking")}
    assert max(scores["robust weights"][:4]) - min(scores["robust weights"][:4]) < 0.02
    assert abs(scores["one forest on all data"][5] - scores["robust weights"][5]) < 0.002
    assert all(scores["one forest on all data"][k] < scores["robust weights"][k] - 0.02 for k in range(3))
    assert scores["stacking"].index(max(scores["stacking"][:4])) == 2
    assert scores["stacking"][4] < scores["robust weights"][4]
    intervals = printed(name).rpartition("0.025  0.975\n")[2]
    rows = re.findall(r"^(\S.*?) {2,}(-?[\d.]+) +(-?[\d.]+)$|^(\S.*?) (-[\d.]+) +(-?[\d.]+)$", intervals, re.MULTILINE)
    low = {(row[0] or row[3]).strip(): float(row[1] or row[4]) for row in rows}
    assert low["stacking"] > 0
    assert low["va, logistic"] > 0
    assert low["equal weights"] < 0


def test_scorecard():
    name = "plot_scorecard"
    rows = re.findall(r"^(.*): (\d+) questions, (\d+) below zero\n +worst risk: held out ([\d.]+), training ([\d.]+)",
                      printed(name), re.MULTILINE)  # fmt: skip
    assert [row[:3] for row in rows] == [
        ("all", "19", "1"), ("all, positive", "18", "0"), ("few, positive", "11", "0"),
    ]  # fmt: skip
    held_out, training = ([float(row[k]) for row in rows] for k in (3, 4))
    assert held_out[0] == held_out[1]
    assert round(held_out[2] - held_out[1], 3) == 0.015
    assert training[2] - training[1] > 0.015


def test_wine():
    name = "plot_wine"
    path = [[float(cell) for cell in line.split()] for line in re.findall(
        r"^ *[\d.]+(?: +[\d.]+){4}$", printed(name), re.MULTILINE)]  # fmt: skip
    assert len(path) == 11
    for alpha, _, _, red, white in path:
        assert (red - white > 0.004) == (alpha > 0.32)
    scores = [[float(cell) for cell in line.split()] for line in re.findall(
        r"^ *[\d.]+ +[\d.]+ +[\d.]+$", printed(name), re.MULTILINE)]  # fmt: skip
    small = [row for row in scores if row[0] < 0.1]
    assert len(small) == 6
    assert max(row[1] for row in small) - min(row[1] for row in small) < min(row[2] for row in small)
    judged = compared(name, n_models=5)
    assert set(judged["worst_group"]) == {"red"}
    assert found(name, r"red: .* change ([-+][\d.]+)") == [-0.002]
    assert found(name, r"white: .* change ([-+][\d.]+)") == [0.009]


# ---------------------------------------------------------------------- the record


@pytest.mark.long
@every_example
def test_the_record_is_what_the_example_prints(name, tmp_path):
    for module in PACKAGES.get(name, ()):
        pytest.importorskip(module)
    if name == "plot_cifar100" and "GROUPDRO_CIFAR" not in os.environ:
        pytest.skip("GROUPDRO_CIFAR is not set")
    if name not in (*GENERATED, *IMAGES) and "GROUPDRO_DATA" not in os.environ:
        pytest.skip("GROUPDRO_DATA is not set")
    now = run(name, tmp_path)
    assert same_words(now, printed(name)), f"python -m tests.docs.examples {name}\n{now}"
