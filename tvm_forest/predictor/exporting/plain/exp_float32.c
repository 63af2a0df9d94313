/* exp of float32 by arithmetic of float64, with the bits of exported libraries. */
static float exp_float32(float x) {
  double within = (double)x > 200.0 ? 200.0 : (double)x < -200.0 ? -200.0 : (double)x;
  double shifted = within * 0x1.71547652b82fep+5 + 0x1.8p+52; /* its lower bits are the nearest number */
  double whole = shifted - 0x1.8p+52;
  /* 32 / ln 2 in two parts, so that it is rounded once */
  double r = (within * 0x1.71547650p+5 - whole + within * 0x1.5c17fp-26) * 0.03125;
  uint64_t k = bits_of_double(shifted);
  double scale = double_of_bits(powers_float32[k & 31] + (k << 47));
  double high = r * 0x1.c6af84b912394p-5 + 0x1.ebfce50fac4f3p-3;
  double line = r * 0x1.62e42ff0c52d6p-1 + 1.0;
  return (float)((high * (r * r) + line) * scale);
}
