; Calls compiled functions for one range of rows after the other, each with arrays of its own model:
; `tvm_forest_call_ranges`. `predictor/parts/one_of_several.py` writes plans.

; A range: the number of its rows, the function, and the table of its model's addresses
%range = type { i64, ptr, ptr }
; A plan: the number of ranges, the ranges, the rows, their bits, their number of columns and the
; steps to the next row and column, as DLPack has them, the steps of results, how many results there
; are, and for each where it lies and its bits
%plan = type { i64, ptr, ptr, i64, i64, [2 x i64], [2 x i64], i64, [3 x { ptr, i64 }] }

; Returns 0, or what the first function returns that fails.
define internal i32 @tvm_forest_call_ranges(ptr %plan) {
  %ranges_count = load i64, ptr %plan
  %ranges_at = getelementptr %plan, ptr %plan, i32 0, i32 1
  %ranges = load ptr, ptr %ranges_at
  %rows_at = getelementptr %plan, ptr %plan, i32 0, i32 2
  %rows = load ptr, ptr %rows_at
  %row_bits_at = getelementptr %plan, ptr %plan, i32 0, i32 3
  %row_bits = load i64, ptr %row_bits_at
  %width_at = getelementptr %plan, ptr %plan, i32 0, i32 4
  %width = load i64, ptr %width_at
  %row_steps = getelementptr %plan, ptr %plan, i32 0, i32 5
  %steps = getelementptr %plan, ptr %plan, i32 0, i32 6
  %results_at = getelementptr %plan, ptr %plan, i32 0, i32 7
  %results = load i64, ptr %results_at
  %row_shape = alloca [2 x i64]
  %shape = alloca [2 x i64]
  %tensors = alloca [4 x %tensor], align 16
  %arguments = alloca [5 x %any], align 16
  %result = alloca %any, align 16
  %row_shape_end = getelementptr i64, ptr %row_shape, i64 1
  store i64 %width, ptr %row_shape_end
  %shape_end = getelementptr i64, ptr %shape, i64 1
  store i64 1, ptr %shape_end
  %second = getelementptr %any, ptr %arguments, i64 1
  %cell_bits = mul i64 %width, %row_bits
  %wide_count = add i64 %results, 2
  %count = trunc i64 %wide_count to i32
  br label %next

next:
  %at = phi i64 [ 0, %0 ], [ %following, %advance ]
  %begin = phi i64 [ 0, %0 ], [ %end, %advance ]
  %is_end = icmp eq i64 %at, %ranges_count
  br i1 %is_end, label %done, label %tell

tell:
  %size_at = getelementptr %range, ptr %ranges, i64 %at, i32 0
  %size = load i64, ptr %size_at
  %function_at = getelementptr %range, ptr %ranges, i64 %at, i32 1
  %function = load ptr, ptr %function_at
  %table_at = getelementptr %range, ptr %ranges, i64 %at, i32 2
  %table = load ptr, ptr %table_at
  store i64 %size, ptr %row_shape
  store i64 %size, ptr %shape
  %rows_before = mul i64 %begin, %cell_bits
  %row_bytes = lshr i64 %rows_before, 3
  %part = getelementptr i8, ptr %rows, i64 %row_bytes
  call void @tvm_forest_set_tensor(
    ptr %tensors, ptr %arguments, ptr %part, i64 %row_bits, ptr %row_shape, ptr %row_steps
  )
  %addresses = insertvalue %any { i32 4, i32 0, ptr null }, ptr %table, 2    ; 4: an address
  store %any %addresses, ptr %second
  br label %add

add:
  %place = phi i64 [ 0, %tell ], [ %behind, %add ]
  %memory_at = getelementptr %plan, ptr %plan, i32 0, i32 8, i64 %place, i32 0
  %memory = load ptr, ptr %memory_at
  %bits_at = getelementptr %plan, ptr %plan, i32 0, i32 8, i64 %place, i32 1
  %bits = load i64, ptr %bits_at
  %bits_before = mul i64 %begin, %bits
  %bytes = lshr i64 %bits_before, 3
  %own = getelementptr i8, ptr %memory, i64 %bytes
  %behind = add i64 %place, 1
  %tensor = getelementptr %tensor, ptr %tensors, i64 %behind
  %argument_place = add i64 %place, 2
  %argument = getelementptr %any, ptr %arguments, i64 %argument_place
  call void @tvm_forest_set_tensor(
    ptr %tensor, ptr %argument, ptr %own, i64 %bits, ptr %shape, ptr %steps
  )
  %is_last = icmp eq i64 %behind, %results
  br i1 %is_last, label %call, label %add

call:
  store %any zeroinitializer, ptr %result
  %failed = call i32 @TVMFFIFunctionCall(
    ptr %function, ptr %arguments, i32 %count, ptr %result
  )
  %is_fine = icmp eq i32 %failed, 0
  br i1 %is_fine, label %advance, label %leave

advance:
  %following = add i64 %at, 1
  %end = add i64 %begin, %size
  br label %next

done:
  ret i32 0

leave:
  ret i32 %failed
}
