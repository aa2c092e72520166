"""Training functions the tests of the GPU run in real child processes; no tests in here."""

import os
import time

# as a user would write it: before cuBLAS makes its handle, and without touching the GPU at import
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.use_deterministic_algorithms(True)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Asked at import, as most scripts do; it must not initialize CUDA."""
MIB = 1 << 20


def dispatch(trial):
    globals()[trial.params["do"]](trial)


def network(trial):
    """Convolution, dropout and noise drawn on the GPU, Adam, shuffled batches, half precision where asked."""
    half, workers = trial.params.get("half", False), trial.params.get("workers", 0)
    draws = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(96, 3, 8, 8, generator=draws), torch.randn(96, 1, generator=draws))
    batches = DataLoader(data, batch_size=16, shuffle=True, num_workers=workers, pin_memory=bool(workers))
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Dropout(0.3),
        torch.nn.Linear(288, 32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 1),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", enabled=half, init_scale=256.0, growth_interval=7)
    own = torch.Generator("cuda").manual_seed(trial.seed)
    trial.track(model=model, optimizer=optimizer, scaler=scaler, own=own)
    for _ in trial.steps():
        for x, y in batches:
            x, y = x.cuda(), y.cuda()
            x += 0.01 * torch.randn(x.shape, device="cuda", generator=own)
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16, enabled=half):
                out = model(x)
            loss = (out.float() - y).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        trial.report(loss=loss, drawn=_drawn(), scale=scaler.get_scale())


def late(trial):
    """Touches CUDA for the first time within the loop."""
    model = torch.nn.Linear(4, 1)
    trial.track(model=model)
    for _ in trial.steps():
        with torch.no_grad():
            model.weight += torch.randn(4, device="cuda").cpu()
        trial.report(loss=model.weight.sum(), drawn=_drawn())


def _drawn():
    return torch.nn.functional.dropout(torch.arange(4096.0, device="cuda"), 0.5).sum()


def first_touch(trial):
    """Whether this process came to life with CUDA, and whether it can use it."""
    before = torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork()
    worked = torch.ones(8, device="cuda").sum()
    trial.report(loss=worked, initialized=int(before), chosen=int(DEVICE == "cuda"), zygote=os.getppid())


class Halves:
    """Every 16-bit pattern as bfloat16 and float16 (NaNs, infinities, -0.0), tied, transposed, empty, scalar."""

    def __init__(self, device):
        patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
        brain, half = (patterns.view(kind).to(device) for kind in (torch.bfloat16, torch.float16))
        self.state = {
            "brain": brain,
            "tied": brain.view(256, 256),
            "again": brain,
            "half": half,
            "transposed": half.view(128, 512).t(),
            "sliced": half[1::3],
            "scalar": brain[77],
            "empty": brain[:0],
            "complex": torch.view_as_complex(torch.arange(6.0, device=device).view(3, 2)).conj(),
            "eighth": patterns.view(torch.uint8)[:256].view(torch.float8_e4m3fn).to(device),
            "count": torch.tensor(2**62 + 1, device=device),
        }

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.loaded = state


def halves(trial):
    """First attempt: save. Those after it: what was loaded has the bits of what was saved, on CPU and on DEVICE."""
    made = Halves(DEVICE)
    model = torch.nn.Linear(3, 3, device=DEVICE, dtype=torch.bfloat16)
    trial.track(made=made, model=model)
    if trial.resource:
        differing = unlike(made.loaded, made.state) + unlike(
            {name: value.to(DEVICE) for name, value in made.loaded.items()}, made.state
        )
        assert not differing, differing
        assert model.weight.device.type == DEVICE
    for _ in trial.steps():
        trial.report(loss=0.0)


def unlike(ones, others):
    """Names of tensors that differ in name, kind, shape or any bit."""
    names = ones.keys() ^ others.keys()
    for name in ones.keys() & others.keys():
        one, other = ones[name].cpu(), others[name].cpu()
        if (one.dtype, one.shape, bits(one)) != (other.dtype, other.shape, bits(other)):
            names.add(name)
    return sorted(names)


def bits(tensor):
    return tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def out_of_memory(trial):
    held = torch.ones(512 * MIB, dtype=torch.uint8, device="cuda")
    trial.report(loss=torch.empty(1 << 50, dtype=torch.uint8, device="cuda")[0] + held[0])


def holds(trial):
    held = torch.ones(1024 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    (trial.folder / "pid.part").write_text(str(os.getpid()))
    (trial.folder / "pid.part").rename(trial.folder / "pid")
    time.sleep(60)
    trial.report(loss=held[0])


def keeps_busy(trial):
    held = torch.ones(trial.params["mib"] * MIB, dtype=torch.uint8, device="cuda")
    factor = torch.ones(2048, 2048, device="cuda")
    for _ in trial.steps():
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            factor = factor @ factor / 2048
            torch.cuda.synchronize()
            trial.iteration()
    trial.report(loss=held[0], devices=torch.cuda.device_count())


LEFT = []


def process(trial):
    before = torch.cuda.is_initialized()
    try:
        held = torch.ones(trial.params.get("mib", 1) * MIB, dtype=torch.uint8, device="cuda")
        taken = bool(held[0])
    except torch.OutOfMemoryError:
        taken = False
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    trial.report(loss=0.0, pid=os.getpid(), ready=int(before), taken=int(taken), processors=processors)


def leaves(trial):
    LEFT.append(torch.ones(MIB, device="cuda"))
    trial.report(loss=0.0)
