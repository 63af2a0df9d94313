; A call with few rows from Python: `tvm_forest_few_rows` is the code of a builtin function with one
; argument. The addresses of Python's and numpy's functions are in its sheet, so that the code is
; linked without these libraries. `predictor/few_rows/builtin.py` writes sheets, and makes sure that
; objects have the memory layout that is expected here. For rows that it does not support, this code
; returns None.

; numpy's array: references, type, data, dimensions, shape, strides, base, dtype, flags
%array = type { i64, ptr, ptr, i32, ptr, ptr, ptr, ptr, i32 }
; numpy's dtype: references, type, class of scalars, kind, letter, order of bytes, flags, number
%dtype = type { i64, ptr, ptr, i8, i8, i8, i8, i32 }
; DLPack's tensor: data, device and its number, dimensions, kind, bits and lanes of numbers, shape,
; strides, offset
%tensor = type { ptr, i32, i32, i32, i8, i8, i16, ptr, ptr, i64 }
; TVM's argument: the type code of the value, and the value
%any = type { i32, i32, ptr }
; A sheet, in which kinds of numbers are 0 for float32 and 1 for float64:
%sheet = type {
  ptr, ptr, ptr, ptr, ptr, ptr, ptr,
  ; numpy's class of arrays, PyArray_New, None, Py_IncRef, Py_DecRef, PyEval_SaveThread and
  ; PyEval_RestoreThread
  i64, i64, i64,
  ; rows since other threads could run, rows from which a call lets them run, what numbers are
  ; refused, see `tvm_forest_find`
  i64, [2 x i64], [2 x i64], [2 x i64],
  ; the kind that compiled functions read, most rows of a call and the bytes a row of results that are
  ; dropped, strides of rows, strides of results
  i64, i64, [3 x i64],
  ; which result is wanted, how many there are, for each its bits
  i64, double, i64, i64,
  ; what is given of it, see `tvm_forest_give`, a bound for that, and the number of dtype and the
  ; columns of what is given
  i64, [0 x [6 x ptr]]
  ; most rows of a call whose last block may be partly filled; functions, that of the largest batches
  ; first, each with its least rows, the rows of a block, its address, which is null for batches that
  ; this code does not take, the table of the model's addresses, and, for batches that threads share,
  ; the address of the function's form for threads and the number of helpers
}

declare double @llvm.fabs.f64(double)
declare i64 @llvm.ctpop.i64(i64)
declare i32 @sched_getaffinity(i32, i64, ptr)

define internal ptr @tvm_forest_few_rows(ptr %self, ptr %rows) {
  %sheet_at = getelementptr %array, ptr %self, i32 0, i32 2
  %sheet = load ptr, ptr %sheet_at
  %type_at = getelementptr %array, ptr %rows, i32 0, i32 1
  %type = load ptr, ptr %type_at
  %array_type = load ptr, ptr %sheet
  %is_array = icmp eq ptr %type, %array_type
  br i1 %is_array, label %measure, label %refuse

measure:
  %dimensions_at = getelementptr %array, ptr %rows, i32 0, i32 3
  %dimensions = load i32, ptr %dimensions_at
  %is_matrix = icmp eq i32 %dimensions, 2
  br i1 %is_matrix, label %look, label %refuse

look:
  %shape_at = getelementptr %array, ptr %rows, i32 0, i32 4
  %shape = load ptr, ptr %shape_at
  %n_rows = load i64, ptr %shape
  %columns_at = getelementptr i64, ptr %shape, i64 1
  %columns = load i64, ptr %columns_at
  %width_at = getelementptr %sheet, ptr %sheet, i32 0, i32 12
  %width = load i64, ptr %width_at
  %is_wide = icmp eq i64 %columns, %width
  %flags_at = getelementptr %array, ptr %rows, i32 0, i32 8
  %flags = load i32, ptr %flags_at
  %asked = and i32 %flags, 257    ; of C's order, and aligned
  %is_whole = icmp eq i32 %asked, 257
  %dtype_at = getelementptr %array, ptr %rows, i32 0, i32 7
  %dtype = load ptr, ptr %dtype_at
  %order_at = getelementptr %dtype, ptr %dtype, i32 0, i32 5
  %order = load i8, ptr %order_at
  %is_native = icmp eq i8 %order, 61    ; "="
  %number_at = getelementptr %dtype, ptr %dtype, i32 0, i32 7
  %number = load i32, ptr %number_at
  %kind = sub i32 %number, 11    ; 0 for float32, 1 for float64
  %is_known = icmp ult i32 %kind, 2
  %fits = and i1 %is_wide, %is_whole
  %is_read = and i1 %is_native, %is_known
  %may_be = and i1 %fits, %is_read
  br i1 %may_be, label %count, label %refuse

count:
  %given = zext i32 %kind to i64
  %most_at = getelementptr %sheet, ptr %sheet, i32 0, i32 11, i64 0
  %most = load i64, ptr %most_at
  %last = sub i64 %n_rows, 1
  %are_few = icmp ult i64 %last, %most
  br i1 %are_few, label %take, label %refuse

take:
  %predictions = call ptr @tvm_forest_predict_few(ptr %sheet, ptr %rows, i64 %given)
  ret ptr %predictions

refuse:
  %none = call ptr @tvm_forest_none(ptr %sheet)
  ret ptr %none
}

