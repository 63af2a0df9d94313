"""The features of the specification's list, each with the tests that would fail without it.

A row is its number, the words of the list, and tests as `file:name`, without "test_" in front; in
brackets the case that is meant, which is a text of the file.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROWS = """
1 | index variable | schedule:loops_are_found_by_name
    schedule:the_number_of_iterations_is_rounded_up
2 | default schedule | schedule:only_the_start_is_the_default
    language:the_plain_nest_runs_row_by_row
3 | nest tree, derivation tree | language:the_live_loops_are_the_pieces_of_the_first_ones
    language:copies_are_found_by_the_name_of_their_index
4 | range inference | language:every_row_class_and_tree_is_visited_once
    language:a_leaf_knows_its_trees
5 | tile | language:a_partial_tile_stops_at_the_end schedule:parts_give_so_many_iterations
6 | split | language:the_parts_of_a_split_run_one_after_the_other
    passes:loops_with_copies_are_written[two_halves]
7 | reorder | schedule:the_end_of_a_chain_may_be_reordered_alone
    schedule:a_schedule_knows_whether_it_keeps_the_order_of_the_trees
8 | gpuDimension | simt:a_gpu_recipe_computes_what_the_model_says
    memory_and_devices:marks_are_printed_and_survive_json
9 | specialize | language:each_iteration_of_a_special_loop_runs_its_own_copy
    passes:loops_with_copies_are_written[a_copy_for_each_iteration]
10 | unroll | directives:the_printed_nest_is[unroll]
    kernels:registers_are_named_by_constants_once_loops_are_written_out
11 | parallel | passes:parallel_loops_are_fused passes:only_the_parallel_functions_use_threads
12 | cache(batch), cache(tree) | memory_and_devices:caches_keep_every_bit
    kernels:rows_too_wide_for_shared_memory_are_refused_with_the_number_that_fits
13 | interleave | walks:every_form_of_walk_gives_the_bits_of_the_model[5_trees]
    passes:walks_that_are_left_over_go_together_too
14 | unrollWalk | directives:a_straight_line_that_is_long_enough_is_built
    directives:what_only_the_model_shows_is_refused_by_build
15 | peelWalk | walks:every_form_of_walk_gives_the_bits_of_the_model[peel_3]
    walks:hops_above_all_leaves_need_no_check
16 | simdize | walks:every_form_of_walk_gives_the_bits_of_the_model[16_lanes]
    walks:stumps_are_walked_in_lanes
17 | atomicReduce | passes:atomic_trees_need_no_sums_of_their_own
    passes:atomic_additions_become_calls_of_a_function_that_is_imported
18 | sharedReduce | kernels:threads_share_a_sum_where_there_are_few
19 | vectorReduce(width) | passes:parallel_trees_get_sums_of_their_own[vectors]
    kernels:lanes_of_a_warp_add_up_their_sums
20 | schedule services | schedule:a_schedule_is_drawn_as_a_graph
    schedule:only_the_start_is_the_default language:a_random_schedule_breaks_no_invariant
    schedule:a_copy_stays_as_it_is
    recipes:build_takes_a_recipe_or_another_function_that_edits_a_schedule
21 | named schedules | recipes:every_recipe_is_tested recipes:a_recipe_computes_what_the_model_says
22 | symbolic batch | dispatch:every_batch_has_the_bits_of_the_reference
    parity:an_empty_batch_has_the_form_of_a_full_one
23 | real errors, JSON round trip | refusals:a_refusal_names_the_fault_and_shows_the_nest
    schedule:a_schedule_survives_json schedule:schedules_are_equal_by_nest_and_not_by_steps
24 | keeps_order | language:no_schedule_claims_an_order_that_it_does_not_keep
    language:few_schedules_deny_an_order_that_they_keep
25 | predictEnsemble | passes:lower_gives_all_functions_before_and_after
    relax:a_call_survives_tvmscript_and_json
26 | valid tiling, tree of tiles | tiling:each_broken_rule_is_named
    tiling:full_tiles_have_all_their_nodes_and_change_nothing
27 | uniform tiling | tiling:uniform_tiles_are_breadth_first
28 | probability tiling | tiling:small_tilings_are_as_worked_out_by_hand
    tiling:without_any_row_greedy_tiles_are_uniform
