"""Settings of numpy, torch and other libraries that are put back in a process that stays; a line each in a table."""

from __future__ import annotations

import functools
import sys
from itertools import starmap
from typing import Any

import numpy as np

from hpo_core.training.child.restored_settings import Setting, setting_of_attribute, setting_of_container


def _torch() -> Any:
    return sys.modules["torch"]


def _of_torch(name: str, read: str, write: str) -> Setting:
    """A setting of torch with a function to read it and one to write it."""
    return Setting(name, lambda: _called(read), lambda value: _called(write, value), "torch")


def _called(path: str, *arguments: Any) -> Any:
    found = _torch()
    for part in path.split("."):
        found = getattr(found, part)
    return found(*arguments)


def _autocast() -> list[Any]:
    torch = _torch()
    kinds = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    return [*kinds, torch.is_autocast_cache_enabled()]


def _set_autocast(value: list[Any]) -> None:
    torch = _torch()
    for kind, enabled, dtype in value[:-1]:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(value[-1])
    torch.clear_autocast_cache()


def _default_device() -> Any:
    mode = getattr(sys.modules.get("torch.utils._device"), "CURRENT_DEVICE", None)
    return None if mode is None else str(mode)


def _flushes_denormals() -> bool:
    return float(np.float32(1e-40) * np.float32(1.0)) == 0.0


def _compiled() -> int:
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return 0 if frames is None else int(getattr(frames, "FRAME_COUNTER", 0))


def _forget_compiled(value: int) -> None:
    """Drop compiled functions: which sizes are dynamic in them depends on what was seen before."""
    sys.modules["torch._dynamo"].reset()
    vars(sys.modules["torch._dynamo.convert_frame"])["FRAME_COUNTER"] = value


def _flag_of_torch(name: str) -> Setting:
    """A flag of torch's core, by the name after ``_get_`` and ``_set_``."""

    def write(value: Any) -> None:
        _called(f"_C._set_{name}", *(value if isinstance(value, tuple) else (value,)))

    return Setting(f"torch's {name}", lambda: _called(f"_C._get_{name}"), write, "torch")


_FLAGS = (
    "blas_preferred_backend", "cpu_allow_fp16_reduced_precision_reduction",
    "cublas_allow_bf16_reduced_precision_reduction",
    "cublas_allow_fp16_accumulation", "cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_tf32",
    "cudnn_allow_tf32", "cudnn_benchmark", "cudnn_deterministic", "cudnn_enabled",
    "deterministic_fill_uninitialized_memory", "float32_matmul_precision", "graph_executor_optimize",
    "linalg_preferred_backend", "math_sdp_allow_fp16_bf16_reduction", "mkldnn_deterministic", "mkldnn_enabled",
    "nnpack_enabled", "onednn_allow_tf32", "qengine", "sdp_priority_order", "warnAlways",
)  # fmt: skip
_SDP = ("flash", "mem_efficient", "math", "cudnn")
_PRECISIONS = (
    ("generic", "all"),
    *((kind, part) for kind in ("cuda", "mkldnn") for part in ("all", "conv", "rnn", "matmul")),
)


def _precisions() -> list[str]:
    return [_called("_C._get_fp32_precision_getter", *each) for each in _PRECISIONS]


def _set_precisions(value: list[str]) -> None:
    for each, before in zip(_PRECISIONS, value, strict=True):
        if _called("_C._get_fp32_precision_getter", *each) != before:  # many follow the one above
            _called("_C._set_fp32_precision_setter", *each, before)


def _of_executor(name: str, read: str, write: str) -> Setting:
    """A setting of what runs TorchScript; one that cannot be read is told by the function that sets it."""

    def found() -> Any:
        if read:
            return _called(f"_C.{read}")
        before = _called(f"_C.{write}", True)
        _called(f"_C.{write}", before)
        return before

    return Setting(f"torch's {name}", found, lambda value: _called(f"_C.{write}", value), "torch")


def _fusion_strategy() -> Any:
    before = _called("_C._jit_set_fusion_strategy", [])
    _called("_C._jit_set_fusion_strategy", before)
    return before


def _configuration(module: str) -> Setting:
    """Configuration of a part of torch's compiler."""

    def write(before: dict[str, Any]) -> None:
        for name, value in sys.modules[module].shallow_copy_dict().items():
            if value != before[name]:
                setattr(sys.modules[module], name, before[name])

    return Setting(module, lambda: sys.modules[module].shallow_copy_dict(), write, module)