define internal ptr @tvm_forest_none(ptr %sheet) noinline {
  %none_at = getelementptr %sheet, ptr %sheet, i32 0, i32 2
  %none = load ptr, ptr %none_at
  %inc_ref_at = getelementptr %sheet, ptr %sheet, i32 0, i32 3
  %inc_ref = load ptr, ptr %inc_ref_at
  call void %inc_ref(ptr %none)
  ret ptr %none
}

; Returns a new array, None, or null if Python has no memory for an array. Rows of the other kind are
; converted, and results that are not wanted are written somewhere: on the stack, or, if that takes
; more than 8 KB, in an array of numpy's, since a thread may have a small stack.
define internal ptr @tvm_forest_predict_few(ptr %sheet, ptr %array, i64 %given) {
  %shape_at = getelementptr %array, ptr %array, i32 0, i32 4
  %shape = load ptr, ptr %shape_at
  %n_rows = load i64, ptr %shape
  %width_at = getelementptr %sheet, ptr %sheet, i32 0, i32 12
  %width = load i64, ptr %width_at
  %row_kind_at = getelementptr %sheet, ptr %sheet, i32 0, i32 10
  %row_kind = load i64, ptr %row_kind_at
  %is_same = icmp eq i64 %row_kind, %given
  %shift = add i64 %row_kind, 2
  %cells = mul i64 %n_rows, %width
  %converted = shl i64 %cells, %shift
  %copied = select i1 %is_same, i64 0, i64 %converted
  %dropped_at = getelementptr %sheet, ptr %sheet, i32 0, i32 11, i64 1
  %dropped_of_row = load i64, ptr %dropped_at
  %dropped = mul i64 %n_rows, %dropped_of_row
  %needed = add i64 %copied, %dropped
  %needs_none = icmp eq i64 %needed, 0
  br i1 %needs_none, label %directly, label %measure

directly:
  %predicted = call ptr @tvm_forest_predict_with(ptr %sheet, ptr %array, i64 %given, ptr null)
  ret ptr %predicted

measure:
  %bytes = add i64 %needed, 256    ; up to 63 between one part and the next
  %is_small = icmp ule i64 %bytes, 8192
  br i1 %is_small, label %on_stack, label %on_heap

on_stack:
  %near = alloca i8, i64 %bytes, align 64
  %predicted_near = call ptr @tvm_forest_predict_with(
    ptr %sheet, ptr %array, i64 %given, ptr %near
  )
  ret ptr %predicted_near

on_heap:
  %size = alloca i64
  store i64 %bytes, ptr %size
  %array_type = load ptr, ptr %sheet
  %new_at = getelementptr %sheet, ptr %sheet, i32 0, i32 1
  %new = load ptr, ptr %new_at
  %made = call ptr %new(
    ptr %array_type, i32 1, ptr %size, i32 2, ptr null, ptr null, i32 0, i32 0, ptr null
  )    ; 2: bytes
  %is_full = icmp eq ptr %made, null
  br i1 %is_full, label %leave, label %use

use:
  %memory_at = getelementptr %array, ptr %made, i32 0, i32 2
  %memory = load ptr, ptr %memory_at
  %predicted_far = call ptr @tvm_forest_predict_with(
    ptr %sheet, ptr %array, i64 %given, ptr %memory
  )
  %dec_ref_at = getelementptr %sheet, ptr %sheet, i32 0, i32 4
  %dec_ref = load ptr, ptr %dec_ref_at
  call void %dec_ref(ptr %made)
  ret ptr %predicted_far

leave:
  ret ptr null
}

