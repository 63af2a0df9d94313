; The part of the pool that runs without Python: which call has the helpers, how threads get the
; tasks of a loop, and the helpers themselves. Python cannot interrupt it: no signal handler and no
; exception comes between acquiring the helpers and releasing them.
;
; A ticket holds all that a thread needs to take a task, so that one compare-and-exchange takes it:
; bits 0 to 23 are the number of the next task, bits 24 to 47 the number of all tasks, and bits 48
; to 63 the number of helpers that may take tasks. The job does not change while a task is
; unfinished, for `tvm_forest_launch` returns after the last one; so a thread that has a task may
; read the job.

@tvm_forest_ticket = internal global i64 0, align 128
@tvm_forest_finished = internal global i64 0, align 128    ; tasks of the job that have ended
@tvm_forest_job = internal global { ptr, ptr } zeroinitializer, align 128    ; function, its data
@tvm_forest_failed = internal global i32 0                 ; what a task returned that failed
@tvm_forest_busy = internal global i32 0                   ; 1 while there is a job
@tvm_forest_helpers = internal global i64 0                ; helpers of the next job
@tvm_forest_last = internal global i64 0                   ; calls that have asked for the helpers
@tvm_forest_served = internal global i64 0                 ; and those that have given them back
@tvm_forest_started = internal global i64 0                ; helpers that there are
@tvm_forest_sleeps = internal global [1024 x i32] zeroinitializer    ; 1 for each that must be woken
@tvm_forest_beds = internal global [1024 x [64 x i8]] zeroinitializer, align 64    ; its semaphore
@tvm_forest_blocked = internal constant [16 x i64] [    ; all signals but those of faults
  i64 -1241, i64 0, i64 0, i64 0, i64 0, i64 0, i64 0, i64 0,
  i64 0, i64 0, i64 0, i64 0, i64 0, i64 0, i64 0, i64 0
]
@tvm_forest_kind = internal constant [13 x i8] c"RuntimeError\00"
@tvm_forest_text = internal constant [25 x i8] c"predict: a thread failed\00"

declare i32 @sched_yield()
declare i32 @usleep(i32)
declare i32 @sem_init(ptr, i32, i32)
declare i32 @sem_post(ptr)
declare i32 @sem_wait(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)
declare i32 @TVMFFIFunctionCall(ptr, ptr, i32, ptr)

; Take one task and run it. Returns whether there was a task, even if another thread took it first.
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

; Called by compiled code in place of TVMBackendParallelLaunch: run a loop as tasks, on the calling
; thread and on the helpers that look for tasks. Each thread gets four, since some threads begin
; late.
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
  call void @tvm_forest_wake(i64 %helpers)
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

; Wake the helpers of a job that sleep.
define internal void @tvm_forest_wake(i64 %helpers) {
  fence seq_cst    ; a helper that goes to sleep now sees the ticket, or is seen here
  br label %next

next:
  %helper = phi i64 [ 0, %0 ], [ %following, %done ]
  %is_end = icmp eq i64 %helper, %helpers
  br i1 %is_end, label %leave, label %look

look:
  %sleeps = getelementptr [1024 x i32], ptr @tvm_forest_sleeps, i64 0, i64 %helper
  %is_asleep = load atomic i32, ptr %sleeps monotonic, align 4
  %maybe = icmp eq i32 %is_asleep, 1
  br i1 %maybe, label %claim, label %done

claim:
  %was_asleep = atomicrmw xchg ptr %sleeps, i32 0 acq_rel
  %is_ours = icmp eq i32 %was_asleep, 1
  br i1 %is_ours, label %post, label %done

post:
  %bed = getelementptr [1024 x [64 x i8]], ptr @tvm_forest_beds, i64 0, i64 %helper
  call i32 @sem_post(ptr %bed)
  br label %done

done:
  %following = add i64 %helper, 1
  br label %next

leave:
  ret void
}

; The main function of a helper: it runs tasks as they come, and sleeps when it has looked for one
; 2,000 times in vain. It blocks all signals, which are for the threads of the program.
define internal ptr @tvm_forest_help(ptr %start) {
  %helper = ptrtoint ptr %start to i64
  %sleeps = getelementptr [1024 x i32], ptr @tvm_forest_sleeps, i64 0, i64 %helper
  %bed = getelementptr [1024 x [64 x i8]], ptr @tvm_forest_beds, i64 0, i64 %helper
  call i32 @pthread_sigmask(i32 0, ptr @tvm_forest_blocked, ptr null)
  br label %look

look:
  %looks = phi i64 [ 0, %0 ], [ 0, %look ], [ %more, %idle ], [ 0, %rise ]
  %found = call i1 @tvm_forest_take(i64 %helper)
  br i1 %found, label %look, label %idle

idle:
  call i32 @sched_yield()
  %more = add i64 %looks, 1
  %is_enough = icmp uge i64 %more, 2000
  br i1 %is_enough, label %retire, label %look

retire:
  store atomic i32 1, ptr %sleeps seq_cst, align 4
  fence seq_cst    ; a job that begins now sees that this helper sleeps, or is seen here
  %came = call i1 @tvm_forest_take(i64 %helper)
  br i1 %came, label %rise, label %sleep

sleep:
  call i32 @sem_wait(ptr %bed)
  br label %rise

rise:
  store atomic i32 0, ptr %sleeps release, align 4
  br label %look
}

