"""``python -m saturation.many_workers ADDRESS COUNT``: so many idle Dask workers in one process."""

from __future__ import annotations

import asyncio
import sys

from distributed import Worker


async def main(address: str, count: int) -> None:
    """Run until this process ends."""
    workers = [await Worker(address, nthreads=1, dashboard=False, memory_limit=0) for _ in range(count)]
    await asyncio.gather(*(worker.finished() for worker in workers))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