; Returns a multiple of 64 bytes, since caches and vectors have lines of so many.
define internal i64 @tvm_forest_whole_lines(i64 %bytes) alwaysinline {
  %more = add i64 %bytes, 63
  %whole = and i64 %more, -64
  ret i64 %whole
}

; The same, with memory for what is needed besides.
define internal ptr @tvm_forest_predict_with(
  ptr %sheet, ptr %array, i64 %given, ptr %memory_besides
) {
  %data_at = getelementptr %array, ptr %array, i32 0, i32 2
  %data = load ptr, ptr %data_at
  %row_shape_at = getelementptr %array, ptr %array, i32 0, i32 4
  %row_shape = load ptr, ptr %row_shape_at
  %n_rows = load i64, ptr %row_shape
  %width_at = getelementptr %sheet, ptr %sheet, i32 0, i32 12
  %width = load i64, ptr %width_at
  %cells = mul i64 %n_rows, %width
  br label %find

find:
  %entry = phi i64 [ 0, %0 ], [ %smaller, %pass ]
  %begin_at = getelementptr %sheet, ptr %sheet, i32 0, i32 22, i64 %entry, i64 0
  %begin = load i64, ptr %begin_at
  %serves = icmp uge i64 %n_rows, %begin
  br i1 %serves, label %serve, label %pass

pass:
  %smaller = add i64 %entry, 1
  br label %find

serve:
  %function_at = getelementptr %sheet, ptr %sheet, i32 0, i32 22, i64 %entry, i64 2
  %function = load ptr, ptr %function_at
  %table_at = getelementptr %sheet, ptr %sheet, i32 0, i32 22, i64 %entry, i64 3
  %table = load ptr, ptr %table_at
  %is_known_here = icmp ne ptr %function, null
  br i1 %is_known_here, label %limit, label %refuse

limit:
  %few_at = getelementptr %sheet, ptr %sheet, i32 0, i32 21
  %few = load i64, ptr %few_at
  %are_few = icmp ule i64 %n_rows, %few
  br i1 %are_few, label %read, label %divide

divide:
  %block_at = getelementptr %sheet, ptr %sheet, i32 0, i32 22, i64 %entry, i64 1
  %block = load i64, ptr %block_at
  %rest = urem i64 %n_rows, %block
  %is_filled = icmp eq i64 %rest, 0
  %is_in_one = icmp ult i64 %n_rows, %block
  %wastes_none = or i1 %is_filled, %is_in_one
  br i1 %wastes_none, label %read, label %refuse

read:
  %row_kind_at = getelementptr %sheet, ptr %sheet, i32 0, i32 10
  %row_kind = load i64, ptr %row_kind_at
  %is_double = icmp eq i64 %row_kind, 1
  %is_same = icmp eq i64 %row_kind, %given
  br i1 %is_same, label %ready, label %convert

convert:
  %cell_shift = select i1 %is_double, i64 3, i64 2
  %copy_bytes = shl i64 %cells, %cell_shift
  call void @tvm_forest_convert(ptr %data, ptr %memory_besides, i64 %cells, i1 %is_double)
  %copy_lines = call i64 @tvm_forest_whole_lines(i64 %copy_bytes)
  %behind_copy = getelementptr i8, ptr %memory_besides, i64 %copy_lines
  br label %ready

ready:
  %rows = phi ptr [ %data, %read ], [ %memory_besides, %convert ]
  %free = phi ptr [ %memory_besides, %read ], [ %behind_copy, %convert ]
  %refuses_at = getelementptr %sheet, ptr %sheet, i32 0, i32 9
  %refuses = load i64, ptr %refuses_at
  %takes_all = icmp eq i64 %refuses, 0
  br i1 %takes_all, label %make, label %check

check:
  %found = call i64 @tvm_forest_find(ptr %rows, i64 %cells, i1 %is_double)
  %unwanted = and i64 %found, %refuses
  %is_fine = icmp eq i64 %unwanted, 0
  br i1 %is_fine, label %make, label %refuse

make:
  %shape = alloca [2 x i64]
  %made_shape = alloca [2 x i64]
  %tensors = alloca [4 x %tensor], align 16
  %arguments = alloca [5 x %any], align 16
  %result = alloca %any, align 16
  %steps = getelementptr %sheet, ptr %sheet, i32 0, i32 13
  %outputs = load i64, ptr %steps
  store i64 %n_rows, ptr %shape
  %shape_end = getelementptr i64, ptr %shape, i64 1
  store i64 %outputs, ptr %shape_end
  store i64 %n_rows, ptr %made_shape
  %columns_at = getelementptr %sheet, ptr %sheet, i32 0, i32 20
  %columns = load i64, ptr %columns_at
  %made_end = getelementptr i64, ptr %made_shape, i64 1
  store i64 %columns, ptr %made_end
  %number_at = getelementptr %sheet, ptr %sheet, i32 0, i32 19
  %number_word = load i64, ptr %number_at
  %number = trunc i64 %number_word to i32
  %is_one = icmp eq i64 %columns, 1
  %dimensions = select i1 %is_one, i32 1, i32 2
  %array_type = load ptr, ptr %sheet
  %new_at = getelementptr %sheet, ptr %sheet, i32 0, i32 1
  %new = load ptr, ptr %new_at
  %made = call ptr %new(
    ptr %array_type, i32 %dimensions, ptr %made_shape, i32 %number, ptr null, ptr null, i32 0, i32 0,
    ptr null
  )
  %is_full = icmp eq ptr %made, null
  br i1 %is_full, label %leave, label %tell

tell:
  %row_steps = getelementptr %sheet, ptr %sheet, i32 0, i32 12
  %row_bits = select i1 %is_double, i64 64, i64 32
  call void @tvm_forest_set_tensor(
    ptr %tensors, ptr %arguments, ptr %rows, i64 %row_bits, ptr %row_shape, ptr %row_steps
  )
  %second = getelementptr %any, ptr %arguments, i64 1
  %addresses = insertvalue %any { i32 4, i32 0, ptr null }, ptr %table, 2    ; 4: an address
  store %any %addresses, ptr %second
  %place_at = getelementptr %sheet, ptr %sheet, i32 0, i32 14
  %place = load i64, ptr %place_at
  %form_at = getelementptr %sheet, ptr %sheet, i32 0, i32 17
  %form = load i64, ptr %form_at
  %is_given = icmp eq i64 %form, 0
  %results_at = getelementptr %sheet, ptr %sheet, i32 0, i32 15
  %results = load i64, ptr %results_at
  %made_data_at = getelementptr %array, ptr %made, i32 0, i32 2
  %made_data = load ptr, ptr %made_data_at
  %numbers = mul i64 %n_rows, %outputs
  br label %next

next:
  %at = phi i64 [ 0, %tell ], [ %following, %add ]
  %scores = phi ptr [ null, %tell ], [ %scores_here, %add ]
  %score_bits = phi i64 [ 0, %tell ], [ %bits_here, %add ]
  %still_free = phi ptr [ %free, %tell ], [ %free_behind, %add ]
  %bits_at = getelementptr %sheet, ptr %sheet, i32 0, i32 16, i64 %at
  %bits = load i64, ptr %bits_at
  %is_wanted = icmp eq i64 %at, %place
  %is_in_place = and i1 %is_wanted, %is_given
  br i1 %is_in_place, label %add, label %drop

drop:
  %bytes = lshr i64 %bits, 3
  %dropped_bytes = mul i64 %numbers, %bytes
  %dropped_lines = call i64 @tvm_forest_whole_lines(i64 %dropped_bytes)
  %behind_dropped = getelementptr i8, ptr %still_free, i64 %dropped_lines
  br label %add

add:
  %memory = phi ptr [ %made_data, %next ], [ %still_free, %drop ]
  %free_behind = phi ptr [ %still_free, %next ], [ %behind_dropped, %drop ]
  %scores_here = select i1 %is_wanted, ptr %memory, ptr %scores
  %bits_here = select i1 %is_wanted, i64 %bits, i64 %score_bits
  %following = add i64 %at, 1
  %tensor = getelementptr %tensor, ptr %tensors, i64 %following
  %behind = add i64 %at, 2
  %argument = getelementptr %any, ptr %arguments, i64 %behind
  call void @tvm_forest_set_tensor(
    ptr %tensor, ptr %argument, ptr %memory, i64 %bits, ptr %shape, ptr %steps
  )
  %is_last = icmp eq i64 %following, %results
  br i1 %is_last, label %choose, label %next

choose:
  %arguments_count = trunc i64 %behind to i32
  %count = add i32 %arguments_count, 1
  store %any zeroinitializer, ptr %result
  %long_at = getelementptr %sheet, ptr %sheet, i32 0, i32 8
  %long = load i64, ptr %long_at
  %is_long = icmp uge i64 %n_rows, %long
  %helpers_at = getelementptr %sheet, ptr %sheet, i32 0, i32 22, i64 %entry, i64 5
  %helpers = load i64, ptr %helpers_at
  %is_shared = icmp ne i64 %helpers, 0
  ; Other threads run during long calls, and during one of so many short calls as take about 10 ms.
  ; If they were asked more often, a thread that waits would be woken, come too late and begin to wait
  ; anew, and never have waited for the 5 ms after which Python hands its lock over.
  %served_at = getelementptr %sheet, ptr %sheet, i32 0, i32 7
  %before = load i64, ptr %served_at
  %served = add i64 %before, %n_rows
  %enough = shl i64 %long, 10
  %is_turn = icmp uge i64 %served, %enough
  %is_due = or i1 %is_long, %is_turn
  %lets_others = or i1 %is_due, %is_shared
  %still_served = select i1 %lets_others, i64 0, i64 %served
  store i64 %still_served, ptr %served_at
  br i1 %lets_others, label %release, label %keep

keep:
  %failed_kept = call i32 @TVMFFIFunctionCall(
    ptr %function, ptr %arguments, i32 %count, ptr %result
  )
  br label %finish

release:
  %save_at = getelementptr %sheet, ptr %sheet, i32 0, i32 5
  %save = load ptr, ptr %save_at
  %restore_at = getelementptr %sheet, ptr %sheet, i32 0, i32 6
  %restore = load ptr, ptr %restore_at
  %state = call ptr %save()
  br i1 %is_shared, label %ask, label %alone

ask:
  %acquired = call i64 @tvm_forest_acquire()
  %is_refused = icmp eq i64 %acquired, -1
  br i1 %is_refused, label %alone, label %share

share:
  %parallel_at = getelementptr %sheet, ptr %sheet, i32 0, i32 22, i64 %entry, i64 4
  %parallel = load ptr, ptr %parallel_at
  %limited = call i64 @tvm_forest_limit(i64 %helpers)
  %failed_shared = call i32 @tvm_forest_call_with_helpers(
    i64 %acquired, i64 %limited, ptr %parallel, ptr %arguments, i32 %count, ptr %result
  )
  br label %return

alone:
  %failed_alone = call i32 @TVMFFIFunctionCall(
    ptr %function, ptr %arguments, i32 %count, ptr %result
  )
  br label %return

return:
  %failed_released = phi i32 [ %failed_shared, %share ], [ %failed_alone, %alone ]
  call void %restore(ptr %state)
  br label %finish

finish:
  %failed = phi i32 [ %failed_kept, %keep ], [ %failed_released, %return ]
  %is_done = icmp eq i32 %failed, 0
  br i1 %is_done, label %give, label %drop_made

give:
  br i1 %is_given, label %leave, label %change

change:
  %of_double = icmp eq i64 %bits_here, 64
  %bound_at = getelementptr %sheet, ptr %sheet, i32 0, i32 18
  %bound = load double, ptr %bound_at
  call void @tvm_forest_give(
    i64 %form, double %bound, ptr %scores_here, i1 %of_double, i64 %n_rows, i64 %outputs,
    ptr %made_data
  )
  br label %leave

leave:
  ret ptr %made

drop_made:
  %dec_ref_at = getelementptr %sheet, ptr %sheet, i32 0, i32 4
  %dec_ref = load ptr, ptr %dec_ref_at
  call void %dec_ref(ptr %made)
  br label %refuse

refuse:
  %none = call ptr @tvm_forest_none(ptr %sheet)
  ret ptr %none
}

