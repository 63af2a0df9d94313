; The POSIX functions that our code calls, by functions of Windows. Windows calls a thread's
; function by the C calling convention, and expects a 32-bit result, which is not used.

declare ptr @CreateThread(ptr, i64, ptr, ptr, i32, ptr)
declare ptr @CreateSemaphoreW(ptr, i32, i32, ptr)
declare i32 @ReleaseSemaphore(ptr, i32, ptr)
declare i32 @WaitForSingleObject(ptr, i32)
declare i32 @CloseHandle(ptr)
declare i32 @SwitchToThread()
declare void @Sleep(i32)
declare ptr @_aligned_malloc(i64, i64)
declare void @_aligned_free(ptr)

define internal i32 @sched_yield() {
  %switched = call i32 @SwitchToThread()
  ret i32 0
}

define internal i32 @usleep(i32 %ignored) {
  call void @Sleep(i32 1)    ; milliseconds
  ret i32 0
}

define internal i32 @sem_init(ptr %bed, i32 %shared, i32 %count) {
  %made = call ptr @CreateSemaphoreW(ptr null, i32 %count, i32 2147483647, ptr null)
  store ptr %made, ptr %bed
  ret i32 0
}

define internal i32 @sem_post(ptr %bed) {
  %semaphore = load ptr, ptr %bed
  %done = call i32 @ReleaseSemaphore(ptr %semaphore, i32 1, ptr null)
  ret i32 0
}

define internal i32 @sem_wait(ptr %bed) {
  %semaphore = load ptr, ptr %bed
  %woken = call i32 @WaitForSingleObject(ptr %semaphore, i32 -1)    ; without end
  ret i32 %woken
}

define internal i32 @pthread_create(ptr %thread, ptr %ignored, ptr %function, ptr %argument) {
  %made = call ptr @CreateThread(ptr null, i64 0, ptr %function, ptr %argument, i32 0, ptr null)
  store ptr %made, ptr %thread
  %is_refused = icmp eq ptr %made, null
  %refused = zext i1 %is_refused to i32
  ret i32 %refused
}

define internal i32 @pthread_detach(ptr %thread) {
  %closed = call i32 @CloseHandle(ptr %thread)
  ret i32 0
}

define internal i32 @pthread_sigmask(i32 %how, ptr %set, ptr %old) {    ; threads get no signals
  ret i32 0
}

define internal ptr @aligned_alloc(i64 %alignment, i64 %size) {
  %data = call ptr @_aligned_malloc(i64 %size, i64 %alignment)
  ret ptr %data
}

define internal void @free(ptr %data) {
  call void @_aligned_free(ptr %data)
  ret void
}

define internal i32 @sched_getaffinity(i32 %process, i64 %bytes, ptr %mask) {
  ret i32 -1    ; unknown
}
