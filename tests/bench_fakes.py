"""A clock and peers for the GPU benchmark that cost what we say; ours is the `cpu` implementation."""

from __future__ import annotations

from attnloom.bench.case import Case
from attnloom.bench.gpu import engine
from attnloom.bench.gpu.case import GpuCase
from attnloom.bench.gpu.measure import Bench
from attnloom.bench.gpu.peer import Peer, Prepared, Setting, same


def small(*targets, **changes):
    fields = {"workload": "constant_2x40", "mode": "decode", "dtype": "fp32", "page_size": 16, "heads": (4, 2)}
    return GpuCase(Case(**(fields | {"head_dim": 64, "implementation": "cpu", "num_ctas": 2} | changes)), targets)


class FakeClock:
    """Charges each call its price (1 ms where it has none), dearer by a tenth with every sample."""

    def __init__(self):
        self.drift, self.order, self.captured = 1.0, [], 0

    def sample(self, call, calls):
        self.drift *= 1.1
        call()
        name = getattr(call, "name", "?")
        self.order.append((name, calls))
        return getattr(call, "price", 1e-3) * self.drift

    def capture(self, call):
        self.captured += 1
        result = call()
        return call, result

    def host_seconds(self, call):
        return 5e-6

    def synchronize(self):
        pass


class Priced:
    """A call with a price for `FakeClock`."""

    def __init__(self, name, price, call=lambda: None):
        self.name, self.price, self._call = name, price, call

    def __call__(self):
        return self._call()


class FakePeer(Peer):
    """Computes what AttnLoom computes, at the given price a setting; a setting may raise or be wrong."""

    def __init__(self, name, prices, reason=None, unfit=None):
        self.id = self.engine = name
        self.prices, self.reason, self.unfit = prices, reason, unfit

    def unavailable_reason(self):
        return self.reason

    def unfit_reason(self, gpu_case):
        return self.unfit

    def settings(self, batch):
        return [Setting(setting, lambda p=price: self.prepare(batch, p)) for setting, price in self.prices.items()]

    def prepare(self, batch, price):
        if price == "raises":
            raise RuntimeError("no kernel\n  for this")
        prepared = engine.prepare(batch)
        out = prepared.call().clone()
        fill = out.clone()
        if price == "wrong":
            fill[-1, -1, -1] += 0.3
        call = Priced(self.id, price if isinstance(price, float) else 1e-3, lambda: out.copy_(fill))
        return Prepared(call, same, lambda: None)


def measured(gpu_case, *peers, missing=(), count=7):
    return Bench(FakeClock(), peers, dict(missing), count).measure(gpu_case)
