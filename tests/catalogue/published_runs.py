"""What went wrong in public: memory (B42 to B52), shapes and reuse (B53 to B70); properties."""

from tests.catalogue.case import Case

MEMORY = {
    "B42": Case(
        "reserved for few rows, called with more",
        "fits, or WorkspaceExhausted before any exchange",
        (
            "test_published_workspace.py::test_what_was_warmed_up_small_serves_the_largest",
            "test_published_workspace.py::test_what_was_reserved_for_fewer_rows_is_refused_before_any_exchange",
        ),
    ),
    "B43": Case(
        "two slots, one warmed up",
        "both ready",
        ("test_published_workspace.py::test_every_slot_is_ready_although_one_was_warmed_up",),
    ),
    "B44": Case(
        "a view from before the merge's own take",
        "refused in debug mode; together it stays",
        ("test_published_workspace.py::test_a_view_of_an_earlier_take_is_found_in_debug_mode",),
    ),
    "B44b": Case(
        "sizes around the alignment; growth that fails",
        "sums of rounded sizes; the old block lives",
        (
            "test_workspace.py::test_sizes_around_the_alignment_are_each_rounded",
            "test_arena.py::test_a_failed_growth_leaves_the_old_arena_usable",
        ),
    ),
    "B45": Case(
        "two lanes",
        "memory of their own",
        (
            "test_workspace_slots.py::test_slots_share_no_memory_and_are_all_ready_at_the_lock",
            "nccl/test_gpu.py::test_two_sizes_share_a_pool",
        ),
    ),
    "B46": Case(
        "decode reserved by prefill's bound",
        "by its own",
        (
            "test_workspace.py::test_decode_reserves_its_own_bound_and_each_owner_shows",
            "indexer/test_memory.py::test_decode_is_bounded_by_its_own_rows",
        ),
    ),
    "B47": Case(
        "a cache of compressed keys, four tokens each",
        "reserved by entries: a quarter",
        ("test_published_options.py::test_a_compressed_cache_is_reserved_by_its_entries",),
    ),
    "B48": Case(
        "reserved for one rank, run on four",
        "refused",
        ("test_published_workspace.py::test_scratch_for_one_rank_does_not_serve_four",),
    ),
    "B49": Case(
        "a profile run that only reserves",
        "sees what the merge takes",
        ("test_published_workspace.py::test_whatever_exchanges_reserves",),
    ),
    "B51": Case(
        "transients beside the budget",
        "bytes by formula equal bytes measured",
        (
            "test_published_workspace.py::test_whatever_exchanges_reserves",
            "test_memory.py::test_no_temporaries_exceed_the_bound",
        ),
    ),
    "B52": Case(
        "0, empty and unset options",
        "0 is not unset; K has no default",
        (
            "test_published_options.py::test_zero_is_not_unset",
            "test_published_options.py::test_the_number_of_winners_has_no_default",
        ),
    ),
}

