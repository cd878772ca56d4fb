"""Faults and bad input, C01 to C35, and the rules of security, S1 to S6."""

from tests.catalogue.case import Case

FAULTS = {
    "C01": Case(
        "a rank is killed at any call of a merge, or while it waits inside one",
        "CommPeerLost on all survivors in 2 s, latched",
        (
            "test_killed_ranks.py::test_all_lose_a_rank_killed_at_any_chunk_within_two_seconds",
            "test_killed_ranks.py::test_all_lose_a_rank_killed_at_any_call_of_any_strategy",
            "test_killed_ranks.py::test_all_lose_a_rank_killed_while_it_waits_inside_a_gather",
            "test_killed_ranks.py::test_ranks_that_exchange_nothing_with_the_killed_one_lose_it_too",
        ),
    ),
    "C02": Case(
        "a rank is frozen, timeout 2 s, and woken later",
        "CommTimeout on the others in 2 to 3 s; no result for the woken one",
        (
            "test_killed_ranks.py::test_a_frozen_rank_times_out_and_gets_no_result_when_it_wakes",
            "test_killed_ranks.py::test_a_short_freeze_is_waited_for",
        ),
    ),
    "C03": Case(
        "a rank never makes a call",
        "CommTimeout that names call and rank",
        (
            "test_faulty_ranks.py::test_a_dropped_call_times_out_on_the_others_and_names_the_rank",
            "test_faulty_processes.py::test_a_dropped_call_times_out_on_the_others",
            "test_torch_backend.py::test_every_wait_ends_at_the_deadline",
        ),
    ),
    "C04": Case(
        "a rank never starts, or dies while it starts",
        "an error by deadline + 1 s that says k/W joined",
        (
            "test_launch.py::test_a_rank_that_never_starts_is_awaited_until_the_deadline",
            "test_bootstrap.py::test_missing_ranks_are_counted_and_named",
            "test_killed_ranks.py::test_a_rank_that_dies_between_meeting_and_connecting_is_awaited_until_the_deadline",
        ),
    ),
    "C05": Case(
        "something else listens at the store's port, or nobody",
        "an error by the deadline",
        (
            "test_launch.py::test_what_is_no_store_is_found_out_by_the_deadline",
            "test_launch.py::test_a_rank_that_never_starts_is_awaited_until_the_deadline",
        ),
    ),
    "C06": Case(
        "the port is taken on rank 0",
        "CommUsageError at once, nothing left listening",
        (
            "test_launch.py::test_a_taken_port_is_refused_at_once",
            "test_launch.py::test_a_failed_start_can_be_tried_again",
        ),
    ),
    "C07": Case(
        "world sizes differ; a rank twice, out of range, no int",
        "CommMismatch or CommUsageError on all ranks, rank 0 too",
        (
            "test_bootstrap.py::test_other_world_sizes_fail_on_all_ranks",
            "test_bootstrap.py::test_two_processes_in_one_place_fail_on_all_ranks",
            "test_bootstrap.py::test_junk_is_refused_by_name",
            "test_launch.py::test_world_sizes_that_differ_fail_on_all_ranks",
            "test_launch.py::test_a_rank_claimed_twice_fails_on_all_ranks",
        ),
    ),
    "C09": Case(
        "init twice, close twice and from two threads, use after close, exit without close",
        "defined errors; the process ends in time, exit code 0",
        (
            "test_lives.py::test_a_close_from_another_thread_ends_a_wait",
            "test_lives.py::test_two_communicators_of_one_launch_live_and_end_apart",
            "test_lives.py::test_a_process_that_never_closes_ends_soon_and_well",
            "test_channel.py::test_closing_is_final_and_done_once",
            "nccl/test_gpu.py::test_ending_without_a_close_hangs_nobody",
        ),
    ),
    "C10": Case(
        "count, dtype, operation, reduction, root, options differ between ranks",
        "CommMismatch on all, processes alive, nothing written",
        (
            "test_lives.py::test_calls_that_differ_raise_on_both_ranks_and_write_nothing",
            "test_mismatches.py::test_a_mismatch_raises_on_every_rank_naming_both_sides",
            "test_mismatches.py::test_a_mismatch_writes_nothing",
            "test_faulty_processes.py::test_a_mistake_is_a_mismatch_on_every_rank",
            "topk/test_job.py::test_ranks_that_differ_in_an_option",
            "topk/test_splitter.py::test_ranks_that_differ_in_an_option",
            "topk/test_auto.py::test_the_table_of_costs_is_agreed_on",
        ),
    ),
    "C11": Case(
        "two calls of one shape in another order",
        "CommMismatch by the fingerprint",
        (
            "test_faulty_ranks.py::test_a_mistake_is_a_mismatch_on_every_rank",
            "test_channel.py::test_the_number_of_a_call_is_part_of_its_fingerprint",
            "test_communicator.py::test_agreements_on_different_things_do_not_mix",
            "test_lives.py::test_calls_that_differ_raise_on_both_ranks_and_write_nothing",
        ),
    ),
    "C12": Case(
        "ranks bring different rows, none on one of them",
        "CommMismatch before the first chunk",
        (
            "test_faulty_merges.py::test_different_rows_are_a_mismatch_before_the_first_chunk",
            "test_faulty_processes.py::test_different_rows_are_a_mismatch_before_the_first_chunk",
            "topk/test_job.py::test_ranks_that_merge_different_rows",
        ),
    ),
    "C13": Case(
        "a signal, or Ctrl-C, while a rank waits",
        "the handler runs in 0.5 s; latched; close bounded",
        (
            "test_lives.py::test_a_signal_handler_runs_while_a_rank_waits",
            "test_lives.py::test_ctrl_c_ends_a_wait_at_once_and_for_good",
            "test_channel.py::test_anything_else_leaves_ranks_in_doubt_and_kills",
        ),
    ),
    "C14": Case(
        "a rank raises between its calls or in its pack",
        "its own error there, CommPeerLost on the others",
        (
            "test_lives.py::test_an_error_of_ones_own_stays_and_the_peer_is_told",
            "test_faulty_ranks.py::test_a_rank_that_raises_keeps_its_error_and_the_others_lose_it",
            "test_faulty_processes.py::test_a_rank_that_raises_keeps_its_error_and_the_others_lose_it",
            "topk/test_job.py::test_a_rank_that_fails_in_pack_takes_the_others_along",
        ),
    ),
    "C15": Case(
        "two threads on one communicator",
        "CommUsageError for the second, data never cross",
        (
            "test_lives.py::test_a_second_thread_is_refused_and_data_never_cross",
            "test_channel.py::test_a_second_thread_is_refused_and_the_first_goes_on",
            "test_channel.py::test_threads_may_take_turns",
        ),
    ),
    "C16": Case(
        "a forked child uses it",
        "CommUsageError there, the parent goes on",
        (
            "test_lives.py::test_a_forked_child_is_refused_and_the_parent_goes_on",
            "test_channel.py::test_a_forked_child_is_refused_and_closes_nothing",
        ),
    ),
    "C17": Case(
        "a rank outside a group uses it; ranks given unsorted; slots in another order",
        "CommUsageError; the group's order; an echo finds the rest",
        (
            "test_lives.py::test_under_torchrun_with_and_without_a_process_group",
            "test_communicator.py::test_parts_are_ordered_by_key_and_then_by_rank",
            "test_communicator.py::test_a_wrong_slot_order_kills",
            "test_launch.py::test_slots_in_another_order_are_noticed",
            "test_groups.py::test_a_group_in_another_order_merges_by_its_own_ranks",
        ),
    ),
    "C18": Case(
        "outputs and inputs of the wrong size, dtype, device, layout, overlap",
        "CommArgumentError, nothing touched, alive",
        (
            "test_contract.py::test_refusals",
            "test_channel.py::test_refusals_kill_nothing",
            "contract/test_fake.py::test_rule",
            "contract/test_gloo.py::TestTwoRanks",
        ),
    ),
    "C19": Case(
        "input is the own slot of the output, another slot, one off",
        "the first works, the rest is refused",
        (
            "test_contract.py::test_an_input_inside_the_output_is_the_own_slot_or_refused",
            "test_contract.py::test_all_to_all_never_works_in_place",
            "contract/test_fake.py::test_rule",
            "contract/test_gloo.py::TestTwoRanks",
        ),
    ),
    "C20": Case(
        "odd sizes, prime counts, none, beyond 2^31 bytes",
        "bit-exact, guard bytes untouched",
        (
            "contract/test_fake.py::test_rule",
            "contract/test_gloo.py::TestFourRanks",
            "test_torch_backend.py::test_misaligned_memory_moves_too",
            "nccl/test_calls.py::test_counts_beyond_32_bits_arrive_whole",
            "test_published_workspace.py::test_sizes_on_both_sides_of_two_gib",
        ),
    ),
    "C21": Case(
        "more than was reserved, live views, two owners, errors between reserve and lock",
        "WorkspaceExhausted with need, have, owner; no partial state",
        (
            "test_workspace.py::test_after_the_lock_what_fits_is_legal_and_nothing_else",
            "test_workspace.py::test_an_exhausted_take_names_every_owner_of_its_specs_or_the_specs",
            "test_workspace.py::test_nothing_asked_is_nothing_given",
            "test_workspace_slots.py::test_debug_refuses_a_take_over_views_still_held",
            "test_workspace_slots.py::test_debug_refuses_growth_under_a_live_view_too",
            "test_arena.py::test_an_error_between_reserve_and_lock_leaks_no_reservation",
        ),
    ),
    "C22": Case(
        "the n-th allocation fails",
        "state unchanged, a retry works",
        (
            "test_arena.py::test_an_allocation_that_fails_changes_nothing_and_may_be_retried",
            "test_arena.py::test_the_new_arena_exists_before_the_old_is_dropped",
            "test_refused_allocations.py::test_a_merge_whose_n_th_allocation_fails_can_be_made_again",
            "test_refused_allocations.py::test_a_workspace_whose_n_th_allocation_fails_serves_the_next_merge",
        ),
    ),
    "C23": Case(
        "the formula of scratch against its use, for every number of rows",
        "equal, and nothing is allocated beside it",
        (
            "test_memory.py::test_scratch_is_used_to_the_last_byte_and_nothing_beside_it",
            "topk/test_bytes.py::test_every_reserved_byte_is_used_and_no_other",
            "topk/test_bytes.py::test_formulas_of_scratch",
        ),
    ),
    "C24": Case(
        "scratch filled with four poisons before",
        "identical results",
        (
            "topk/test_merge.py::test_what_memory_held_before_does_not_show",
            "indexer/test_memory.py::test_what_memory_held_does_not_show_and_results_are_the_caller_s",
        ),
    ),
    "C25": Case(
        "a small merge after a big one in the same memory",
        "nothing of the first appears",
        ("topk/test_merge.py::test_a_small_merge_after_a_big_one_in_the_same_memory",),
    ),
    "C27": Case(
        "a stub libnccl: in progress, late errors, every code, hangs, old versions",
        "right order of calls, nothing cut, one abort, bounded",
        (
            "nccl/test_calls.py::test_a_communicator_that_is_not_blocking_is_polled",
            "nccl/test_calls.py::test_every_result_code_of_a_call_is_raised",
            "nccl/test_calls.py::test_the_id_and_the_place_reach_nccl_whole",
            "nccl/test_ending.py::test_an_abort_that_hangs_holds_nobody_up",
            "nccl/test_watch.py::test_an_asynchronous_error_aborts_without_being_asked_for",
            "nccl/test_library.py::test_an_old_nccl_is_refused_by_what_it_lacks",
            "nccl/test_codes.py::test_versions_before_and_after_the_change_of_code",
        ),
    ),
    "C28": Case(
        "the real libnccl without a GPU",
        "version, symbols, ids; init fails cleanly; listens on lo alone",
        (
            "nccl/test_real.py::test_it_is_a_libnccl_of_a_known_age",
            "nccl/test_real.py::test_without_a_gpu_a_communicator_fails_cleanly",
            "nccl/test_real.py::test_it_listens_on_the_named_interface_only",
        ),
    ),
    "C29": Case(
        "a store with overwritten, oversized, short, stale values",
        "the length is checked first; refused",
        (
            "test_bootstrap.py::test_a_hostile_record_is_refused",
            "test_bootstrap.py::test_an_overwritten_record_of_ones_own_is_noticed",
            "test_bootstrap.py::test_hostile_words_of_failure_are_cut",
            "test_launch.py::test_a_hostile_store_is_refused_on_all_ranks",
            "nccl/test_unique_id.py::test_anything_that_is_no_id_is_refused_unread",
            "nccl/test_unique_id.py::test_another_epochs_id_is_not_seen",
        ),
    ),
    "C30": Case(
        "the rules of security below, also under python -O",
        "hold",
        (
            "security/test_sources.py::test_nothing_runs_what_it_reads_and_nothing_hangs_on_assertions",
            "security/test_life.py::test_nothing_that_came_in_is_run",
            "test_lives.py::test_nothing_is_unpickled_and_nobody_listens_on_every_interface",
        ),
    ),
    "C31": Case(
        "thousands of gathers, with kills, freezes, errors, leaving, new epochs",
        "no wrong data as success; descriptors, threads, memory flat",
        (
            "soak/test_soak.py::test_nothing_wrong_is_ever_reported_as_success_and_nothing_grows",
            "soak/test_history.py::test_a_bad_history_is_found",
        ),
    ),
    "C33": Case(
        "timeouts of 0, below 0, None, inf, 1e-9, beyond 24 days",
        "finite and above 0 is legal, the rest refused",
        (
            "test_launch.py::test_timeouts_are_finite_and_positive",
            "test_launch.py::test_very_short_and_very_long_timeouts_are_legal",
            "test_deadline.py::test_what_is_no_timeout",
            "test_deadline.py::test_every_finite_number_above_zero_is_a_timeout",
        ),
    ),
    "C35": Case(
        "ranks that are 0 to 50 ms late at every call",
        "right, no timeout",
        (
            "test_faulty_merges.py::test_a_merge_waits_for_late_ranks",
            "test_faulty_ranks.py::test_late_ranks_are_waited_for",
            "test_faulty_processes.py::test_late_ranks_are_waited_for",
        ),
    ),
}

