// Rotary positions; contract in ms/rotary.h.
//
// Traffic  2 elements a value: both members of a pair are read and written by the same thread; cos and sin
//          are shared by all heads of a position and come from the caches.
// Launch   a thread holds 16 bytes of first members and 16 of second ones, and walks down rows.
// Tested against engine/ops/rotary.py.
#include "ms/rotary.h"

#include "common.cuh"

namespace ms {

constexpr int kThreads = 256;

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    rotary_kernel(const T* x, const T* cos, const T* sin, T* y, int rows, int batch, int pairs, int half,
                  int64_t x_stride, int64_t y_stride, wide_t<T> sign) {
    using W = wide_t<T>;
    const int p = (int(blockIdx.x) * int(blockDim.x) + int(threadIdx.x)) * V;
    if (p >= pairs) return;
    const int head = p / half, i = p - head * half, column = 2 * head * half + i;
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        const int64_t table = int64_t(row / batch) * half + i;
        const int64_t from = row * x_stride + column, to = row * y_stride + column;
        Pack<T, V> a = load<T, V>(x + from), b = load<T, V>(x + from + half);
        Pack<T, V> c = load<T, V>(cos + table), s = load<T, V>(sin + table);
#pragma unroll
        for (int k = 0; k < V; k++) {
            W first = widen(a.v[k]), second = widen(b.v[k]);
            W cosine = widen(c.v[k]), sine = sign * widen(s.v[k]);
            a.v[k] = narrow<T>(first * cosine - second * sine);
            b.v[k] = narrow<T>(second * cosine + first * sine);
        }
        store<T, V>(y + to, a);
        store<T, V>(y + to + half, b);
    }
}

}  // namespace ms

using namespace ms;

int ms_cuda_rotary(const void* x, const void* cos, const void* sin, void* y, int64_t rows, int64_t batch,
                   int64_t heads, int64_t dim, int64_t x_stride, int64_t y_stride, int inverse, int dtype,
                   void* stream) {
    if (rows < 0 || batch < 1 || heads < 1 || dim < 2 || dim % 2) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (x_stride < heads * dim || y_stride < heads * dim) return MS_BAD_SIZE;
    if (rows > INT32_MAX || heads * dim > INT32_MAX) return MS_BAD_SIZE;
    if (!x || !cos || !sin || !y) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t half = dim / 2, pairs = heads * half;
        bool packs = packs_fit<T>(half, x_stride | y_stride, x, cos, sin, y);
        auto kernel = packs ? rotary_kernel<T, kPack<T>> : rotary_kernel<T, 1>;
        int64_t each = int64_t(kThreads) * (packs ? kPack<T> : 1), strips = (pairs + each - 1) / each;
        int64_t groups = 4096 / strips < 1 ? 1 : 4096 / strips;
        dim3 grid(unsigned(strips), unsigned(groups < rows ? groups : rows));
        MS_RUN(kernel, grid, kThreads, stream, (const T*)x, (const T*)cos, (const T*)sin, (T*)y, int(rows),
               int(batch), int(pairs), int(half), x_stride, y_stride, wide_t<T>(inverse ? -1 : 1));
        return launched();
    });
}
