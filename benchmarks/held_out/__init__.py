"""What group robustness is worth on held-out rows of real tables, and what our intervals and searches promise.

    GROUPDRO_DATA=... python -m benchmarks.held_out all        everything, into benchmarks/results/held_out_*
    GROUPDRO_DATA=... python -m benchmarks.held_out tables     or shift, coverage, last_layer
    GROUPDRO_DATA=... python -m benchmarks.held_out tables --only heart german --cache FOLDER

Every split of `tables` is one small file in the cache, and what is there is not fitted again: an interrupted run
resumes.
"""
