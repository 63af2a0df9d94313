; The part of the pool that runs without Python: how tasks of a loop are given to threads.
;
; A ticket says all that a thread must know to take a task, so that one compare-and-exchange takes
; it: bits 0 to 23 hold the number of the next task, bits 24 to 47 the number of all tasks, and bits
; 48 to 63 how many helpers may take some. The job itself stays as it is while a task is unfinished,
; for `tvm_forest_launch` returns after the last one; so a thread reads it once it has a task.

@tvm_forest_ticket = internal global i64 0, align 128
@tvm_forest_finished = internal global i64 0, align 128    ; tasks of the job that have ended
@tvm_forest_job = internal global { ptr, ptr } zeroinitializer, align 128    ; function, its data
@tvm_forest_failed = internal global i32 0                 ; what a task returned that failed
@tvm_forest_busy = internal global i32 0                   ; 1 while there is a job
@tvm_forest_helpers = internal global i64 0                ; helpers of the next job
@tvm_forest_kind = internal constant [13 x i8] c"RuntimeError\00"
@tvm_forest_text = internal constant [25 x i8] c"predict: a thread failed\00"

declare i32 @sched_yield()
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)

; Take one task and run it. Returns whether there was one, or another thread was faster.
define internal i1 @tvm_forest_take(i64 %helper) {
  %ticket = load atomic i64, ptr @tvm_forest_ticket acquire, align 8
  %next = and i64 %ticket, 16777215
  %middle = lshr i64 %ticket, 24
  %count = and i64 %middle, 16777215
  %helpers = lshr i64 %ticket, 48
  %is_left = icmp ult i64 %next, %count
  %is_asked = icmp ult i64 %helper, %helpers
  %may_take = and i1 %is_left, %is_asked
  br i1 %may_take, label %claim, label %nothing

claim:
  %rest = add i64 %ticket, 1
  %found = cmpxchg ptr @tvm_forest_ticket, i64 %ticket, i64 %rest acq_rel acquire
  %is_mine = extractvalue { i64, i1 } %found, 1
  br i1 %is_mine, label %run, label %again

run:
  %task = trunc i64 %next to i32
  %tasks = trunc i64 %count to i32
  %result = call i32 @tvm_forest_run(i32 %task, i32 %tasks)
  %is_fine = icmp eq i32 %result, 0
  br i1 %is_fine, label %finish, label %fail

fail:
  store atomic i32 %result, ptr @tvm_forest_failed monotonic, align 4
  br label %finish

finish:
  %ended = atomicrmw add ptr @tvm_forest_finished, i64 1 acq_rel
  br label %again

again:
  ret i1 true

nothing:
  ret i1 false
}

; Run a task of the job. TVM's code takes the number of tasks from a structure.
define internal i32 @tvm_forest_run(i32 %task, i32 %tasks) noinline {
  %group = alloca { ptr, i32 }
  store { ptr, i32 } zeroinitializer, ptr %group
  %place = getelementptr { ptr, i32 }, ptr %group, i32 0, i32 1
  store i32 %tasks, ptr %place
  %function = load ptr, ptr @tvm_forest_job
  %data = load ptr, ptr getelementptr ({ ptr, ptr }, ptr @tvm_forest_job, i32 0, i32 1)
  %result = call i32 %function(i32 %task, ptr %group, ptr %data)
  ret i32 %result
}

