// What all kernels share: element types, 16-byte packs, sums over a block, column sums, launches.
//
// Only CUDA's own headers are included. Sums run in an order that depends on the sizes, never on which
// block finishes first; there are no atomics.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "ms/base.h"

#ifndef MS_RUN
#define MS_RUN(kernel, grid, block, stream, ...) \
    kernel<<<(grid), (block), 0, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__)
#endif

namespace ms {

template <class T> struct Wide { using type = float; };
template <> struct Wide<double> { using type = double; };
template <class T> using wide_t = typename Wide<T>::type;

__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(__half x) { return __half2float(x); }

template <class T> __device__ inline T narrow(wide_t<T> x) { return x; }
template <> __device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ inline __half narrow<__half>(float x) { return __float2half_rn(x); }

// exp and division: exact to rounding for float and double, the hardware's approximations (a few units in
// the last place of float) where the result is rounded to 16 bits anyway. The special function unit gives
// 16 results a clock and multiprocessor; two per value still keep up with device memory.
template <class T> struct Math {
    static __device__ float exp(float x) { return __expf(x); }
    static __device__ float divide(float a, float b) { return __fdividef(a, b); }
};
template <> struct Math<float> {
    static __device__ float exp(float x) { return expf(x); }
    static __device__ float divide(float a, float b) { return a / b; }
};
template <> struct Math<double> {
    static __device__ double exp(double x) { return ::exp(x); }
    static __device__ double divide(double a, double b) { return a / b; }
};
template <class T> __device__ inline wide_t<T> sigmoid(wide_t<T> x) {
    using W = wide_t<T>;
    return Math<T>::divide(W(1), W(1) + Math<T>::exp(-x));
}

// V neighbouring elements, loaded and stored at once.
template <class T, int V> struct alignas(V * sizeof(T)) Pack { T v[V]; };
template <class T> constexpr int kPack = 16 / int(sizeof(T));

template <class T, int V> __device__ inline Pack<T, V> load(const T* from) {
    return *reinterpret_cast<const Pack<T, V>*>(from);
}
template <class T, int V> __device__ inline void store(T* to, const Pack<T, V>& pack) {
    *reinterpret_cast<Pack<T, V>*>(to) = pack;
}

inline bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }  // NULL is
template <class T, class... P> bool packs_fit(int64_t cols, int64_t stride, const P*... pointers) {
    return cols % kPack<T> == 0 && stride % kPack<T> == 0 && (aligned(pointers) && ...);
}

constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;

template <class W> __device__ inline W warp_sum(W x) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAll, x, offset);
    return x;
}
template <class W> __device__ inline W warp_max(W x) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        W other = __shfl_xor_sync(kAll, x, offset);
        x = other > x ? other : x;
    }
    return x;
}

// Sums of two values over the block, the same in every thread; blockDim.x is a multiple of 32, at most 1024.
template <class W> __device__ inline void block_sum(W& a, W& b) {
    __shared__ W parts[2][kWarp];
    a = warp_sum(a);
    b = warp_sum(b);
    int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    if (threadIdx.x % kWarp == 0) {
        parts[0][warp] = a;
        parts[1][warp] = b;
    }
    __syncthreads();
    a = b = W(0);
    for (int w = 0; w < warps; w++) {
        a += parts[0][w];
        b += parts[1][w];
    }
    __syncthreads();  // before the next use of parts
}
template <class W> __device__ inline W block_max(W x) {
    __shared__ W parts[kWarp];
    x = warp_max(x);
    int warps = blockDim.x / kWarp;
    if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = parts[0];
    for (int w = 1; w < warps; w++) x = parts[w] > x ? parts[w] : x;
    __syncthreads();
    return x;
}

// Groups of rows whose column sums are kept apart: enough blocks to fill the largest GPU (132
// multiprocessors, 1024 threads each), few enough that their sums stay in the second-level cache.
inline int64_t column_groups(int64_t rows, int64_t cols) {
    int64_t groups = (int64_t(1) << 20) / (cols < 1 ? 1 : cols);
    groups = groups < 256 ? 256 : groups > 2048 ? 2048 : groups;
    return rows < groups ? rows : groups;
}

// sum[c] += partial[0][c] + partial[1][c] + ...; 32 columns and 16 lanes of groups a block.
constexpr int kLanes = 16;
template <class W>
__global__ void __launch_bounds__(kWarp* kLanes)
    add_groups(const W* partial, W* sum, int64_t groups, int64_t cols, int64_t stride) {
    __shared__ W parts[kLanes][kWarp];
    int column = threadIdx.x % kWarp, lane = threadIdx.x / kWarp;
    int64_t c = int64_t(blockIdx.x) * kWarp + column;
    W total = W(0);
    if (c < cols)
        for (int64_t g = lane; g < groups; g += kLanes) total += partial[g * stride + c];
    parts[lane][column] = total;
    __syncthreads();
    if (lane != 0 || c >= cols) return;
    for (int l = 1; l < kLanes; l++) total += parts[l][column];
    sum[c] += total;
}
template <class W>
void launch_add_groups(const W* partial, W* sum, int64_t groups, int64_t cols, int64_t stride,
                       void* stream) {
    auto kernel = add_groups<W>;
    MS_RUN(kernel, unsigned((cols + kWarp - 1) / kWarp), kWarp * kLanes, stream, partial, sum, groups,
              cols, stride);
}

inline int launched() { return cudaGetLastError() == cudaSuccess ? MS_OK : MS_LAUNCH; }

template <class F> int by_dtype(int dtype, const F& f) {
    switch (dtype) {
        case MS_F32: return f(float());
        case MS_F64: return f(double());
        case MS_BF16: return f(__nv_bfloat16());
        case MS_F16: return f(__half());
        default: return MS_BAD_DTYPE;
    }
}

}  // namespace ms
