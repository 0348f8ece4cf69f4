"""The last linear layer of a network: finding it, running up to it, and writing weights into it."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from groupdro.torch.installed import nn, torch
from groupdro.utils.types import Array, Floats

__all__ = [
    "InputReader",
    "check_is_output",
    "evaluating",
    "find_last_layer",
    "layer_coefficients",
    "model_digest",
    "named_layer",
    "unwrap",
    "write_last_layer",
]

_WRAPPED = "module", "_orig_mod"  # attributes of DataParallel and DistributedDataParallel, and of torch.compile
_NAMED = 10  # layers named in an error
_LARGEST = 1e18  # feature; no network that is to be trained further can use larger ones


def unwrap(model: Any) -> Any:
    """Return the network wrapped by DistributedDataParallel, DataParallel or torch.compile."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while isinstance(model, parallel) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, parallel) else model._orig_mod
    return model


def named_layer(model: Any, layer: Any) -> tuple[str, Any]:
    """Return name and module of the linear layer given by the user.

    Parameters
    ----------
    model : torch.nn.Module
        The network, unwrapped.
    layer : str or torch.nn.Module
        A name as in `named_modules`, or the module. A Sequential stands for its last part.

    Returns
    -------
    name : str
        Its name.
    module : torch.nn.Linear
        The layer.
    """
    names = {id(module): name for name, module in model.named_modules()}
    if isinstance(layer, nn.Module):
        if id(layer) not in names:
            raise ValueError("layer is not a module of the model.")
        found = layer
    elif isinstance(layer, str):
        modules = dict(model.named_modules())
        name = layer
        while name not in modules and name.partition(".")[0] in _WRAPPED:  # as named by the wrapper
            name = name.partition(".")[2]
        if name not in modules:
            raise ValueError(f"layer is {layer!r}, which the model does not have. {_linear_names(model)}")
        found = modules[name]
    else:
        raise TypeError(f"layer must be a name, a module or None, got {type(layer).__name__}.")
    while isinstance(found, nn.Sequential) and len(found):
        found = found[-1]
    name = names[id(found)]
    if not isinstance(found, nn.Linear):
        raise ValueError(f"layer {name!r} is a {type(found).__name__}, not a torch.nn.Linear. {_linear_names(model)}")
    _check_own_weights(model, name, found)
    return name, found


def find_last_layer(model: Any, run: Callable[[], Any]) -> tuple[str, Any]:
    """Return name and module of the linear layer whose output is the model's output.

    Parameters
    ----------
    model : torch.nn.Module
        The network, unwrapped.
    run : callable
        Runs the model on a batch, and returns its output.

    Returns
    -------
    name : str
        Its name.
    module : torch.nn.Linear
        The layer.
    """
    ran: list[tuple[str, Any, Any]] = []
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) or _is_other_layer(module):
                hook = module.register_forward_hook(
                    lambda module, _, output, name=name: ran.append((name, module, output))
                )
                stack.callback(hook.remove)
        scores = _scores(run())
    linear = [one for one in ran if isinstance(one[1], nn.Linear)]
    if not linear:
        raise ValueError("The model ran no torch.nn.Linear: pass layer=, or use a model that ends in one.")
    if scores is None:
        raise ValueError("The model's output is not a tensor and has no logits: pass layer=, and forward= if needed.")
    if not torch.isfinite(scores).all():
        raise ValueError("The model's output has NaN or infinite values: check its inputs and weights.")
    for name, module, output in reversed(linear):
        if output.numel() == scores.numel() and torch.equal(output.reshape(-1).double(), scores.reshape(-1).double()):
            _check_own_weights(model, name, module)
            return name, module
    name, module, output = ran[-1]
    if not isinstance(module, nn.Linear):
        raise ValueError(
            f"The model's last layer with weights is {name!r}, a {type(module).__name__}; only a "
            "torch.nn.Linear can be retrained. Replace a convolution of size 1 on one position by a torch.nn.Linear."
        )
    if output.ndim > 2:
        raise ValueError(_per_token(name, tuple(output.shape)))
    raise ValueError(_changed(name, scores, output))


