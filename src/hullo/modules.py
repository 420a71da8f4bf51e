"""The hulls: activation functions that learn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hullo._compat import gather, is_sharded, real_tensors, shard_like
from hullo.bases import Base, get_base, resolve
from hullo.coefficients import HYPERPLANE, ORTHANT, SIMPLEX, SPACE, CoefficientSet, invert, read_only
from hullo.functional import apply
from hullo.kernels import CombineSpec
from hullo.optimizer_hook import watch
from hullo.parametrizations import BuiltInParametrization, Parametrization, evaluate, get_parametrization
from hullo.state_names import write_raw_name

Init = Sequence[float] | Sequence[Sequence[float]] | Tensor | str | None
InnerScale = str | float | Sequence[float] | None


def without_rounding(row: Sequence[float]) -> list[float]:
    """Return coefficients for printing, with zero for those below 1e-6 of the largest, and without negative zeros."""
    least = 1e-6 * max(map(abs, row))
    return [0.0 if abs(number) <= least < math.inf else number for number in row]


def keep_float32(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a conversion like that of `model.half()`, without its lower precision.

    Raw parameters stay in float32: they are few, and their updates are small.
    """

    def convert(tensor: Tensor) -> Tensor:
        converted = fn(tensor)
        return tensor.to(converted.device) if converted.itemsize < 4 else converted

    return convert


def _read_scales(given: InnerScale, bases: int) -> list[float]:
    """Return the initial inner scales: none, one, or one per base."""
    if given is None or isinstance(given, str):
        ones: dict[str | None, list[float]] = {None: [], "hull": [1.0], "base": [1.0] * bases}
        scales = ones.get(given, [math.nan])
    else:
        scales = [float(value) for value in (given if isinstance(given, Sequence) else [given])]
    if not all(map(math.isfinite, scales)) or (given is not None and len(scales) not in (1, bases)):
        raise ValueError(
            f"inner_scale={given!r}: give 'hull' for one scale, 'base' for one scale per base, a number or {bases} "
            "numbers to start at, or None"
        )
    return scales


