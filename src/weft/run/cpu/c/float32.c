/* What is particular to float32. tanh is one rational function of degrees 9 and 8, fitted to a relative error of 2.2e-8 on
   [-9.02, 9.02]; beyond, where tanh rounds to 1, it grows above 1 and is cut there. */
typedef float real;
typedef int integer;
enum { LOWEST = -104, HIGHEST = 89, BIAS = 127, FRACTION = 23, SCALE = 64 };
INLINE real rint_(real x) { return __builtin_rintf(x); }
INLINE real sqrt_(real x) { return __builtin_sqrtf(x); }
INLINE real abs_(real x) { return __builtin_fabsf(x); }
INLINE real rest_(real x, real z) {
  real r = x - z * 0.693359375f + z * 2.12194440e-4f;
  real p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * r * r + r + 1.0f;
}
INLINE real tanh_(real x) {
  x = x < -10.0f ? -10.0f : x;
  x = x > 10.0f ? 10.0f : x;
  real z = x * x;
  real p = 1.3317689855e-8f;
  p = p * z + 2.0582530115e-5f;
  p = p * z + 3.4939800509e-3f;
  p = p * z + 1.3379673571e-1f;
  p = p * z + 9.9999997922e-1f;
  real q = 7.7614654304e-7f;
  q = q * z + 3.2830011037e-4f;
  q = q * z + 2.5870870340e-2f;
  q = q * z + 4.6712988900e-1f;
  q = q * z + 1.0f;
  real t = x * p / q;
  t = t < -1.0f ? -1.0f : t;
  return t > 1.0f ? 1.0f : t;
}
INLINE real log_(real x) {
  real tiny = x < 1.17549435e-38f ? 8388608.0f : 1.0f, y = x * tiny;
  int bits, mantissa;
  __builtin_memcpy(&bits, &y, 4);
  int power = ((bits >> 23) & 255) - 126;
  mantissa = (bits & 0x007fffff) | 0x3f000000;
  real m;
  __builtin_memcpy(&m, &mantissa, 4);
  real low = m < 0.707106781f ? 1.0f : 0.0f, e = (real)power - low - (tiny > 1.0f ? 23.0f : 0.0f);
  m = m - 1.0f + low * m;
  real z = m * m, p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  real found = m + (m * z * p - 2.12194440e-4f * e - 0.5f * z) + 0.693359375f * e;
  found = x == __builtin_inff() ? x : found;
  return x > 0 ? found : x == 0 ? -__builtin_inff() : x - x + __builtin_nanf("");
}