; Returns the number of helpers for which there are cores, at most the number asked. The affinity of a
; thread can change between two calls.
define internal i64 @tvm_forest_limit(i64 %asked) {
  %mask = alloca [16 x i64]
  store [16 x i64] zeroinitializer, ptr %mask
  %failed = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  %is_known = icmp eq i32 %failed, 0
  br i1 %is_known, label %next, label %unknown

next:
  %word = phi i64 [ 0, %0 ], [ %following, %next ]
  %before = phi i64 [ 0, %0 ], [ %cores, %next ]
  %bits_at = getelementptr [16 x i64], ptr %mask, i64 0, i64 %word
  %bits = load i64, ptr %bits_at
  %here = call i64 @llvm.ctpop.i64(i64 %bits)
  %cores = add i64 %before, %here
  %following = add i64 %word, 1
  %is_last = icmp eq i64 %following, 16
  br i1 %is_last, label %compare, label %next

compare:
  %others = sub i64 %cores, 1
  %is_enough = icmp ule i64 %asked, %others
  %limited = select i1 %is_enough, i64 %asked, i64 %others
  ret i64 %limited

unknown:
  ret i64 %asked
}

; Write a tensor of two dimensions on the host, and the argument that leads to it.
define internal void @tvm_forest_set_tensor(
  ptr %tensor, ptr %argument, ptr %data, i64 %bits, ptr %shape, ptr %steps
) {
  %few_bits = trunc i64 %bits to i8
  %host = insertvalue %tensor {
    ptr null, i32 1, i32 0, i32 2, i8 2, i8 0, i16 1, ptr null, ptr null, i64 0
  }, ptr %data, 0
  %sized = insertvalue %tensor %host, i8 %few_bits, 5
  %shaped = insertvalue %tensor %sized, ptr %shape, 7
  %whole = insertvalue %tensor %shaped, ptr %steps, 8
  store %tensor %whole, ptr %tensor
  %given = insertvalue %any { i32 7, i32 0, ptr null }, ptr %tensor, 2    ; 7 says it is a tensor
  store %any %given, ptr %argument
  ret void
}