RUNS = {
    "B53": Case(
        "packed rows with starts",
        "positions relative to the row",
        (
            "topk/test_published.py::test_row_relative_positions_of_packed_rows",
            "topk/test_mutations.py::test_the_mistake_is_caught",
        ),
    ),
    "B54": Case(
        "queries behind a context",
        "each sees its own number of keys",
        (
            "indexer/test_rows.py::test_global_lengths",
            "indexer/test_mutations.py::test_the_mistake_is_caught",
        ),
    ),
    "B56": Case(
        "negative row ends",
        "empty",
        (
            "test_sharding.py::test_a_negative_row_end_counts_as_empty",
            "indexer/test_rows.py::test_global_lengths",
        ),
    ),
    "B57": Case(
        "padding rows of length -1 and 0",
        "-1 alone; the same exchanges",
        (
            "test_published_rows.py::test_rows_of_length_minus_one_and_zero_among_real_ones",
            "indexer/test_rows.py::test_padding_rows_among_real_ones_select_nothing",
        ),
    ),
    "B60": Case(
        "a slice of a wider table",
        "read where it lies, or refused",
        ("test_published_rows.py::test_lengths_from_a_slice_of_a_wider_table",),
    ),
    "B61": Case(
        "sizes and offsets beyond 2 GiB",
        "64-bit arithmetic",
        (
            "test_published_workspace.py::test_sizes_on_both_sides_of_two_gib",
            "test_published_workspace.py::test_chunks_keep_offsets_far_below_two_gib",
            "test_published_workspace.py::test_rows_further_apart_than_two_gib_are_written_where_they_lie",
            "test_sharding.py::test_products_beyond_int32_do_not_wrap",
        ),
    ),
    "B62": Case(
        "ids beyond 2^24",
        "survive",
        (
            "topk/test_published.py::test_ids_that_float32_cannot_hold",
            "test_sharding.py::test_an_id_beyond_float32_keeps_its_owner",
        ),
    ),
    "B64": Case(
        "writes past a row's end",
        "guards intact",
        (
            "topk/test_merge.py::test_any_case_equals_the_oracle",
            "contract/test_checks_bite.py::test_a_fault_is_found_by_its_rule_and_the_run_goes_on",
        ),
    ),
    "B65": Case(
        "two calls of one shape",
        "the same addresses, no allocation",
        (
            "topk/test_merge.py::test_scratch_and_results_stay_where_they_are",
            "test_workspace.py::test_equal_takes_return_equal_addresses_without_allocating",
            "nccl/test_gpu.py::test_a_warm_gather_allocates_nothing",
        ),
    ),
    "B66": Case(
        "no rows",
        "an empty result, no exchange",
        (
            "test_published_rows.py::test_no_rows_are_no_exchange_and_an_empty_result",
            "indexer/test_rows.py::test_a_step_of_no_requests_and_a_step_of_no_rows",
        ),
    ),
    "B67": Case(
        "symmetric memory in graphs of an old NCCL",
        "not used",
        ("test_published_options.py::test_nobody_asks_nccl_for_symmetric_memory",),
        why_not="No buffer is ever registered with NCCL, so no version of it has to be refused.",
    ),
    "B68": Case(
        "ids of bytes above 127; ends without a close",
        "whole; the process ends",
        (
            "nccl/test_cupy.py::test_chars_may_be_signed_or_not",
            "nccl/test_calls.py::test_the_id_and_the_place_reach_nccl_whole",
            "test_lives.py::test_a_process_that_never_closes_ends_soon_and_well",
        ),
    ),
    "B69": Case(
        "empty, stacked and strided tensors",
        "the same on every backend",
        (
            "contract/test_fake.py::test_rule",
            "contract/test_gloo.py::TestTwoRanks",
            "nccl/test_gpu_contract.py::TestPyNcclOfTwo",
        ),
    ),
    "B70": Case(
        "one rank captures a graph, another is eager",
        "bounded",
        (
            "nccl/test_watch.py::test_a_stream_that_is_being_captured_is_not_marked",
            "nccl/test_gpu.py::test_a_whole_merge_replays",
        ),
        why_not="Whether a rank captures shows on a GPU alone; what it misses there ends at the deadline.",
    ),
}

PROPERTIES = {
    "P1": Case(
        "any shape, deal, score",
        "equal to the oracle",
        (
            "topk/test_merge.py::test_any_case_equals_the_oracle",
            "topk/test_strategies.py::test_any_case_by_every_strategy",
            "topk/test_sweep.py::test_merge_equals_the_oracle",
        ),
    ),
    "P2": Case(
        "any chunks and segments",
        "the same rows",
        ("topk/test_merge.py::test_chunks_and_segments_do_not_show",),
    ),
    "P3": Case(
        "every rank",
        "the same bytes",
        (
            "topk/test_gloo.py::test_all_strategies_over_gloo_equal_the_oracle",
            "topk/test_merge.py::test_any_case_equals_the_oracle",
        ),
    ),
    "P4": Case(
        "any number of ranks",
        "as one rank",
        ("topk/test_merge.py::test_the_number_of_ranks_and_the_deal_do_not_show",),
    ),
    "P5": Case(
        "requests permuted",
        "rows permuted",
        ("topk/test_merge.py::test_permuting_rows_permutes_results",),
    ),
    "P6": Case(
        "a loser raised above all",
        "first",
        ("topk/test_merge.py::test_raising_a_loser_above_all_selects_it_first",),
    ),
    "P7": Case(
        "dirty buffers",
        "the same rows",
        ("topk/test_merge.py::test_what_memory_held_before_does_not_show",),
    ),
    "P8": Case(
        "payloads stamped by rank",
        "slots in rank order",
        (
            "contract/test_fake.py::test_rule",
            "contract/test_gloo.py::TestFourRanks",
        ),
    ),
    "P9": Case(
        "accounting",
        "equal to use",
        ("test_memory.py::test_scratch_is_used_to_the_last_byte_and_nothing_beside_it",),
    ),
    "P10": Case(
        "mutations of our own code",
        "each fails a test",
        (
            "topk/test_mutations.py::test_the_mistake_is_caught",
            "topk/test_strategy_mutations.py::test_the_mistake_is_caught",
            "indexer/test_mutations.py::test_the_mistake_is_caught",
            "contract/test_checks_bite.py::test_a_fault_is_found_by_its_rule_and_the_run_goes_on",
        ),
    ),
}
