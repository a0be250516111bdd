"""Peak memory of training, each measured in a child process of its own.

    python benchmarks/memory.py

LeNet over the effective batch, full batches against micro-batches of 32; and the memory that
accumulation adds to a network of 25 million parameters.
"""

from statistics import median

from side_by_side import look_at_machine, print_table, write_results

from labkit.labs.measure import peaks_mb, sweep

COPY_MB = (3 * (2880 * 2880 + 2880) + 2880 * 10 + 10) * 4 / 1e6

if __name__ == "__main__":
    machine = look_at_machine()
    rows = sweep([32, 64, 128, 256, 512, 1024, 2048, 4096])
    print_table([*rows[0]], [[*row.values()] for row in rows])
    plain, accumulated = (
        median(peaks_mb("dense", *sizes)[0] for _ in range(3)) for sizes in (([8],), ([32], 8))
    )
    dense = {"plain_mb": plain, "accumulated_mb": accumulated}
    dense["copies_more"] = (accumulated - plain) / COPY_MB
    print(f"\n25 million parameters ({COPY_MB:.0f} MB a copy), micro-batch 8: {dense}")
    write_results("memory", {"lenet": rows, "dense": dense}, machine)
