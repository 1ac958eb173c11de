// Element types, vectorisable exp, threads and column sums for the C++ twins.
//
// Loops are written so that the compiler vectorises them (`omp simd` pragmas, no OpenMP run time). Nothing
// here may depend on the number of threads: work is cut by sizes, never by who does it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "ms/base.h"

namespace ms {

struct bf16 {
    uint16_t bits;
};

template <class T> struct Wide { using type = float; };
template <> struct Wide<double> { using type = double; };
template <class T> using wide_t = typename Wide<T>::type;

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(bf16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }

template <class T> inline T narrow(wide_t<T> x) { return x; }
template <> inline bf16 narrow<bf16>(float x) {  // to nearest, ties to even; NaN stays NaN
    uint32_t bits = std::bit_cast<uint32_t>(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {uint16_t(x != x ? 0x7fc0u : rounded)};
}

// exp by x = n ln2 + r, |r| <= ln2 / 2, a Taylor polynomial in r (below half an ulp: degree 7 for float, 13
// for double) and n put into the exponent. Adding 1.5 * 2^(mantissa bits) rounds to the nearest integer.
inline float exp_of(float x) {
    constexpr float low = -87.0f, high = 88.7f, magic = 12582912.0f;
    float y = x < low ? low : x;
    y = y > high ? high : y;
    float shifted = y * 1.44269504088896341f + magic;
    float n = shifted - magic;
    float r = y - n * 0.693359375f;
    r = r - n * -2.12194440054690583e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    // in two factors, since 2^128 does not exist
    int32_t k = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(magic);
    float scale = std::bit_cast<float>((k - 1 + 127) << 23);
    float e = p * scale * 2.0f;
    e = x < low ? 0.0f : e;
    return x > high ? std::numeric_limits<float>::infinity() : e;
}

inline double exp_of(double x) {
    constexpr double low = -708.0, high = 709.7, magic = 6755399441055744.0;
    double y = x < low ? low : x;
    y = y > high ? high : y;
    double shifted = y * 1.44269504088896340736 + magic;
    double n = shifted - magic;
    double r = y - n * 6.93145751953125e-1;
    r = r - n * 1.42860682030941723212e-6;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    int64_t k = std::bit_cast<int64_t>(shifted) - std::bit_cast<int64_t>(magic);
    double scale = std::bit_cast<double>((k - 1 + 1023) << 52);
    double e = p * scale * 2.0;
    e = x < low ? 0.0 : e;
    return x > high ? std::numeric_limits<double>::infinity() : e;
}

template <class W> inline W sigmoid(W x) { return W(1) / (W(1) + exp_of(-x)); }

// Run body(begin, end) over `count` pieces on the threads behind `stream`.
template <class Body> void spread(void* stream, int64_t count, int64_t grain, const Body& body) {
    if (count <= 0) return;
    const ms_threads* threads = static_cast<const ms_threads*>(stream);
    if (threads == nullptr || count <= grain) {
        body(int64_t(0), count);
        return;
    }
    auto call = [](int64_t begin, int64_t end, void* context) {
        (*static_cast<const Body*>(context))(begin, end);
    };
    threads->run(count, grain, call, const_cast<Body*>(&body));
}

// Rows a thread should take at least, so that starting it pays (about 32k elements).
inline int64_t row_grain(int64_t cols) { return 1 + 32768 / (cols + 1); }

// Groups of rows whose sums are kept apart (at most 64), and the rows of one group.
inline int64_t group_rows(int64_t rows) {
    int64_t each = (rows + 63) / 64;
    return each < 32 ? 32 : each;
}
inline int64_t group_count(int64_t rows) { return (rows + group_rows(rows) - 1) / group_rows(rows); }

// sum[c] += partial[0][c] + partial[1][c] + ...: groups in order, `stride` apart.
template <class W>
void add_groups(const W* partial, W* sum, int64_t groups, int64_t cols, int64_t stride) {
    for (int64_t g = 0; g < groups; g++) {
        const W* part = partial + g * stride;
#pragma omp simd
        for (int64_t c = 0; c < cols; c++) sum[c] += part[c];
    }
}

// Call f with a value of the element type. Nobody trains in fp16 on a CPU: MS_BAD_DTYPE, torch does it.
template <class F> int by_dtype(int dtype, const F& f) {
    switch (dtype) {
        case MS_F32: return f(float());
        case MS_F64: return f(double());
        case MS_BF16: return f(bf16());
        default: return MS_BAD_DTYPE;
    }
}

}  // namespace ms
