"""Network in Network as Paleo has it (TalwalkarLab/paleo, nets/nin.json), and what Paleo computes for it."""

from __future__ import annotations

import msgspec

from benchmarks.performance_model import INFINIBAND, K20X, Convolution, Elementwise, Layer, LayerModel, Pooling


def _same(size: int, channels: int, kernel: int, filters: int) -> Convolution:
    return Convolution((size, size), channels, (kernel, kernel), filters, padding="same")


def _point(size: int, channels: int, filters: int) -> Convolution:
    return Convolution((size, size), channels, (1, 1), filters)


def _pool(size: int, channels: int, kernel: int, output: int) -> Pooling:
    return Pooling((size, size), channels, (kernel, kernel), (output, output))


NIN: tuple[Layer, ...] = (
    Convolution((224, 224), 3, (11, 11), 96, stride=(4, 4)),
    _point(54, 96, 96),
    _point(54, 96, 96),
    _pool(54, 96, 3, 26),
    _same(26, 96, 5, 256),
    _point(26, 256, 256),
    _point(26, 256, 256),
    _pool(26, 256, 3, 12),
    _same(12, 256, 3, 384),
    _point(12, 384, 384),
    _point(12, 384, 384),
    _pool(12, 384, 3, 5),
    Elementwise(5 * 5 * 384),
    _same(5, 384, 3, 1024),
    _point(5, 1024, 1024),
    _point(5, 1024, 1000),
    _pool(5, 1000, 5, 1),
)


def nin(batch: int) -> LayerModel:
    """The case of FireCaffe: K20X at 21 % of its peak, Infiniband at 56 % of its bandwidth."""
    processor = msgspec.structs.replace(K20X, reached=0.21)
    link = msgspec.structs.replace(INFINIBAND, reached=0.56)
    return LayerModel(layers=NIN, processor=processor, link=link, batch=batch)


PUBLISHED = (
    # batch, workers, forward, backward, update, tree, butterfly: milliseconds, matrix products only
    (256, 1, 667.962679845963, 1253.4768662272304, 0.34339114378519603, 0.0, 0.0),
    (256, 2, 334.25062235481107, 627.2757616066427, 0.34339114378519603, 12.400287346938775, 6.2001436734693876),
    (256, 16, 42.25257205005309, 79.3497950636284, 0.34339114378519603, 49.6011493877551, 24.80057469387755),
    (256, 128, 5.752815761958336, 10.859049245751605, 0.34339114378519603, 86.80201142857143, 43.401005714285716),
    (1024, 1, 2670.2350247928753, 5010.683493950758, 0.34339114378519603, 0.0, 0.0),
    (1024, 64, 42.25257205005309, 79.3497950636284, 0.34339114378519603, 74.40172408163265, 37.200862040816325),
)

FORWARD_K40 = (
    # (compute, memory) milliseconds of each layer's forward pass, batch 128 on a K40 at its peak
    (6.0638444307692305, 0.7131633659203847),
    (1.6036613370629371, 0.9270906448364258),
    (1.6036613370629371, 0.9270906448364258),
    (0.03485323636363637, 0.5709330240885416),
    (24.784523636363634, 0.43752458360460067),
)
BACKWARD_K40 = (
    (6.063844430769239, 0.7131633659203853),
    (3.2073226741258742, 1.8541812896728516),
    (3.2073226741258742, 1.8541812896728516),
    (0.03485323636363637, 0.5709330240885416),
    (49.56904727272727, 0.9343889024522569),
)
