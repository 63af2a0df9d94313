; exp, exp2 and log1p for exported libraries: the same bits on every processor and with every C
; library.
;
; exp(x) = 2^(k / N) e^r for an integer k and a small r: a table holds 2^(i / 128) more exactly than
; a double, and a polynomial gives e^r - 1. Table, degrees and coefficients are those that Arm
; published, which the C libraries of GNU, musl, Android and FreeBSD use. So values have the bits of
; glibc on processors with FMA, where its products and sums are fused. The same products and sums
; are fused here on every processor (`fma`), and all other products are rounded. The coefficients of
; the logarithm are those of Sun's library, which glibc uses too.

declare double @llvm.fma.f64(double, double, double)
declare double @llvm.arithmetic.fence.f64(double)

; -- float32, by arithmetic of float64: 2^(k / 32) 2^r, for k in the lower bits of a number --------

define internal float @tvmf_cubic_power(i64 %k, double %r) noinline {
  %number = shl i64 %k, 2
  %place = and i64 %number, 127
  %entry = getelementptr [128 x [2 x i64]], ptr @tvmf_powers, i64 0, i64 %place, i64 1
  %fraction = load i64, ptr %entry
  %exponent = shl i64 %k, 47
  %bits = add i64 %fraction, %exponent
  %scale = bitcast i64 %bits to double
  %cubed = fmul double %r, 0x3FAC6AF84B912394
  %cubed.rounded = call double @llvm.arithmetic.fence.f64(double %cubed)
  %high = fadd double %cubed.rounded, 0x3FCEBFCE50FAC4F3
  %low = fmul double %r, 0x3FE62E42FF0C52D6
  %low.rounded = call double @llvm.arithmetic.fence.f64(double %low)
  %line = fadd double %low.rounded, 1.0
  %square = fmul double %r, %r
  %square.rounded = call double @llvm.arithmetic.fence.f64(double %square)
  %curve = fmul double %high, %square.rounded
  %curve.rounded = call double @llvm.arithmetic.fence.f64(double %curve)
  %power = fadd double %curve.rounded, %line
  %value = fmul double %power, %scale
  %near = fptrunc double %value to float
  ret float %near
}

define internal float @tvmf_exp_float32(float %x) {
  %wide = fpext float %x to double
  %over = fcmp ogt double %wide, 200.0
  %below = select i1 %over, double 200.0, double %wide
  %under = fcmp olt double %below, -200.0
  %within = select i1 %under, double -200.0, double %below
  %product = fmul double %within, 0x40471547652B82FE    ; 32 / ln 2
  %scaled = call double @llvm.arithmetic.fence.f64(double %product)
  %shifted = fadd double %scaled, 0x4338000000000000    ; its lower bits are the nearest number
  %k = bitcast double %shifted to i64
  %whole = fsub double %shifted, 0x4338000000000000
  %high = fmul double %within, 0x4047154765000000    ; exact, as is the rest of 32 / ln 2
  %low = fmul double %within, 0x3E55C17F00000000
  %near = fsub double %high, %whole
  %steps = fadd double %near, %low    ; so it is rounded once, as a fused product is
  %r = fmul double %steps, 0x3FA0000000000000    ; 1 / 32
  %r.rounded = call double @llvm.arithmetic.fence.f64(double %r)
  %value = call float @tvmf_cubic_power(i64 %k, double %r.rounded)
  ret float %value
}

define internal float @tvmf_exp2_float32(float %x) {
  %wide = fpext float %x to double
  %over = fcmp ogt double %wide, 200.0
  %below = select i1 %over, double 200.0, double %wide
  %under = fcmp olt double %below, -200.0
  %within = select i1 %under, double -200.0, double %below
  %shifted = fadd double %within, 0x42E8000000000000    ; its lower bits are the nearest 32nd
  %k = bitcast double %shifted to i64
  %whole = fsub double %shifted, 0x42E8000000000000
  %r = fsub double %within, %whole
  %value = call float @tvmf_cubic_power(i64 %k, double %r)
  ret float %value
}

