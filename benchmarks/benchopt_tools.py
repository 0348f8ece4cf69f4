"""What both benchopt benchmarks share: a problem's data, how runs are recorded, and the rivals."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from benchopt import BaseDataset, BaseObjective, BaseSolver
from benchopt.stopping_criterion import NoCriterion
from scipy.optimize import minimize

import groupdro as gd
from benchmarks import real_data
from groupdro.data import Draw
from groupdro.problem import Loss
from groupdro.run.result import Progress

#: Every method that needs a step is given the same factors of its theory's step, on the same budget.
MULTIPLIERS = [1, 3, 10, 30, 100, 300, 1000, 3000]


def loss_of(task: str, y: np.ndarray) -> Loss:
    """Return the loss that goes with a task."""
    if task == "binary":
        return gd.Logistic()
    return gd.Softmax(int(y.max()) + 1) if task == "classes" else gd.Squared()


def make_problem(data: gd.GroupedData, task: str, radius: float) -> gd.GroupRisk:
    """Return a problem with counters of its own."""
    return gd.GroupRisk(data, loss_of(task, data.y), gd.L2Domain(radius=radius))


# ---------------------------------------------------------------------- data


def synthetic(make: Any, n_groups: int, n_per_group: int, n_features: int, seed: int) -> dict[str, Any]:
    """Return one of the paper's synthetic sets, with as many test rows as training rows of the same groups."""
    X, y, groups = make(n_groups=n_groups, n_per_group=2 * n_per_group, n_features=n_features, seed=seed)
    train = np.zeros(len(y), dtype=bool)
    for g in range(n_groups):
        train[np.flatnonzero(groups == g)[:n_per_group]] = True
    parts = {"X": X[train], "y": y[train], "groups": groups[train]}
    parts |= {"X_test": X[~train], "y_test": y[~train], "groups_test": groups[~train]}
    return parts | {"task": "binary", "radius": 3.0}


def tabular(problem: real_data.Problem, seed: int = 0) -> dict[str, Any]:
    """Return a table with a quarter of each group and class held out."""
    labels = problem.y if problem.task != "regression" else None
    folds = gd.GroupStratifiedKFold(4, random_state=seed)
    train, test = next(folds.split(problem.X, labels, problem.groups))
    parts = {"X": problem.X[train], "y": problem.y[train], "groups": problem.groups[train]}
    parts |= {"X_test": problem.X[test], "y_test": problem.y[test], "groups_test": problem.groups[test]}
    return parts | {"task": problem.task, "radius": 10.0}


def cifar(folder: Path) -> dict[str, Any]:
    """Return CIFAR-100 with its classes as groups, from the official folder."""
    train, test = real_data.cifar(folder), real_data.cifar(folder, "test")
    parts = {"X": train.X, "y": train.y, "groups": train.groups}
    parts |= {"X_test": test.X, "y_test": test.y, "groups_test": test.groups}
    return parts | {"task": "classes", "radius": 20.0}


class SyntheticDataset(BaseDataset):
    """The paper's synthetic set-up; a benchmark says which."""

    make: Any
    parameters = {"n_groups, n_per_group, n_features": [(25, 1000, 1024)], "seed": [0]}  # noqa: RUF012
    test_parameters = {"n_groups, n_per_group, n_features": [(3, 30, 5)]}  # noqa: RUF012

    def get_data(self) -> dict[str, Any]:
        return synthetic(type(self).make, self.n_groups, self.n_per_group, self.n_features, self.seed)


class CifarDataset(BaseDataset):
    """CIFAR-100, groups = classes, from the folder that the variable GROUPDRO_CIFAR names."""

    name = "cifar-100"

    def get_data(self) -> dict[str, Any]:
        folder = os.environ.get("GROUPDRO_CIFAR")
        if not folder:
            raise ValueError("Set GROUPDRO_CIFAR to the official folder cifar-100-python.")
        return cifar(Path(folder))


class TabularDataset(BaseDataset):
    """Public tables, from the folder that the variable GROUPDRO_DATA names."""

    name = "tabular"
    parameters = {"table": ["adult", "bank", "credit", "compas", "german", "heart", "diabetes", "wine_classes",  # noqa: RUF012
                            "bike", "communities"]}  # fmt: skip

    def get_data(self) -> dict[str, Any]:
        return tabular(getattr(real_data, self.table)())


# ---------------------------------------------------------------------- what is measured