29 | skew gate | tiling:only_skewed_trees_pass_the_gate
    tiling:a_table_that_would_be_large_closes_the_gate
30 | optimal tiling | tiling:optimal_tiles_cost_as_little_as_any
31 | hybrid tiling | tiling:hybrid_tiles_are_greedy_where_a_fifth_of_the_rows_comes
32 | leaf-hit profile | profile:hits_are_the_rows_that_end_at_each_leaf
    profile:the_csv_is_that_of_the_published_files
33 | tile padding | tiling:dummies_are_put_above_leaves_in_level_order
34 | tile shapes | tiling:a_table_has_a_row_for_each_shape_that_occurs
35 | look-up table | tiling:the_table_of_the_complete_tile_of_three_is_the_known_one
36 | leaf-depth padding | tiling:padded_trees_have_their_leaves_at_one_depth
    tiling:a_leaf_becomes_a_tile_with_equal_leaves
37 | self-looping leaves | layouts:a_leaf_of_the_sparse_layout_is_its_own_child
38 | tree sorting | tiling:sorting_stays_in_the_class_and_keeps_values
    tiling:nine_rows_in_ten_decide_the_peel_depth
39 | loop split per depth group | model_directives:sorted_trees_give_one_piece_for_each_depth
    directives:the_printed_nest_is[split_by_depth:_two_depths]
40 | CPU scheduling pass | recipes:groups_of_trees_have_trees_of_all_depths
41 | accuracy-level pruning | pruning:trees_are_dropped_as_long_as_the_loss_allows
42 | walk, loop form | walks:every_form_of_walk_gives_the_bits_of_the_model[loop]
43 | walk, unrolled form | walks:every_form_of_walk_gives_the_bits_of_the_model[straight]
44 | interleaved walk | walks:every_form_of_walk_gives_the_bits_of_the_model[8_rows]
45 | walk, peeled form | walks:every_form_of_walk_gives_the_bits_of_the_model[peel_1]
    model_directives:likely_pieces_are_peeled_and_right
46 | tree accessors | new_layout:the_page_runs new_layout:right_subtrees_are_skipped_to
47 | traverseTreeTile | passes:a_walk_compares_as_the_model_does
    tiling:walks_by_table_end_where_the_model_ends
48 | cacheRows, cacheTrees | kernels:threads_next_to_each_other_copy_values_next_to_each_other
    simt:trees_are_copied_into_shared_memory
49 | reduce | primitives:a_part_starts_from_nothing_and_its_copies_are_kept
    primitives:a_primitive_of_tvm_adds_all_trees_and_the_base_score_once
50 | conflicting loops | refusals:a_refusal_names_the_fault_and_shows_the_nest
    passes:leaves_that_are_only_stored_need_no_sums
51 | legalisation | passes:parallel_trees_get_sums_of_their_own[plain]
52 | reduceDimension, reduceDimInplace | simt:trees_on_the_grid_and_in_the_block_are_added_up
    kernels:partial_sums_of_blocks_are_added_by_a_kernel
53 | hierarchical reduction | simt:trees_on_the_grid_and_in_the_block_are_added_up
54 | CPU lowering | passes:parallel_trees_get_sums_of_their_own[vectors]
    recipes:threads_share_the_rows_of_the_final_reduction
55 | GPU cooperative reduction | kernels:threads_share_a_sum_where_there_are_few
56 | GPU divide and conquer | kernels:threads_share_a_sum_where_there_are_few
57 | shared private buffer | kernels:one_group_of_lanes_needs_no_shared_memory
    kernels:loops_beside_each_other_share_the_sums_of_a_dimension
58 | trees over thread blocks | kernels:partial_sums_of_blocks_are_added_by_a_kernel
    kernels:trees_on_the_grid_are_added_in_order_by_another_kernel
59 | multi-class sums | real_models:letters_are_told_apart_as_xgboost_does
    vector_leaves:every_order_of_loops_has_the_bits_of_the_model
60 | reduction kinds | bitsliced:averages_and_extremes_are_exact
    frontend_ydf:predictions_have_the_bits_of_ydf[forest_votes]
    accelerate:a_composed_estimator_predicts_the_bits_of_the_original[votes]