class Hull(nn.Module):
    """The base class of all hulls: bases, raw parameters, and the coefficients that are computed from them."""

    kind: ClassVar[str]
    coefficient_set: ClassVar[CoefficientSet]
    is_strict: ClassVar[bool] = True  # the default of `strict`
    raw_name: str
    inner_scale: nn.Parameter | None

    def __init__(
        self,
        *bases: str | Base | Iterable[str | Base],
        init: Init = None,
        groups: int = 1,
        channel_dim: int = 1,
        parametrization: str | Parametrization | None = None,
        strict: bool | None = None,
        inner_scale: InnerScale = None,
        inplace: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not hasattr(self, "kind"):
            names = ", ".join(cls.__name__ for cls in HULLS.values())
            raise TypeError(f"Hull is the base class of the hulls; make one of {names}")
        if type(groups) is not int or groups < 1:
            raise ValueError(
                f"groups={groups!r}: give 1 for one activation per layer, or the number of groups of channels"
            )
        if type(channel_dim) is not int:
            raise TypeError(f"channel_dim={channel_dim!r}: give the index of the dimension that holds the channels")
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise TypeError(f"dtype={dtype!r}: coefficients need a floating-point torch.dtype such as torch.float32")
        self.bases = resolve(_flatten(bases), strict=self.is_strict if strict is None else strict)
        self.groups = groups
        self.parametrization = chosen = self.coefficient_set.read_parametrization(parametrization)
        in_kernel = chosen if isinstance(chosen, BuiltInParametrization) else get_parametrization("given")
        self.spec = CombineSpec(self.bases, in_kernel, channel_dim)
        self.raw_name = write_raw_name(chosen.name, self.bases, groups, channel_dim)
        self.init = self._validate(init)
        self.raw = nn.Parameter(  # type: ignore[misc]
            torch.tensor(
                self._raw_values(self.init),
                device=torch.get_default_device() if device is None else device,
                dtype=torch.float64 if dtype == torch.float64 else torch.float32,
            )
        )

        self.initial_scales = _read_scales(inner_scale, len(self.bases))
        self.register_parameter("inner_scale", None)
        if self.initial_scales:
            shape = (len(self.initial_scales),) if groups == 1 else (groups, len(self.initial_scales))
            self.inner_scale = nn.Parameter(self.raw.new_tensor(self.initial_scales).expand(shape).clone())
        self._watch()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._watch()  # copies and unpickled hulls

    def _watch(self) -> None:
        if self.parametrization.restrict is not None:
            watch(self)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (the argument's name in PyTorch's modules)
        parameters = self._parameters  # faster than attributes; FSDP and nn.DataParallel remove them
        raw = parameters.get(self.raw_name)
        if raw is None or self.parametrization is not self.spec.parametrization:
            raw = self.kernel_input()  # type: ignore[assignment]
        scales = parameters.get("inner_scale", False)
        if scales is False:
            scales = self.inner_scale
        return apply(input, raw, self.spec, scales, None, self)  # type: ignore[arg-type]

    def kernel_input(self) -> Tensor:
        """Return the input of the kernels: raw parameters of a built-in parametrization, otherwise coefficients."""
        parametrization = self.parametrization
        return self.raw if parametrization is self.spec.parametrization else evaluate(parametrization, self.raw)

    def reset_parameters(self) -> None:
        """Reset coefficients and scales to their initial values, also after `to_empty`."""
        self.coefficients = self.init
        if self.inner_scale is not None:
            _assign(self.inner_scale, self.initial_scales)

    @property
    def coefficients(self) -> Tensor:
        """Return N coefficients, or one row of them per group, computed from the raw parameters.

        Assign N numbers, one row per group, or the name of a base to set them; values outside of the set raise an
        error. Single coefficients cannot be assigned. If the raw parameters are sharded (a DTensor), all processes have
        to call this, and each gets all coefficients.
        """
        return read_only(evaluate(self.parametrization, gather(self.raw)))

    @coefficients.setter
    def coefficients(self, value: Init) -> None:
        _assign(self.raw, self._raw_values(self._validate(value)))

    @property
    def raw(self) -> nn.Parameter:
        """Return the raw parameters, which an optimizer updates.

        They are registered as `raw_name`, such as ``raw_projection__identity__relu``, which contains the
        parametrization and the bases: a state_dict cannot be loaded into another kind of hull by mistake.
        """
        raw: nn.Parameter = getattr(self, self.raw_name)
        return raw

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(self.raw_name if name == "raw" else name, value)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the raw parameters."""
        per_row = len(self.bases) - self.parametrization.fewer
        return (per_row,) if self.groups == 1 else (self.groups, per_row)

    @property
    def spelling(self) -> str:
        """Return the kind and the bases, as in ``affine(identity,relu,tanh)``."""
        return f"{self.kind}({','.join(item.name for item in self.bases)})"

    def _raw_values(self, coefficients: Tensor) -> list[Any]:
        """Return the raw parameters of coefficients as lists; under a tensor mode, they become tensors of that mode."""
        with real_tensors(), torch.no_grad():
            values: list[Any] = invert(self.parametrization, coefficients, self.coefficient_set).tolist()
        return values

    @real_tensors()
    def _validate(self, value: Init) -> Tensor:
        """Return given coefficients, by default 1/N each, checked, in float64 and in the shape of `coefficients`."""
        n = len(self.bases)
        shape = (n,) if self.groups == 1 else (self.groups, n)
        if isinstance(value, str):
            if get_base(value) not in self.bases:
                raise ValueError(f"invalid init {value!r}: it is not one of the bases of {self.spelling}")
            value = [float(item is get_base(value)) for item in self.bases]
        if value is None:
            value = [1 / n] * n
        valid = f"{n} numbers" if self.groups == 1 else f"{n} numbers or {self.groups} rows of {n}"
        try:
            given = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"invalid coefficients {value!r} for {self.spelling}; give {valid}") from None
        if given.shape not in ((n,), shape):
            raise ValueError(f"invalid coefficients of shape {tuple(given.shape)} for {self.spelling}; give {valid}")
        if reason := self.coefficient_set.describe_violation(given, self.parametrization.name):
            raise ValueError(f"invalid coefficients {_format(given)} for {self.spelling}: {reason}")
        return given.expand(shape).clone()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Hull:
        super()._apply(keep_float32(fn), recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Reject raw parameters that another kind of hull has saved, also with strict=False."""
        own = prefix + self.raw_name
        saved = [key for key in state_dict if key.startswith(f"{prefix}raw_")]
        if saved and own not in saved:
            other = f"{saved[0]} was saved by another hull; this one, {self.spelling}, has {self.raw_name}"
            rest[4].append(f"{other}; make this hull with the same arguments")
            return
        for name in (own, f"{prefix}inner_scale"):
            if name in state_dict and state_dict[name].itemsize < 4:
                state_dict[name] = state_dict[name].float()  # assign=True would keep the type
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def local_rows(self) -> list[list[float]] | None:
        """Return the coefficients as numbers, one row per group, for printing, without communication between processes.

        Return None if they have no values (on the meta device, in a trace) or are sharded.
        """
        return None if is_sharded(self.raw) else self._rows(self.coefficients)

    def local_scales(self) -> list[list[float]] | None:
        """Return the inner scales as numbers, one row per group, for printing; None if they have no values."""
        scales = self.inner_scale
        return None if scales is None or is_sharded(scales) else self._rows(scales)

    def _rows(self, numbers: Tensor) -> list[list[float]] | None:
        try:
            rows: list[list[float]] = numbers.detach().double().reshape(self.groups, -1).tolist()
        except RuntimeError:
            return None
        return rows

    def extra_repr(self) -> str:
        parts = [item.name for item in self.bases]
        if self.groups == 1 and (rows := self.local_rows()):
            parts = [f"{name}={value:.2g}" for name, value in zip(parts, without_rounding(rows[0]), strict=True)]
        if self.groups > 1:
            parts.append(f"groups={self.groups}")
        if self.groups > 1 and self.spec.channel_dim != 1:
            parts.append(f"channel_dim={self.spec.channel_dim}")
        if self.parametrization.name != self.coefficient_set.choices[0]:
            parts.append(f"parametrization={self.parametrization.name!r}")
        if self.inner_scale is not None:
            kind = "hull" if self.inner_scale.shape[-1] == 1 else "base"
            scales = self.local_scales() if self.groups == 1 else None
            shown = ", ".join(f"{value:.3g}" for value in scales[0]) if scales else repr(kind)
            parts.append(f"inner_scale={f'[{shown}]' if scales and kind == 'base' else shown}")
        return ", ".join(parts)


@torch.no_grad()
def _assign(parameter: Tensor, numbers: list[Any]) -> None:
    """Set a parameter, which may be sharded, to numbers: all of its values, or one row for all groups."""
    values = torch.tensor(numbers, device=parameter.device, dtype=parameter.dtype).expand(parameter.shape)
    parameter.copy_(shard_like(values, parameter))


def _flatten(bases: tuple[str | Base | Iterable[str | Base], ...]) -> Iterable[str | Base]:
    """Return bases that are given as separate arguments, or as one list."""
    if len(bases) == 1 and isinstance(bases[0], Iterable) and not isinstance(bases[0], str):
        return bases[0]
    return bases  # type: ignore[return-value]  # `resolve` raises an error for others


def _format(given: Tensor) -> str:
    return str([round(value, 6) for value in given.tolist()]) if given.dim() == 1 else f"{len(given)} rows"


class AffineHull(Hull):
    r"""An activation learned in the affine hull of base functions: f(x) = sum c_i f_i(x) with sum c_i = 1.

    Args:
        bases: names of the catalogue, or :class:`hullo.Base` objects, as separate arguments or one list.
        init: the initial coefficients: N numbers, one row per group, or the name of the base to start as;
            1/N each by default.
        groups: 1 is one activation for the layer; G gives each of G equal groups of channels its own coefficients;
            the number of channels gives one activation per channel.
        channel_dim: the dimension of the channels: 1 as in convolutions, -1 in transformers.
        parametrization: how raw parameters r become coefficients: "recentred", c = r + (1 - sum r) / N, which treats
            all bases alike; "free", where the last coefficient is one minus the others; or your own
            :class:`hullo.parametrizations.Parametrization`.
        strict: reject bases that do not have value zero and slope one at the origin. By default convex and affine
            hulls do, conic and linear ones do not.
        inner_scale: learn a scale b of the input, f(b x): "hull" for one scale, "base" for one per base, which start at
            one, or the number or numbers to start at; with several groups, one row of them per group. None by default.
        inplace: ignored; accepted because code such as timm's `act_layer` passes it. A hull saves its input for the
            backward pass and returns a new tensor. Only :func:`hullo.replace_activations` makes hulls that overwrite
            their input, which print ``inplace=True``, where the replaced activations do.
        device: the device of the parameters; PyTorch's default device if None.
        dtype: the type of the parameters, float32 or float64; PyTorch's default type if None. For float16 and bfloat16
            they are float32, as after ``model.half()``: they are few, and their updates are small.

    Example:
        >>> import torch, hullo
        >>> act = hullo.AffineHull("identity", "relu", "tanh")
        >>> act
        AffineHull(identity=0.33, relu=0.33, tanh=0.33)
        >>> act.coefficients = [0.0, 1.0, 0.0]
        >>> act(torch.tensor([-2.0, 3.0]))
        tensor([0., 3.], grad_fn=<_CombineBackward>)
    """

    kind = "affine"
    coefficient_set = HYPERPLANE


class ConvexHull(Hull):
    r"""An activation learned in the convex hull of base functions: sum c_i f_i(x) with sum c_i = 1 and c_i >= 0.

    The arguments are those of :class:`AffineHull`. `parametrization` is "projection", the nearest point of the set,
    which reaches zeros exactly and can leave them again, or "softmax", which stays strictly inside. With both, the
    gradients of micro-batches and of processes add up to that of the whole batch. On the boundary, an optimizer of
    torch.optim steps along the part of the summed gradient that stays in the set. If all bases are monotone, so is the
    function.

    Example:
        >>> import hullo
        >>> hullo.ConvexHull("identity", "relu", init=[0.01, 0.99])
        ConvexHull(identity=0.01, relu=0.99)
    """

    kind = "convex"
    coefficient_set = SIMPLEX


class ConicHull(Hull):
    r"""An activation learned in the conic hull of base functions: sum c_i f_i(x) with c_i >= 0.

    The arguments are those of :class:`AffineHull`. `parametrization` is "clamped", c = max(r, 0), which reaches zero
    exactly and can leave it again, as the projection of :class:`ConvexHull`, or "softplus", c = log(1 + exp(r)), which
    stays above zero. Coefficients may have any sum. If all bases are monotone, so is the function.

    Example:
        >>> import hullo
        >>> hullo.ConicHull("identity", "relu", init=[0.5, 1.5])
        ConicHull(identity=0.5, relu=1.5)
    """

    kind = "conic"
    coefficient_set = ORTHANT
    is_strict = False


class LinearHull(Hull):
    r"""An activation learned in the linear hull of base functions: sum c_i f_i(x) with any coefficients c_i.

    The arguments are those of :class:`AffineHull`; the coefficients are the raw parameters themselves.

    Example:
        >>> import hullo
        >>> hullo.LinearHull("relu", "tanh", init=[2.0, -0.5])
        LinearHull(relu=2, tanh=-0.5)
    """

    kind = "linear"
    coefficient_set = SPACE
    is_strict = False


HULLS: dict[str, type[Hull]] = {cls.kind: cls for cls in (ConvexHull, AffineHull, ConicHull, LinearHull)}
"""The classes of hulls by their kinds."""