SECURITY = {
    "S1": Case(
        "pickles, code and commands from peers or stores",
        "nothing is run",
        (
            "security/test_sources.py::test_nothing_runs_what_it_reads_and_nothing_hangs_on_assertions",
            "security/test_life.py::test_nothing_that_came_in_is_run",
            "test_bootstrap.py::test_a_hostile_record_is_refused",
        ),
    ),
    "S2": Case(
        "who listens, and where",
        "no wildcard address",
        (
            "security/test_life.py::test_nobody_listens_on_every_interface",
            "security/test_sources.py::test_every_listener_is_bound_by_ourselves_to_a_named_address",
        ),
    ),
    "S3": Case(
        "store keys that are not authenticated",
        "lengths and the table of ranks are checked",
        (
            "test_bootstrap.py::test_a_hostile_record_is_refused",
            "test_launch.py::test_a_hostile_store_is_refused_on_all_ranks",
            "test_agreement.py::test_hostile_bytes_are_fields_or_nothing",
        ),
    ),
    "S4": Case(
        "the path of libnccl",
        "absolute, regular, ours or root's, nobody else's to write",
        (
            "nccl/test_library.py::test_a_path_must_be_absolute",
            "nccl/test_library.py::test_a_path_must_be_a_regular_file",
            "nccl/test_library.py::test_it_must_belong_to_root_or_to_the_user",
            "nccl/test_library.py::test_nobody_else_may_be_able_to_change_it",
            "nccl/test_library.py::test_an_old_nccl_is_refused_by_what_it_lacks",
        ),
    ),
    "S5": Case(
        "a peer's bytes as ids, lengths, positions",
        "no index out of range",
        (
            "test_spoiled_payloads.py::test_a_flipped_bit_never_leads_out_of_range",
            "test_spoiled_payloads.py::test_a_truncated_payload_never_leads_out_of_range",
            "topk/test_slots.py::test_what_the_table_does_not_have_is_absent",
        ),
    ),
    "S6": Case(
        "waits on peers; secrets; files; assertions",
        "bounded; not told; 0600; none",
        (
            "test_torch_backend.py::test_every_wait_ends_at_the_deadline",
            "security/test_life.py::test_errors_and_logs_hold_no_secrets",
            "security/test_life.py::test_no_file_is_readable_by_others",
        ),
    ),
}
