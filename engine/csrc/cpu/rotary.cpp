// Rotary positions on the CPU.
#include "ms/rotary.h"

#include "common.hpp"

namespace ms {

template <class T>
void rotary_row(const T* x, const T* cos, const T* sin, T* y, int64_t heads, int64_t half, wide_t<T> sign) {
    using W = wide_t<T>;
    for (int64_t h = 0; h < heads; h++) {
        const T *first = x + 2 * h * half, *second = first + half;
        T *to = y + 2 * h * half, *beside = to + half;
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
            W a = widen(first[i]), b = widen(second[i]), c = widen(cos[i]), s = sign * widen(sin[i]);
            to[i] = narrow<T>(a * c - b * s);
            beside[i] = narrow<T>(b * c + a * s);
        }
    }
}

}  // namespace ms

using namespace ms;

int ms_cpu_rotary(const void* x, const void* cos, const void* sin, void* y, int64_t rows, int64_t batch,
                  int64_t heads, int64_t dim, int64_t x_stride, int64_t y_stride, int inverse, int dtype,
                  void* stream) {
    if (rows < 0 || batch < 1 || heads < 1 || dim < 2 || dim % 2) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (x_stride < heads * dim || y_stride < heads * dim) return MS_BAD_SIZE;
    if (!x || !cos || !sin || !y) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t half = dim / 2;
        wide_t<T> sign = inverse ? -1 : 1;
        spread(stream, rows, row_grain(heads * dim), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r++)
                rotary_row((const T*)x + r * x_stride, (const T*)cos + r / batch * half,
                           (const T*)sin + r / batch * half, (T*)y + r * y_stride, heads, half, sign);
        });
        return int(MS_OK);
    });
}