def _options_of_pandas() -> dict[str, Any]:
    config = sys.modules["pandas._config.config"]
    return {name: config.get_option(name) for name in config._registered_options}


def _set_options_of_pandas(value: dict[str, Any]) -> None:
    for name, now in _options_of_pandas().items():
        if now != value[name]:
            sys.modules["pandas._config.config"].set_option(name, value[name])


def _close_figures(value: list[int]) -> None:
    pyplot = sys.modules["matplotlib.pyplot"]
    for number in set(pyplot.get_fignums()) - set(value):
        pyplot.close(number)


@functools.cache
def _thread_pools() -> Any:
    return sys.modules["threadpoolctl"].ThreadpoolController().lib_controllers


def _set_thread_pools(value: list[int]) -> None:
    for pool, number in zip(_thread_pools(), value, strict=True):
        pool.set_num_threads(number)


_HOOKS = (
    "torch.nn.modules.module._global_forward_hooks", "torch.nn.modules.module._global_forward_pre_hooks",
    "torch.nn.modules.module._global_backward_hooks", "torch.nn.modules.module._global_backward_pre_hooks",
    "torch.nn.modules.module._global_forward_hooks_always_called",
    "torch.nn.modules.module._global_module_registration_hooks",
    "torch.nn.modules.module._global_parameter_registration_hooks",
    "torch.nn.modules.module._global_buffer_registration_hooks",
    "torch.optim.optimizer._global_optimizer_pre_hooks", "torch.optim.optimizer._global_optimizer_post_hooks",
)  # fmt: skip

