; exp, exp2 and log1p for kernels on AMD's GPUs, for any machine that LLVM knows.
;
; TVM would need AMD's library of bitcode, which may not be installed. The arithmetic is done in
; float64, and rounded to float32 for float32 functions. Polynomials are computed by Horner's
; scheme; a comment after a line names the coefficient that it adds.

declare double @llvm.rint.f64(double)
declare double @llvm.fma.f64(double, double, double)
declare double @llvm.ldexp.f64.i32(double, i32)
declare i32 @llvm.fptosi.sat.i32.f64(double)
declare { double, i32 } @llvm.frexp.f64.i32(double)

; -- exp(n ln 2 + r) = 2^n exp(r) with |r| <= ln(2) / 2, where Taylor's series ends at r^14 --------

define linkonce_odr double @tvmf_scaled_exp(double %n, double %r) alwaysinline {
  %k = call i32 @llvm.fptosi.sat.i32.f64(double %n)
  %p13 = call double @llvm.fma.f64(double 0x3DA93974A8C07C9D, double %r, double 0x3DE6124613A86D09)  ; 1/13!, after r/14!
  %p12 = call double @llvm.fma.f64(double %p13, double %r, double 0x3E21EED8EFF8D898)  ; 1/12!
  %p11 = call double @llvm.fma.f64(double %p12, double %r, double 0x3E5AE64567F544E4)  ; 1/11!
  %p10 = call double @llvm.fma.f64(double %p11, double %r, double 0x3E927E4FB7789F5C)  ; 1/10!
  %p9 = call double @llvm.fma.f64(double %p10, double %r, double 0x3EC71DE3A556C734)  ; 1/9!
  %p8 = call double @llvm.fma.f64(double %p9, double %r, double 0x3EFA01A01A01A01A)  ; 1/8!
  %p7 = call double @llvm.fma.f64(double %p8, double %r, double 0x3F2A01A01A01A01A)  ; 1/7!
  %p6 = call double @llvm.fma.f64(double %p7, double %r, double 0x3F56C16C16C16C17)  ; 1/6!
  %p5 = call double @llvm.fma.f64(double %p6, double %r, double 0x3F81111111111111)  ; 1/5!
  %p4 = call double @llvm.fma.f64(double %p5, double %r, double 0x3FA5555555555555)  ; 1/4!
  %p3 = call double @llvm.fma.f64(double %p4, double %r, double 0x3FC5555555555555)  ; 1/3!
  %p2 = call double @llvm.fma.f64(double %p3, double %r, double 0x3FE0000000000000)  ; 1/2!
  %p1 = call double @llvm.fma.f64(double %p2, double %r, double 0x3FF0000000000000)  ; 1/1!
  %sum = call double @llvm.fma.f64(double %p1, double %r, double 0x3FF0000000000000)  ; 1/0!
  %power = call double @llvm.ldexp.f64.i32(double %sum, i32 %k)
  ret double %power
}

define linkonce_odr double @tvmf_exp_float64(double %x) alwaysinline {
  %below = fcmp ogt double %x, 2000.0
  %x1 = select i1 %below, double 2000.0, double %x
  %above = fcmp olt double %x1, -2000.0
  %x2 = select i1 %above, double -2000.0, double %x1
  %scaled = fmul double %x2, 0x3FF71547652B82FE  ; 1 / ln 2
  %n = call double @llvm.rint.f64(double %scaled)
  ; ln 2 in two parts, of which the first has 20 trailing zeros: n times it is exact
  %minus = fneg double %n
  %r1 = call double @llvm.fma.f64(double %minus, double 0x3FE62E42FEE00000, double %x2)
  %r = call double @llvm.fma.f64(double %minus, double 0x3DEA39EF35793C76, double %r1)
  %power = call double @tvmf_scaled_exp(double %n, double %r)
  ret double %power
}

define linkonce_odr double @tvmf_exp2_float64(double %x) alwaysinline {
  %below = fcmp ogt double %x, 2000.0
  %x1 = select i1 %below, double 2000.0, double %x
  %above = fcmp olt double %x1, -2000.0
  %x2 = select i1 %above, double -2000.0, double %x1
  %n = call double @llvm.rint.f64(double %x2)
  %rest = fsub double %x2, %n
  %r = fmul double %rest, 0x3FE62E42FEFA39EF  ; ln 2
  %power = call double @tvmf_scaled_exp(double %n, double %r)
  ret double %power
}

