/* exp of float64 with the bits of exported libraries; fma is that of C, which is exact everywhere. */
static double scaled_power(uint64_t k, double rest) {
  double one = double_of_bits(powers_float64[2 * (k & 127) + 1] + ((k & 127) << 45));
  int64_t low = (int64_t)(k & 0xffffffff), exponent = (low < INT64_C(0x80000000) ? low : low - INT64_C(0x100000000));
  exponent = (exponent - (int64_t)(k & 127)) / 128;
  if (exponent >= -1021) {
    int64_t half = (exponent - (exponent < 0 && exponent % 2)) / 2, other = exponent - half;
    double value = fma(one, rest, one) * double_of_bits((uint64_t)(half + 1023) << 52);
    return value * double_of_bits((uint64_t)(other + 1023) << 52);
  }
  double scale = one * double_of_bits((uint64_t)(exponent + 2045) << 52);
  double large = fma(scale, rest, scale), tail = fma(scale, rest, scale - large);
  double high = large + 1.0;
  double near = high + (1.0 - high + large + tail) - 1.0;
  return (large < 1.0 ? near : large) * 0x1p-1022;
}

static double exp_float64(double x) {
  double within = x > 1024.0 ? 1024.0 : x < -1024.0 ? -1024.0 : x;
  double shifted = fma(within, 0x1.71547652b82fep+7, 0x1.8p+52);
  double whole = shifted - 0x1.8p+52;
  double r = fma(whole, -0x1.cf79abc9e3b39p-47, fma(whole, -0x1.62e42fefap-8, within));
  uint64_t k = bits_of_double(shifted);
  double linear = double_of_bits(powers_float64[2 * (k & 127)]) + r, square = r * r;
  double sum = fma(square, fma(r, 0x1.555555555543cp-3, 0x1.ffffffffffdbdp-2), linear);
  double outer = fma(r, 0x1.1111167a4d017p-7, 0x1.55555cf172b91p-5);
  return scaled_power(k, fma(square * square, outer, sum));
}
