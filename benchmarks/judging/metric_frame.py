"""CPU time and peak memory of a report with intervals, against fairlearn's MetricFrame.

MetricFrame takes minutes for a few resamples of a million rows, so it is given a tenth as many as the report.

Each run is a process of its own, so that its peak memory is its own:

    python -m benchmarks.judging.metric_frame ours probabilities 20
"""

import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.held_out.writing import RESULTS

N_ROWS, N_GROUPS = 1_000_000, 50
THEIRS, FEW = 2, 20  # resamples: as many as MetricFrame gets done in minutes, and the fewest of a report at 95%
FILE = RESULTS / "judging_metric_frame.json"
KINDS = {
    "probabilities": ("log_loss", "brier", "roc_auc", "average_precision", "actual_over_expected"),
    "classes": ("accuracy", "balanced_accuracy", "recall", "f1", "selection_rate"),
}


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels, probabilities and groups."""
    rng = np.random.default_rng(0)
    score = rng.normal(size=N_ROWS)
    groups = rng.integers(0, N_GROUPS, N_ROWS)
    y = (rng.random(N_ROWS) < 1.0 / (1.0 + np.exp(-score * (0.5 + groups / N_GROUPS)))).astype(int)
    return y, 1.0 / (1.0 + np.exp(-score)), groups


def ours(kind: str, n_bootstrap: int) -> None:
    from groupdro import Predictions, group_report

    y, p, groups = rows()
    predictions = Predictions(probability=p) if kind == "probabilities" else Predictions((p > 0.5).astype(int))
    group_report(predictions, y=y, groups=groups, metrics=KINDS[kind], n_bootstrap=n_bootstrap)


def metric_frame(kind: str, n_bootstrap: int) -> None:
    from fairlearn.metrics import MetricFrame, selection_rate
    from sklearn import metrics

    def ratio(y_true: Any, y_pred: Any) -> float:
        return float(np.mean(y_true) / np.mean(y_pred))

    named = {
        "log_loss": metrics.log_loss,
        "brier": metrics.brier_score_loss,
        "roc_auc": metrics.roc_auc_score,
        "average_precision": metrics.average_precision_score,
        "actual_over_expected": ratio,
        "accuracy": metrics.accuracy_score,
        "balanced_accuracy": metrics.balanced_accuracy_score,
        "recall": metrics.recall_score,
        "f1": metrics.f1_score,
        "selection_rate": selection_rate,
    }
    y, p, groups = rows()
    frame = MetricFrame(
        metrics={name: named[name] for name in KINDS[kind]},
        y_true=y,
        y_pred=p if kind == "probabilities" else (p > 0.5).astype(int),
        sensitive_features=groups,
        n_boot=n_bootstrap,
        ci_quantiles=[0.025, 0.975],
        random_state=0,
    )
    assert len(frame.by_group_ci) == 2


def nothing(*_: object) -> None:
    """Import both packages and make the rows, for the memory that they take."""
    import fairlearn.metrics

    import groupdro

    assert fairlearn.metrics
    assert groupdro
    rows()


def measured(who: str, kind: str, n_bootstrap: int) -> dict[str, float]:
    """Return the CPU seconds and the peak memory in megabytes of a run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.judging.metric_frame", who, kind, str(n_bootstrap)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    print(who, kind, n_bootstrap, done.stdout.strip(), flush=True)
    return json.loads(done.stdout)


def compare() -> None:
    """Measure everything, and store it."""
    found: dict[str, Any] = {"rows": N_ROWS, "groups": N_GROUPS, "imports and rows": measured("nothing", "classes", 0)}
    for kind in KINDS:
        found[kind] = {
            f"ours, {FEW} resamples": measured("ours", kind, FEW),
            f"MetricFrame, {THEIRS} resamples": measured("metric_frame", kind, THEIRS),
        }
        FILE.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    who, kind, n_bootstrap = sys.argv[1:]
    run = {"ours": ours, "metric_frame": metric_frame, "nothing": nothing}[who]
    if who == "ours":
        from groupdro import Predictions, group_report

        # Compile first: later processes find the compiled code on disk.
        group_report(Predictions([0, 1] * 50), y=[0, 1] * 50, groups=["a"] * 100, n_bootstrap=20)
    begun = time.process_time()  # CPU: other programs may use the machine
    run(kind, int(n_bootstrap))
    seconds = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": round(seconds, 2), "megabytes": round(peak)}))


if __name__ == "__main__":
    main()
