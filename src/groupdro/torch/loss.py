"""Worst-group loss for training whole networks, with group weights learned during training."""

from collections.abc import Callable
from typing import Any

from groupdro.torch.installed import nn, torch
from groupdro.utils.arguments import check_number, check_whole

__all__ = ["GroupDROLoss"]

_LEAST = 1e-30  # replaces a zero sum of weights, before any group was seen


class GroupDROLoss(nn.Module):
    """Worst-group loss for training whole networks with SGD, without a certificate.

    Minimises, as the estimators do,

        (1 - robustness) * average of V_i  +  robustness * max of V_i,    V_i = R_i + offset_i,

    where R_i is the average loss of group i. For a network there is no proven bound on its suboptimality; for that,
    retrain its last layer with `retrain_last_layer`. The maximum is approximated by weights on the groups, which follow
    the losses of the batches by exponentiated gradient steps (Sagawa, Koh, Hashimoto and Liang, ICLR 2020).

    Parameters
    ----------
    n_groups : int
        Number of groups. Groups are numbered from 0.
    step_size : float, default=0.01
        Step size of the group weights: after each batch, the logarithm of a group's weight grows by this times its V_i.
        Larger steps follow the worst group faster, but are noisier.
    robustness : float, default=1.0
        Blend between the average over rows (0) and the worst group (1). Decrease it if the other groups suffer too
        much.
    offsets : array-like of shape (n_groups,), default=None
        Constants added to the risks. C / sqrt(n_i) corresponds to `small_group_bonus` of the estimators; minus the
        risk of each group's best model turns risks into excess risks. None for zeros.
    loss : callable, default=None
        Takes outputs and targets, and returns one loss per row, such as
        ``torch.nn.CrossEntropyLoss(reduction="none")``. None for the cross-entropy: binary if the outputs have one
        number per row, over all columns otherwise.
    process_group : torch.distributed.ProcessGroup, default=None
        Workers over which losses are averaged; None for all, if torch.distributed is initialised.

    Attributes
    ----------
    group_weights : Tensor of shape (n_groups,)
        Weights of the groups in the worst-group part; they sum to one.

    Notes
    -----
    **Batches without a group.** A group contributes to a batch through the average of its rows there. The contribution
    is divided by the share of batches so far that had the group, so that over many batches each group counts by its
    weight, not by how often it is seen. For the step of the group weights, a group missing from a batch keeps its last
    value, so it neither gains nor loses by its absence. If most batches lack some group, a sampler that draws all
    groups equally gives steadier steps.

    **Several workers.** In training mode, sums and counts per group are added up over all workers. So two workers have
    the same weights as one worker would have on both batches together, and the gradients that DistributedDataParallel
    averages are those of the loss over all rows. The returned value is the same on all workers. Every worker must call
    the loss equally often. In evaluation mode workers do not communicate, and nothing is updated.

    **State.** Group weights and running statistics are buffers and part of `state_dict`, so a resumed run continues
    with the same weights. Losses that are not finite are returned, but do not update the state.

    Examples
    --------
    >>> import torch
    >>> from groupdro.torch import GroupDROLoss
    >>> criterion = GroupDROLoss(n_groups=2, step_size=0.1)
    >>> logits, targets = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
    >>> groups = torch.tensor([0, 0, 1, 1])
    >>> round(float(criterion(logits, targets, groups)), 4)
    1.0986
    >>> criterion.group_weights.tolist()
    [0.5, 0.5]
    """

    def __init__(
        self,
        n_groups: int,
        *,
        step_size: float = 0.01,
        robustness: float = 1.0,
        offsets: Any = None,
        loss: Callable[[Any, Any], Any] | None = None,
        process_group: Any = None,
    ):
        super().__init__()
        check_whole(n_groups, "n_groups", least=1)
        check_number(step_size, "step_size", positive=True)
        check_number(robustness, "robustness")
        if not robustness <= 1:
            raise ValueError(f"robustness must be from 0 to 1, got {robustness!r}.")
        if not (loss is None or callable(loss)):
            raise TypeError(f"loss must be callable or None, got {type(loss).__name__}.")
        self.n_groups = int(n_groups)
        self.step_size = float(step_size)
        self.robustness = float(robustness)
        self.loss = loss
        self.process_group = process_group
        values = torch.zeros(n_groups) if offsets is None else torch.as_tensor(offsets, dtype=torch.float32)
        if values.shape != (n_groups,) or not torch.isfinite(values).all():
            raise ValueError(f"offsets must be {n_groups} finite numbers, one per group, got {offsets!r}.")
        self.register_buffer("offsets", values.clone())
        # Logarithms, up to a constant: a weight that underflowed to zero would never return.
        self.register_buffer("log_weights", torch.zeros(n_groups))
        self.register_buffer("last_values", torch.zeros(n_groups))
        self.register_buffer("n_batches_with", torch.zeros(n_groups, dtype=torch.int64))
        self.register_buffer("n_batches", torch.zeros((), dtype=torch.int64))

    @property
    def group_weights(self) -> Any:
        """Weights of the groups in the worst-group part."""
        return torch.softmax(self.log_weights.float(), dim=0)

    def forward(self, *batch: Any) -> Any:
        """Return the loss of a batch and, in training mode, update the group weights.

        Parameters
        ----------
        *batch : Tensor
            Either losses and groups, one per row each; or outputs of the network, targets, and groups.

        Returns
        -------
        Tensor
            A scalar.
        """
        losses, groups = self._read(batch)
        members = torch.zeros(len(losses), self.n_groups, device=losses.device, dtype=losses.dtype)
        members.scatter_(1, groups[:, None], 1.0)
        losses = losses + self.offsets.float()[groups]
        own = torch.stack([losses @ members, members.sum(dim=0)])  # sums and counts per group
        whole = own.detach()
        n_workers = self._n_workers()
        if n_workers > 1:
            whole = whole.clone()
            torch.distributed.all_reduce(whole, group=self.process_group)
        sums, counts = whole
        present = counts > 0
        means = sums / counts.clamp(min=1.0)
        if self.training:
            self._step(means, present)
        # Weight of each group's average in the loss, and of each row's loss.
        t = self.robustness
        rate = self._presence()
        by_group = torch.where(present, t * self.group_weights / rate, 0.0)
        by_row = (1.0 - t) / counts.sum().clamp(min=1.0)
        factors = by_group / counts.clamp(min=1.0) + by_row
        # This worker's part, times the number of workers because gradients are averaged, but with the value over all.
        part = n_workers * (own[0] * torch.where(present, factors, 0.0)).sum()
        if n_workers == 1:
            return part
        return part + ((sums * torch.where(present, factors, 0.0)).sum() - part.detach())

    def extra_repr(self) -> str:
        """Return the parameters, for printing."""
        return f"n_groups={self.n_groups}, step_size={self.step_size:g}, robustness={self.robustness:g}"

    def _read(self, batch: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return losses in single precision or more, and groups."""
        if len(batch) not in (2, 3):
            raise TypeError(f"expected losses and groups, or outputs, targets and groups; got {len(batch)} arguments.")
        losses = batch[0]
        groups = torch.as_tensor(batch[-1], device=batch[0].device)
        if len(batch) == 3:
            losses = self._losses(batch[0], batch[1])
        if losses.ndim != 1:
            raise ValueError(
                f'losses must be one per row, got shape {tuple(losses.shape)}: use reduction="none" in losses of torch.'
            )
        if groups.shape != losses.shape or groups.is_floating_point() or groups.is_complex():
            raise ValueError(
                f"groups must be integers, one per row; got {groups.dtype} of shape {tuple(groups.shape)} for "
                f"{len(losses)} rows."
            )
        groups = groups.long()
        if len(groups) and not (int(groups.min()) >= 0 and int(groups.max()) < self.n_groups):
            raise ValueError(
                f"groups must be from 0 to {self.n_groups - 1}, got {int(groups.min())} to {int(groups.max())}."
            )
        return losses.float() if losses.dtype.itemsize < 4 else losses, groups

    def _losses(self, outputs: Any, targets: Any) -> Any:
        if self.loss is not None:
            return self.loss(outputs, targets)
        if outputs.ndim == 1 or outputs.shape[1:] == (1,):
            outputs = outputs.reshape(-1)
            return nn.functional.binary_cross_entropy_with_logits(
                outputs, targets.reshape(-1).to(outputs.dtype), reduction="none"
            )
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def _n_workers(self) -> int:
        there = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not (self.training and there):
            return 1
        return int(torch.distributed.get_world_size(self.process_group))

    def _step(self, means: Any, present: Any) -> None:
        """Update the group weights, and record which groups the batch has."""
        with torch.no_grad():
            if not torch.isfinite(means).all():
                return
            self.n_batches += 1
            self.n_batches_with += present
            self.last_values.copy_(torch.where(present, means, self.last_values))
            # A group never seen is given the weighted mean of the others, which leaves its weight unchanged.
            seen = self.n_batches_with > 0
            values = self.last_values.float()
            weights = torch.where(seen, self.group_weights, 0.0)
            values = torch.where(seen, values, weights @ values / weights.sum().clamp(min=_LEAST))
            log_weights = self.log_weights.float() + self.step_size * values
            self.log_weights.copy_(log_weights - log_weights.max())

    def _presence(self) -> Any:
        """Return the share of batches that have each group, at least as if the next one had it."""
        return (self.n_batches_with + 1.0) / (self.n_batches + 1.0)