; Write what is given of the scores of each row. Form 1: two probabilities, of which the score is the
; second. Other forms give the number of a class, int64: 2, whether the score is above the bound; 3,
; whether it is at least the bound; 4, which score is the largest, the first of equal ones, where NaN
; is larger than all numbers, as in numpy; 5, the same as in C++, where only a first NaN is.
define internal void @tvm_forest_give(
  i64 %form, double %bound, ptr %scores, i1 %of_double, i64 %n_rows, i64 %outputs, ptr %made
) {
  %gives_pairs = icmp eq i64 %form, 1
  %asks_above = icmp eq i64 %form, 2
  %is_bounded = icmp ult i64 %form, 4
  %takes_nan = icmp eq i64 %form, 4
  br label %next

next:
  %row = phi i64 [ 0, %0 ], [ %next_row, %following ]
  %first = mul i64 %row, %outputs
  %score = call double @tvm_forest_read(ptr %scores, i1 %of_double, i64 %first)
  br i1 %gives_pairs, label %pair, label %bounded

pair:
  %second = mul i64 %row, 2
  br i1 %of_double, label %pair_double, label %pair_float

pair_double:
  %rest = fsub double 1.0, %score
  %rest_at = getelementptr double, ptr %made, i64 %second
  store double %rest, ptr %rest_at
  %score_at = getelementptr double, ptr %rest_at, i64 1
  store double %score, ptr %score_at
  br label %following

pair_float:
  %float = fptrunc double %score to float
  %float_rest = fsub float 1.0, %float
  %float_rest_at = getelementptr float, ptr %made, i64 %second
  store float %float_rest, ptr %float_rest_at
  %float_at = getelementptr float, ptr %float_rest_at, i64 1
  store float %float, ptr %float_at
  br label %following

bounded:
  %is_above = fcmp ogt double %score, %bound
  %is_equal = fcmp oeq double %score, %bound
  %above = zext i1 %is_above to i64
  %is_at_least = or i1 %is_above, %is_equal
  %at_least = zext i1 %is_at_least to i64
  %decided = select i1 %asks_above, i64 %above, i64 %at_least
  br i1 %is_bounded, label %write, label %compare

compare:
  %column = phi i64 [ 1, %bounded ], [ %next_column, %look ]
  %best = phi double [ %score, %bounded ], [ %better, %look ]
  %best_column = phi i64 [ 0, %bounded ], [ %better_column, %look ]
  %is_end = icmp eq i64 %column, %outputs
  br i1 %is_end, label %write, label %look

look:
  %at = add i64 %first, %column
  %other = call double @tvm_forest_read(ptr %scores, i1 %of_double, i64 %at)
  %is_larger = fcmp ogt double %other, %best
  %is_nan = fcmp uno double %other, %other
  %best_is_number = fcmp ord double %best, %best
  %is_first_nan = and i1 %is_nan, %best_is_number
  %nan_wins = and i1 %is_first_nan, %takes_nan
  %wins = or i1 %is_larger, %nan_wins
  %better = select i1 %wins, double %other, double %best
  %better_column = select i1 %wins, i64 %column, i64 %best_column
  %next_column = add i64 %column, 1
  br label %compare

write:
  %class = phi i64 [ %decided, %bounded ], [ %best_column, %compare ]
  %class_at = getelementptr i64, ptr %made, i64 %row
  store i64 %class, ptr %class_at
  br label %following

following:
  %next_row = add i64 %row, 1
  %is_last = icmp eq i64 %next_row, %n_rows
  br i1 %is_last, label %leave, label %next

leave:
  ret void
}