OF_LIBRARIES: tuple[Setting, ...] = (
    Setting("numpy's handling of errors", np.geterr, lambda value: np.seterr(**value)),
    Setting("numpy's error callback", np.geterrcall, np.seterrcall),
    Setting("numpy's print options", np.get_printoptions, lambda value: np.set_printoptions(**value)),
    Setting("numpy's bit generator", *(getattr(np.random, f"{what}_bit_generator") for what in ("get", "set"))),
    Setting("numpy's buffer size", np.getbufsize, np.setbufsize),
    _of_torch("torch's default dtype", "get_default_dtype", "set_default_dtype"),
    Setting("torch's default device", _default_device, lambda value: _torch().set_default_device(value), "torch"),
    _of_torch("torch's gradient mode", "is_grad_enabled", "_C._set_grad_enabled"),
    Setting(
        "torch's deterministic algorithms",
        lambda: (_torch().are_deterministic_algorithms_enabled(),
                 _torch().is_deterministic_algorithms_warn_only_enabled()),
        lambda value: _torch().use_deterministic_algorithms(value[0], warn_only=value[1]),
        "torch",
    ),
    *map(_flag_of_torch, _FLAGS),
    Setting("torch's precision of float32", _precisions, _set_precisions, "torch"),
    *map(setting_of_attribute, (
        "torch.backends.cudnn.benchmark_limit", "torch.backends.opt_einsum.enabled",
        "torch.backends.opt_einsum.strategy", "torch.hub._hub_dir",
        "torch.nn.utils.parametrize._cache_enabled",
        "torch.utils.checkpoint._enable_checkpoint_early_stop",
    )),
    setting_of_attribute("torch.distributions.distribution.Distribution._validate_args",
                         "torch.distributions.distribution"),
    _of_torch("torch's fast path of attention", "backends.mha.get_fastpath_enabled",
              "backends.mha.set_fastpath_enabled"),
    _of_torch("torch's conversion of parameters", "__future__.get_overwrite_module_params_on_conversion",
              "__future__.set_overwrite_module_params_on_conversion"),
    _of_torch("torch's swapping of parameters", "__future__.get_swap_module_params_on_conversion",
              "__future__.set_swap_module_params_on_conversion"),
    _of_torch("torch's checks of sparse tensors", "_C._check_sparse_tensor_invariants",
              "_C._set_check_sparse_tensor_invariants"),
    Setting("torch's profiler", lambda: _called("_C._autograd._profiler_enabled"), None, "torch"),
    *(
        _of_torch(f"torch's {name} attention", f"backends.cuda.{name}_sdp_enabled", f"backends.cuda.enable_{name}_sdp")
        for name in _SDP
    ),
    Setting("flushing of denormal numbers", _flushes_denormals),  # threads of torch took it over
    _of_torch("torch's number of threads", "get_num_threads", "set_num_threads"),
    Setting("torch's number of inter-op threads", lambda: _torch().get_num_interop_threads(), None, "torch"),
    Setting("torch's autocast", _autocast, _set_autocast, "torch"),
    Setting(
        "torch's anomaly detection",
        lambda: (_torch().is_anomaly_enabled(), _torch().is_anomaly_check_nan_enabled()),
        lambda value: _torch().autograd.set_detect_anomaly(*value),
        "torch",
    ),
    _of_torch("torch's threads of autograd", "_C._is_multithreading_enabled", "_C._set_multithreading_enabled"),
    _of_torch("torch's replay of views", "_C._is_view_replay_enabled", "_C._set_view_replay_enabled"),
    Setting("torch's inference mode", lambda: _torch().is_inference_mode_enabled(), None, "torch"),
    Setting("torch's hooks for saved tensors",
            lambda: repr(_called("_C._autograd._top_saved_tensors_default_hooks", True)), None, "torch"),
    Setting("torch's modes", lambda: (_called("_C._len_torch_dispatch_stack"), _called("_C._len_torch_function_stack"),
                                      _torch().autograd.forward_ad._current_level), None, "torch"),
    *map(setting_of_container, _HOOKS),
    Setting("torch's print options", lambda: vars(_torch()._tensor_str.PRINT_OPTS).copy(),
            lambda value: vars(_torch()._tensor_str.PRINT_OPTS).update(value), "torch._tensor_str"),
    Setting("torch's process group", lambda: _called("distributed.is_initialized"), None, "torch.distributed"),
    Setting("torch's way to share tensors", lambda: _called("multiprocessing.get_sharing_strategy"),
            lambda value: _called("multiprocessing.set_sharing_strategy", value), "torch.multiprocessing"),
    *map(_configuration, ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")),
    setting_of_attribute("torch._dynamo.eval_frame._stance"),
    *starmap(_of_executor, (
        ("profiling_executor", "", "_jit_set_profiling_executor"),
        ("profiling_mode", "", "_jit_set_profiling_mode"),
        ("fusion on a processor", "_jit_can_fuse_on_cpu", "_jit_override_can_fuse_on_cpu"),
        ("fusion on a GPU", "_jit_can_fuse_on_gpu", "_jit_override_can_fuse_on_gpu"),
        ("fuser", "_jit_texpr_fuser_enabled", "_jit_set_texpr_fuser_enabled"),
        ("fusion of reductions", "_jit_texpr_reductions_enabled", "_jit_set_texpr_reductions_enabled"),
    )),
    Setting("torch's strategy of fusion", _fusion_strategy, lambda value: _called("_C._jit_set_fusion_strategy", value),
            "torch"),
    *map(setting_of_container, ("torch._weights_only_unpickler._marked_safe_globals_set",
                                "torch.serialization._package_registry")),
    Setting("compiled functions", _compiled, _forget_compiled, "torch"),
    Setting("the current CUDA device", lambda: _called("cuda.current_device") if uses_cuda() else 0,
            lambda value: _called("cuda.set_device", value) if uses_cuda() else None, "torch"),
    Setting("the current CUDA stream", lambda: _called("cuda.current_stream").stream_id if uses_cuda() else 0,
            lambda _: _called("cuda.set_stream", _called("cuda.default_stream")), "torch"),
    setting_of_container("matplotlib.rcParams"),
    *(setting_of_container(f"matplotlib.{name}", "matplotlib")
      for name in ("colormaps._cmaps", "color_sequences._color_sequences")),
    Setting("matplotlib's figures", lambda: sys.modules["matplotlib.pyplot"].get_fignums(), _close_figures,
            "matplotlib.pyplot"),
    Setting("pandas' options", _options_of_pandas, _set_options_of_pandas, "pandas"),
    Setting("scipy.special's handling of errors", lambda: sys.modules["scipy.special"].geterr(),
            lambda value: sys.modules["scipy.special"].seterr(**value), "scipy.special"),
    Setting("threads of thread pools", lambda: [pool.num_threads for pool in _thread_pools()], _set_thread_pools,
            "threadpoolctl"),
    Setting("MLflow's active run", lambda: repr(sys.modules["mlflow"].active_run()), None, "mlflow"),
    *map(setting_of_attribute, ("mlflow.tracking.fluent._active_experiment_id",
                      "mlflow.tracking._tracking_service.utils._tracking_uri")),
    Setting("the configuration of scikit-learn", lambda: sys.modules["sklearn"].get_config(),
            lambda value: sys.modules["sklearn"].set_config(**value), "sklearn"),
)  # fmt: skip
"""What is put back of libraries; to add one is to add a line."""


def uses_cuda() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
