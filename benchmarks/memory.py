"""Peak memory of training, each measured in a child process of its own.

    python benchmarks/memory.py

LeNet over the effective batch, full batches against micro-batches of 32; and the memory that
accumulation adds to a network of 25 million parameters.
"""

from statistics import median

from side_by_side import look_at_machine, print_table, write_results

from labkit.labs.measure import peaks_mb, sweep

COPY_MB = (3 * (2880 * 2880 + 2880) + 2880 * 10 + 10) * 4 / 1e6


def main():
    """Measure and print."""
    machine = look_at_machine()
    rows = sweep([32, 64, 128, 256, 512, 1024, 2048, 4096])
    print_table(
        ["LeNet, effective batch", "full batch, MB", "micro-batches of 32, MB"],
        [[str(row["batch"]), row["full_mb"], row["accumulated_mb"]] for row in rows],
    )
    plain = median(peaks_mb("dense", [8])[0] for _ in range(3))
    accumulated = median(peaks_mb("dense", [32], 8)[0] for _ in range(3))
    copies = (accumulated - plain) / COPY_MB
    print(f"\n25 million parameters ({COPY_MB:.0f} MB a copy), micro-batch 8:")
    print(
        f"PlainStep {plain:.0f} MB, AccumulatedStep {accumulated:.0f} MB: {copies:.2f} copies more"
    )
    dense = {"plain_mb": plain, "accumulated_mb": accumulated, "copies_more": copies}
    write_results("memory", {"lenet": rows, "dense": dense}, machine)


if __name__ == "__main__":
    main()