; Stands where TVM's code looks for TVMBackendParallelLaunch: run a loop as tasks, on the calling
; thread and on the helpers that look for some. Four tasks a thread, since some begin late.
define internal i32 @tvm_forest_launch(ptr %function, ptr %data, i32 %ignored) {
  %helpers = load atomic i64, ptr @tvm_forest_helpers monotonic, align 8
  %is_alone = icmp eq i64 %helpers, 0
  br i1 %is_alone, label %alone, label %enter

enter:
  %entered = cmpxchg ptr @tvm_forest_busy, i32 0, i32 1 acquire monotonic
  %is_free = extractvalue { i32, i1 } %entered, 1
  br i1 %is_free, label %publish, label %alone

alone:
  %group = alloca { ptr, i32 }
  store { ptr, i32 } { ptr null, i32 1 }, ptr %group
  %result = call i32 %function(i32 0, ptr %group, ptr %data)
  ret i32 %result

publish:
  store ptr %function, ptr @tvm_forest_job
  store ptr %data, ptr getelementptr ({ ptr, ptr }, ptr @tvm_forest_job, i32 0, i32 1)
  store i32 0, ptr @tvm_forest_failed
  store i64 0, ptr @tvm_forest_finished
  %threads = add i64 %helpers, 1
  %tasks = shl i64 %threads, 2
  %high = shl i64 %helpers, 48
  %middle = shl i64 %tasks, 24
  %ticket = or i64 %high, %middle
  store atomic i64 %ticket, ptr @tvm_forest_ticket release, align 8
  br label %work

work:
  %goes_on = call i1 @tvm_forest_take(i64 0)
  br i1 %goes_on, label %work, label %wait

wait:
  %finished = load atomic i64, ptr @tvm_forest_finished acquire, align 8
  %is_done = icmp eq i64 %finished, %tasks
  br i1 %is_done, label %leave, label %yield

yield:
  call i32 @sched_yield()
  br label %wait

leave:
  %failed = load i32, ptr @tvm_forest_failed
  store atomic i32 0, ptr @tvm_forest_busy release, align 4
  %is_fine = icmp eq i32 %failed, 0
  br i1 %is_fine, label %fine, label %explain

explain:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @tvm_forest_kind, ptr @tvm_forest_text)
  br label %fine

fine:
  ret i32 %failed
}

; Run tasks as they come, and return after having looked for one so many times in vain.
define internal void @tvm_forest_help(i64 %helper, i64 %patience) {
  br label %look

look:
  %looks = phi i64 [ 0, %0 ], [ 0, %look ], [ %more, %idle ]
  %found = call i1 @tvm_forest_take(i64 %helper)
  br i1 %found, label %look, label %idle

idle:
  call i32 @sched_yield()
  %more = add i64 %looks, 1
  %is_enough = icmp uge i64 %more, %patience
  br i1 %is_enough, label %leave, label %look

leave:
  ret void
}

; Forget a job: in a process that was forked, its threads are gone.
define internal void @tvm_forest_reset() {
  store atomic i64 0, ptr @tvm_forest_ticket release, align 8
  store atomic i64 0, ptr @tvm_forest_helpers monotonic, align 8
  store atomic i32 0, ptr @tvm_forest_busy release, align 4
  ret void
}

; A function that TVM can call, with a number: the address of a function or variable.
define i32 @__tvm_ffi_address(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  %place = getelementptr i8, ptr %arguments, i64 8
  %which = load i64, ptr %place
  %entry = getelementptr [4 x ptr], ptr @tvm_forest_addresses, i64 0, i64 %which
  %address = load ptr, ptr %entry
  store { i32, i32, ptr } { i32 1, i32 0, ptr null }, ptr %result    ; 1 says that it is an integer
  %value = getelementptr i8, ptr %result, i64 8
  store ptr %address, ptr %value
  ret i32 0
}

@tvm_forest_addresses = internal constant [4 x ptr] [
  ptr @tvm_forest_launch, ptr @tvm_forest_help, ptr @tvm_forest_reset, ptr @tvm_forest_helpers
]

; Memory that walks ask for. A library whose process has no runtime of TVM gets it here: TVM's own
; definitions of these variables are weak, and its runtime, where it is loaded, sets them.

@__TVMBackendAllocWorkspace = global ptr @tvm_forest_allocate
@__TVMBackendFreeWorkspace = global ptr @tvm_forest_release

declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
@tvm_forest_memory = internal constant [12 x i8] c"MemoryError\00"
@tvm_forest_full = internal constant [23 x i8] c"predict: out of memory\00"

define internal ptr @tvm_forest_allocate(i32 %kind, i32 %device, i64 %size, i32 %code, i32 %bits) {
  %more = add i64 %size, 63
  %whole = and i64 %more, -64
  %data = call ptr @aligned_alloc(i64 64, i64 %whole)
  %is_full = icmp eq ptr %data, null
  br i1 %is_full, label %explain, label %leave

explain:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @tvm_forest_memory, ptr @tvm_forest_full)
  br label %leave

leave:
  ret ptr %data
}

define internal i32 @tvm_forest_release(i32 %kind, i32 %device, ptr %data) {
  call void @free(ptr %data)
  ret i32 0
}