; -- float64: 2^(k / 128) (1 + rest), where results may be too large or too small to be normal -----

define internal double @tvmf_scaled_power(i64 %k, double %rest) noinline {
  %place = and i64 %k, 127
  %entry = getelementptr [128 x [2 x i64]], ptr @tvmf_powers, i64 0, i64 %place, i64 1
  %fraction = load i64, ptr %entry
  %step = shl i64 %place, 45
  %bits = add i64 %fraction, %step
  %one = bitcast i64 %bits to double    ; in [1, 2)
  %short = trunc i64 %k to i32
  %short.exponent = ashr i32 %short, 7
  %exponent = sext i32 %short.exponent to i64
  %is.small = icmp slt i64 %exponent, -1021
  br i1 %is.small, label %small, label %normal

normal:
  %value = call double @llvm.fma.f64(double %one, double %rest, double %one)
  %half = ashr i64 %exponent, 1
  %other = sub i64 %exponent, %half
  %half.bits = add i64 %half, 1023
  %half.moved = shl i64 %half.bits, 52
  %half.power = bitcast i64 %half.moved to double
  %other.bits = add i64 %other, 1023
  %other.moved = shl i64 %other.bits, 52
  %other.power = bitcast i64 %other.moved to double
  %halfway = fmul double %value, %half.power
  %power = fmul double %halfway, %other.power
  ret double %power

small:    ; 2^1022 times as large; below 1 it is rounded to the bits that are left once it is small
  %raised = add i64 %exponent, 2045
  %raised.moved = shl i64 %raised, 52
  %raised.power = bitcast i64 %raised.moved to double
  %scale = fmul double %one, %raised.power
  %large = call double @llvm.fma.f64(double %scale, double %rest, double %scale)
  %lost = fsub double %scale, %large
  %low = call double @llvm.fma.f64(double %scale, double %rest, double %lost)
  %high = fadd double %large, 1.0
  %gone = fsub double 1.0, %high
  %back = fadd double %gone, %large
  %tail = fadd double %back, %low
  %sum = fadd double %high, %tail
  %near = fsub double %sum, 1.0
  %is.below = fcmp olt double %large, 1.0
  %kept = select i1 %is.below, double %near, double %large
  %tiny = fmul double %kept, 0x0010000000000000
  ret double %tiny
}

define internal double @tvmf_exp_float64(double %x) {
  %over = fcmp ogt double %x, 1024.0
  %below = select i1 %over, double 1024.0, double %x
  %under = fcmp olt double %below, -1024.0
  %within = select i1 %under, double -1024.0, double %below
  %shifted = call double @llvm.fma.f64(double %within, double 0x40671547652B82FE, double 0x4338000000000000)    ; 128 / ln 2
  %k = bitcast double %shifted to i64
  %whole = fsub double %shifted, 0x4338000000000000
  %near = call double @llvm.fma.f64(double %whole, double 0xBF762E42FEFA0000, double %within)    ; ln 2 / 128, in two parts
  %r = call double @llvm.fma.f64(double %whole, double 0xBD0CF79ABC9E3B39, double %near)
  %place = and i64 %k, 127
  %entry = getelementptr [128 x [2 x i64]], ptr @tvmf_powers, i64 0, i64 %place, i64 0
  %more = load double, ptr %entry
  %linear = fadd double %more, %r
  %square.product = fmul double %r, %r
  %square = call double @llvm.arithmetic.fence.f64(double %square.product)
  %inner = call double @llvm.fma.f64(double %r, double 0x3FC555555555543C, double 0x3FDFFFFFFFFFFDBD)
  %sum = call double @llvm.fma.f64(double %square, double %inner, double %linear)
  %fourth.product = fmul double %square, %square
  %fourth = call double @llvm.arithmetic.fence.f64(double %fourth.product)
  %outer = call double @llvm.fma.f64(double %r, double 0x3F81111167A4D017, double 0x3FA55555CF172B91)
  %rest = call double @llvm.fma.f64(double %fourth, double %outer, double %sum)
  %value = call double @tvmf_scaled_power(i64 %k, double %rest)
  ret double %value
}