define internal double @tvm_forest_read(ptr %numbers, i1 %of_double, i64 %at) alwaysinline {
  br i1 %of_double, label %double, label %float

double:
  %double_at = getelementptr double, ptr %numbers, i64 %at
  %number = load double, ptr %double_at
  ret double %number

float:
  %float_at = getelementptr float, ptr %numbers, i64 %at
  %small = load float, ptr %float_at
  %widened = fpext float %small to double
  ret double %widened
}

; Copy numbers of the one kind as numbers of the other.
define internal void @tvm_forest_convert(ptr %from, ptr %to, i64 %count, i1 %to_double) {
  %is_empty = icmp eq i64 %count, 0
  br i1 %is_empty, label %leave, label %choose

choose:
  br i1 %to_double, label %widen, label %narrow

widen:
  %w = phi i64 [ 0, %choose ], [ %w_next, %widen ]
  %w_from = getelementptr float, ptr %from, i64 %w
  %w_to = getelementptr double, ptr %to, i64 %w
  %float = load float, ptr %w_from
  %widened = fpext float %float to double
  store double %widened, ptr %w_to
  %w_next = add i64 %w, 1
  %w_end = icmp eq i64 %w_next, %count
  br i1 %w_end, label %leave, label %widen

narrow:
  %n = phi i64 [ 0, %choose ], [ %n_next, %narrow ]
  %n_from = getelementptr double, ptr %from, i64 %n
  %n_to = getelementptr float, ptr %to, i64 %n
  %double = load double, ptr %n_from
  %narrowed = fptrunc double %double to float
  store float %narrowed, ptr %n_to
  %n_next = add i64 %n, 1
  %n_end = icmp eq i64 %n_next, %count
  br i1 %n_end, label %leave, label %narrow

leave:
  ret void
}

