/* Functions of one number, for both precisions. They are written out so that any compiler can turn loops over them into vector
   instructions: range reduction and rational or polynomial approximations after S. Moshier's Cephes library (1989), with a
   relative error of a few units in the last place. `rest_` is exp of what x has beyond z times the logarithm of 2. */

/* As a function it reads both: where only one is read some compilers (gcc 12) make masked loads of other rows' masks. */
INLINE real pick_(int condition, real a, real b) { return condition ? a : b; }
INLINE real two_to_(integer power) {
  integer bits = (power + BIAS) << FRACTION;
  real found;
  __builtin_memcpy(&found, &bits, sizeof(real));
  return found;
}
INLINE real nearest_power_(real x) { return rint_(x * (real)1.4426950408889634073599); }
/* exp of what is not positive, which is all that sigmoid and tanh need; the power of two in two parts, so that underflow is
   gradual. Integer conversion of NaN is left alone: it is multiplied by NaN afterwards. */
INLINE real fall_(real x) {
  x = x < LOWEST ? LOWEST : x;
  real z = nearest_power_(x);
  return rest_(x, z) * two_to_((integer)z + SCALE) * two_to_(-SCALE);
}
INLINE real exp_(real x) {
  x = x < LOWEST ? LOWEST : x > HIGHEST ? HIGHEST : x;
  real z = nearest_power_(x);
  integer power = (integer)z, half = power >> 1;
  return rest_(x, z) * two_to_(half) * two_to_(power - half);
}
INLINE real sigmoid_(real x) {
  real e = fall_(x < 0 ? x : -x);
  return (x < 0 ? e : 1) / (1 + e);
}
INLINE real expm1_(real x) {
  real t = tanh_(x / 2);
  return x < (real)0.5 ? 2 * t / (1 - t) : exp_(x) - 1;
}
INLINE real log1p_(real x) {
  real y = x + 1;
  return y == 1 ? x : x > 1 ? log_(y) : log_(y) * (x / (y - 1));
}
