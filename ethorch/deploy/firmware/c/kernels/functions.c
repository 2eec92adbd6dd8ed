/* Exponential, logarithmic, trigonometric and error functions. They use only float32, because many FPUs do not support double.
 *
 * Polynomials are Taylor series if the argument can be reduced to a small range. docs/cpu-kernels.md lists the measured errors in
 * units of the last place.
 */

#include "arithmetic.h"

#define INFINITE etk_from_bits(0x7F800000U)
#define NOT_A_NUMBER etk_from_bits(0x7FC00000U)
#define LN2 0.693147182F
#define LN2_HIGH 0.693145751953125F /* 16 bits, so that the product with an exponent is exact */
#define LN2_LOW 1.42860682E-6F
#define LOG2_E 1.44269502F

/* Return x * 2^exponent, for exponents from -252 to 254. */
static float scale_by_power_of_two(float x, int32_t exponent) {
  const int32_t half = exponent / 2;
  return x * etk_from_bits((uint32_t)(half + 127) << 23) * etk_from_bits((uint32_t)(exponent - half + 127) << 23);
}

/* Return e^r - 1 for |r| <= ln(2) / 2. */
static float small_expm1(float r) {
  const float q =
      0.5F + r * (0.166666672F + r * (0.0416666679F + r * (0.00833333377F + r * (0.00138888892F + r * 0.000198412701F))));
  return r + r * r * q;
}

/* Return k and store r, with x = k * ln(2) + r. */
static int32_t reduce_by_ln2(float x, float *r) {
  const float k = etk_nearest(x * LOG2_E);
  *r = (x - k * LN2_HIGH) - k * LN2_LOW;
  return (int32_t)k;
}

static float exponential(float x) {
  float r;
  int32_t k;
  if (x != x) {
    return x;
  }
  if (x > 88.7228394F) { /* ln of the largest finite float */
    return INFINITE;
  }
  if (x < -103.972084F) { /* ln of half of the smallest positive float */
    return 0.0F;
  }
  k = reduce_by_ln2(x, &r);
  return scale_by_power_of_two(1.0F + small_expm1(r), k);
}

static float expm1_of(float x) {
  float r, power;
  int32_t k;
  if (x != x || x == 0.0F) {
    return x;
  }
  if (x > 88.7228394F) {
    return INFINITE;
  }
  if (x < -17.5F) { /* e^x is less than half a unit in the last place of 1 */
    return -1.0F;
  }
  k = reduce_by_ln2(x, &r);
  if (k == 0) {
    return small_expm1(x);
  }
  if (k > 24) {
    return scale_by_power_of_two(1.0F + small_expm1(r), k) - 1.0F;
  }
  power = etk_from_bits((uint32_t)(k + 127) << 23);
  return (power - 1.0F) + power * small_expm1(r);
}

/* Return ln(1 + f) for 1 + f between sqrt(1/2) and sqrt(2): 2 artanh(s) with s = f / (2 + f), as f minus a correction. */
static float small_log1p(float f) {
  const float s = f / (2.0F + f), z = s * s, half = 0.5F * f * f;
  const float rest = z * (0.666666687F + z * (0.4F + z * (0.285714298F + z * 0.222222224F)));
  return f - (half - s * (half + rest));
}

/* Return e and store m - 1, for a positive x = m * 2^e. */
static int32_t reduce_to_one(float x, float *f) {
  uint32_t bits = etk_bits(x);
  int32_t e = 0;
  if (bits < 0x800000U) {
    bits = etk_bits(x * 8388608.0F);
    e = -23;
  }
  bits += 0x3F800000U - 0x3F3504F3U; /* m is at least sqrt(1/2) */
  e += (int32_t)(bits >> 23) - 127;
  *f = etk_from_bits((bits & 0x7FFFFFU) + 0x3F3504F3U) - 1.0F;
  return e;
}

/* Return the logarithm of x if x is not a positive finite number. */
static float log_at_edge(float x) {
  return (x == 0.0F) ? -INFINITE : (x > 0.0F || x != x) ? x : NOT_A_NUMBER;
}

static int is_positive_finite(float x) {
  return x > 0.0F && x < INFINITE;
}

static float logarithm(float x) {
  float f, e;
  if (!is_positive_finite(x)) {
    return log_at_edge(x);
  }
  e = (float)reduce_to_one(x, &f);
  return e * LN2_HIGH + (small_log1p(f) + e * LN2_LOW);
}

