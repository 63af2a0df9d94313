; Unnamed semaphores by functions of macOS, which declares the POSIX ones but does not implement
; them. It tells no thread's affinity.

declare ptr @dispatch_semaphore_create(i64)
declare i64 @dispatch_semaphore_signal(ptr)
declare i64 @dispatch_semaphore_wait(ptr, i64)

define internal i32 @sem_init(ptr %bed, i32 %shared, i32 %count) {
  %long = zext i32 %count to i64
  %made = call ptr @dispatch_semaphore_create(i64 %long)
  store ptr %made, ptr %bed
  ret i32 0
}

define internal i32 @sem_post(ptr %bed) {
  %semaphore = load ptr, ptr %bed
  %woken = call i64 @dispatch_semaphore_signal(ptr %semaphore)
  ret i32 0
}

define internal i32 @sem_wait(ptr %bed) {
  %semaphore = load ptr, ptr %bed
  %late = call i64 @dispatch_semaphore_wait(ptr %semaphore, i64 -1)    ; without end
  ret i32 0
}

define internal i32 @sched_getaffinity(i32 %process, i64 %bytes, ptr %mask) {
  ret i32 -1    ; unknown
}