define internal double @tvmf_exp2_float64(double %x) {
  %over = fcmp ogt double %x, 1100.0
  %below = select i1 %over, double 1100.0, double %x
  %under = fcmp olt double %below, -1100.0
  %within = select i1 %under, double -1100.0, double %below
  %shifted = fadd double %within, 0x42C8000000000000    ; its lower bits are the nearest 128th
  %k = bitcast double %shifted to i64
  %whole = fsub double %shifted, 0x42C8000000000000
  %r = fsub double %within, %whole
  %place = and i64 %k, 127
  %entry = getelementptr [128 x [2 x i64]], ptr @tvmf_powers, i64 0, i64 %place, i64 0
  %more = load double, ptr %entry
  %linear = call double @llvm.fma.f64(double %r, double 0x3FE62E42FEFA39EF, double %more)
  %square.product = fmul double %r, %r
  %square = call double @llvm.arithmetic.fence.f64(double %square.product)
  %inner = call double @llvm.fma.f64(double %r, double 0x3FAC6B08D70CF4B5, double 0x3FCEBFBDFF82C424)
  %sum = call double @llvm.fma.f64(double %square, double %inner, double %linear)
  %fourth.product = fmul double %square, %square
  %fourth = call double @llvm.arithmetic.fence.f64(double %fourth.product)
  %outer = call double @llvm.fma.f64(double %r, double 0x3F55D7E09B4E3A84, double 0x3F83B2ABD24650CC)
  %rest = call double @llvm.fma.f64(double %fourth, double %outer, double %sum)
  %value = call double @tvmf_scaled_power(i64 %k, double %rest)
  ret double %value
}

; -- log(1 + x) for x >= 0: 1 + x = 2^k (1 + f), and what 1 + x has lost ---------------------------