static float log1p_of(float x) {
  float f, e, sum, lost;
  if (x < 0.4142F && x > -0.2928F) {
    return (x == 0.0F) ? x : small_log1p(x);
  }
  sum = 1.0F + x;
  if (!is_positive_finite(sum)) {
    return log_at_edge(sum);
  }
  lost = (x < 1.0F) ? x - (sum - 1.0F) : 1.0F - (sum - x);
  e = (float)reduce_to_one(sum, &f);
  return e * LN2_HIGH + (small_log1p(f) + (e * LN2_LOW + lost / sum));
}

static float log2_of(float x) {
  float f, e, part;
  if (!is_positive_finite(x)) {
    return log_at_edge(x);
  }
  e = (float)reduce_to_one(x, &f);
  part = small_log1p(f);
  return e + (part + part * 0.442695041F); /* log2(e) = 1 + 0.4427 */
}

static float log10_of(float x) {
  float f, e;
  if (!is_positive_finite(x)) {
    return log_at_edge(x);
  }
  e = (float)reduce_to_one(x, &f);
  return e * 0.301025390625F + (small_log1p(f) * 0.434294482F + e * 4.60503907E-6F); /* log10(2) in two parts */
}

/* Return x - x * c / (1 + c), from the continued fraction 1 + x^2 / (3 + x^2 / (5 + x^2 / (7 + x^2 / 9))) = 1 + c. */
static float hyperbolic_tangent(float x) {
  const float size = etk_magnitude(x);
  if (size < 0.625F) {
    const float s = x * x, over = s * (315.0F + 14.0F * s);
    return (size < 0.0001F) ? x : x - x * (over / (945.0F + 105.0F * s + s * s + over));
  }
  if (size > 9.1F) { /* 1 - tanh is less than half a unit in the last place */
    return etk_with_sign_of(1.0F, x);
  }
  return (x != x) ? x : etk_with_sign_of(1.0F - 2.0F / (exponential(2.0F * size) + 1.0F), x);
}

/* Return the quadrant of a finite x, and store the remainder within -pi/4 .. pi/4. */
static uint32_t reduce_by_half_pi(float x, float *r) {
  /* 2 / pi in words of 32 bits, after a word of zeros. */
  static const uint32_t two_over_pi[9] = {0U,          0xA2F9836EU, 0x4E441529U, 0xFC2757D1U, 0xF534DDC0U,
                                          0xDB629599U, 0x3C439041U, 0xFE5163ABU, 0xDEBBC561U};
  const uint32_t bits = etk_bits(x) & 0x7FFFFFFFU;
  if (bits < 0x3F490FDBU) { /* pi / 4 */
    *r = x;
    return 0U;
  }
  {
    /* x = digits * 2^shift. Multiples of 4 in digits * 2^shift * 2/pi have no effect, so the window has the 96 bits below them. */
    const uint32_t digits = (bits & 0x7FFFFFU) | 0x800000U;
    const int32_t shift = (int32_t)(bits >> 23) - 150;
    const uint32_t first = (uint32_t)(shift + 30), word = first / 32U, left = first % 32U;
    uint32_t window[3], quadrant;
    uint64_t low, middle, product;
    int64_t fraction;
    float part;
    uint32_t i;
    for (i = 0U; i < 3U; ++i) {
      const uint32_t a = two_over_pi[word + i], b = two_over_pi[word + i + 1U];
      window[i] = (left == 0U) ? a : (a << left) | (b >> (32U - left));
    }
    low = (uint64_t)digits * window[2];
    middle = (uint64_t)digits * window[1] + (low >> 32);
    product = ((uint64_t)digits * window[0] << 32) + middle; /* 2 bits of the quadrant, 62 bits of the fraction */
    quadrant = (uint32_t)((product + ((uint64_t)1 << 61)) >> 62);
    product <<= 2;
    fraction = (product >> 63 != 0U) ? -(int64_t)(~product) - 1 : (int64_t)product;
    part = (float)fraction * 8.51530395E-20F; /* pi / 2 / 2^64 */
    *r = (x < 0.0F) ? -part : part;
    return ((x < 0.0F) ? 0U - quadrant : quadrant) & 3U;
  }
}

static float small_sine(float r) {
  const float z = r * r;
  return r + r * z * (-0.166666672F + z * (0.00833333377F + z * (-0.000198412701F + z * 2.75573188E-6F)));
}

static float small_cosine(float r) {
  const float z = r * r;
  return (1.0F - 0.5F * z) +
         z * z * (0.0416666679F + z * (-0.00138888892F + z * (2.48015876E-5F + z * -2.755732E-7F)));
}

