// Vectors of the widest type that the compiler may use: ethorch/npu/plan/library.py builds this library once per level, with the
// level's flags, and loads the best one that the CPU supports. Every function has a version in plain C++.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define LEVEL_AVX512 1
constexpr int LANES = 16, MOST_PIXELS = 12;
constexpr bool HAS_BYTE_DOT = true;
#elif defined(__AVX2__) && defined(__FMA__)
#define LEVEL_AVX2 1
constexpr int LANES = 8, MOST_PIXELS = 6;
constexpr bool HAS_BYTE_DOT = false;
#else
constexpr int LANES = 4, MOST_PIXELS = 6;
constexpr bool HAS_BYTE_DOT = false;
#endif

typedef int32_t vi32 __attribute__((vector_size(4 * LANES)));
typedef float vf32 __attribute__((vector_size(4 * LANES)));
typedef int32_t vi32_unaligned __attribute__((vector_size(4 * LANES), aligned(1), may_alias));
typedef float vf32_unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vi32 load(const int32_t *p) { return *(const vi32_unaligned *)p; }
static inline vf32 load(const float *p) { return *(const vf32_unaligned *)p; }
static inline void store(int32_t *p, vi32 v) { *(vi32_unaligned *)p = v; }

// The sum of n integers, modulo 2**32.
static inline int32_t sum_of(const void *from, int64_t n) {
    const uint8_t *p = (const uint8_t *)from;
    vi32 a = {}, b = {};
    for (; n >= 2 * LANES; n -= 2 * LANES, p += 8 * LANES) {
        a += *(const vi32_unaligned *)p;
        b += *(const vi32_unaligned *)(p + 4 * LANES);
    }
    if (n >= LANES) a += *(const vi32_unaligned *)p, n -= LANES, p += 4 * LANES;
    a += b;
#if LEVEL_AVX512
    const __mmask16 rest = (__mmask16)((1u << n) - 1);
    return _mm512_reduce_add_epi32(_mm512_add_epi32((__m512i)a, _mm512_maskz_loadu_epi32(rest, p)));
#else
    int32_t sum = 0;
    for (int k = 0; k < LANES; k++) sum += a[k];
    for (; n; n--, p += 4) {
        int32_t v;
        memcpy(&v, p, 4);
        sum += v;
    }
    return sum;
#endif
}

// sum + products of the values in four bytes. Sums wrap at 32 bits, so only the result must fit.
template <int ELEMENT>
static inline vi32 dot(vi32 sum, int32_t pixel, vi32 weights);

#if LEVEL_AVX512
template <>
inline vi32 dot<1>(vi32 sum, int32_t pixel, vi32 weights) {
    return (vi32)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(pixel), (__m512i)weights);
}
template <>
inline vi32 dot<2>(vi32 sum, int32_t pixel, vi32 weights) {
    return (vi32)_mm512_dpwssd_epi32((__m512i)sum, _mm512_set1_epi32(pixel), (__m512i)weights);
}
#else
template <>
inline vi32 dot<1>(vi32 sum, int32_t pixel, vi32 weights) {
    for (int k = 0; k < 4; k++) sum += (int32_t)(uint8_t)(pixel >> (8 * k)) * ((weights << (24 - 8 * k)) >> 24);
    return sum;
}
#if LEVEL_AVX2
template <>
inline vi32 dot<2>(vi32 sum, int32_t pixel, vi32 weights) {
    return sum + (vi32)_mm256_madd_epi16(_mm256_set1_epi32(pixel), (__m256i)weights);
}
#elif defined(__SSE2__)
template <>
inline vi32 dot<2>(vi32 sum, int32_t pixel, vi32 weights) {
    return sum + (vi32)_mm_madd_epi16(_mm_set1_epi32(pixel), (__m128i)weights);
}
#elif defined(__ARM_NEON) && defined(__aarch64__)
template <>
inline vi32 dot<2>(vi32 sum, int32_t pixel, vi32 weights) {
    const int16x8_t p = vreinterpretq_s16_s32(vdupq_n_s32(pixel)), w = vreinterpretq_s16_s32((int32x4_t)weights);
    return sum + (vi32)vpaddq_s32(vmull_s16(vget_low_s16(p), vget_low_s16(w)), vmull_high_s16(p, w));
}
#else
template <>
inline vi32 dot<2>(vi32 sum, int32_t pixel, vi32 weights) {
    return sum + (int32_t)(int16_t)pixel * ((weights << 16) >> 16) + (pixel >> 16) * (weights >> 16);
}
#endif
#endif