define internal double @tvmf_log1p_float64(double %x) {
  %is.near = fcmp olt double %x, 0x3FDA827A00000000
  %is.huge = fcmp oge double %x, 0x4340000000000000    ; 2^53, where 1 is lost
  %more = fadd double %x, 1.0
  %u = select i1 %is.huge, double %x, double %more
  %gone = fsub double %u, %x
  %upper = fsub double 1.0, %gone
  %above = fsub double %u, 1.0
  %lower = fsub double %x, %above
  %is.large = fcmp oge double %u, 2.0
  %lost = select i1 %is.large, double %upper, double %lower
  %share = fdiv double %lost, %u
  %is.whole = or i1 %is.near, %is.huge
  %c = select i1 %is.whole, double 0.0, double %share
  %bits = bitcast double %u to i64
  %field = lshr i64 %bits, 52
  %fraction = and i64 %bits, 4503599627370495
  %head = lshr i64 %fraction, 32
  %is.low = icmp ult i64 %head, 434334    ; below the root of 2
  %one.or.half = select i1 %is.low, i64 4607182418800017408, i64 4602678819172646912
  %scaled.bits = or i64 %fraction, %one.or.half
  %m = bitcast i64 %scaled.bits to double
  %m.less = fsub double %m, 1.0
  %f = select i1 %is.near, double %x, double %m.less
  %bias = select i1 %is.low, i64 1023, i64 1022
  %exponent = sub i64 %field, %bias
  %k = select i1 %is.near, i64 0, i64 %exponent
  %steps = sitofp i64 %k to double
  %high.raw = fmul double %steps, 0x3FE62E42FEE00000    ; ln 2, in two parts
  %high = call double @llvm.arithmetic.fence.f64(double %high.raw)
  %little.raw = fmul double %steps, 0x3DEA39EF35793C76
  %little = call double @llvm.arithmetic.fence.f64(double %little.raw)
  %w = fadd double %little, %c
  %half.raw = fmul double %f, 0.5
  %half = call double @llvm.arithmetic.fence.f64(double %half.raw)
  %h.raw = fmul double %half, %f
  %h = call double @llvm.arithmetic.fence.f64(double %h.raw)
  %f.more = fadd double %f, 2.0
  %s = fdiv double %f, %f.more
  %z.raw = fmul double %s, %s
  %z = call double @llvm.arithmetic.fence.f64(double %z.raw)
  %z2.raw = fmul double %z, %z
  %z2 = call double @llvm.arithmetic.fence.f64(double %z2.raw)
  %z4.raw = fmul double %z2, %z2
  %z4 = call double @llvm.arithmetic.fence.f64(double %z4.raw)
  %z6.raw = fmul double %z4, %z2
  %z6 = call double @llvm.arithmetic.fence.f64(double %z6.raw)
  %r1.raw = fmul double %z, 0x3FE5555555555593
  %r1 = call double @llvm.arithmetic.fence.f64(double %r1.raw)
  %r3.raw = fmul double %z, 0x3FD2492494229359
  %r3 = call double @llvm.arithmetic.fence.f64(double %r3.raw)
  %r2 = fadd double %r3, 0x3FD999999997FA04
  %r5.raw = fmul double %z, 0x3FC7466496CB03DE
  %r5 = call double @llvm.arithmetic.fence.f64(double %r5.raw)
  %r4 = fadd double %r5, 0x3FCC71C51D8E78AF
  %r7.raw = fmul double %z, 0x3FC2F112DF3E5244
  %r7 = call double @llvm.arithmetic.fence.f64(double %r7.raw)
  %r6 = fadd double %r7, 0x3FC39A09D078C69F
  %t2.raw = fmul double %z2, %r2
  %t2 = call double @llvm.arithmetic.fence.f64(double %t2.raw)
  %t4.raw = fmul double %z4, %r4
  %t4 = call double @llvm.arithmetic.fence.f64(double %t4.raw)
  %t6.raw = fmul double %z6, %r6
  %t6 = call double @llvm.arithmetic.fence.f64(double %t6.raw)
  %sum2 = fadd double %r1, %t2
  %sum4 = fadd double %sum2, %t4
  %r = fadd double %sum4, %t6
  %h.more = fadd double %h, %r
  %odd.raw = fmul double %s, %h.more
  %odd = call double @llvm.arithmetic.fence.f64(double %odd.raw)
  %whole = fadd double %odd, %w
  %curved = fsub double %h, %whole
  %slope.raw = fmul double %f, 0x3FE5555555555555
  %slope = call double @llvm.arithmetic.fence.f64(double %slope.raw)
  %rest = fsub double 1.0, %slope
  %cubic.raw = fmul double %h, %rest
  %cubic = call double @llvm.arithmetic.fence.f64(double %cubic.raw)
  %straight = fsub double %cubic, %w
  %far = sub i64 1048576, %head
  %beside = select i1 %is.low, i64 %head, i64 %far
  %least = select i1 %is.low, i64 1, i64 4
  %is.beside = icmp ult i64 %beside, %least    ; a power of 2 but for the lowest bits
  %not.near = xor i1 %is.near, true
  %is.straight = and i1 %is.beside, %not.near
  %part = select i1 %is.straight, double %straight, double %curved
  %less = fsub double %part, %f
  %value = fsub double %high, %less
  %half.x.raw = fmul double %x, 0.5
  %half.x = call double @llvm.arithmetic.fence.f64(double %half.x.raw)
  %square.raw = fmul double %x, %half.x
  %square = call double @llvm.arithmetic.fence.f64(double %square.raw)
  %tiny = fsub double %x, %square
  %is.tiny = fcmp olt double %x, 0x3E20000000000000
  %small = select i1 %is.tiny, double %tiny, double %value
  %is.finite = fcmp olt double %x, 0x7FF0000000000000
  %log = select i1 %is.finite, double %small, double %x
  ret double %log
}

define internal float @tvmf_log1p_float32(float %x) {
  %wide = fpext float %x to double
  %value = call double @tvmf_log1p_float64(double %wide)
  %near = fptrunc double %value to float
  ret float %near
}