/* Return sin(x + turns * pi / 2). */
static float sine_after(float x, uint32_t turns) {
  float r, value;
  uint32_t quadrant;
  if (!(etk_magnitude(x) < INFINITE)) {
    return NOT_A_NUMBER;
  }
  quadrant = reduce_by_half_pi(x, &r) + turns;
  value = ((quadrant & 1U) != 0U) ? small_cosine(r) : small_sine(r);
  return ((quadrant & 2U) != 0U) ? -value : value;
}

static float tangent(float x) {
  float r;
  uint32_t quadrant;
  if (!(etk_magnitude(x) < INFINITE)) {
    return NOT_A_NUMBER;
  }
  quadrant = reduce_by_half_pi(x, &r);
  if (etk_magnitude(r) < 0.0002F && (quadrant & 1U) == 0U) {
    return r;
  }
  return ((quadrant & 1U) != 0U) ? -small_cosine(r) / small_sine(r) : small_sine(r) / small_cosine(r);
}

/* Return erf(x): a Taylor series up to 0.9, and 1 - erfc for larger x. erfc is e^(-x^2) times a polynomial of degree 7 in
 * t = 1 / (1 + x / 2), which interpolates at the Chebyshev nodes of x = 0.9 .. 4 and has an error of 1.2e-9. */
static float error_function(float x) {
  const float size = etk_magnitude(x);
  if (size < 0.9F) {
    const float s = x * x;
    const float series = s * (-0.333333343F + s * (0.1F + s * (-0.0238095243F + s * (0.00462962966F + s * (-0.000757575757F +
                         s * (0.000106837608F + s * (-1.32275137E-5F + s * (1.4589169E-6F + s * -1.45038531E-7F))))))));
    return x * 1.12837917F + x * 1.12837917F * series; /* 2 / sqrt(pi) */
  }
  if (size > 3.93F) { /* erfc is less than half a unit in the last place of 1 */
    return (x != x) ? x : etk_with_sign_of(1.0F, x);
  }
  {
    const float t = 1.0F / (1.0F + 0.5F * size);
    const float factor = -0.0001656854498F + t * (0.2850821008F + t * (0.258629118F + t * (0.3514296741F + t * (-0.1109791573F +
                         t * (0.5721441608F + t * (-0.4770732894F + t * 0.120996483F))))));
    return etk_with_sign_of(1.0F - exponential(-size * size) * factor, x);
  }
}

#define ETK_FUNCTION(NAME, EXPRESSION)                                                                                   \
  void etk_##NAME##_f32(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,       \
                        const void *parameters) {                                                                        \
    const uint8_t *from = in[0];                                                                                         \
    int32_t i;                                                                                                           \
    (void)parameters;                                                                                                    \
    for (i = 0; i < count; ++i) {                                                                                        \
      const float x = *(const etk_f32 *)(const void *)from;                                                              \
      *(etk_f32 *)(void *)out = (EXPRESSION);                                                                            \
      out += step[0];                                                                                                    \
      from += step[1];                                                                                                   \
    }                                                                                                                    \
  }

ETK_FUNCTION(exp, exponential(x))
ETK_FUNCTION(expm1, expm1_of(x))
ETK_FUNCTION(log, logarithm(x))
ETK_FUNCTION(log1p, log1p_of(x))
ETK_FUNCTION(log2, log2_of(x))
ETK_FUNCTION(log10, log10_of(x))
ETK_FUNCTION(tanh, hyperbolic_tangent(x))
ETK_FUNCTION(sigmoid, 1.0F / (1.0F + exponential(-x)))
ETK_FUNCTION(sin, sine_after(x, 0U))
ETK_FUNCTION(cos, sine_after(x, 1U))
ETK_FUNCTION(tan, tangent(x))
ETK_FUNCTION(erf, error_function(x))
ETK_FUNCTION(gelu, 0.5F * x * (1.0F + error_function(x * 0.707106769F)))
ETK_FUNCTION(gelu_tanh, 0.5F * x * (1.0F + hyperbolic_tangent(0.797884583F * (x + 0.0447149985F * x * x * x))))

float etk_exp(float x) {
  return exponential(x);
}

float etk_log(float x) {
  return logarithm(x);
}

void etk_elu_f32(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                 const void *parameters) {
  const etk_f32 *const p = parameters;
  const uint8_t *from = in[0];
  int32_t i;
  for (i = 0; i < count; ++i) {
    const float x = *(const etk_f32 *)(const void *)from;
    *(etk_f32 *)(void *)out = (x <= 0.0F) ? expm1_of(x * p[2]) * (p[0] * p[1]) : x * p[1];
    out += step[0];
    from += step[1];
  }
}