def check_is_output(name: str, module: Any, run: Callable[[], Any], n_rows: int) -> None:
    """Raise if the model changes the output of a layer, so that new weights would give other scores than expected.

    A softmax or a sigmoid at the end does no harm. Outputs of another shape are not compared.

    Parameters
    ----------
    name : str
        Name of the layer.
    module : torch.nn.Linear
        The layer.
    run : callable
        Runs the model on a batch, and returns its output.
    n_rows : int
        Rows of the batch.
    """
    outputs: list[Any] = []
    hook = module.register_forward_hook(lambda *call: outputs.append(call[-1]))
    try:
        scores = _scores(run())
    finally:
        hook.remove()
    if scores is None or len(outputs) != 1 or not scores.numel() == outputs[0].numel() == n_rows * module.out_features:
        return
    if _link(scores, outputs[0]) is None:
        raise ValueError(_changed(name, scores, outputs[0]))


def _link(scores: Any, output: Any) -> str | None:
    """Return by which function a model's scores follow from the output of a layer; None if by none that is known."""
    shown = scores.detach().reshape(output.shape)
    room = 16 * max(torch.finfo(each.dtype).eps for each in (shown, output))
    links = {
        "identity": lambda u: u,
        "softmax": lambda u: u.softmax(-1),
        "sigmoid": lambda u: u.sigmoid(),
        "log_softmax": lambda u: u.log_softmax(-1),
        "log_sigmoid": nn.functional.logsigmoid,
    }
    for name, link in links.items():
        if torch.allclose(link(output.detach().double()), shown.double(), rtol=room, atol=room):
            return name
    return None


def _changed(name: str, scores: Any, output: Any) -> str:
    """Say why the model's scores are not the output of a layer, and what would do."""
    start = f"The model's output is not that of its last linear layer, {name!r}"
    link = _link(scores, output) if scores.numel() == output.numel() else None
    if link is not None:
        return f"{start}, but its {link}: pass layer={name!r}."
    return (
        f"{start}, nor its softmax or sigmoid. A linear model of its inputs would not have the scores of the network. "
        "If only a factor follows, multiply the layer's weights and bias by it and remove it; or pass a forward= that "
        "returns the layer's output."
    )


class InputReader:
    """Runs a model and records the inputs of its last layer.

    Parameters
    ----------
    name : str
        Name of the layer, for errors.
    module : torch.nn.Linear
        The layer.
    """

    def __init__(self, name: str, module: Any):
        self.name = name
        self.module = module

    def read(self, run: Callable[[], Any], n_rows: int) -> Array:
        """Return the inputs of the layer, one row per row of the batch, in half or single precision.

        Parameters
        ----------
        run : callable
            Runs the model on a batch.
        n_rows : int
            Rows of the batch.

        Returns
        -------
        ndarray of shape (n_rows, in_features)
            float16 if the layer receives float16, else float32.
        """
        seen: list[Any] = []

        def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            del module
            seen.append(args[0] if args else kwargs["input"])

        hook = self.module.register_forward_pre_hook(keep, with_kwargs=True)
        try:
            run()
        finally:
            hook.remove()
        if len(seen) != 1:
            often = f"{len(seen)} times" if seen else "not at all"
            raise ValueError(f"The layer {self.name!r} ran {often} for one batch; it must run once.")
        given = seen[0].detach()
        if given.numel() != n_rows * given.shape[-1]:
            if given.ndim > 2:
                raise ValueError(_per_token(self.name, tuple(given.shape)))
            raise ValueError(f"The layer {self.name!r} got {len(given)} rows for a batch of {n_rows} labels.")
        given = given.reshape(n_rows, -1)
        found = given.to("cpu", given.dtype if given.dtype == torch.float16 else torch.float32).numpy()
        if not np.isfinite(found).all():
            row = int(np.argmin(np.isfinite(found).all(axis=1)))
            raise ValueError(f"The layer {self.name!r} received NaN or infinite values, first in row {row} of a batch.")
        if found.dtype == np.float32 and float(np.abs(found).max(initial=0.0)) > _LARGEST:
            row = int(np.abs(found).max(axis=1).argmax())
            raise ValueError(
                f"The layer {self.name!r} received {np.abs(found[row]).max():.3g} in row {row} of a batch: beyond "
                f"{_LARGEST:.0e}, squares overflow in single precision. Check the network's inputs."
            )
        return np.array(found)  # a copy: the model may reuse the memory


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a model into evaluation mode without gradients, and restore the mode of every module at the end."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.train(mode=False)
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def write_last_layer(model: Any, fitted: Any, *, layer: Any) -> None:
    """Write a linear model into a layer of a network, in place.

    Precision and device of the layer and everything else in the network stay the same.

    Parameters
    ----------
    model : torch.nn.Module
        The network. If it is wrapped, as by DistributedDataParallel, the inner network is changed.
    fitted : estimator
        An estimator with `coef_` and `intercept_`, such as a fitted `GroupDROClassifier`. Outputs of the layer are in
        the order of its classes. For two classes, the score is written to a layer with one output as it is, and to one
        with two outputs as its negative and its positive half, which gives the same probabilities.
    layer : str or torch.nn.Module
        Name of the layer, as in `Features.layer`, or the layer itself.
    """
    name, module = named_layer(unwrap(model), layer)
    coef = np.atleast_2d(np.asarray(fitted.coef_, np.float64))
    intercept = np.broadcast_to(np.asarray(fitted.intercept_, np.float64), len(coef))
    if len(coef) == 1 and module.out_features == 2:
        coef, intercept = (np.concatenate([-part, part]) / 2 for part in (coef, intercept))
    if coef.shape != (module.out_features, module.in_features):
        raise ValueError(
            f"fitted has {coef.shape[0]} outputs of {coef.shape[1]} features, but the layer {name!r} has "
            f"{module.out_features} of {module.in_features}."
        )
    if module.bias is None and intercept.any():
        raise ValueError(f"fitted has an intercept, but the layer {name!r} has no bias: fit with fit_intercept=False.")
    pairs = [(module.weight, coef)] + ([] if module.bias is None else [(module.bias, intercept)])
    with torch.no_grad():
        new = [torch.from_numpy(np.array(values)).to(old.dtype) for old, values in pairs]
        if not all(torch.isfinite(values).all() for values in new):
            raise ValueError(f"fitted has coefficients too large for {module.weight.dtype}.")
        for (old, _), values in zip(pairs, new, strict=True):
            old.copy_(values)