; Start helpers until there are as many as wanted, or the system starts no more threads. Returns the
; number of helpers, at most the number wanted.
define internal i64 @tvm_forest_hire(i64 %asked) {
  %thread = alloca ptr
  %is_many = icmp ugt i64 %asked, 1024
  %wanted = select i1 %is_many, i64 1024, i64 %asked
  br label %next

next:
  %started = load i64, ptr @tvm_forest_started
  %is_enough = icmp uge i64 %started, %wanted
  br i1 %is_enough, label %enough, label %start

start:
  %bed = getelementptr [1024 x [64 x i8]], ptr @tvm_forest_beds, i64 0, i64 %started
  %sleeps = getelementptr [1024 x i32], ptr @tvm_forest_sleeps, i64 0, i64 %started
  store i32 0, ptr %sleeps
  call i32 @sem_init(ptr %bed, i32 0, i32 0)
  %number = inttoptr i64 %started to ptr
  %refused = call i32 @pthread_create(ptr %thread, ptr null, ptr @tvm_forest_help, ptr %number)
  %is_there = icmp eq i32 %refused, 0
  br i1 %is_there, label %count, label %short

count:
  %named = load ptr, ptr %thread
  call i32 @pthread_detach(ptr %named)
  %more = add i64 %started, 1
  store i64 %more, ptr @tvm_forest_started
  br label %next

enough:
  ret i64 %wanted

short:
  ret i64 %started
}

; Acquire the helpers, unless another call has them. Returns the number of this call, or -1.
define internal i64 @tvm_forest_acquire() {
  %now = load atomic i64, ptr @tvm_forest_served acquire, align 8
  %after = add i64 %now, 1
  %entered = cmpxchg ptr @tvm_forest_last, i64 %now, i64 %after acq_rel monotonic
  %is_free = extractvalue { i64, i1 } %entered, 1
  %number = select i1 %is_free, i64 %now, i64 -1
  ret i64 %number
}

; Acquire the helpers, in the order in which calls ask for them. Returns the number of this call.
define internal i64 @tvm_forest_queue() {
  %number = atomicrmw add ptr @tvm_forest_last, i64 1 acq_rel
  br label %wait

wait:
  %served = load atomic i64, ptr @tvm_forest_served acquire, align 8
  %is_next = icmp eq i64 %served, %number
  br i1 %is_next, label %leave, label %rest

rest:
  call i32 @usleep(i32 20)
  br label %wait

leave:
  ret i64 %number
}

; Call a compiled function with so many helpers for its parallel loops, which are released then.
define internal i32 @tvm_forest_call_with_helpers(
  i64 %number, i64 %asked, ptr %function, ptr %arguments, i32 %count, ptr %result
) {
  %helpers = call i64 @tvm_forest_hire(i64 %asked)
  store atomic i64 %helpers, ptr @tvm_forest_helpers monotonic, align 8
  %failed = call i32 @TVMFFIFunctionCall(ptr %function, ptr %arguments, i32 %count, ptr %result)
  store atomic i64 0, ptr @tvm_forest_helpers monotonic, align 8
  %next = add i64 %number, 1
  store atomic i64 %next, ptr @tvm_forest_served release, align 8
  ret i32 %failed
}

; A function that TVM can call: call another function with helpers for its parallel loops. Its
; arguments are that function, a number of helpers, whether to wait while another call has them, and
; the arguments of that function. Returns 1, or 0 if another call has the helpers and this one does
; not wait: then the function was not called.
define i32 @__tvm_ffi_run(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  %function_at = getelementptr i8, ptr %arguments, i64 8
  %asked_at = getelementptr i8, ptr %arguments, i64 24
  %waits_at = getelementptr i8, ptr %arguments, i64 40
  %others = getelementptr i8, ptr %arguments, i64 48
  %function = load ptr, ptr %function_at
  %asked = load i64, ptr %asked_at
  %waits = load i64, ptr %waits_at
  %others_count = sub i32 %count, 3
  %does_wait = icmp ne i64 %waits, 0
  br i1 %does_wait, label %queue, label %try

queue:
  %queued = call i64 @tvm_forest_queue()
  br label %call

try:
  %acquired = call i64 @tvm_forest_acquire()
  %is_refused = icmp eq i64 %acquired, -1
  br i1 %is_refused, label %refuse, label %call

refuse:
  store { i32, i32, i64 } { i32 1, i32 0, i64 0 }, ptr %result    ; 1 says that it is an integer
  ret i32 0

call:
  %number = phi i64 [ %queued, %queue ], [ %acquired, %try ]
  %failed = call i32 @tvm_forest_call_with_helpers(
    i64 %number, i64 %asked, ptr %function, ptr %others, i32 %others_count, ptr %result
  )
  %is_fine = icmp eq i32 %failed, 0
  br i1 %is_fine, label %fine, label %leave

fine:
  store { i32, i32, i64 } { i32 1, i32 0, i64 1 }, ptr %result
  br label %leave

leave:
  ret i32 %failed
}

; Reset the pool in a forked process, which has none of the threads, and none of their calls.
define internal void @tvm_forest_reset() {
  store atomic i64 0, ptr @tvm_forest_ticket release, align 8
  store atomic i64 0, ptr @tvm_forest_helpers monotonic, align 8
  store atomic i64 0, ptr @tvm_forest_started monotonic, align 8
  store atomic i64 0, ptr @tvm_forest_last monotonic, align 8
  store atomic i64 0, ptr @tvm_forest_served monotonic, align 8
  store atomic i32 0, ptr @tvm_forest_busy release, align 4
  ret void
}

; A function that TVM can call with a number: returns the address of a function or variable.
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
  ptr @tvm_forest_launch, ptr @tvm_forest_reset, ptr @tvm_forest_few_rows,
  ptr @tvm_forest_call_ranges
]

; Memory that walks allocate. In a process without TVM's runtime, a library gets it here: TVM's own
; definitions of these variables are weak, and its runtime sets them if it is loaded.

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