61 | exact and tolerant mode | tolerance:the_tolerance_is_that_of_the_formula
    tolerance:an_exact_schedule_has_no_tolerance
62 | representation plug-in | new_layout:the_layout_takes_less_than_100_lines
    new_layout:the_page_runs
63 | model packing | layouts:every_layout_packs_without_tvm_and_names_all_its_arrays
    saving:a_file_with_turned_bits_is_refused
64 | array layout | layouts:a_leaf_above_the_last_level_is_copied_below
    layout_matrix:every_layout_and_size_has_the_bits_of_the_model
65 | sparse layout, scalar | layouts:a_leaf_of_the_sparse_layout_is_its_own_child
66 | sparse layout, tiled | model_directives:a_lopsided_tree_is_laid_out_in_tiles
    layout_matrix:every_layout_and_size_has_the_bits_of_the_model
67 | sparse layout, peeled | model_directives:likely_pieces_are_peeled_and_right
    model_directives:a_walk_or_a_layout_that_needs_a_profile_says_so
68 | reorg layout | layouts:reorg_puts_the_trees_side_by_side
69 | field loads | layouts:a_packed_node_is_one_word cuda:a_node_is_one_load
70 | vector tile step | dispatch:rows_of_large_trees_are_lanes_and_parts_of_a_tile_are_exact
    layout_matrix:every_layout_and_size_has_the_bits_of_the_model
71 | cooperative tile step on GPU | teams:teams_compute_what_the_model_says
    teams:the_text_for_cuda_has_ballots_and_computes_what_the_model_says
    teams:code_objects_have_ballots_and_compute_what_the_model_says
72 | narrow types | ranked:codes_and_tables_are_as_long_as_the_thresholds_ask
    field_types:types_by_choice_give_the_bits_of_the_model
    field_types:a_value_that_does_not_fit_its_type_is_named
    layouts:narrow_thresholds_send_rows_where_wide_ones_do
73 | input and result types | inputs:a_forest_of_float64_takes_float64_rows_as_they_are
    class_numbers:class_numbers_are_the_places_of_labels
    class_numbers:classes_that_a_byte_does_not_count_are_refused
74 | GPU row cache | kernels:rows_in_shared_memory_are_an_odd_number_of_words_apart
    kernels:wide_rows_are_copied_one_by_one_without_a_division
75 | GPU tree cache | simt:trees_are_copied_into_shared_memory
    simt:walks_of_near_trees_advance_together_where_the_loop_outside_is_cached
76 | CPU cache | memory_and_devices:streamed_trees_give_margins_and_numbers_of_leaves
    layouts:trees_are_prefetched
77 | shared-memory check | cuda:more_shared_memory_than_the_gpu_has_is_refused
    row_banks:the_limit_of_shared_memory_is_that_of_the_architecture
78 | missing values, categorical splits | layouts:a_small_forest_with_missing_values_is_computed
    categories:every_corner_of_a_rule_is_compiled
79 | x86 CPU | exporting:a_c_program_runs_it
    cross_targets:every_layout_and_walk_gives_the_bits_of_the_model_there
80 | NVIDIA GPU | cuda:a_gpu_computes_what_the_model_says
    cuda_images:kernels_are_compiled_for_every_architecture_that_a_target_may_name
81 | AMD GPU | rocm:a_recipe_becomes_sound_code_that_computes_what_the_model_says
    hip:a_predictor_computes_what_the_model_says
82 | CPU threads | pool:each_task_runs_once pool:helpers_take_tasks
83 | model data apart from code | code_cache:models_of_one_shape_share_code
    relax:schedules_share_the_arrays_that_both_read
84 | kernel timing | cuda_images:events_time_the_work_of_a_stream
    hip:events_tell_how_long_the_work_between_them_took
85 | batch driver | gpu_runtime:many_rows_go_in_chunks_and_their_results_come_back_in_order
    streams:every_format_gives_the_bits_of_predict
86 | XGBoost JSON | frontend_xgboost:margins_equal_those_of_xgboost_bit_for_bit
    frontend_xgboost_reader:all_formats_of_a_model_are_the_same_forest
