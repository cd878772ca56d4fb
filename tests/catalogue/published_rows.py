"""What went wrong in public: ties, NaN, short rows (B01 to B22); deal and groups (B23 to B39)."""

from tests.catalogue.case import Case

SELECTION = {
    "B01": Case(
        "equal scores over ranks, local and global rule",
        "lowest global ids",
        (
            "topk/test_published.py::test_small_rows",
            "topk/test_published.py::test_ties_beyond_any_bucket",
            "topk/test_mutations.py::test_the_mistake_is_caught",
        ),
    ),
    "B02": Case(
        "equal scores, twenty runs, every rank",
        "identical rows",
        ("topk/test_published.py::test_twenty_runs_give_one_answer",),
    ),
    "B03": Case(
        "8320 scores, 100 ones, K = 2048",
        "no -1, the lowest zeros",
        ("topk/test_published.py::test_ties_beyond_any_bucket",),
    ),
    "B04": Case(
        "scores equal in their upper bits",
        "the largest, exactly",
        ("topk/test_published.py::test_scores_that_differ_in_the_last_bits",),
    ),
    "B07": Case(
        "scores that differ in the last 10 bits",
        "exact",
        ("topk/test_published.py::test_scores_that_differ_in_the_last_bits",),
    ),
    "B08": Case(
        "scores one ulp apart, shuffled",
        "exact",
        ("topk/test_published.py::test_scores_that_differ_in_the_last_bits",),
    ),
    "B10": Case(
        "NaN among scores",
        "never selected",
        (
            "topk/test_published.py::test_small_rows",
            "topk/test_keys.py::test_every_nan_is_padding",
        ),
    ),
    "B11": Case(
        "a row of NaN alone",
        "-1 alone",
        ("topk/test_published.py::test_small_rows",),
    ),
    "B12": Case(
        "+inf and -inf among scores",
        "+inf first, -inf masked or last",
        (
            "topk/test_published.py::test_small_rows",
            "topk/test_published.py::test_neg_inf_may_be_asked_for",
        ),
    ),
    "B15": Case(
        "rows with fewer than K finite scores",
        "winners in front, -1 behind",
        ("topk/test_published.py::test_rows_with_few_finite_scores",),
    ),
    "B16": Case(
        "fewer candidates than K",
        "width K, -1 behind",
        ("topk/test_published.py::test_small_rows",),
    ),
    "B17": Case(
        "a row without tokens into memory of zeros",
        "-1 alone, not token 0",
        ("test_published_rows.py::test_a_row_without_tokens_is_all_padding",),
    ),
    "B18": Case(
        "ranks that own no token",
        "win nothing, change nothing",
        (
            "test_published_rows.py::test_ranks_without_tokens_win_nothing",
            "topk/test_published.py::test_small_rows",
        ),
    ),
    "B19": Case(
        "winners that were listed late",
        "no -1 before a winner",
        ("test_published_rows.py::test_no_padding_stands_before_a_winner",),
    ),
    "B20": Case(
        "two tokens, K = 8, poisoned memory",
        "slots behind are -1",
        ("test_published_rows.py::test_slots_behind_the_last_token_are_exactly_minus_one",),
    ),
    "B21": Case(
        "-0.0 and +0.0",
        "equal: the lower id",
        (
            "topk/test_published.py::test_small_rows",
            "topk/test_keys.py::test_keys_order_by_score_then_by_smaller_id",
        ),
    ),
    "B22": Case(
        "ids in any order, and repeated",
        "sorted; never out of range",
        (
            "topk/test_torch_ops.py::test_pack_sorts_and_clamps",
            "topk/test_strategies.py::test_repeated_ids_never_lead_out_of_bounds",
        ),
    ),
}

DEAL = {
    "B23": Case(
        "speculative rows of one request",
        "localized one by one",
        (
            "test_sharding.py::test_speculative_rows_are_localized_one_by_one",
            "indexer/test_rows.py::test_rows_are_expanded_before_they_are_localized",
        ),
    ),
    "B25": Case(
        "ids written by global, read by local position",
        "each once, where it was",
        (
            "test_sharding.py::test_ids_written_are_ids_read",
            "indexer/test_rows.py::test_keys_written_by_their_owners_are_read_back_once_each",
        ),
    ),
    "B26": Case(
        "a merge for four ranks, called with another group",
        "cannot be said",
        ("topk/test_job.py::test_two_ranks_in_one_place_of_the_interleave",),
        why_not="A merge has no size of its own: it takes its communicator's, and the ranks agree on it.",
    ),
    "B27": Case(
        "an interleave that does not divide a page; 0",
        "refused",
        (
            "indexer/test_refusals.py::test_limits_refuse",
            "indexer/test_refusals.py::test_limits_take_an_interleave_that_divides_the_page",
            "test_sharding.py::test_a_wrong_interleave_is_refused",
        ),
    ),
    "B28": Case(
        "lengths with an interleave of 2",
        "by blocks, not tokens",
        ("test_sharding.py::test_lengths_with_interleave",),
    ),
    "B29": Case(
        "a context in chunks",
        "each chunk its own local length",
        (
            "test_sharding.py::test_a_chunk_is_the_difference_at_its_bounds",
            "indexer/test_rows.py::test_each_chunk_of_a_context_has_its_own_local_tokens",
        ),
    ),
    "B31": Case(
        "rows on one rank alone",
        "CommMismatch before the first exchange",
        (
            "indexer/test_rows.py::test_rows_on_one_rank_only_are_a_mismatch_before_anything_is_exchanged",
            "test_faulty_merges.py::test_different_rows_are_a_mismatch_before_the_first_chunk",
        ),
    ),
    "B32": Case(
        "a rank leaves a chunk out, or cuts otherwise",
        "found",
        (
            "test_faulty_merges.py::test_a_chunk_that_one_rank_leaves_out_fails_on_all_ranks",
            "topk/test_mutations.py::test_the_mistake_is_caught",
        ),
    ),
    "B34": Case(
        "pairs of neighbours or strided",
        "explicit lists, verified by an echo",
        ("test_groups.py::test_pairs_may_be_neighbours_or_strided",),
    ),
    "B35": Case(
        "a torch group given as [1, 0]",
        "the group's order",
        (
            "test_lives.py::test_under_torchrun_with_and_without_a_process_group",
            "test_groups.py::test_four_processes_as_two_pairs_and_a_draft_group_of_three",
        ),
    ),
    "B37": Case(
        "the union of the ranks' own K",
        "exact top-K instead",
        (
            "topk/test_published.py::test_small_rows",
            "topk/test_mutations.py::test_the_mistake_is_caught",
        ),
    ),
    "B38": Case(
        "winners on one rank alone",
        "all of them",
        (
            "topk/test_published.py::test_small_rows",
            "topk/test_mutations.py::test_the_mistake_is_caught",
        ),
    ),
    "B39": Case(
        "rows of one tensor filtered, of another not",
        "refused by shape",
        (
            "topk/test_refusals.py::test_candidates_of_the_wrong_kind",
            "topk/test_refusals.py::test_logits_of_the_wrong_kind",
            "indexer/test_refusals.py::test_refused",
        ),
    ),
}
