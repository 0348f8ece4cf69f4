"""What the promises between average and worst are worth on real data.

    GROUPDRO_DATA=... python -m benchmarks.between all             everything, into benchmarks/results/between_*.md
    GROUPDRO_DATA=... python -m benchmarks.between frontiers       or undetermined

Times are ratios taken in one run, the best of several in turns.
"""