87 | ONNX tree ensembles | frontend_onnx:every_mode_asks_at_every_edge_what_the_text_says
    frontend_onnx:values_equal_those_of_onnxruntime
88 | LightGBM, scikit-learn | frontend_lightgbm:margins_equal_those_of_lightgbm_bit_for_bit
    frontend_sklearn:margins_equal_those_of_scikit_learn_to_the_bit
89 | predicate | row_blocks:both_comparisons_and_dtypes_are_exact
    frontend_onnx:every_mode_asks_at_every_edge_what_the_text_says
90 | base score, post transforms | parity:a_link_is_computed_within_two_ulp
    kernels:values_are_made_in_the_kernel_that_made_the_sums
91 | GPU template, exhaustive sweep |
    search:the_paper_has_5184_points_of_which_3888_have_sound_blocks
    recipes:the_template_fits_whatever_the_search_tries
92 | Algorithm 1 | search:algorithm_1_visits_exactly_its_39_points
    search:algorithm_1_finds_the_planted_optimum_of_either_phase
93 | CPU search | search:the_guided_search_comes_near_a_planted_optimum_in_few_trials
    search:the_space_holds_what_the_directives_declare
94 | hard filters | search:blocks_of_1600_threads_are_filtered_so_27_points_run
    search:what_cannot_run_is_refused_before_it_is_built
95 | CPU/GPU threshold | crossover:the_number_of_rows_decides_where_they_go
    studies_of_schedules:the_crossover_is_estimated
    studies_of_schedules:results_of_a_gpu_are_read
96 | result cache |
    search_records:the_fastest_of_each_batch_is_taken_and_the_first_serves_smaller_ones
    search_records:stale_and_foreign_records_are_refused_by_name
97 | real and random models | real_models:margins_are_those_of_xgboost
    random_models:a_random_model_is_drawn_as_the_study_says random_models:there_are_720_models
    studies:the_published_models_have_the_shapes_of_the_paper
    studies:a_trained_model_has_about_the_shape_of_the_paper
98 | baselines, studies | cpu_benchmark:engines_are_timed_and_laid_beside_the_library
    gpu_benchmark:a_table_has_the_fastest_schedule_beside_the_fastest_peer
    studies:engines_are_compared_and_speed_ups_of_a_gpu_are_read
    studies:choices_are_counted_on_a_cpu_and_on_a_gpu studies:constructs_are_taken_away
    studies_of_schedules:schedules_of_two_sizes_of_batch_change_places
    studies_of_schedules:a_search_is_set_beside_a_part_of_all_points
    metaschedule:metaschedule_searches_beside_tune
    studies_of_schedules:rows_and_trees_are_shared_out_and_planned
    studies_of_schedules:rows_are_drawn_as_the_profile_has_them
    studies_of_schedules:tensors_are_compared_where_there_is_torch
"""

TESTS = Path(__file__).resolve().parents[1]


def read_rows() -> dict[int, tuple[str, list[str]]]:
    """Return the words and tests of each row by its number."""
    lines = re.sub(r"\n +", " ", ROWS.strip()).splitlines()
    parts = ([part.strip() for part in line.split("|")] for line in lines)
    return {int(number): (words, tests.split()) for number, words, tests in parts}


@functools.cache
def parse(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the tests of a file, without "test_", and the texts in it, with "_" for " "."""
    (file,) = TESTS.glob(f"*/test_{name}.py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tests = {x.name.removeprefix("test_") for x in tree.body if isinstance(x, ast.FunctionDef)}
    texts = {x.value for x in ast.walk(tree) if isinstance(x, ast.Constant)}
    return frozenset(tests), frozenset(str(text).replace(" ", "_") for text in texts)


def test_all_98_rows_are_there() -> None:
    assert list(read_rows()) == list(range(1, 99))
    assert len({words for words, _ in read_rows().values()}) == 98


@pytest.mark.parametrize("number", range(1, 99))
def test_the_tests_of_a_row_are_there(number: int) -> None:
    words, tests = read_rows()[number]
    assert words
    assert tests
    for test in tests:
        file, name, case = re.fullmatch(r"(\w+):(\w+)(?:\[(.+)\])?", test).groups()
        names, texts = parse(file)
        assert name in names, test
        assert case is None or case in texts, test