; Returns 1 if there is an infinity among numbers, 2 if there is a NaN, 3 if there are both.
define internal i64 @tvm_forest_find(ptr %numbers, i64 %count, i1 %is_double) {
  br label %next

next:
  %at = phi i64 [ 0, %0 ], [ %following, %look ]
  %found = phi i64 [ 0, %0 ], [ %more, %look ]
  %is_end = icmp eq i64 %at, %count
  br i1 %is_end, label %leave, label %load

load:
  br i1 %is_double, label %load_double, label %load_float

load_double:
  %double_at = getelementptr double, ptr %numbers, i64 %at
  %double = load double, ptr %double_at
  br label %look

load_float:
  %float_at = getelementptr float, ptr %numbers, i64 %at
  %float = load float, ptr %float_at
  %widened = fpext float %float to double
  br label %look

look:
  %number = phi double [ %double, %load_double ], [ %widened, %load_float ]
  %size = call double @llvm.fabs.f64(double %number)
  %is_infinite = fcmp oeq double %size, 0x7FF0000000000000
  %is_nan = fcmp uno double %number, %number
  %first = zext i1 %is_infinite to i64
  %second = select i1 %is_nan, i64 2, i64 0
  %both = or i64 %first, %second
  %more = or i64 %found, %both
  %following = add i64 %at, 1
  br label %next

leave:
  ret i64 %found
}
