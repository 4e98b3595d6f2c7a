/* What is particular to float64. */
typedef double real;
typedef long long integer;
enum { LOWEST = -746, HIGHEST = 710, BIAS = 1023, FRACTION = 52, SCALE = 512 };
INLINE real rint_(real x) { return __builtin_rint(x); }
INLINE real sqrt_(real x) { return __builtin_sqrt(x); }
INLINE real abs_(real x) { return __builtin_fabs(x); }
INLINE real rest_(real x, real z) {
  real r = x - z * 6.93145751953125e-1 - z * 1.42860682030941723212e-6;
  real s = r * r;
  real p = r * ((1.26177193074810590878e-4 * s + 3.02994407707441961300e-2) * s + 9.99999999999999999910e-1);
  real q = ((3.00198505138664455042e-6 * s + 2.52448340349684104192e-3) * s + 2.27265548208155028766e-1) * s
           + 2.00000000000000000005;
  return 1.0 + 2.0 * p / (q - p);
}
INLINE real fall_(real x);
INLINE real tanh_(real x) {
  real z = x * x;
  real p = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z - 1.61468768441708447952e3;
  real q = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3;
  real near = x + x * z * (p / q);
  real t = fall_(x < 0 ? x + x : -x - x);
  real far = (1.0 - t) / (1.0 + t);
  return z < 0.390625 ? near : x < 0 ? -far : far;
}
INLINE real log_(real x) {
  real tiny = x < 2.2250738585072014e-308 ? 4503599627370496.0 : 1.0, y = x * tiny;
  long long bits, mantissa;
  __builtin_memcpy(&bits, &y, 8);
  long long power = ((bits >> 52) & 2047) - 1022;
  mantissa = (bits & 0x000fffffffffffffLL) | 0x3fe0000000000000LL;
  real m;
  __builtin_memcpy(&m, &mantissa, 8);
  real low = m < 0.70710678118654752440 ? 1.0 : 0.0, e = (real)power - low - (tiny > 1.0 ? 52.0 : 0.0);
  m = m - 1.0 + low * m;
  real z = m * m, p = 1.01875663804580931796e-4, q = m + 1.12873587189167450590e1;
  p = p * m + 4.97494994976747001425e-1;
  p = p * m + 4.70579119878881725854;
  p = p * m + 1.44989225341610930846e1;
  p = p * m + 1.79368678507819816313e1;
  p = p * m + 7.70838733755885391666;
  q = q * m + 4.52279145837532221105e1;
  q = q * m + 8.29875266912776603211e1;
  q = q * m + 7.11544750618563894466e1;
  q = q * m + 2.31251620126765340583e1;
  real found = m + (m * (z * p / q) - e * 2.121944400546905827679e-4 - 0.5 * z) + e * 0.693359375;
  found = x == __builtin_inf() ? x : found;
  return x > 0 ? found : x == 0 ? -__builtin_inf() : x - x + __builtin_nan("");
}