def layer_coefficients(module: Any) -> tuple[Floats, Floats]:
    """Return a layer's weights in the form of a classifier: one row for two classes, else one per class.

    Parameters
    ----------
    module : torch.nn.Linear
        The layer.

    Returns
    -------
    coef : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients.
    intercept : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    """
    coef = module.weight.detach().cpu().double().numpy()
    bias = np.zeros(len(coef)) if module.bias is None else module.bias.detach().cpu().double().numpy()
    if len(coef) == 2:
        return coef[1:] - coef[:1], bias[1:] - bias[:1]
    return coef.copy(), bias.copy()


def model_digest(model: Any, layer: Any) -> str:
    """Return a digest of all parameters and buffers except those of a layer, which do not affect its inputs.

    Parameters
    ----------
    model : torch.nn.Module
        The network.
    layer : torch.nn.Linear
        The layer.

    Returns
    -------
    str
        The digest in hexadecimal.
    """
    own = {id(parameter) for parameter in layer.parameters()}
    digest = hashlib.sha256()
    for source in (model.named_parameters(), model.named_buffers()):
        for name, tensor in source:
            if id(tensor) not in own:
                digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
                digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _scores(output: Any) -> Any:
    """Return the tensor of scores in a model's output; None if there is none."""
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    elif hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, torch.Tensor) else None


def _is_other_layer(module: Any) -> bool:
    """Return whether a module has weights and no parts: a network's own factor belongs to no layer."""
    return next(module.children(), None) is None and next(module.parameters(), None) is not None


def _check_own_weights(model: Any, name: str, module: Any) -> None:
    """Refuse a layer whose weights are computed from others or shared with another layer."""
    if not isinstance(module.weight, nn.Parameter) or nn.utils.parametrize.is_parametrized(module):
        raise ValueError(f"The layer {name!r} has weights that are computed from others: remove the parametrization.")
    own = {id(parameter) for parameter in module.parameters()}
    for other, part in model.named_modules():
        if part is not module and own & {id(parameter) for parameter in part.parameters(recurse=False)}:
            raise ValueError(f"The layer {name!r} shares its weights with {other!r}, which would change with it.")


def _per_token(name: str, shape: tuple[int, ...]) -> str:
    return (
        f"The layer {name!r} runs on every token or position, with shape {shape}, before the model picks one. "
        "Only layers that run on one row of features per example can be retrained."
    )


def _linear_names(model: Any) -> str:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    more = f" and {len(names) - _NAMED} before" if len(names) > _NAMED else ""
    return f"Its linear layers are {names[-_NAMED:]}{more}."