; -- log(1 + x) for x >= 0: 1 + x = 2^k m, log m = 2 atanh((m - 1) / (m + 1)), and what 1 + x lost -

define linkonce_odr double @tvmf_log1p_float64(double %x) alwaysinline {
  %u = fadd double %x, 1.0
  %above = fsub double %u, 1.0
  %low = fsub double %x, %above
  %far = fsub double %u, %x
  %high = fsub double 1.0, %far
  %large = fcmp ogt double %x, 1.0
  %lost = select i1 %large, double %high, double %low
  %parts = call { double, i32 } @llvm.frexp.f64.i32(double %u)
  %m1 = extractvalue { double, i32 } %parts, 0
  %e1 = extractvalue { double, i32 } %parts, 1
  %small = fcmp olt double %m1, 0x3FE6A09E667F3BCD
  %m2 = fmul double %m1, 2.0
  %e2 = sub i32 %e1, 1
  %m = select i1 %small, double %m2, double %m1
  %e = select i1 %small, i32 %e2, i32 %e1
  %k = sitofp i32 %e to double
  %f = fsub double %m, 1.0
  %f2 = fadd double %f, 2.0
  %s = fdiv double %f, %f2                       ; (m - 1) / (m + 1)
  %r = fmul double %s, %s
  %p10 = call double @llvm.fma.f64(double 0x3FA47AE147AE147B, double %r, double 0x3FA642C8590B2164)  ; 1/23, after r/25
  %p9 = call double @llvm.fma.f64(double %p10, double %r, double 0x3FA8618618618618)  ; 1/21
  %p8 = call double @llvm.fma.f64(double %p9, double %r, double 0x3FAAF286BCA1AF28)  ; 1/19
  %p7 = call double @llvm.fma.f64(double %p8, double %r, double 0x3FAE1E1E1E1E1E1E)  ; 1/17
  %p6 = call double @llvm.fma.f64(double %p7, double %r, double 0x3FB1111111111111)  ; 1/15
  %p5 = call double @llvm.fma.f64(double %p6, double %r, double 0x3FB3B13B13B13B14)  ; 1/13
  %p4 = call double @llvm.fma.f64(double %p5, double %r, double 0x3FB745D1745D1746)  ; 1/11
  %p3 = call double @llvm.fma.f64(double %p4, double %r, double 0x3FBC71C71C71C71C)  ; 1/9
  %p2 = call double @llvm.fma.f64(double %p3, double %r, double 0x3FC2492492492492)  ; 1/7
  %p1 = call double @llvm.fma.f64(double %p2, double %r, double 0x3FC999999999999A)  ; 1/5
  %sum = call double @llvm.fma.f64(double %p1, double %r, double 0x3FD5555555555555)  ; 1/3
  %s2 = fadd double %s, %s
  %odd = fmul double %s2, %r
  %curved = fmul double %odd, %sum
  %share = fdiv double %lost, %u
  %little = call double @llvm.fma.f64(double %k, double 0x3DEA39EF35793C76, double %share)
  %tail = fadd double %curved, %little
  %near = fadd double %s2, %tail
  %whole = call double @llvm.fma.f64(double %k, double 0x3FE62E42FEE00000, double %near)
  %endless = fcmp oeq double %x, 0x7FF0000000000000
  %log = select i1 %endless, double %x, double %whole
  ret double %log
}

; -- float32 ---------------------------------------------------------------------------------------

define linkonce_odr float @tvmf_exp_float32(float %x) alwaysinline {
  %wide = fpext float %x to double
  %value = call double @tvmf_exp_float64(double %wide)
  %near = fptrunc double %value to float
  ret float %near
}

define linkonce_odr float @tvmf_exp2_float32(float %x) alwaysinline {
  %wide = fpext float %x to double
  %value = call double @tvmf_exp2_float64(double %wide)
  %near = fptrunc double %value to float
  ret float %near
}

define linkonce_odr float @tvmf_log1p_float32(float %x) alwaysinline {
  %wide = fpext float %x to double
  %value = call double @tvmf_log1p_float64(double %wide)
  %near = fptrunc double %value to float
  ret float %near
}
