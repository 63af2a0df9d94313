; Functions for AMD's GPUs in place of wrong code of TVM's generator; see also `arithmetic.ll`.

; Code object version 5, which ROCm reads since 5.7, but TVM's LLVM does not choose by default.
!llvm.module.flags = !{!1}
!0 = !{}
!1 = !{i32 1, !"amdhsa_code_object_version", i32 500}

declare void @llvm.amdgcn.s.barrier() convergent
declare i32 @llvm.amdgcn.mbcnt.lo(i32, i32)
declare i32 @llvm.amdgcn.mbcnt.hi(i32, i32)
declare i32 @llvm.amdgcn.ds.bpermute(i32, i32) convergent
declare i64 @llvm.amdgcn.ballot.i64(i1) convergent

; -- barriers: TVM writes only `s_barrier`, at which newer GPUs do not wait for memory -------------

define linkonce_odr void @tvmf_barrier() alwaysinline convergent nounwind {
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  ret void
}

; -- atomic sums: by the hardware's addition, not by a loop of compare and swap --------------------

define linkonce_odr float @tvmf_atomic_add_float32(ptr addrspace(1) %p, float %v) alwaysinline {
  %old = atomicrmw fadd ptr addrspace(1) %p, float %v syncscope("agent") monotonic,
         !amdgpu.no.fine.grained.memory !0, !amdgpu.ignore.denormal.mode !0
  ret float %old
}

define linkonce_odr double @tvmf_atomic_add_float64(ptr addrspace(1) %p, double %v) alwaysinline {
  %old = atomicrmw fadd ptr addrspace(1) %p, double %v syncscope("agent") monotonic,
         !amdgpu.no.fine.grained.memory !0, !amdgpu.ignore.denormal.mode !0
  ret double %old
}

; -- shuffles: those of TVM take only 32-bit values ------------------------------------------------
; A lane gets the value of the lane `by` further in its group of `width`; past the end, its own.

define linkonce_odr i32 @tvmf_shuffle_down_int32(i32 %x, i32 %by, i32 %width)
    alwaysinline convergent {
  %low = call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)
  %lane = call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 %low)
  %most = sub i32 %width, 1
  %own = and i32 %lane, %most
  %first = sub i32 %lane, %own
  %wanted = add i32 %own, %by
  %inside = icmp ult i32 %wanted, %width
  %chosen = select i1 %inside, i32 %wanted, i32 %own
  %from = add i32 %first, %chosen
  %byte = shl i32 %from, 2
  %taken = call i32 @llvm.amdgcn.ds.bpermute(i32 %byte, i32 %x)
  ret i32 %taken
}

define linkonce_odr float @tvmf_shuffle_down_float32(float %x, i32 %by, i32 %width)
    alwaysinline convergent {
  %bits = bitcast float %x to i32
  %taken = call i32 @tvmf_shuffle_down_int32(i32 %bits, i32 %by, i32 %width)
  %value = bitcast i32 %taken to float
  ret float %value
}

define linkonce_odr double @tvmf_shuffle_down_float64(double %x, i32 %by, i32 %width)
    alwaysinline convergent {
  %halves = bitcast double %x to <2 x i32>
  %low = extractelement <2 x i32> %halves, i32 0
  %high = extractelement <2 x i32> %halves, i32 1
  %low2 = call i32 @tvmf_shuffle_down_int32(i32 %low, i32 %by, i32 %width)
  %high2 = call i32 @tvmf_shuffle_down_int32(i32 %high, i32 %by, i32 %width)
  %one = insertelement <2 x i32> poison, i32 %low2, i32 0
  %both = insertelement <2 x i32> %one, i32 %high2, i32 1
  %value = bitcast <2 x i32> %both to double
  ret double %value
}

; -- ballots: the outcomes of a team of threads, `size` of them next to each other -----------------

define linkonce_odr i32 @tvmf_ballot(i1 %outcome, i32 %size) alwaysinline convergent {
  %low = call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)
  %lane = call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 %low)
  %most = sub i32 %size, 1
  %own = and i32 %lane, %most
  %first = sub i32 %lane, %own
  %by = zext i32 %first to i64
  %all = call i64 @llvm.amdgcn.ballot.i64(i1 %outcome)
  %behind = lshr i64 %all, %by
  %some = trunc i64 %behind to i32
  %ones = shl i32 -1, %size
  %mask = xor i32 %ones, -1
  %bits = and i32 %some, %mask
  ret i32 %bits
}