// LANES sums -> min(max(floor(sum*factor + addend), low), high), with integers low and high.
// STEP is 1 if factor and addends are arrays, 0 if they are scalars.
template <bool SYMMETRIC, int STEP>
static inline vi32 quantize(vi32 sums, const double *factor, const double *above, const double *below, double low, double high) {
#if LEVEL_AVX512
    const __m512d least = _mm512_set1_pd(low), most = _mm512_set1_pd(high);
    __m256i half[2];
    for (int k = 0; k < 2; k++) {
        const __m512d x = _mm512_cvtepi32_pd(k ? _mm512_extracti64x4_epi64((__m512i)sums, 1) : _mm512_castsi512_si256((__m512i)sums));
        const __m512d f = STEP ? _mm512_loadu_pd(factor + 8 * k) : _mm512_set1_pd(*factor);
        __m512d add = STEP ? _mm512_loadu_pd(above + 8 * k) : _mm512_set1_pd(*above);
        if (SYMMETRIC) {
            const __m512d under = STEP ? _mm512_loadu_pd(below + 8 * k) : _mm512_set1_pd(*below);
            add = _mm512_mask_mov_pd(add, _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_LT_OQ), under);
        }
        const __m512d y = _mm512_min_pd(_mm512_max_pd(_mm512_fmadd_pd(x, f, add), least), most);
        half[k] = _mm512_cvt_roundpd_epi32(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    }
    return (vi32)_mm512_inserti64x4(_mm512_castsi256_si512(half[0]), half[1], 1);
#elif LEVEL_AVX2
    const __m256d least = _mm256_set1_pd(low), most = _mm256_set1_pd(high);
    __m128i half[2];
    for (int k = 0; k < 2; k++) {
        const __m256d x = _mm256_cvtepi32_pd(k ? _mm256_extracti128_si256((__m256i)sums, 1) : _mm256_castsi256_si128((__m256i)sums));
        const __m256d f = STEP ? _mm256_loadu_pd(factor + 4 * k) : _mm256_set1_pd(*factor);
        __m256d add = STEP ? _mm256_loadu_pd(above + 4 * k) : _mm256_set1_pd(*above);
        if (SYMMETRIC) {
            const __m256d under = STEP ? _mm256_loadu_pd(below + 4 * k) : _mm256_set1_pd(*below);
            add = _mm256_blendv_pd(add, under, _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_LT_OQ));
        }
        const __m256d y = _mm256_min_pd(_mm256_max_pd(_mm256_floor_pd(_mm256_fmadd_pd(x, f, add)), least), most);
        half[k] = _mm256_cvttpd_epi32(y);
    }
    return (vi32)_mm256_inserti128_si256(_mm256_castsi128_si256(half[0]), half[1], 1);
#else
    vi32 result;
    for (int k = 0; k < LANES; k++) {
        const double x = sums[k], add = SYMMETRIC && sums[k] < 0 ? below[STEP * k] : above[STEP * k];
        const double y = std::floor(x * factor[STEP * k] + add);
        result[k] = (int32_t)(y < low ? low : y > high ? high : y);
    }
    return result;
#endif
}

// LANES sums -> min(max(((sum*multiplier + addend) >> shift) + zero point, low), high); multipliers have 32 bits.
template <bool SYMMETRIC, int STEP>
static inline vi32 quantize_long(
    vi32 sums, const int64_t *multiplier, const int64_t *shift, const int64_t *above, const int64_t *below, int64_t zero_point, int64_t low, int64_t high) {
#if LEVEL_AVX512
    const __m512i least = _mm512_set1_epi64(low), most = _mm512_set1_epi64(high), zero = _mm512_set1_epi64(zero_point);
    __m256i half[2];
    for (int k = 0; k < 2; k++) {
        const __m512i x = _mm512_cvtepi32_epi64(k ? _mm512_extracti64x4_epi64((__m512i)sums, 1) : _mm512_castsi512_si256((__m512i)sums));
        const __m512i m = STEP ? _mm512_loadu_si512(multiplier + 8 * k) : _mm512_set1_epi64(*multiplier);
        const __m512i by = STEP ? _mm512_loadu_si512(shift + 8 * k) : _mm512_set1_epi64(*shift);
        __m512i add = STEP ? _mm512_loadu_si512(above + 8 * k) : _mm512_set1_epi64(*above);
        if (SYMMETRIC) {
            const __m512i under = STEP ? _mm512_loadu_si512(below + 8 * k) : _mm512_set1_epi64(*below);
            add = _mm512_mask_mov_epi64(add, _mm512_movepi64_mask(x), under);
        }
        const __m512i y = _mm512_add_epi64(_mm512_srav_epi64(_mm512_add_epi64(_mm512_mul_epi32(x, m), add), by), zero);
        half[k] = _mm512_cvtepi64_epi32(_mm512_min_epi64(_mm512_max_epi64(y, least), most));
    }
    return (vi32)_mm512_inserti64x4(_mm512_castsi256_si512(half[0]), half[1], 1);
#else
    vi32 result;
    for (int k = 0; k < LANES; k++) {
        const int64_t add = SYMMETRIC && sums[k] < 0 ? below[STEP * k] : above[STEP * k];
        const int64_t y = ((sums[k] * multiplier[STEP * k] + add) >> shift[STEP * k]) + zero_point;
        result[k] = (int32_t)(y < low ? low : y > high ? high : y);
    }
    return result;
#endif
}

// The low bits of LANES integers.
static inline void narrow(vi32 v, int32_t *p) { store(p, v); }
static inline void narrow(vi32 v, int16_t *p) {
#if LEVEL_AVX512
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)v));
#else
    int16_t out[LANES];
    for (int k = 0; k < LANES; k++) out[k] = (int16_t)v[k];
    memcpy(p, out, sizeof out);
#endif
}
static inline void narrow(vi32 v, uint8_t *p) {
#if LEVEL_AVX512
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v));
#elif LEVEL_AVX2
    const __m256i bytes = _mm256_shuffle_epi8((__m256i)v, _mm256_set1_epi32(0x0c080400));
    const int64_t low = (uint32_t)_mm256_extract_epi32(bytes, 0), high = (uint32_t)_mm256_extract_epi32(bytes, 4);
    const int64_t both = low | high << 32;
    memcpy(p, &both, 8);
#else
    uint8_t out[LANES];
    for (int k = 0; k < LANES; k++) out[k] = (uint8_t)v[k];
    memcpy(p, out, sizeof out);
#endif
}