class GroupObjective(BaseObjective):
    """The worst group's value over a ball, on training and test rows; a benchmark says what is subtracted."""

    min_benchopt_version = "1.6"
    sampling_strategy = "callback"
    parameters = {"max_passes": [40]}  # noqa: RUF012
    test_config = {"dataset": {"name": "synthetic"}, "max_passes": 3}  # noqa: RUF012

    def set_data(
        self,
        X: Any,
        y: Any,
        groups: Any,
        X_test: Any,
        y_test: Any,
        groups_test: Any,
        task: str,
        radius: float,
    ) -> None:
        self.task, self.radius = task, radius
        self.data = gd.GroupedData.from_arrays(X, y, groups)
        self.train = make_problem(self.data, task, radius)
        # Test rows of the groups and classes of the training rows only, in the same order of groups.
        known = np.isin(groups_test, np.unique(groups)) & (np.isin(y_test, np.unique(y)) | (task == "regression"))
        rows = gd.GroupedData.from_arrays(np.asarray(X_test)[known], y_test[known], groups_test[known])
        self.test = gd.GroupRisk(rows, self.train.loss, self.train.domain)
        self.references, self.test_references = self.find_references(rows.names)

    def find_references(self, test_names: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return what is subtracted from each group's risk, in the order of training and of test groups."""
        return np.zeros(self.data.n_groups), np.zeros(len(test_names))

    def get_objective(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "task": self.task,
            "radius": self.radius,
            "max_passes": self.max_passes,
            "references": self.references,
        }

    def evaluate_result(
        self,
        w: Any,
        upper: float,
        lower: float,
        grad_evals: int,
        grad_evals_paper: int,
        passes: float,
        solver_seconds: float,
    ) -> dict[str, float]:
        worst = float((self.train.risks(w) - self.references).max())
        return {
            "value": worst,
            "worst_train": worst,
            "worst_test": float((self.test.risks(w) - self.test_references).max()),
            "certified_gap": upper - lower,
            "grad_evals": grad_evals,
            "grad_evals_paper": grad_evals_paper,
            "passes": passes,
            "solver_seconds": solver_seconds,
        }

    def get_one_result(self) -> dict[str, Any]:
        return {
            "w": self.train.start(),
            "upper": 1.0,
            "lower": 0.0,
            "grad_evals": 0,
            "grad_evals_paper": 0,
            "passes": 0.0,
            "solver_seconds": 0.0,
        }


# ---------------------------------------------------------------------- our solvers


class OwnSolver(BaseSolver):
    """A solver of the package. Its own driver counts, keeps the clock and certifies."""

    sampling_strategy = "callback"
    stopping_criterion = NoCriterion()
    requirements = []  # noqa: RUF012
    tol = 1e-10  # relative certified gap at which a run ends before its budget

    def make(self) -> gd.Solver | str:
        raise NotImplementedError

    def set_objective(self, data: gd.GroupedData, task: str, radius: float, max_passes: float, **_: Any) -> None:
        self.problem, self.max_passes = make_problem(data, task, radius), max_passes
        self.seed = self.get_seed(use_repetition=True) % 2**31
        self.result: dict[str, Any] = {}

    def warm_up(self) -> None:
        """Compile, and leave the counters as they were."""
        gd.solve(make_problem(self.problem.data, *self._kind()), self.make(), tol=0.0, max_passes=1e-9)

    def _kind(self) -> tuple[str, float]:
        name = self.problem.loss.name
        task = {"logistic": "binary", "softmax": "classes"}.get(name, "regression")
        return task, self.problem.domain.radius

    def get_next(self, stop_val: int) -> int:
        return stop_val + 1  # every epoch is a point of the curve

    def run(self, callback: Any) -> None:
        def record(progress: Progress) -> bool:
            self._record(progress)
            return not callback()

        gd.solve(
            self.problem, self.make(), tol=self.tol, max_passes=self.max_passes, seed=self.seed, callbacks=[record]
        )

    def _record(self, progress: Progress) -> None:
        row, at = progress.latest, progress.state.evaluation
        self.result = {
            "w": at.w.copy(),
            "upper": row.upper,
            "lower": row.lower,
            "grad_evals": row.grad_evals,
            "grad_evals_paper": row.grad_evals_paper,
            "passes": row.passes,
            "solver_seconds": row.seconds,
        }

    def get_result(self) -> dict[str, Any]:
        return self.result


# ---------------------------------------------------------------------- what users would pick instead


class Rival(BaseSolver):
    """A method that knows nothing of certificates: counted by its passes, bounded by nobody."""

    sampling_strategy = "callback"
    stopping_criterion = NoCriterion()
    needs: tuple[str, ...] = ()  # tasks that it can do
    most_values = np.inf  # size of X beyond which it is hopeless

    def skip(self, data: gd.GroupedData, task: str, **_: Any) -> tuple[bool, str | None]:
        if task not in self.needs:
            return True, f"does not do {task}"
        if data.n_rows * data.n_features > self.most_values:
            return True, f"X has more than {self.most_values:g} numbers"
        return False, None

    def set_objective(
        self, data: gd.GroupedData, task: str, radius: float, max_passes: float, references: Any, **_: Any
    ) -> None:
        self.problem, self.max_passes, self.references = make_problem(data, task, radius), max_passes, references
        self.seed = self.get_seed(use_repetition=True) % 2**31
        self._keep(self.problem.start())

    def get_next(self, stop_val: int) -> int:
        return stop_val + 1

    def _keep(self, w: np.ndarray) -> None:
        counters = self.problem.counters
        self.result = {
            "w": np.array(w),
            "upper": np.nan,
            "lower": np.nan,
            "grad_evals": counters.grad_evals,
            "grad_evals_paper": counters.grad_evals_paper,
            "passes": self.problem.passes,
            "solver_seconds": np.nan,  # benchopt's own clock
        }

    def get_result(self) -> dict[str, Any]:
        return self.result


class SmoothedLBFGS(Rival):
    """L-BFGS on the soft maximum of the groups' values, sharpened step by step, and projected on the ball."""

    name = "L-BFGS on the smoothed maximum"
    needs = ("binary", "classes", "regression")

    def run(self, callback: Any) -> None:
        problem, w = self.problem, self.problem.start()
        radius = problem.domain.radius
        shift = self.references

        def inside(flat: np.ndarray) -> tuple[np.ndarray, float]:
            point = flat.reshape(problem.shape)
            norm = float(np.linalg.norm(point))
            return (point if norm <= radius else point * (radius / norm)), norm

        def value(flat: np.ndarray, width: float) -> tuple[float, np.ndarray]:
            point, norm = inside(flat)
            values = problem.risks(point) - shift
            top = values.max()
            weights = np.exp((values - top) / width)
            total = weights.sum()
            at = problem.evaluate(point, weights / total)
            gradient = at.gradient
            if norm > radius:  # the function of the projected point, with a slope back to the ball
                unit = flat.reshape(problem.shape) / norm
                gradient = (gradient - unit * float(np.vdot(unit, gradient))) * (radius / norm) + 0.1 * unit
            smooth = top + width * np.log(total) + 0.1 * max(norm - radius, 0.0)
            return float(smooth), gradient.ravel()

        class Over(Exception):
            pass

        def each(flat: np.ndarray) -> None:
            self._keep(inside(flat)[0])
            if not callback() or problem.passes >= self.max_passes:
                raise Over

        self._keep(w)
        if not callback():
            return
        flat = w.ravel()
        try:
            for width in np.geomspace(1e-1, 1e-5, 9):
                flat = minimize(value, flat, args=(width,), jac=True, method="L-BFGS-B", callback=each,
                                options={"maxiter": 30}).x  # fmt: skip
        except Over:
            pass


class ClarabelSolver(Rival):
    """The problem stated in CVXPY and solved by Clarabel: one point, at the end."""

    name = "CVXPY with Clarabel"
    needs = ("binary", "regression")
    most_values = 2e6
    requirements = ["pip::cvxpy", "pip::clarabel"]  # noqa: RUF012

    def run(self, callback: Any) -> None:
        import cvxpy as cp

        data, d = self.problem.data, self.problem.data.n_features
        X, y = np.asarray(data.rows.X, dtype=np.float64), self.problem.data.y
        w, t = cp.Variable(d), cp.Variable()
        u = X @ w
        binary = self.problem.loss.name == "logistic"
        losses = cp.logistic(-cp.multiply(y, u)) if binary else 0.5 * cp.square(u - y)
        shift = self.references
        limits = [cp.norm(w) <= self.problem.domain.radius]
        for i in range(data.n_groups):
            a, b = data.offsets[i], data.offsets[i + 1]
            limits.append(cp.sum(losses[a:b]) / (b - a) - shift[i] <= t)
        if not callback():
            return
        cp.Problem(cp.Minimize(t), limits).solve(solver=cp.CLARABEL)
        found = np.array(w.value)
        self._keep(found * min(1.0, self.problem.domain.radius / np.linalg.norm(found)))
        callback()


class FairlearnSolver(Rival):
    """fairlearn's exponentiated gradient with a bounded group loss; the coefficients averaged by its weights."""

    name = "fairlearn ExponentiatedGradient"
    needs = ("binary",)
    most_values = 2e6
    requirements = ["pip::fairlearn"]  # noqa: RUF012

    def run(self, callback: Any) -> None:
        from fairlearn.reductions import BoundedGroupLoss, ExponentiatedGradient
        from sklearn.linear_model import LogisticRegression

        data = self.problem.data
        X, y = np.asarray(data.rows.X, dtype=np.float64), (data.y > 0).astype(int)
        groups = np.repeat(np.arange(data.n_groups), data.group_sizes)
        if not callback():
            return
        oracle = LogisticRegression(C=1e3, fit_intercept=False, max_iter=500)
        method = ExponentiatedGradient(
            oracle, BoundedGroupLoss(_LogLoss(), upper_bound=0.0), eps=0.01, max_iter=50, nu=1e-4
        )
        method.fit(X, y, sensitive_features=groups)
        coef = np.array([model.coef_.ravel() for model in method.predictors_])
        w = np.asarray(method.weights_)[: len(coef)] @ coef
        self._keep(w * min(1.0, self.problem.domain.radius / max(float(np.linalg.norm(w)), 1e-300)))
        callback()


class _LogLoss:
    """The logistic loss in the form that fairlearn's bounded group loss asks for."""

    min = 0.0
    max = np.inf

    def eval(self, y_true: Any, y_pred: Any) -> Any:  # its own name for it
        p = np.clip(np.asarray(y_pred, dtype=float), 1e-12, 1 - 1e-12)
        return -np.where(np.asarray(y_true) > 0, np.log(p), np.log(1 - p))


class DroSolver(Rival):
    """The package dro's GroupDRO by Clarabel, which takes the groups as a column of X."""

    name = "dro GroupDRO"
    needs = ("binary",)
    most_values = 2e6
    requirements = ["pip::dro"]  # noqa: RUF012

    def run(self, callback: Any) -> None:
        from dro.linear_model.group_dro import GroupDRO

        data, d = self.problem.data, self.problem.data.n_features
        X = np.asarray(data.rows.X, dtype=np.float64)
        groups = np.repeat(np.arange(data.n_groups), data.group_sizes)
        if not callback():
            return
        model = GroupDRO(input_dim=d + 1, group_idx=d, model_type="logistic", solver="CLARABEL")
        model.fit(np.c_[X, groups], data.y)
        w = np.asarray(model.theta, dtype=np.float64).ravel()[:d]
        self._keep(w * min(1.0, self.problem.domain.radius / max(float(np.linalg.norm(w)), 1e-300)))
        callback()


class SagawaSolver(Rival):
    """Group DRO's online algorithm: mini-batch gradients weighted by group weights that grow with the losses.

    Written here from its published description (Sagawa, Koh, Hashimoto and Liang 2020, Algorithm 1), for linear models.
    """

    name = "Sagawa SGD"
    needs = ("binary", "classes", "regression")
    parameters = {"multiplier": MULTIPLIERS}  # noqa: RUF012
    batch = 128

    def run(self, callback: Any) -> None:
        problem, rng = self.problem, np.random.default_rng(self.seed)
        data, m = problem.data, problem.n_groups
        shift = self.references
        step = self.multiplier * 1e-2 / float(np.mean(data.row_norms**2))
        w, q = problem.start(), np.full(m, 1.0 / m)
        self._keep(w)
        while callback() and problem.passes < self.max_passes:
            for _ in range(max(1, problem.n_rows // self.batch)):
                groups = np.sort(rng.integers(0, m, size=self.batch))
                members = data.draw_members(groups, rng)
                counts = np.bincount(groups, minlength=m)
                draw = Draw(members, groups, 1.0 / counts[groups])
                risks, gradient = problem.sampled(draw, w, q)
                q = np.where(counts > 0, q * np.exp(0.01 * (risks - shift)), q)
                q /= q.sum()
                w = w - step * gradient
                w *= min(1.0, problem.domain.radius / max(float(np.linalg.norm(w)), 1e-300))
            self._keep(w)
